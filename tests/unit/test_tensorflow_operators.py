"""TensorFlow's operators on patches and regions, recurrent cells, and scatter operators, compared with definitions in
NumPy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType
from tensorflow_models import const, graph, node, placeholder

RNG = np.random.default_rng(3)
P = RNG.uniform(-1, 1, (1, 6, 5, 4)).astype(np.float32)
M = RNG.uniform(-1, 1, (2, 3, 4)).astype(np.float32)
F = RNG.uniform(-1, 1, (5, 2)).astype(np.float32)


def every(op: str, x: Array, *operands: Array, outputs: int = 1, **attributes: Any) -> list[Array]:
    """The first operand is the graph's input, the others are constants."""
    constants = [const(f"c{i}", a, str(DType.of(a.dtype))) for i, a in enumerate(operands)]
    nodes = [placeholder("x", *x.shape, dtype=str(DType.of(x.dtype))), *constants]
    nodes.append(node("y", op, "x", *(f"c{i}" for i in range(len(operands))), **attributes))
    names = ["y", *(f"y:{i}" for i in range(1, outputs))]
    return list(evaluate(importers.load(graph(*nodes), outputs=names), {"x": x}).values())


def run(op: str, x: Array, *operands: Array, **attributes: Any) -> Array:
    return every(op, x, *operands, **attributes)[0]


def ints(*numbers: Any) -> Array:
    return np.array(numbers, np.int32)


def rolled(x: Array) -> Array:
    return np.roll(x, (1, -2), (1, 2))


def upside(x: Array, lengths: list[int]) -> Array:
    y = x.copy()
    for i, n in enumerate(lengths):
        y[i, :n] = x[i, :n][::-1]
    return y


def patches(x: Array, size: int, stride: int) -> Array:
    rows = range(0, x.shape[1] - size + 1, stride)
    columns = range(0, x.shape[2] - size + 1, stride)
    return np.stack([[x[0, r : r + size, c : c + size].ravel() for c in columns] for r in rows])[None]


