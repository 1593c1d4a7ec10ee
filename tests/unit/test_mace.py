"""Small MACE models, in the three versions of their protobuf schema."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from small_models import MaceOptions, mace_net
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from wire import message

pytestmark = pytest.mark.quick(importer="mace")

RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (1, 6, 5, 4)).astype(np.float32)


def run(type: str, options: MaceOptions, *weights: Array) -> Array:
    data = b"".join(w.tobytes() for w in weights)
    (output,) = evaluate(importers.load(mace_net(type, options, weights), weights=data or b"\0"), {"x": X}).values()
    return output


W = RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32)
B = np.array([0.5, -0.5, 0.25], np.float32)


def convolved(w: Array = W) -> Array:
    return np.asarray(np.einsum("fc,nhwc->nhwf", w[:, :, 0, 0].astype(np.float32), X) + B)


@pytest.mark.parametrize("layout", ["old", "new", "multi"])
def test_schema_versions(layout: str) -> None:
    graph = mace_net(
        "Conv2D",
        {"strides": [1, 1], "padding": 1, "activation": "RELUX", "max_limit": 0.75},
        (W, B),
        old=layout == "old",
    )
    if layout == "multi":
        graph = message((1, 1), (2, "name"), (3, graph), (100, "x"), (101, "y"))
    (output,) = evaluate(importers.load(graph, weights=W.tobytes() + B.tobytes()), {"x": X}).values()
    np.testing.assert_allclose(output, convolved().clip(0, 0.75), atol=1e-6)


def test_inputs_given_as_nchw() -> None:
    graph = importers.load(mace_net("Eltwise", {"type": 2, "scalar_input": 2.0}, data_format=2), weights=b"\0")
    (output,) = evaluate(graph, {"x": X}).values()
    np.testing.assert_array_equal(output, 2 * X.transpose(0, 2, 3, 1))


def test_fp16_and_quantised_weights() -> None:
    half = W.astype(np.float16)
    np.testing.assert_allclose(run("Conv2D", {"padding": 0}, half, B), convolved(half), atol=1e-6)
    small = RNG.integers(0, 8, W.shape).astype(np.uint8)
    np.testing.assert_allclose(
        run("Conv2D", {"padding": 0}, small, B), convolved((small - np.float32(3)) / 2), atol=1e-5
    )


def test_depthwise_and_fully_connected() -> None:
    w = RNG.uniform(-1, 1, (2, 4, 1, 1)).astype(np.float32)
    output = run("DepthwiseConv2d", {"padding": 0}, w)
    expected = np.stack([X * w[m, :, 0, 0] for m in range(2)], -1).reshape(1, 6, 5, 8)
    np.testing.assert_allclose(output, expected, atol=1e-6)
    w = RNG.uniform(-1, 1, (3, 4, 6, 5)).astype(np.float32)
    expected = np.einsum("fchw,nhwc->nf", w, X) + B
    np.testing.assert_allclose(run("FullyConnected", {}, w, B).reshape(1, 3), expected, atol=1e-5)


OPERATORS: list[tuple[str, MaceOptions, Array]] = [
    ("Softmax", {}, np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    ("Activation", {"activation": "LEAKYRELU", "activation_coefficient": 0.125}, np.where(X > 0, X, X / 8)),
    ("Eltwise", {"type": 1, "scalar_input": 1.0, "scalar_input_index": 0}, 1 - X),
    ("Reduce", {"reduce_type": 2, "axis": [1, 2], "keepdims": 1}, X.max((1, 2), keepdims=True)),
    (
        "Pad",
        {"paddings": [0, 0, 1, 2, 0, 1, 0, 0], "constant_value": 0.5},
        np.pad(X, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=0.5),
    ),
    ("ResizeNearestNeighbor", {"size": [12, 15]}, X.repeat(2, 1).repeat(3, 2)),
    ("ChannelShuffle", {"group": 2}, X.reshape(1, 6, 5, 2, 2).swapaxes(3, 4).reshape(X.shape)),
    ("Transpose", {"dims": [0, 3, 1, 2]}, X.transpose(0, 3, 1, 2)),
    ("Squeeze", {"axis": [0]}, X[0]),
    (
        "SpaceToBatchND",
        {"block_shape": [2, 3], "paddings": [0, 0, 0, 1]},
        np.stack([np.pad(X, ((0, 0), (0, 0), (0, 1), (0, 0)))[0, i::2, j::3] for i in range(2) for j in range(3)]),
    ),
    (
        "Pooling",
        {"pooling_type": 2, "kernels": [2, 1], "strides": [2, 1], "padding": 0},
        X.reshape(1, 3, 2, 5, 4).max(2),
    ),
    ("Reshape", {"shape": [1, 30, 4]}, X.reshape(1, 30, 4)),
]


@pytest.mark.parametrize(("type", "options", "result"), OPERATORS, ids=[t for t, *_ in OPERATORS])
def test_operators(type: str, options: MaceOptions, result: Array) -> None:
    np.testing.assert_allclose(run(type, options), result, rtol=1e-5, atol=1e-6)


def test_same_padding_of_pooling() -> None:
    """The smaller half of the padding comes first; averages exclude padding."""
    output = run("Pooling", {"pooling_type": 1, "kernels": [2, 2], "strides": [1, 1], "padding_values": [1, 1]})
    assert output.shape == X.shape
    np.testing.assert_allclose(output[:, -1, -1], X[:, -1, -1], atol=1e-6)
    np.testing.assert_allclose(output[:, 0, 0], X[:, :2, :2].mean((1, 2)), atol=1e-6)


def test_files_find_each_other(tmp_path: Path) -> None:
    (tmp_path / "net.pb").write_bytes(mace_net("Conv2D", {"padding": 0}, (W, B)))
    (tmp_path / "net.data").write_bytes(W.tobytes() + B.tobytes())
    for name in ("net.pb", "net.data", ""):
        assert not importers.load(tmp_path / name).incomplete
    (tmp_path / "net.data").unlink()
    assert "--weights" in importers.load(tmp_path / "net.pb").incomplete


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"layer \(LSTMCell\): this operator is not supported"):
        importers.load(mace_net("LSTMCell", {}), weights=b"\0")
    with pytest.raises((UnsupportedError, FormatError), match=r"outside the \.data file"):
        importers.load(mace_net("Conv2D", {"padding": 0}, (W, B)), weights=W.tobytes())


def test_batch_to_space() -> None:
    """BatchToSpaceND inverts SpaceToBatchND, and crops."""
    net = mace_net("SpaceToBatchND", {"block_shape": [2, 3], "paddings": [2, 0, 0, 1]})
    (blocks,) = evaluate(importers.load(net, weights=b"\0"), {"x": X}).values()
    context = mace_net("BatchToSpaceND", {"block_shape": [2, 3], "crops": [2, 0, 0, 1]}, dims=blocks.shape)
    (output,) = evaluate(importers.load(context, weights=b"\0"), {"x": blocks}).values()
    np.testing.assert_array_equal(output, X)


def test_operators_of_two_inputs() -> None:
    like = np.zeros((1, 3, 2, 4), np.float32)
    np.testing.assert_array_equal(run("Crop", {"offset": [-1, 2, 1, -1]}, like), X[:, 2:5, 1:3])
    np.testing.assert_array_equal(run("Reverse", {}, np.array([2], np.int32)), X[:, :, ::-1])


def test_unstack_and_one_hot() -> None:
    graph = importers.load(mace_net("Unstack", {"axis": 3}), weights=b"\0")
    np.testing.assert_array_equal(next(iter(evaluate(graph, {"x": X}).values())), X[..., 0])
    numbers = RNG.integers(0, 3, X.shape).astype(np.float32)
    graph = importers.load(mace_net("OneHot", {"depth": 3, "on_value": 2.0}), weights=b"\0")
    np.testing.assert_array_equal(
        next(iter(evaluate(graph, {"x": numbers}).values())), 2 * np.eye(3)[numbers.astype(int)]
    )


def test_one_hot_of_what_is_no_class() -> None:
    numbers = np.resize(np.array([-1, 0.5, 2, 3, 1, -0.5], np.float32), X.shape)
    graph = importers.load(mace_net("OneHot", {"depth": 3, "on_value": 2.0, "off_value": -1.0}), weights=b"\0")
    expected = np.where(numbers[..., None] == np.arange(3), 2, -1)
    np.testing.assert_array_equal(next(iter(evaluate(graph, {"x": numbers}).values())), expected)
