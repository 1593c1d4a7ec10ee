"""Keras files: HDF5, weights by name and by number, recurrent layers, wrappers, and errors."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np
import pytest

import tenon
from evaluate import evaluate
from keras_models import archive, functional, h5, layer, sequential, small, start
from real import ROOT
from tenon.errors import FormatError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.keras.layers import ACTIVATIONS, LAYERS
from tenon.formats.wire.hdf5 import Hdf5File
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import Quant

pytestmark = pytest.mark.quick(importer="keras")


def run(graph: Graph, *inputs: Array) -> list[Array]:
    return list(evaluate(graph, {v.name: a for v, a in zip(graph.inputs, inputs, strict=True)}).values())


def some(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


# -------------------------------------------------------------------------------------------------------- HDF5
@pytest.mark.parametrize("version", ["earliest", "latest"])
def test_hdf5_reader_matches_h5py(version: str) -> None:
    out = io.BytesIO()
    with h5py.File(out, "w", libver=version) as file:
        file.attrs["text"] = "é" * 5000
        file.attrs["number"] = np.int64(-3)
        group = file.create_group("a/b")
        group.attrs["names"] = [b"one", b"three"]
        for i in range(3 if version == "latest" else 40):
            group[f"array{i}"] = np.arange(i + 1, dtype=("<f4", ">f8", "<i2", "u1")[i % 4]).reshape(1, -1)
        group["scalar"] = np.float16(1.5)
        group["empty"] = np.zeros((0, 4), np.float32)
    root = Hdf5File(out.getvalue()).root
    assert root.attributes["text"] == "é" * 5000
    assert root.attributes["number"] == -3
    outputs = root.find("a/b")
    assert outputs is not None
    assert outputs.attributes["names"] == ["one", "three"]
    with h5py.File(out, "r") as file:
        assert sorted(outputs.children) == sorted(file["a/b"])
        for name, node in outputs.children.items():
            np.testing.assert_array_equal(node.array, file[f"a/b/{name}"][()])
            assert node.array.dtype == file[f"a/b/{name}"].dtype


def test_compressed_data_is_refused() -> None:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.create_dataset("x", data=np.zeros((100, 100)), compression="gzip")
    with pytest.raises(FormatError, match="compressed"):
        _ = Hdf5File(out.getvalue()).root.children["x"].array


# ------------------------------------------------------------------------------------------------------- weights
def dense_model(new: bool) -> dict[str, Any]:
    shape = {"batch_shape": [None, 3]} if new else {"batch_input_shape": [None, 3]}
    return sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "dtype": "float32", **shape}},
        {"class_name": "Dense", "config": {"name": "a", "units": 4, "activation": "relu", "use_bias": True}},
        {"class_name": "Dense", "config": {"name": "b", "units": 2, "activation": "linear", "use_bias": False}},
    )


def test_both_formats_agree() -> None:
    a, bias, b, x = some(3, 4), some(4, seed=1), some(4, 2, seed=2), some(1, 3, seed=3)
    old = h5(dense_model(False), {"a": {"a/kernel": a, "a/bias": bias}, "b": {"b/kernel": b}})
    new = archive(dense_model(True), {"dense": [a, bias], "dense_1": [b]})
    expected = np.maximum(x @ a + bias, 0) @ b
    for data in (old, new):
        graph = importers.load(data)
        assert [v.name for v in (*graph.inputs, *graph.outputs)] == ["x", "b"]
        np.testing.assert_allclose(run(graph, x)[0], expected, atol=1e-6)


def test_keras_3_functional_graphs() -> None:
    """Tensors refer to their producers; a layer is applied twice."""

    def tensor(name: str, call: int = 0) -> dict[str, Any]:
        return {"class_name": "__keras_tensor__", "config": {"shape": [None, 3], "keras_history": [name, call, 0]}}

    def entry(kind: str, name: str, *calls: list[Any], **config: Any) -> dict[str, Any]:
        nodes = [{"args": call, "kwargs": {}} for call in calls]
        return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": nodes}

    model = functional(
        ["x"],
        ["sum"],
        entry("InputLayer", "x", batch_shape=[None, 3]),
        entry("Dense", "d", [tensor("x")], [tensor("d")], units=3, use_bias=False),
        entry("Add", "sum", [[tensor("d", 0), tensor("d", 1)]]),
    )
    model["config"]["input_layers"] = ["x", 0, 0]
    model["config"]["output_layers"] = ["sum", 0, 0]
    kernel, x = some(3, 3), some(1, 3, seed=1)
    (output,) = run(importers.load(archive(model, {"dense": [kernel]})), x)
    np.testing.assert_allclose(output, x @ kernel + x @ kernel @ kernel, atol=1e-5)


def test_nested_models() -> None:
    inner = functional(["i"], ["d"], start("i", 3), layer("Dense", "d", "i", units=2, use_bias=False))
    nested = {**layer("Functional", "inner", "x"), "config": {**inner["config"], "name": "inner"}}
    outer = functional(["x"], ["neg"], start("x", 3), nested, layer("ReLU", "neg", "inner", negative_slope=0.5))
    kernel, x = some(3, 2), some(1, 3, seed=1)
    (output,) = run(importers.load(h5(outer, {"inner": {"d/kernel": kernel}})), x)
    y = x @ kernel
    np.testing.assert_allclose(output, np.where(y < 0, y / 2, y), atol=1e-6)


# --------------------------------------------------------------------------------------------------- recurrent
def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm(x: Array, kernel: Array, recurrent: Array, bias: Array) -> Array:
    """Keras's equations: gates in the order input, forget, cell, output."""
    h = c = np.zeros((x.shape[0], recurrent.shape[0]))
    steps = []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        steps.append(h)
    return np.stack(steps, 1)