DIAGONAL = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
POSITIVE, NUMBERS = np.abs(F) + 0.5, np.array([0, 2, 0, 3, 5], np.float32)
SEGMENTS = ints(1, 0, 1, -1, 3)
TIMES = np.array([math.inf, 4, 1, 0, 2], np.float32)
CASES: list[tuple[str, list[Array], dict[str, Any], Array]] = [
    ("Roll", [M, ints(1, -2), ints(1, 2)], {}, rolled(M)),
    ("Reverse", [M, np.array([False, True, True])], {}, M[:, ::-1, ::-1]),
    ("ReverseSequence", [M, ints(3, 2)], {"seq_dim": 1, "batch_dim": 0}, upside(M, [3, 2])),
    ("MatrixDiag", [DIAGONAL], {}, np.stack([np.diag(row) for row in DIAGONAL])),
    ("MatrixDiagPart", [M], {}, np.diagonal(M, axis1=1, axis2=2)),
    ("MatrixSetDiag", [M, DIAGONAL], {}, np.where(np.eye(3, 4, dtype=bool), DIAGONAL[:, :, None], M)),
    ("MatrixBandPart", [M, ints(0), ints(-1)], {}, np.triu(M)),
    ("MatrixBandPart", [M, ints(1), ints(0)], {}, np.tril(M) * (np.subtract.outer(range(3), range(4)) <= 1)),
    ("Cumprod", [M, ints(2)], {}, np.cumprod(M, 2)),
    ("UnsortedSegmentSum", [F, SEGMENTS, ints(4)], {}, np.stack([F[1], F[0] + F[2], 0 * F[0], F[4]])),
    ("TensorScatterSub", [F, ints(2, 0).reshape(2, 1), F[:2]], {}, np.stack([F[0] - F[1], F[1], F[2] - F[0], *F[3:]])),
    ("AdjustContrastv2", [P, np.array(1.5, np.float32)], {}, (P - P.mean((1, 2))) * 1.5 + P.mean((1, 2))),
    ("SegmentMax", [F, ints(0, 0, 2, 2, 2)], {}, np.stack([F[:2].max(0), 0 * F[0], F[2:].max(0)])),
    ("SegmentMean", [F, ints(0, 0, 1, 2, 2)], {}, np.stack([F[:2].mean(0), F[2], F[3:].mean(0)])),
    ("TensorScatterUpdate", [F, ints([1], [3]), F[:2] + 9], {}, np.stack([F[0], F[0] + 9, F[2], F[1] + 9, F[4]])),
    ("TensorScatterAdd", [F, ints([1], [1]), F[:2]], {}, np.stack([F[0], F[1] + F[0] + F[1], *F[2:]])),
    ("Bucketize", [F], {"boundaries": [-0.5, 0.25]}, np.digitize(F, [-0.5, 0.25])),
    ("GatherV2", [M, ints([2, 0], [1, 1]), ints(1)], {"batch_dims": 1}, np.stack([M[0][[2, 0]], M[1][[1, 1]]])),
    ("Expm1", [F], {}, np.expm1(F)),
    ("Log1p", [F], {}, np.log1p(F)),
    ("Erfc", [F], {}, np.vectorize(math.erfc)(F)),
    ("Atan2", [F, POSITIVE - 1], {}, np.arctan2(F, POSITIVE - 1)),
    ("Asinh", [F], {}, np.arcsinh(F)),
    ("DivNoNan", [TIMES[1:], NUMBERS[1:]], {}, np.array([2, 0, 0, 0.4])),
    ("MulNoNan", [TIMES, NUMBERS], {}, np.array([0, 8, 0, 0, 10])),
    ("Xdivy", [NUMBERS, NUMBERS], {}, np.array([0, 1, 0, 1, 1])),
    ("Xlogy", [NUMBERS, NUMBERS], {}, np.array([0, 2 * np.log(2), 0, 3 * np.log(3), 5 * np.log(5)])),
    ("TruncateDiv", [3 * F, POSITIVE], {}, np.trunc(3 * F / POSITIVE)),
    ("TruncateMod", [ints(7, -7), ints(3, 3)], {}, np.array([1, -1])),
    ("L2Loss", [F], {}, np.array((F**2).sum() / 2)),
    ("EuclideanNorm", [F, ints(1)], {}, np.sqrt((F**2).sum(1))),
    ("BitwiseOr", [ints(12, 3), ints(10, 8)], {}, np.array([14, 11])),
    ("LeftShift", [ints(1, 3), ints(4, 1)], {}, np.array([16, 6])),
    ("Invert", [ints(0, 5)], {}, np.array([-1, -6])),
    ("Einsum", [M, M], {"equation": "bij,bkj->bik"}, np.einsum("bij,bkj->bik", M, M)),
    (
        "ExtractImagePatches",
        [P],
        {"ksizes": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "rates": [1, 1, 1, 1], "padding": "VALID"},
        patches(P, 3, 2),
    ),
    ("ResizeArea", [P, ints(3, 5)], {}, P.reshape(1, 3, 2, 5, 4).mean(2)),
    (
        "SpaceToBatch",
        [P, ints([0, 0], [1, 0])],
        {"block_size": 2},
        np.concatenate([np.pad(P, ((0, 0), (0, 0), (1, 0), (0, 0)))[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]),
    ),
    ("MaxPoolV2", [P, ints(1, 2, 1, 1), ints(1, 2, 1, 1)], {"padding": "VALID"}, P.reshape(1, 3, 2, 5, 4).max(2)),
    ("EnsureShape", [F], {"shape": (5, 2)}, F),
    (
        "OneHot",
        [ints(2, -1, 3, -3), np.array(3, np.int32), np.array(2, np.float32), np.array(-1, np.float32)],
        {"axis": 0},
        3 * np.eye(4)[[2, 3, 3, 3], :3].T - 1,
    ),
]


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "result"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_operators(op: str, operands: list[Array], attributes: dict[str, Any], result: Array) -> None:
    np.testing.assert_allclose(run(op, *operands, **attributes), result, rtol=1e-5, atol=1e-5)


def test_is_nan_is_inf_is_finite() -> None:
    x = np.array([1, math.nan, math.inf], np.float32)
    for op, expected in (("IsNan", [0, 1, 0]), ("IsInf", [0, 0, 1]), ("IsFinite", [1, 0, 0])):
        np.testing.assert_array_equal(run(op, x), np.array(expected, bool))


def test_max_pool_with_argmax() -> None:
    y, indices = every("MaxPoolWithArgmax", P, outputs=2, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    np.testing.assert_array_equal(P.reshape(-1)[indices], y)
    np.testing.assert_array_equal(y[0, 2, 1], P[0, 4:6, 2:4].max((0, 1)))
    assert y.shape == indices.shape == (1, 3, 3, 4)


def test_dilation() -> None:
    w = RNG.uniform(-1, 1, (2, 1, 4)).astype(np.float32)
    output = run("Dilation2D", P, w, strides=[1, 1, 1, 1], rates=[1, 2, 1, 1], padding="VALID")
    np.testing.assert_allclose(output, np.maximum(P[:, :4] + w[0], P[:, 2:] + w[1]), atol=1e-6)
    padded = run("Dilation2D", P, w, strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME")
    np.testing.assert_allclose(padded[:, :5], np.maximum(P[:, :5] + w[0], P[:, 1:] + w[1]), atol=1e-6)
    np.testing.assert_allclose(padded[:, 5], P[:, 5] + w[0], atol=1e-6)


def test_crops_outside_of_the_image() -> None:
    box = np.array([[-0.1, 0, 1, 1.25]], np.float32)  # rows -0.5 .. 5, columns 0 .. 5
    output = run("CropAndResize", P, box, ints(0), ints(2, 6), extrapolation_value=3.0)
    np.testing.assert_allclose(output[0, 0], np.full((6, 4), 3.0))
    np.testing.assert_allclose(output[0, 1, :5], P[0, 5], atol=1e-5)
    np.testing.assert_allclose(output[0, 1, 5], np.full(4, 3.0))


@pytest.mark.parametrize("size", [(3, 2), (1, 4)])
def test_crops_align_corners(size: tuple[int, int]) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.25, 0.1, 0.75, 0.6]], np.float32)
    images = np.concatenate([P, 2 * P])
    outputs = run("CropAndResize", images, boxes, ints(1, 0), ints(*size))
    for k, (box, image) in enumerate(zip(boxes, (images[1], images[0]), strict=True)):
        y, x = (
            np.linspace(a, b, n) * (e - 1) if n > 1 else np.array([(a + b) / 2 * (e - 1)])
            for a, b, n, e in zip(box[:2], box[2:], size, (6, 5), strict=True)
        )
        rows = np.stack([np.clip(1 - np.abs(at - np.arange(6)), 0, 1) for at in y])
        columns = np.stack([np.clip(1 - np.abs(at - np.arange(5)), 0, 1) for at in x])
        np.testing.assert_allclose(outputs[k], np.einsum("yh,xw,hwc->yxc", rows, columns, image), atol=1e-5)


