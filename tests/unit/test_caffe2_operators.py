"""Caffe2's elementwise, segment, image (NCHW and NHWC), region and int8 operators, against definitions in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from definitions import conv2d
from evaluate import evaluate
from small_models import Option, caffe2_fill, caffe2_net, caffe2_operator
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="caffe2")

RNG = np.random.default_rng(11)
X = RNG.uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)
P = np.abs(X) / 2 + np.float32(0.1)
M, N = RNG.uniform(-1, 1, (3, 4)).astype(np.float32), RNG.uniform(-1, 1, (3, 4)).astype(np.float32)


def run(type: str, inputs: list[Array], parameters: list[Array], **options: Option | Array) -> Array:
    """The results of one operator: inputs are graph inputs, parameters are filled by the init net."""
    names = [f"i{k}" for k in range(len(inputs))]
    filled = [f"p{k}" for k in range(len(parameters))]
    predict = caffe2_net([caffe2_operator(type, [*names, *filled], ["y"], **options)], [*names, *filled], ["y"])
    init = caffe2_net([caffe2_fill(n, np.asarray(p, np.float32)) for n, p in zip(filled, parameters, strict=True)])
    shapes = {n: x.shape for n, x in zip(names, inputs, strict=True)}
    graph = importers.load(predict, shapes, weights=init) if filled else importers.load(predict, shapes)
    (output,) = evaluate(graph, dict(zip(names, inputs, strict=True))).values()
    return output


UNARY: dict[str, Callable[[Array], Array]] = {
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Sign": np.sign,
    "Reciprocal": lambda x: 1 / x,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Cube": lambda x: x**3,
    "Logit": lambda x: np.log(x / (1 - x)),
    "Erf": np.vectorize(math.erf),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators(name: str) -> None:
    np.testing.assert_allclose(run(name, [P], []), UNARY[name](P), rtol=1e-4, atol=1e-5)


def last(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


W = RNG.uniform(-1, 1, (2, 4, 3, 3)).astype(np.float32)
B = RNG.uniform(-1, 1, 2).astype(np.float32)
G = RNG.uniform(0.5, 1, 4).astype(np.float32)
S = RNG.uniform(-1, 1, 4).astype(np.float32)
TABLE = RNG.uniform(-1, 1, (7, 3)).astype(np.float32)
IDS, LENGTHS, WEIGHTS = np.array([1.0, 6, 0, 2, 2]), np.array([2.0, 0, 3]), RNG.uniform(-1, 1, 5).astype(np.float32)
RUNS = [[0, 1], [], [2, 3, 4]]
CONV = conv2d(X, W) + B[:, None, None]


def runs(rows: Array, *, mean: bool = False) -> Array:
    return np.stack([rows[r].sum(0) / (max(1, len(r)) if mean else 1) for r in RUNS])


def normal(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5))


PICKED = TABLE[IDS.astype(int)]
SQUARES = X.reshape(1, 4, 3, 2, 5)
CASES: list[tuple[str, list[Array], list[Array], dict[str, Any], Array]] = [
    ("GE", [X], [G], {"broadcast": 1, "axis": 1}, np.greater_equal(X, G[:, None, None])),
    ("NE", [M, N], [], {}, M != N),
    ("Mean", [M, N], [], {}, (M + N) / 2),
    ("SumRelu", [M, N], [], {}, np.maximum(M + N, 0)),
    ("Cast", [3 * M], [], {"to": 2}, (3 * M).astype(np.int32)),
    ("Tile", [M], [], {"tiles": 2, "axis": 1}, np.tile(M, (1, 2))),
    ("ReplaceNaN", [np.where(M > 0, M, np.nan)], [], {"value": 7.0}, np.where(M > 0, M, 7)),
    ("ReduceBackMean", [X], [], {"num_reduce_dim": 2}, X.mean((2, 3))),
    ("ReduceFrontSum", [X], [], {}, X.sum(0)),
    ("LpNorm", [M], [], {"p": 2}, np.array([(M * M).sum()])),
    ("DotProduct", [M, N], [], {}, (M * N).sum(1)),
    ("SquaredL2Distance", [M, N], [], {}, ((M - N) ** 2).sum(1) / 2),
    ("CosineSimilarity", [M, N], [], {}, (M * N).sum(1) / np.linalg.norm(M, axis=1) / np.linalg.norm(N, axis=1)),
    ("Expand", [M[:, :1]], [], {"shape": [2, 3, 4]}, np.broadcast_to(M[:, :1], (2, 3, 4))),
    ("MergeDim", [X], [], {}, X[0]),
    ("PrependDim", [M], [], {"dim_size": 3}, M[:, None]),
    ("RowMul", [M], [G[:3]], {}, M * G[:3, None]),
    ("BatchGather", [M], [np.array([2, 0])], {}, M[:, [2, 0]]),
    ("SparseLengthsSum", [TABLE], [IDS, LENGTHS], {}, runs(PICKED)),
    ("SparseLengthsMean", [TABLE], [IDS, LENGTHS], {}, runs(PICKED, mean=True)),
    ("SparseLengthsWeightedSum", [TABLE], [WEIGHTS, IDS, LENGTHS], {}, runs(PICKED * WEIGHTS[:, None])),
    ("LengthsSum", [PICKED], [LENGTHS], {}, runs(PICKED)),
    ("LayerNorm", [X], [], {"axis": 2, "epsilon": 1e-5}, normal(X, (2, 3))),
    (
        "GroupNorm",
        [X],
        [G, S],
        {"group": 2, "epsilon": 1e-5},
        normal(X.reshape(1, 2, -1), (2,)).reshape(X.shape) * G[:, None, None] + S[:, None, None],
    ),
    ("AffineChannel", [X], [G, S], {}, X * G[:, None, None] + S[:, None, None]),
    ("AffineChannel", [last(X)], [G, S], {"order": "NHWC"}, last(X) * G + S),
    ("ConvRelu", [X], [W, B], {"kernel": 3}, np.maximum(CONV, 0)),
    ("Conv", [last(X)], [last(W), B], {"kernel": 3, "order": "NHWC"}, last(CONV)),
    (
        "MaxPool",
        [last(X)],
        [],
        {"kernel": 2, "stride": 2, "order": "NHWC"},
        last(X[:, :, :, :4].reshape(1, 4, 3, 2, 2, 2).max((3, 5))),
    ),
    (
        "Im2Col",
        [X],
        [],
        {"kernel": 2},
        np.stack([X[:, :, i : i + 5, j : j + 4] for i in (0, 1) for j in (0, 1)], 2).reshape(1, 16, 5, 4),
    ),
    (
        "SpaceToBatch",
        [X[..., :4]],
        [],
        {"block_size": 2},
        np.concatenate([X[:, :, i::2, j:4:2] for i in (0, 1) for j in (0, 1)]),
    ),
    ("UpsampleNearest", [X], [], {"scale": 2}, X.repeat(2, 2).repeat(2, 3)),
    (
        "RoIPool",
        [X],
        [np.array([[0, 0, 1, 3, 4]])],
        {"pooled_h": 2, "pooled_w": 2, "spatial_scale": 1.0},
        X[:, :, 1:5, :4].reshape(1, 4, 2, 2, 2, 2).max((3, 5)),
    ),
    (
        "RoIAlign",
        [X],
        [np.array([[0, 1, 2, 2, 3]])],
        {"pooled_h": 1, "pooled_w": 1, "spatial_scale": 1.0, "sampling_ratio": 1, "aligned": 1},
        X[:, :, 2:3, 1:2],
    ),
]


@pytest.mark.parametrize(
    ("type", "inputs", "parameters", "options", "result"), CASES, ids=[f"{c[0]}-{len(c[3])}" for c in CASES]
)
def test_operators(
    type: str, inputs: list[Array], parameters: list[Array], options: dict[str, Any], result: Array
) -> None:
    output = run(type, [x.astype(np.float32) for x in inputs], parameters, **options)
    assert output.shape == result.shape
    np.testing.assert_allclose(output, result, rtol=1e-4, atol=1e-5)


def test_eight_bit_integers() -> None:
    """Channels last; weights and activations are integers of 0 to 255 with scale and zero point."""
    scale, zero, out, at = 2 / 255, 128, 0.05, 100
    small = np.clip(np.round(W / scale) + zero, 0, 255).astype(np.uint8)
    bias = np.round(B / 1e-4).astype(np.int32)
    init = caffe2_net(
        [
            caffe2_operator(
                "Int8GivenTensorFill",
                [],
                ["w"],
                shape=list(last(small).shape),
                Y_scale=scale,
                Y_zero_point=zero,
                values=last(small).tobytes(),
            ),
            caffe2_operator("Int8GivenIntTensorFill", [], ["b"], shape=[2], Y_scale=1e-4, values=bias.tolist()),
        ]
    )
    predict = caffe2_net(
        [
            caffe2_operator("Int8Quantize", ["x"], ["q"], Y_scale=scale, Y_zero_point=zero),
            caffe2_operator(
                "Int8ConvRelu", ["q", "w", "b"], ["c"], kernel=3, order="NHWC", Y_scale=out, Y_zero_point=at
            ),
            caffe2_operator("Int8Dequantize", ["c"], ["y"]),
        ],
        ["x", "w", "b"],
        ["y"],
    )
    graph = importers.load(predict, {"x": last(X).shape}, weights=init)
    (output,) = evaluate(graph, {"x": last(X)}).values()
    x = (np.clip(np.round(X / scale) + zero, 0, 255) - zero) * scale
    y = np.maximum(conv2d(x, (small.astype(np.float32) - zero) * scale) + (bias * 1e-4)[:, None, None], 0)
    y = (np.clip(np.round(y / out) + at, 0, 255) - at) * out
    away = np.abs(output - last(y))
    assert away.max() <= out * 1.01  # ties may be rounded either way
    assert (away > 1e-4).mean() < 0.05


@pytest.mark.parametrize(
    ("type", "options", "reason"),
    [
        ("Conv", {"order": "CHWN"}, "order CHWN"),
        ("Cast", {"to": 3}, "is not supported"),
        ("PrependDim", {"dim_size": 5}, "does not divide"),
        ("BoxWithNMSLimit", {}, "not supported"),
    ],
)
def test_refusals(type: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        run(type, [M], [], **options)