def gru(x: Array, kernel: Array, recurrent: Array, bias: Array) -> Array:
    """Gates in the order update, reset, hidden; the reset gate after the product."""
    h, units = np.zeros((x.shape[0], recurrent.shape[0])), recurrent.shape[0]
    steps = []
    for t in range(x.shape[1]):
        a, b = x[:, t] @ kernel + bias[0], h @ recurrent + bias[1]
        z, r = sigmoid(a[:, :units] + b[:, :units]), sigmoid(a[:, units : 2 * units] + b[:, units : 2 * units])
        h = z * h + (1 - z) * np.tanh(a[:, 2 * units :] + r * b[:, 2 * units :])
        steps.append(h)
    return np.stack(steps, 1)


def recurrent(kind: str, arrays: dict[str, Array], **config: Any) -> Graph:
    inner = {"class_name": kind, "config": {"name": "r", "units": 4, **config}}
    model = sequential({"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 5, 3]}}, inner)
    return importers.load(h5(model, {"r": {f"r/cell/{k}": v for k, v in arrays.items()}}))


@pytest.mark.parametrize("sequences", [False, True])
def test_recurrent_layers(sequences: bool) -> None:
    x = some(1, 5, 3)
    for kind, gates, reference in (("LSTM", 4, lstm), ("GRU", 3, gru)):
        biases = (2, 4 * gates) if kind == "GRU" else (4 * gates,)
        kernel, state, bias = some(3, 4 * gates, seed=1), some(4, 4 * gates, seed=2), some(*biases, seed=3)
        arrays = {"kernel": kernel, "recurrent_kernel": state, "bias": bias}
        settings = {"reset_after": True} if kind == "GRU" else {}
        (output,) = run(recurrent(kind, arrays, return_sequences=sequences, **settings), x)
        expected = reference(x.astype(np.float64), kernel, state, bias)
        np.testing.assert_allclose(output, expected if sequences else expected[:, -1], atol=1e-5)


def test_simple_rnn_and_go_backwards() -> None:
    kernel, state, bias, x = some(3, 4), some(4, 4, seed=1), some(4, seed=2), some(1, 5, 3, seed=3)
    graph = recurrent("SimpleRNN", {"kernel": kernel, "recurrent_kernel": state, "bias": bias}, go_backwards=True)
    h = np.zeros((1, 4))
    for t in reversed(range(5)):
        h = np.tanh(x[:, t] @ kernel + h @ state + bias)
    np.testing.assert_allclose(run(graph, x)[0], h, atol=1e-5)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_stateful_layers(kind: str) -> None:
    """Two runs of five steps give what one of ten does; after a reset, the first five again."""
    gates, reference = (4, lstm) if kind == "LSTM" else (3, gru)
    bias = some(*((2, 4 * gates) if kind == "GRU" else (4 * gates,)), seed=3)
    kernel, state, x = some(3, 4 * gates, seed=1), some(4, 4 * gates, seed=2), some(1, 10, 3)
    rnn = {"name": "r", "units": 4, "stateful": True, "return_sequences": True, "reset_after": True}
    start = {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [1, 5, 3]}}
    arrays = {"r/cell/kernel": kernel, "r/cell/recurrent_kernel": state, "r/cell/bias": bias}
    content = h5(sequential(start, {"class_name": kind, "config": rnn}), {"r": arrays})
    graph = importers.load(content)
    assert graph.states == {f"r_{part}": i for i, part in enumerate("hc"[: gates - 2], 1)}
    expected = reference(x.astype(np.float64), kernel, state, bias)
    with tenon.open(tenon.compile(graph, no_tuning=True)) as engine:
        for part in (0, 5, 0):
            if part == 0:
                engine.reset()
            (result, *_) = engine.run({"x": x[:, part : part + 5]}).values()
            np.testing.assert_allclose(result, expected[:, part : part + 5], atol=1e-5)


def test_bidirectional() -> None:
    weights = [(some(3, 16, seed=s), some(4, 16, seed=s + 1), some(16, seed=s + 2)) for s in (1, 5)]
    names = ("kernel", "recurrent_kernel", "bias")
    arrays = {
        f"b/{side}_lstm/cell/{name}": array
        for side, group in zip(("forward", "backward"), weights, strict=True)
        for name, array in zip(names, group, strict=True)
    }
    inner = {"class_name": "LSTM", "config": {"name": "lstm", "units": 4, "return_sequences": True}}
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 5, 3]}},
        {"class_name": "Bidirectional", "config": {"name": "b", "layer": inner, "merge_mode": "concat"}},
    )
    x = some(1, 5, 3)
    (output,) = run(importers.load(h5(model, {"b": arrays})), x)
    forward, backward = lstm(x, *weights[0]), lstm(x[:, ::-1], *weights[1])[:, ::-1]
    np.testing.assert_allclose(output, np.concatenate([forward, backward], -1), atol=1e-5)