@pytest.mark.parametrize("size", [(3, 2), (1, 4), (9, 11)])
def test_crops_take_the_nearest_pixel(size: tuple[int, int]) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.25, 0.1, 0.75, 0.6], [-0.5, 0.9, 1.2, 0.2], [0.1, 0.3, 0.1, 0.3]], np.float32)
    images = np.concatenate([P, 2 * P])
    numbers, options = [1, 0, 1, 1], {"method": "nearest", "extrapolation_value": 7.0}
    outputs = run("CropAndResize", images, boxes, ints(*numbers), ints(*size), **options)
    expected = np.full((4, *size, 4), 7.0, np.float32)
    for k, i, j in np.ndindex(4, *size):
        place = []
        for axis, (at, count, extent) in enumerate(zip((i, j), size, (6, 5), strict=True)):
            begin, end = float(boxes[k, axis]), float(boxes[k, axis + 2])
            share = at / (count - 1) if count > 1 else 0.5
            place.append((begin + (end - begin) * share) * (extent - 1))
        if 0 <= place[0] <= 5 and 0 <= place[1] <= 4:
            expected[k, i, j] = images[numbers[k], int(place[0] + 0.5), int(place[1] + 0.5)]
    np.testing.assert_array_equal(outputs, expected)


def test_gradients_of_convolutions() -> None:
    """With strides equal to the window size nothing overlaps."""
    x = RNG.uniform(-1, 1, (1, 3, 2, 4)).astype(np.float32)
    w = RNG.uniform(-1, 1, (2, 2, 2, 2)).astype(np.float32)  # two channels, with a multiplier of two
    nodes = [
        placeholder("x", 1, 3, 2, 4),
        const("w", w),
        const("s", [1, 6, 4, 2], "i32"),
        node("y", "DepthwiseConv2dNativeBackpropInput", "s", "w", "x", strides=[1, 2, 2, 1], padding="VALID"),
    ]
    (output,) = evaluate(importers.load(graph(*nodes)), {"x": x}).values()
    expected = np.einsum("nhwcm,abcm->nhawbc", x.reshape(1, 3, 2, 2, 2), w).reshape(1, 6, 4, 2)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    x, w = x.reshape(1, 1, 3, 2, 4), RNG.uniform(-1, 1, (1, 2, 2, 3, 4)).astype(np.float32)
    nodes = [
        placeholder("x", *x.shape),
        const("w", w),
        const("s", [1, 1, 6, 4, 3], "i32"),
        node("y", "Conv3DBackpropInputV2", "s", "w", "x", strides=[1, 1, 2, 2, 1], padding="VALID"),
    ]
    (output,) = evaluate(importers.load(graph(*nodes)), {"x": x}).values()
    np.testing.assert_allclose(output, np.einsum("ndhwi,zaboi->ndhawbo", x, w).reshape(1, 1, 6, 4, 3), atol=1e-5)


