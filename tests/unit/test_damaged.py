"""Regression tests for faults found by fuzzing importers, each with a minimal model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from keras_models import functional, h5, layer, start
from onnx_models import model as onnx_model
from onnx_models import node as onnx_node
from small_models import caffe2_net, caffe2_operator, mace_net, mxnet_symbol, ncnn_net
from tenon.errors import FormatError, ModelError
from tenon.formats import importers
from tenon.network.graph.graph import Graph, Origin
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.verify import verify
from tenon.network.graph.writer import reason
from tenon.network.ops import registry
from tenon.network.passes import optimize
from tensorflow_models import const, graph, node
from tflite_models import Model


def refusal(data: bytes, **how: object) -> str:
    """The error message for a model, whose length is bounded."""
    with pytest.raises(ModelError) as caught:
        importers.load(data, **how)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 3000
    return str(caught.value)


def test_output_that_the_layer_does_not_have() -> None:
    """In a net without weights, in which shapes are unknown."""
    operators = [caffe2_operator("Relu", ["x"], ["y", "z"]), caffe2_operator("Add", ["z", "w"], ["a"])]
    with pytest.raises(FormatError, match=r"Add_1 \(Add\) reads 'z', which no node computes"):
        importers.load(caffe2_net(operators, ["x", "w"], ["a"]))


def test_float_function_of_integer_constant() -> None:
    made = Model()
    x, y = made.constant("x", np.array([1, 2], np.int32)), made.tensor("y", (2,), "i32")
    made.add("SOFTMAX", [x], [y], beta=1.0)
    assert "y (SOFTMAX) of i32[2]: Softmax is not defined for i32" in refusal(made.bytes([], [y]))


def test_shape_with_a_thousand_dimensions() -> None:
    made = Model()
    x, y = made.tensor("x", (1, 2)), made.tensor("y", [123456789] * 3000)
    made.add("RELU", [x], [y])
    assert " ... " in refusal(made.bytes([x], [y]))


@pytest.mark.parametrize("count", [7, 100_000])
def test_axis_count_beyond_the_limit(count: int) -> None:
    reduction = onnx_node("ReduceMean", ["x", "axes"], ["y"])
    made = onnx_model([reduction], {"x": (2, 3)}, ["y"], {"axes": np.arange(count)})
    assert str(count) in refusal(made.SerializeToString())


def test_loop_with_nodes_without_inputs() -> None:
    exit = node("last", "Exit")
    assert "'last' (Exit) reads 0 tensors" in refusal(graph(const("x", 1.0), exit))
    switch = node("switch", "Switch", "x"), node("last", "Exit", "switch:1")
    assert "'switch' (Switch) reads 1 tensors" in refusal(graph(const("x", 1.0), *switch))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_padding_to_billions_of_elements(mode: str) -> None:
    pad = onnx_node("Pad", ["x", "pads"], ["y"], mode=mode)
    made = onnx_model([pad], {"x": [2]}, ["y"], {"pads": np.array([0, 2**31])})
    assert "Pad: an axis of 2147483650 elements" in refusal(made.SerializeToString())


def test_more_dimensions_than_numpy_supports() -> None:
    made = onnx_model([onnx_node("Expand", ["x", "s"], ["y"])], {"x": [2]}, ["y"], {"s": np.ones(40, np.int64)})
    assert "do not broadcast" in refusal(made.SerializeToString())
    made = onnx_model([onnx_node("Relu", ["x"], ["y"])], {"x": [1] * 40}, ["y"])
    assert "reads a tensor of 40 axes; at most 32" in refusal(made.SerializeToString())


def test_large_constant_products_are_not_folded() -> None:
    weights = {"a": np.zeros(1, np.float32), "s": np.array([2048, 2048])}
    nodes = [onnx_node("Expand", ["a", "s"], ["m"]), onnx_node("MatMul", ["m", "m"], ["y"])]
    assert "takes too long to compute" in refusal(onnx_model(nodes, {}, ["y"], weights).SerializeToString())


def test_only_the_first_problem_of_a_layer_is_reported() -> None:
    """Follow-up problems, such as missing shapes in the rest of the layer, are not reported."""
    made = Model()
    pads = made.constant("p", np.array([[0, 0], [0, 2**31 - 1]], np.int32))
    x, y = made.tensor("x", (1, 2), "u8", scale=[0.5]), made.tensor("y", (1, 2), "u8", scale=[0.5])
    made.add("PAD", [x, pads], [y])
    assert "1 problem in this model" in refusal(made.bytes([x], [y]))


def test_name_that_is_not_utf8() -> None:
    data = onnx_model([onnx_node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]).SerializeToString()
    assert "a name in it is not text" in refusal(data.replace(b"made", b"ma\x82e"))


def test_huge_deformable_convolution() -> None:
    node = onnx_node("DeformConv", ["x", "w", "o"], ["y"], kernel_shape=[1, 1], pads=[0, 10**8, 0, 10**8])
    made = onnx_model([node], {"x": [1, 1, 3, 3], "o": [1, 2, 3, 3]}, ["y"], {"w": np.ones((1, 1, 1, 1), np.float32)})
    assert "offsets [1, 2, 3, 3] do not fit 600000009 positions of 1 taps" in refusal(made.SerializeToString())


def test_unexpected_errors_are_reported_without_traceback() -> None:
    crop = mxnet_symbol(("null", "data", {}, ()), ("Crop", "y", {}, (0,)))
    message = refusal(crop, shapes={"data": (1, 2, 3, 3)})
    assert "y (Crop): its parameters or inputs are invalid" in message
    assert "Error(" not in message
    assert [reason(error) for error in (KeyError("axis"), KeyError(), IndexError("pop"), MemoryError())] == [
        "there is no 'axis'",
        "something is missing",
        "a list is shorter than it should be",
        "it needs more memory than there is",
    ]
    assert reason(AssertionError()) == "AssertionError"


def test_an_input_larger_than_any_memory() -> None:
    net = ncnn_net("Pooling p 1 1 data y 0=1 4=1", shape="0=1e40 1=5 2=3")
    assert "at most 2147483648 elements are possible" in refusal(net)


def test_gemm_with_f16_product_and_f32_addend() -> None:
    graph = Graph("made")
    a, b = (graph.add_input(name, TensorType(DType.F16, (2, 2))) for name in "ab")
    c = graph.add_input("c", TensorType(DType.F32, (2,)))
    graph.outputs = [graph.add(registry()["Gemm"](), [a, b, c], ["y"], Origin("", "y", "Gemm")).output]
    optimize(graph)
    verify(graph)


def test_huge_delays() -> None:
    delays: dict[str, int | float | str | Sequence[int] | Sequence[float]]
    delays = {"prev_out_delay": 1, "prev_cell_delay": -(10**6), "forward_indexes": [0]}
    weights = [np.ones((1, 2, 3), np.float32)] * 6
    data = b"".join(w.tobytes() for w in weights)
    assert "1 frames with delays of [1, 1000000]" in refusal(mace_net("DynamicLSTM", delays, weights), weights=data)


def test_huge_prior_box_map() -> None:
    net = b"[net]\nheight=4096\nwidth=4096\nchannels=12\n[yolo]\nmask=0,1\nanchors=1,2, 3,4\nclasses=1\nnum=2\n"
    assert "a map of 4096 x 4096 cells" in refusal(net)


def test_frames_longer_than_the_signal() -> None:
    made = Model()
    x, y, ready = (
        made.tensor("x", (1, 2**20), "i16"),
        made.tensor("y", (1, 2**20, 64), "i16"),
        made.tensor("r", (), "bool"),
    )
    made.add("SignalFramer", [x], [y, ready], frame_size=64, frame_step=1, prefill=1)
    assert "frames of 64 samples, 1 apart, do not come from 1048576" in refusal(made.bytes([x], [y]))


def test_input_that_is_also_a_node_output() -> None:
    made = onnx_model([onnx_node("Relu", ["x"], ["y"])], {"x": [2], "y": [2]}, ["y"])
    assert "'y' is an input, and a node makes it" in refusal(made.SerializeToString())


def test_symbol_nodes_with_invalid_inputs() -> None:
    valid = mxnet_symbol(("null", "data", {}, ()), ("relu", "y", {}, (0,)))
    for part, damage in ((b"[[0, 0, 0]]", b"[[2, 0, 0]]"), (b"[[0, 0, 0]]", b"[7]"), (b"[[0, 0, 0]]", b'[["a", 0]]')):
        assert "node 'y' reads what is no node's output" in refusal(valid.replace(part, damage))
    assert "what it gives is no node's output" in refusal(valid.replace(b"[[1, 0, 0]]", b"[[1, -1]]"))
    assert "node 1 has no operator or no name" in refusal(valid.replace(b'"op": "relu"', b'"op": 3'))


def test_keras_configurations_with_missing_fields() -> None:
    def description(**damage: object) -> bytes:
        model = functional(["x"], ["y"], start("x", 2), layer("ReLU", "y", "x"))
        model["config"].update(damage)
        return h5(model, {})

    inner = layer("ReLU", "y", "x")
    assert "has no layers where it should" in refusal(description(layers=3))
    assert "has no input_layers where it should" in refusal(description(input_layers=None))
    assert "the input 'z' is no layer" in refusal(description(input_layers=[["z", 0, 0]]))
    assert "'z' has no output 0" in refusal(description(output_layers=[["z", 0, 0]]))
    assert "a layer without a class or a config" in refusal(
        description(layers=[start("x", 2), {**inner, "config": 1}, []])
    )


def test_split_into_a_million_parts() -> None:
    cut = mxnet_symbol(("null", "data", {}, ()), ("SliceChannel", "y", {"num_outputs": "1048576", "axis": "0"}, (0,)))
    with pytest.raises(ModelError, match="an axis of 1048576 cannot be cut into 1048576 equal parts"):
        importers.load(cut, {"data": (1 << 20,)})


def test_binary_data_in_paddle_program_gives_a_short_message() -> None:
    data = b'{"base_code": {"magic": "pir", "version": 4}, "program": "' + b"x" * 5000 + b'\xff"}'
    assert len(refusal(data)) < 200