# ------------------------------------------------------------------------------- quantisation-aware training
def test_quantisation_wrappers_keep_their_ranges() -> None:
    inner = {"class_name": "Dense", "config": {"name": "d", "units": 2, "use_bias": False, "activation": "relu"}}
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 3]}},
        {"class_name": "QuantizeLayer", "config": {"name": "q", "quantizer": {"config": {"num_bits": 8}}}},
        {"class_name": "QuantizeWrapperV2", "config": {"name": "w", "layer": inner}},
    )
    kernel = np.array([[0.5, -1], [0.24, 0.3], [1, 0]], np.float32)
    ranges = (
        {"q/quantize_layer_min": -1.0, "q/quantize_layer_max": 1.55},
        {"w/kernel_min": -1.27, "w/kernel_max": 1.27, "w/post_activation_min": 0.0, "w/post_activation_max": 2.55},
    )
    first, second = ({k: np.array(v, np.float32) for k, v in group.items()} for group in ranges)
    graph = importers.load(h5(model, {"q": first, "w": {"w/kernel": kernel, **second}}))
    pair = ["QuantizeLinear", "DequantizeLinear"]
    assert [n.op.name for n in graph] == [*pair, "Gemm", "Relu", *pair]
    gemm = graph.nodes[2]
    assert isinstance(gemm.input(1).type.quant, Quant)
    np.testing.assert_allclose(gemm.input(1).array, np.round(kernel / 0.01) * 0.01, atol=1e-6)
    (output,) = run(graph, np.array([[0.104, -3, 0.5]], np.float32))
    np.testing.assert_allclose(output, [[0.31, 0]], atol=1e-6)  # 0.1 * 0.5 - 0.24 + 0.5; less than 0


def test_quantisation_annotations_are_ignored() -> None:
    inner = {"class_name": "ReLU", "config": {"name": "r", "max_value": 6.0}}
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 3]}},
        {"class_name": "QuantizeAnnotate", "config": {"name": "a", "layer": inner}},
    )
    np.testing.assert_array_equal(
        run(importers.load(h5(model, {})), np.array([[-1, 3, 9]], np.float32))[0], [[0, 3, 6]]
    )


# ---------------------------------------------------------------------------------------------------- refusals
def test_all_unsupported_layers_are_reported_and_no_code_is_run() -> None:
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, 3]}},
        {"class_name": "Lambda", "config": {"name": "code", "function": ["gASVLgAAAAAAAACMBXBvc2l4", None, None]}},
        {"class_name": "Activation", "config": {"name": "mine", "activation": "my_own"}},
        {"class_name": "ConvLSTM2D", "config": {"name": "look"}},
    )
    with pytest.raises(UnsupportedError, match="never run") as error:
        importers.load(h5(model, {}))
    assert [p.where for p in error.value.problems] == ["code (Lambda)", "look (ConvLSTM2D)"]


def test_unknown_extents_and_missing_weights() -> None:
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [None, None, 3]}},
        {"class_name": "Dense", "config": {"name": "d", "units": 2}},
    )
    with pytest.raises(ShapeError, match="--shape"):
        importers.load(h5(model, {}))
    with pytest.raises(UnsupportedError, match="0 of its 2 weights"):
        importers.load(h5(model, {}), {"x": (1, 5, 3)})