def test_fused_operators() -> None:
    w, b = RNG.uniform(-1, 1, (1, 1, 4, 3)).astype(np.float32), np.array([0.5, -0.5, 0], np.float32)
    window: dict[str, Any] = {"strides": [1, 1, 1, 1], "padding": "VALID"}
    plain = np.einsum("nhwc,co->nhwo", P, w[0, 0])
    output = run("_FusedConv2D", P, w, b, fused_ops=["BiasAdd", "Relu6"], **window)
    np.testing.assert_allclose(output, (plain + b).clip(0, 6), atol=1e-5)
    g, m, v = (RNG.uniform(0.5, 1, 3).astype(np.float32) for _ in range(3))
    output = run("_FusedConv2D", P, w, g, b, m, v, fused_ops=["FusedBatchNorm"], epsilon=0.01, **window)
    np.testing.assert_allclose(output, (plain - m) / np.sqrt(v + 0.01) * g + b, atol=1e-5)
    output = run("_FusedMatMul", F, F[:2], F[0], fused_ops=["BiasAdd", "Tanh"])
    np.testing.assert_allclose(output, np.tanh(F @ F[:2] + F[0]), atol=1e-5)


def test_batch_normalisation_in_training_mode() -> None:
    g, b = RNG.uniform(0.5, 1, 4).astype(np.float32), RNG.uniform(-1, 1, 4).astype(np.float32)
    none = np.zeros(0, np.float32)
    output = run("FusedBatchNormV3", P, g, b, none, none, is_training=True, epsilon=0.01)
    mean, variance = P.mean((0, 1, 2)), P.var((0, 1, 2))
    np.testing.assert_allclose(output, (P - mean) / np.sqrt(variance + 0.01) * g + b, atol=1e-5)


def test_ranges_per_channel() -> None:
    """Grids of three and of five steps per unit; zero is a grid point."""
    x = np.array([[-2.0, 0.3, 0.9], [0.1, 2.0, -0.31]], np.float32)
    low, high = np.array([-1, 0, -0.4], np.float32), np.array([0, 1, 0.2], np.float32)
    output = run("FakeQuantWithMinMaxVarsPerChannel", x, low, high, num_bits=2)
    np.testing.assert_allclose(output, [[-1, 1 / 3, 0.2], [0, 1, -0.4]], atol=1e-6)


def test_dynamic_stitch() -> None:
    nodes = [
        const("i", [0, 3], "i32"),
        const("j", [2, 1], "i32"),
        placeholder("x", 2, 2),
        placeholder("z", 2, 2),
        node("y", "DynamicStitch", "i", "j", "x", "z"),
    ]
    (output,) = evaluate(importers.load(graph(*nodes)), {"x": F[:2], "z": F[2:4]}).values()
    np.testing.assert_array_equal(output, np.stack([F[0], F[3], F[2], F[1]]))


