"""Small MXNet networks: symbols as JSON, and parameters in all versions of the file format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from small_models import MXNET, Node, mxnet_parameters, mxnet_stored, mxnet_symbol
from tenon.errors import FormatError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="mxnet")

RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (1, 4, 6, 6)).astype(np.float32)


def run(op: str, options: dict[str, str], x: Array = X, **arrays: Array) -> Array:
    inputs: list[Node] = [("null", name, {}, ()) for name in ("data", *arrays)]
    text = mxnet_symbol(*inputs, (op, "y", options, range(len(inputs))))
    graph = importers.load(text, {"data": x.shape}, weights=mxnet_parameters(arrays))
    (output,) = evaluate(graph, {"data": x}).values()
    return output


@pytest.mark.parametrize("key", ["attrs", "attr", "param"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_network(version: int, key: str) -> None:
    """The label is not an input, and fixed gamma is 1."""
    arrays = mxnet_stored()
    graph = importers.load(mxnet_symbol(*MXNET, key=key), {"data": X.shape}, weights=mxnet_parameters(arrays, version))
    assert [v.name for v in graph.inputs] == ["data"]
    (output,) = evaluate(graph, {"data": X}).values()
    y = np.einsum("fc,nchw->nfhw", arrays["c_weight"][:, :, 0, 0], X) + arrays["c_bias"].reshape(1, 3, 1, 1)
    mean, variance, beta = (arrays[f"b_{n}"].reshape(1, 3, 1, 1) for n in ("moving_mean", "moving_var", "beta"))
    y = np.maximum((y - mean) / np.sqrt(variance + 0.001) + beta, 0).mean((2, 3))
    np.testing.assert_allclose(output, np.exp(y) / np.exp(y).sum(), atol=1e-6)


def test_shapes_are_inferred_without_parameters() -> None:
    graph = importers.load(mxnet_symbol(*MXNET), {"data": X.shape})
    assert graph.incomplete
    assert graph.outputs[0].type.dims == (1, 3)
    assert sorted(v.array.size for v in graph.constants() if v.array.ndim == 4) == [12]


def test_half_precision() -> None:
    weights = RNG.uniform(-1, 1, (2, 4)).astype(np.float16)
    output = run("FullyConnected", {"num_hidden": "2", "no_bias": "True"}, X[:, :, 0, 0], y_weight=weights)
    np.testing.assert_allclose(output, X[:, :, 0, 0] @ weights.astype("f4").T, atol=1e-6)


OPTIONS: list[tuple[str, dict[str, str], Any]] = [
    ("Reshape", {"shape": "(0, -4, 2, -1, -2)"}, lambda x: x.reshape(1, 2, 2, 6, 6)),
    ("Reshape", {"shape": "(-1, -3, 0)"}, lambda x: x.reshape(1, 24, 6)),
    ("transpose", {"axes": "(0, 2, 3, 1)"}, lambda x: x.transpose(0, 2, 3, 1)),
    ("slice_axis", {"axis": "1", "begin": "1", "end": "None"}, lambda x: x[:, 1:]),
    ("slice", {"begin": "(None, 1)", "end": "(None, 3)"}, lambda x: x[:, 1:3]),
    ("_mul_scalar", {"scalar": "2.5"}, lambda x: x * 2.5),
    ("_rminus_scalar", {"scalar": "1"}, lambda x: 1 - x),
    ("LeakyReLU", {"act_type": "leaky", "slope": "0.1"}, lambda x: np.where(x > 0, x, 0.1 * x)),
    ("clip", {"a_min": "-0.5", "a_max": "0.25"}, lambda x: x.clip(-0.5, 0.25)),
    ("mean", {"axis": "(2, 3)", "keepdims": "True"}, lambda x: x.mean((2, 3), keepdims=True)),
    ("max", {"axis": "1", "exclude": "True"}, lambda x: x.max((0, 2, 3))),
    ("UpSampling", {"scale": "2", "sample_type": "nearest"}, lambda x: x.repeat(2, 2).repeat(2, 3)),
    (
        "Pad",
        {"mode": "edge", "pad_width": "(0, 0, 0, 0, 1, 2, 0, 3)"},
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 3)), "edge"),
    ),
    ("SwapAxis", {"dim1": "1", "dim2": "3"}, lambda x: x.swapaxes(1, 3)),
    ("L2Normalization", {"mode": "channel"}, lambda x: x / np.sqrt((x**2).sum(1, keepdims=True) + 1e-10)),
    ("softmax", {"axis": "1", "temperature": "0.5"}, lambda x: np.exp(2 * x) / np.exp(2 * x).sum(1, keepdims=True)),
    ("Crop", {"h_w": "(2, 3)", "offset": "(1, 2)"}, lambda x: x[:, :, 1:3, 2:5]),
    ("Crop", {"h_w": "(2, 4)", "center_crop": "True"}, lambda x: x[:, :, 2:4, 1:5]),
]


@pytest.mark.parametrize(
    ("op", "options", "expected"), OPTIONS, ids=[f"{op}-{i}" for i, (op, *_) in enumerate(OPTIONS)]
)
def test_operators(op: str, options: dict[str, str], expected: Any) -> None:
    np.testing.assert_allclose(run(op, options), expected(X), rtol=1e-5, atol=1e-6)


def test_full_pooling_rounds_up() -> None:
    output = run("Pooling", {"kernel": "(3, 3)", "stride": "(2, 2)", "pooling_convention": "full", "pool_type": "max"})
    assert output.shape == (1, 4, 3, 3)
    np.testing.assert_array_equal(output[:, :, 2, 0], X[:, :, 4:, :3].max((2, 3)))


def test_several_outputs() -> None:
    text = {
        "nodes": [
            {"op": "null", "name": "data", "inputs": []},
            {"op": "SliceChannel", "name": "s", "attrs": {"num_outputs": "2"}, "inputs": [[0, 0, 0]]},
        ],
        "heads": [[1, 1, 0]],
    }
    graph = importers.load(json.dumps(text).encode(), {"data": X.shape}, weights=mxnet_parameters())
    np.testing.assert_array_equal(evaluate(graph, {"data": X})["s_output1"], X[:, 2:])


def test_files_find_each_other(tmp_path: Path) -> None:
    (tmp_path / "net-symbol.json").write_bytes(mxnet_symbol(*MXNET))
    (tmp_path / "net-0007.params").write_bytes(mxnet_parameters(mxnet_stored()))
    for name in ("net-symbol.json", "net-0007.params", ""):
        assert not importers.load(tmp_path / name, {"data": X.shape}).incomplete
    (tmp_path / "net-0008.params").write_bytes(mxnet_parameters(mxnet_stored()))
    with pytest.raises(FormatError, match=r"any of net-0007\.params, net-0008\.params"):
        importers.load(tmp_path / "net-symbol.json", {"data": X.shape})


def test_refusals() -> None:
    with pytest.raises(ShapeError, match="shape of 'data'"):
        importers.load(mxnet_symbol(*MXNET), weights=mxnet_parameters(mxnet_stored()))
    nodes: list[Node] = [MXNET[0], ("Custom", "a", {}, (0,)), ("Proposal", "b", {}, (1,)), ("relu", "c", {}, (2,))]
    with pytest.raises(UnsupportedError) as error:
        importers.load(mxnet_symbol(*nodes), {"data": X.shape}, weights=mxnet_parameters())
    assert [p.where for p in error.value.problems] == ["a (Custom)", "b (Proposal)"]
    with pytest.raises(FormatError, match="truncated"):
        importers.load(mxnet_symbol(*MXNET), {"data": X.shape}, weights=mxnet_parameters(mxnet_stored())[:-60])
