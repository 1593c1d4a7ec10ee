"""What damaged files have shown, each as the smallest model that shows it."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_models import model as onnx_model
from onnx_models import node as onnx_node
from small_models import caffe2_net, caffe2_operator
from tenon import frontends
from tenon.errors import FormatError, ModelError
from tensorflow_models import const, graph, node
from tflite_models import Model


def refusal(data: bytes, **how: object) -> str:
    """The message with which a model is refused: never more than a reader can take in."""
    with pytest.raises(ModelError) as caught:
        frontends.load(data, **how)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 3000
    return str(caught.value)


def test_an_output_that_its_layer_does_not_make() -> None:
    """In a net without weights, where shapes are not known and nobody misses it."""
    operators = [caffe2_operator("Relu", ["x"], ["y", "z"]), caffe2_operator("Add", ["z", "w"], ["a"])]
    with pytest.raises(FormatError, match=r"Add_1 \(Add\) reads 'z', which nothing makes"):
        frontends.load(caffe2_net(operators, ["x", "w"], ["a"]))


def test_a_function_of_real_numbers_of_constant_integers() -> None:
    made = Model()
    x, y = made.constant("x", np.array([1, 2], np.int32)), made.tensor("y", (2,), "i32")
    made.add("SOFTMAX", [x], [y], beta=1.0)
    assert "y (SOFTMAX) of i32[2]: Softmax is not defined for i32" in refusal(made.bytes([], [y]))


def test_a_shape_of_a_thousand_extents() -> None:
    made = Model()
    x, y = made.tensor("x", (1, 2)), made.tensor("y", [123456789] * 3000)
    made.add("RELU", [x], [y])
    assert " ... " in refusal(made.bytes([x], [y]))


@pytest.mark.parametrize("count", [7, 100_000])
def test_more_axes_than_any_tensor_has(count: int) -> None:
    reduction = onnx_node("ReduceMean", ["x", "axes"], ["y"])
    made = onnx_model([reduction], {"x": (2, 3)}, ["y"], {"axes": np.arange(count)})
    assert str(count) in refusal(made.SerializeToString())


def test_a_loop_whose_nodes_read_nothing() -> None:
    exit = node("last", "Exit")
    assert "'last' (Exit) reads 0 tensors" in refusal(graph(const("x", 1.0), exit))
    switch = node("switch", "Switch", "x"), node("last", "Exit", "switch:1")
    assert "'switch' (Switch) reads 1 tensors" in refusal(graph(const("x", 1.0), *switch))