def test_constant_operators_are_folded() -> None:
    nodes = [
        placeholder("x", 3),
        const("a", 0.0),
        const("b", 1.0),
        const("n", 3, "i32"),
        node("l", "LinSpace", "a", "b", "n"),
        const("s", [3], "i32"),
        const("t", [2, 1], "i32"),
        node("z", "BroadcastArgs", "s", "t"),
        node("m", "Mul", "x", "l"),
        node("y", "BroadcastTo", "m", "z"),
    ]
    (output,) = evaluate(importers.load(graph(*nodes)), {"x": np.ones(3, np.float32)}).values()
    np.testing.assert_allclose(output, [[0, 0.5, 1]] * 2)


# ---------------------------------------------------------------------------------------------------- cells
T, B, IN, H = 3, 2, 3, 4
S = RNG.uniform(-1, 1, (T, B, IN)).astype(np.float32)
C, HIDDEN = (RNG.uniform(-1, 1, (B, H)).astype(np.float32) for _ in range(2))
W, BIAS = RNG.uniform(-1, 1, (IN + H, 4 * H)).astype(np.float32), RNG.uniform(-1, 1, 4 * H).astype(np.float32)
PEEPS = [RNG.uniform(-1, 1, H).astype(np.float32) for _ in range(3)]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def step(x: Array, c: Array, h: Array, order: str, forget: float, clip: float) -> tuple[Array, Array]:
    parts = dict(zip(order, np.split(np.concatenate([x, h], 1) @ W + BIAS, 4, 1), strict=True))
    i, f = sigmoid(parts["i"] + PEEPS[0] * c), sigmoid(parts["f"] + forget + PEEPS[1] * c)
    c = (f * c + i * np.tanh(parts["g"])).clip(-clip, clip)
    return c, sigmoid(parts["o"] + PEEPS[2] * c) * np.tanh(c)


def test_lstm_block_cell() -> None:
    c, h = every(
        "LSTMBlockCell", S[0], C, HIDDEN, W, *PEEPS, BIAS, outputs=7, forget_bias=0.5, cell_clip=0.75, use_peephole=True
    )[1::5]
    for mine, theirs in zip((c, h), step(S[0], C, HIDDEN, "igfo", 0.5, 0.75), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize(("op", "order", "forget"), [("BlockLSTM", "igfo", 1.0), ("BlockLSTMV2", "ifgo", 0.0)])
def test_block_lstm(op: str, order: str, forget: float) -> None:
    """The sequence length is two of three steps."""
    nodes = [placeholder("x", T, B, IN), const("n", 2, "i64")]
    nodes += [const(f"c{i}", a) for i, a in enumerate((C, HIDDEN, W, *PEEPS, BIAS))]
    nodes.append(node("y", op, "n", "x", *(f"c{i}" for i in range(7)), use_peephole=True, cell_clip=2.0))
    (output,) = evaluate(importers.load(graph(*nodes), outputs=["y:6"]), {"x": S}).values()
    c, h = step(S[0], C, HIDDEN, order, forget, 2)
    np.testing.assert_allclose(output[0], h, atol=1e-5)
    np.testing.assert_allclose(output[1], step(S[1], c, h, order, forget, 2)[1], atol=1e-5)
    np.testing.assert_array_equal(output[2], 0)


def test_gru_block_cell() -> None:
    both, own = (RNG.uniform(-1, 1, (IN + H, n)).astype(np.float32) for n in (2 * H, H))
    b, c = (RNG.uniform(-1, 1, n).astype(np.float32) for n in (2 * H, H))
    outputs = every("GRUBlockCell", S[0], HIDDEN, both, own, b, c, outputs=4)[3]
    r, u = np.split(sigmoid(np.concatenate([S[0], HIDDEN], 1) @ both + b), 2, 1)
    new = np.tanh(np.concatenate([S[0], r * HIDDEN], 1) @ own + c)
    np.testing.assert_allclose(outputs, u * HIDDEN + (1 - u) * new, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "match"),
    [
        (
            "CropAndResize",
            [P, F[:1].repeat(2, 1), ints(0), ints(2, 2)],
            {"method": "area"},
            "the method area is unknown",
        ),
        ("MatrixDiagPartV3", [M, ints(1), np.array(0, np.float32)], {}, "main diagonals"),
        ("_FusedMatMul", [F, F[:2]], {"fused_ops": ["Mystery"]}, "Mystery"),
        ("RGBToHSV", [F], {"T": I32}, "not supported"),
    ],
)
def test_refusals(op: str, operands: list[Array], attributes: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedError, match=match):
        run(op, *operands, **attributes)