def test_files_without_a_model() -> None:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(FormatError, match="no model_config"):
        importers.load(out.getvalue())
    with pytest.raises(FormatError, match="defined by code"):
        importers.load(h5({"class_name": "MyModel", "config": {"layers": []}}, {}))


def test_decompression_limit_of_archives() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("config.json", json.dumps(dense_model(True)))
        file.writestr("model.weights.h5", bytes(64 << 20))
    data = out.getvalue()
    bigger = data.replace((64 << 20).to_bytes(4, "little"), (4095 << 20).to_bytes(4, "little"))
    with pytest.raises(FormatError, match=r"damaged|HDF5"):
        importers.load(bigger)


def test_a_small_model() -> None:
    graph = importers.load(small())
    assert [str(v.type) for v in graph.outputs] == ["f32[1,2]"]
    (output,) = run(graph, some(1, 6, 5, 2))
    np.testing.assert_allclose(output.sum(), 1, atol=1e-6)


def test_every_layer_is_documented() -> None:
    words = set((ROOT / "docs/reference/formats/keras.md").read_text().replace(".", " ").split())
    assert {name.removeprefix("ops.") for name in (*LAYERS, *ACTIVATIONS)} - {"NoOpActivation"} <= words


DENSE = {"units": 2, "use_bias": False}


def keras_3(model: dict[str, Any], weights: Mapping[str, Any]) -> list[Array]:
    """The output of a Keras 3 file for [[1, 2]]."""
    graph = importers.load(archive(model, weights))
    return list(evaluate(graph, {"x": np.array([[1, 2]], np.float32)}).values())


def test_call_numbers_of_nested_models() -> None:
    inner = functional(["a"], ["d"], start("a", 2), layer("Dense", "d", "a", **DENSE))
    nested = {**inner, "name": "inner", "inbound_nodes": [[["x", 0, 0, {}]], [["inner", 0, 0, {}]]]}
    model = functional(["x"], ["inner"], start("x", 2), nested)
    model["config"]["output_layers"] = [["inner", 2, 0]]
    (output,) = keras_3(model, {"functional/layers/dense": [2 * np.eye(2, dtype=np.float32)]})
    np.testing.assert_array_equal(output, [[4, 8]])


def test_functions_between_layers() -> None:
    tensor = {"class_name": "__keras_tensor__", "config": {"keras_history": ["x", 0, 0]}}
    function = {
        "class_name": "Subtract",
        "name": "y",
        "config": {"name": "y"},
        "inbound_nodes": [{"args": [5.0, tensor], "kwargs": {}}],
    }
    for more in ({"module": "keras.src.ops.numpy"}, {}):
        (output,) = keras_3(functional(["x"], ["y"], start("x", 2), {**function, **more}), {})
        np.testing.assert_array_equal(output, [[4, 3]])


def test_repeated_output() -> None:
    outputs = keras_3(functional(["x"], ["y", "x", "y"], start("x", 2), layer("ReLU", "y", "x")), {})
    assert [a.tolist() for a in outputs] == [[[1, 2]]] * 3


def test_weights_of_time_distributed_layer() -> None:
    dense = {"class_name": "Dense", "config": {"name": "d", **DENSE}}
    model = functional(
        ["x"],
        ["y"],
        start("x", 2),
        layer("Reshape", "r", "x", target_shape=[1, 2]),
        layer("TimeDistributed", "y", "r", layer=dense),
    )
    (output,) = keras_3(model, {"time_distributed/layer": [3 * np.eye(2, dtype=np.float32)]})
    np.testing.assert_array_equal(output, [[[3, 6]]])


def test_bidirectional_without_merging_with_states() -> None:
    rnn = {"units": 2, "return_sequences": True, "return_state": True, "activation": "linear", "use_bias": False}
    cell = {"class_name": "SimpleRNN", "config": {"name": "rnn", **rnn}}
    model = functional(
        ["x"],
        ["y"],
        start("x", 2),
        layer("Reshape", "r", "x", target_shape=[2, 1]),
        layer("Bidirectional", "y", "r", layer=cell, merge_mode=None),
    )
    model["config"]["output_layers"] = [["y", 0, i] for i in range(4)]
    weights = [np.array([[1, 10]], np.float32), np.eye(2, dtype=np.float32)]
    sides = {f"bidirectional/{side}_layer/cell": weights for side in ("forward", "backward")}
    outputs = keras_3(model, sides)
    assert [a.tolist() for a in outputs] == [[[[1, 10], [3, 30]]], [[[3, 30], [2, 20]]], [[3, 30]], [[3, 30]]]
