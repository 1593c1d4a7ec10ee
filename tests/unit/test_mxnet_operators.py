"""MXNet's operators of selection, sorting, sampling, constants and attention, compared with definitions in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from small_models import Node, mxnet_parameters, mxnet_symbol
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(6)
X = RNG.uniform(-1, 1, (2, 4, 6, 5)).astype(np.float32)
M = RNG.uniform(-1, 1, (4, 5)).astype(np.float32)


def every(op: str, options: dict[str, Any], x: Array, *arrays: Array, outputs: int = 1) -> list[Array]:
    """The first operand is the network's input, the others are parameters."""
    named = {f"p{i}_weight": np.asarray(a, np.float32) for i, a in enumerate(arrays)}
    nodes: list[Node] = [("null", name, {}, ()) for name in ("data", *named)]
    nodes.append((op, "y", {k: str(v) for k, v in options.items()}, range(len(nodes))))
    symbol = mxnet_symbol(*nodes)
    if outputs > 1:
        last = len(nodes) - 1
        heads = b", ".join(b"[%d, %d, 0]" % (last, k) for k in range(outputs))
        symbol = symbol.replace(b'"heads": [[%d, 0, 0]]' % last, b'"heads": [' + heads + b"]")
    graph = importers.load(symbol, {"data": x.shape}, weights=mxnet_parameters(named))
    return list(evaluate(graph, {v.name: x for v in graph.inputs}).values())


def run(op: str, options: dict[str, Any], x: Array, *arrays: Array) -> Array:
    return every(op, options, x, *arrays)[0]


def bins(x: Array, count: int, axis: int) -> Array:
    n = x.shape[axis]
    return np.stack(
        [x.take(range(i * n // count, -(-(i + 1) * n // count)), axis).mean(axis) for i in range(count)], axis
    )


def turned(x: Array, lengths: tuple[int, ...]) -> Array:
    y = x.copy()
    for k, n in enumerate(lengths):
        y[:n, k] = x[:n, k][::-1]
    return y


G, B = RNG.uniform(0.5, 1, 5).astype(np.float32), RNG.uniform(-1, 1, 5).astype(np.float32)
MEAN, VAR = RNG.uniform(-1, 1, 5).astype(np.float32), RNG.uniform(0.5, 1, 5).astype(np.float32)
S = RNG.uniform(-1, 1, (4, 2, 3)).astype(np.float32)
LENGTHS = np.array([3, 1], np.float32)
KEPT = (np.arange(4)[:, None] < LENGTHS)[:, :, None]
CASES: list[tuple[str, dict[str, Any], list[Array], Array]] = [
    ("slice_like", {"axes": "(2, 3)"}, [X, np.zeros((1, 1, 3, 2))], X[:, :, :3, :2]),
    ("slice_like", {}, [M, np.zeros((2, 3))], M[:2, :3]),
    ("broadcast_like", {}, [M[:1], M], np.repeat(M[:1], 4, 0)),
    ("broadcast_axis", {"axis": 0, "size": 3}, [M[:1]], np.repeat(M[:1], 3, 0)),
    ("broadcast_to", {"shape": "(3, 0)"}, [M[:1]], np.repeat(M[:1], 3, 0)),
    ("repeat", {"repeats": 2, "axis": 1}, [M], M.repeat(2, 1)),
    ("repeat", {"repeats": 2}, [M], M.repeat(2)),
    ("reverse", {"axis": "(1,)"}, [M], M[:, ::-1]),
    ("one_hot", {"depth": 4, "on_value": 2}, [np.array([3.0, 0])], 2 * np.eye(4)[[3, 0]]),
    ("one_hot", {"depth": 3, "off_value": -1}, [np.array([-1.0, 2, 3, -3])], 2 * np.eye(4)[[3, 2, 3, 3], :3] - 1),
    ("pick", {"axis": 1}, [M, np.array([0, 4, 9, 2])], M[range(4), [0, 4, 4, 2]]),
    ("pick", {"axis": 1, "mode": "wrap"}, [M, np.array([0, -1, 9, -7])], M[range(4), [0, 4, 4, 3]]),
    ("Embedding", {"input_dim": 4, "output_dim": 5}, [np.array([-1.0, 3, 4, 0]), M], M[[0, 3, 3, 0]]),
    ("take", {}, [M, np.array([-1, 3, 4])], M[[0, 3, 3]]),
    ("take", {"mode": "wrap"}, [M, np.array([-1, 3, 5])], M[[3, 3, 1]]),
    ("pick", {"axis": 0, "keepdims": True}, [M, np.array([[3, 0, 1, 2, 3]])], M[[3, 0, 1, 2, 3], range(5)][None]),
    ("topk", {"k": 2, "ret_typ": "value"}, [M], np.sort(M, 1)[:, :2:-1]),
    ("topk", {"k": 2, "axis": 0, "is_ascend": True}, [M], np.argsort(M, 0)[:2]),
    ("topk", {"k": 2, "ret_typ": "mask"}, [M], (np.sort(M, 1)[:, 3:4] <= M).astype(np.float32)),
    ("sort", {"is_ascend": False}, [M], np.sort(M, 1)[:, ::-1]),
    ("argsort", {"axis": 0}, [M], np.argsort(M, 0)),
    ("gather_nd", {}, [M, np.array([[1, 3], [2, 0]])], M[[1, 3], [2, 0]]),
    ("scatter_nd", {"shape": "(3, 5)"}, [M[:2], np.array([[2, 0]])], np.stack([M[1], 0 * M[0], M[0]])),
    ("batch_take", {}, [M, np.array([0, 4, 1, 2])], M[range(4), [0, 4, 1, 2]]),
    ("batch_take", {}, [M, np.array([-1, 5, 1, 2])], M[range(4), [0, 4, 1, 2]]),
    ("SequenceMask", {"use_sequence_length": True, "value": -2}, [S, LENGTHS], np.where(KEPT, S, -2)),
    ("SequenceReverse", {"use_sequence_length": True}, [S, LENGTHS], turned(S, (3, 1))),
    ("SequenceReverse", {}, [S], S[::-1]),
    ("SequenceLast", {"use_sequence_length": True}, [S, LENGTHS], S[[2, 0], [0, 1]]),
    ("SequenceLast", {}, [S], S[-1]),
    ("_contrib_AdaptiveAvgPooling2D", {"output_size": "(4, 2)"}, [X], bins(bins(X, 4, 2), 2, 3)),
    ("_contrib_arange_like", {"axis": 1, "start": 2}, [M], np.arange(2, 7)),
    ("zeros_like", {}, [M], 0 * M),
    ("shape_array", {}, [M], np.array([4, 5])),
    ("_contrib_div_sqrt_dim", {}, [M], M / math.sqrt(5)),
    ("linalg_gemm2", {"transpose_b": True, "alpha": 2}, [M, M], 2 * M @ M.T),
    (
        "im2col",
        {"kernel": "(2, 3)", "stride": "(2, 1)"},
        [X],
        np.stack([X[:, :, r : r + 2, c : c + 3].reshape(2, -1) for r in (0, 2, 4) for c in range(3)], 2),
    ),
    (
        "BatchNorm",
        {"axis": 3, "eps": 0.01, "fix_gamma": False},
        [X, G, B, MEAN, VAR],
        (X - MEAN) / np.sqrt(VAR + np.float32(0.01)) * G + B,
    ),
    (
        "LayerNorm",
        {"axis": 1, "eps": 0.01},
        [X, G[:4], B[:4]],
        (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 0.01) * G[:4].reshape(4, 1, 1)
        + B[:4].reshape(4, 1, 1),
    ),
    ("Reshape", {"shape": "(-1, 0)", "reverse": True}, [X], X.reshape(48, 5)),
    (
        "UpSampling",
        {"scale": 2, "sample_type": "nearest", "num_args": 2},
        [X, np.ones((2, 1, 3, 5))],
        np.concatenate([X.repeat(2, 2).repeat(2, 3), np.ones((2, 1, 12, 10))], 1),
    ),
    ("Pooling", {"pool_type": "sum", "kernel": "(2, 1)", "stride": "(2, 1)"}, [X], X.reshape(2, 4, 3, 2, 5).sum(3)),
    (
        "Pooling",
        {"pool_type": "lp", "p_value": 2, "kernel": "(2, 1)", "stride": "(2, 1)"},
        [X],
        np.sqrt((X**2).reshape(2, 4, 3, 2, 5).sum(3)),
    ),
    ("broadcast_not_equal", {}, [np.sign(M), np.ones((1, 1))], (M <= 0).astype(np.float32)),
    ("_greater_scalar", {"scalar": 0.25}, [M], (M > 0.25).astype(np.float32)),
    ("broadcast_logical_and", {}, [M, np.array([[0, 1, 0, 2, 1]])], np.broadcast_to([0, 1, 0, 1, 1], (4, 5))),
    ("_rmod_scalar", {"scalar": -3}, [M], np.mod(np.float32(-3), M)),
    ("broadcast_hypot", {}, [M, M], np.hypot(M, M)),
    ("log2", {}, [M + 2], np.log2(M + 2)),
    ("trunc", {}, [3 * M], np.trunc(3 * M)),
    ("cbrt", {}, [M], np.cbrt(M)),
    ("degrees", {}, [M], np.degrees(M)),
    ("softmin", {}, [M], np.exp(-M) / np.exp(-M).sum(1, keepdims=True)),
    ("smooth_l1", {"scalar": 2}, [M], np.where(np.abs(M) < 0.25, 2 * M * M, np.abs(M) - 0.125)),
    ("norm", {"ord": 1, "axis": "(1,)", "keepdims": True}, [M], np.abs(M).sum(1, keepdims=True)),
    ("logical_not", {}, [np.array([0.0, 2])], np.array([1, 0])),
    ("amp_cast", {"dtype": "float16"}, [M], M),
    ("_npx_softmax", {"axis": 0}, [M], np.exp(M) / np.exp(M).sum(0)),
]


@pytest.mark.parametrize(("op", "options", "arrays", "result"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_operators(op: str, options: dict[str, Any], arrays: list[Array], result: Array) -> None:
    output = run(op, options, np.asarray(arrays[0], np.float32), *arrays[1:])
    np.testing.assert_allclose(output, result, rtol=1e-4, atol=1e-5)


def test_constants() -> None:
    symbol = mxnet_symbol(
        ("_arange", "a", {"start": "1", "stop": "None", "repeat": "1"}, ()),
        ("_arange", "b", {"start": "1", "stop": "4"}, ()),
        ("_ones", "o", {"shape": "(2, 3)"}, ()),
        ("null", "data", {}, ()),
        ("broadcast_mul", "m", {}, (2, 1)),
        ("broadcast_add", "n", {}, (4, 0)),
        ("broadcast_add", "y", {}, (5, 3)),
    )
    (output,) = evaluate(
        importers.load(symbol, {"data": (2, 3)}, weights=mxnet_parameters()), {"data": np.zeros((2, 3), np.float32)}
    ).values()
    np.testing.assert_array_equal(output, [[1, 2, 3]] * 2)


@pytest.mark.parametrize("per_group", [False, True])
def test_groups(per_group: bool) -> None:
    gamma, beta = (RNG.uniform(0.5, 1, 2 if per_group else 4).astype(np.float32) for _ in range(2))
    parts = X.reshape(2, 2, 2, 6, 5)
    mean, variance = parts.mean((2, 3, 4), keepdims=True), parts.var((2, 3, 4), keepdims=True)
    plain = ((parts - mean) / np.sqrt(variance + 0.01)).reshape(X.shape)
    g, b = (v.repeat(4 // len(v)).reshape(4, 1, 1) for v in (gamma, beta))
    np.testing.assert_allclose(
        run("GroupNorm", {"num_groups": 2, "eps": 0.01}, X, gamma, beta), plain * g + b, atol=1e-5
    )


def test_attention() -> None:
    """The attention is of three positions, two sequences, two heads of two numbers."""
    x = RNG.uniform(-1, 1, (3, 2, 12)).astype(np.float32)
    parts = x.reshape(3, 2, 2, 3, 2)  # length, batch, head, part, number
    expected = np.einsum("lbhd,mbhd->bhlm", parts[..., 0, :], parts[..., 1, :]).reshape(4, 3, 3) / math.sqrt(2)
    np.testing.assert_allclose(run("_contrib_interleaved_matmul_selfatt_qk", {"heads": 2}, x), expected, atol=1e-5)
    made = run("_contrib_interleaved_matmul_selfatt_valatt", {"heads": 2}, x, expected)
    values = np.einsum("bhlm,mbhd->lbhd", expected.reshape(2, 2, 3, 3), parts[..., 2, :]).reshape(3, 2, 4)
    np.testing.assert_allclose(made, values, atol=1e-5)


def test_sampling() -> None:
    """An image mirrored by an affine matrix and by a flow field."""
    theta = np.tile(np.array([-1, 0, 0, 0, 1, 0], np.float32), (2, 1))
    output = run("SpatialTransformer", {"target_shape": "(6, 5)"}, X, theta)
    np.testing.assert_allclose(output, X[..., ::-1], atol=1e-5)
    grid = run("GridGenerator", {"transform_type": "affine", "target_shape": "(6, 5)"}, theta)
    np.testing.assert_allclose(run("BilinearSampler", {}, X, grid), X[..., ::-1], atol=1e-5)
    flow = np.zeros((2, 2, 6, 5), np.float32)
    flow[:, 0] = 1
    moved = run("BilinearSampler", {}, X, run("GridGenerator", {"transform_type": "warp"}, flow))
    np.testing.assert_allclose(moved, np.pad(X[..., 1:], ((0, 0), (0, 0), (0, 0), (0, 1))), atol=1e-5)


@pytest.mark.parametrize("modulated", [False, True])
def test_deformable_convolution(modulated: bool) -> None:
    w, offset = RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32), np.zeros((2, 2, 6, 5), np.float32)
    offset[:, 0] = 2
    mask = [np.full((2, 1, 6, 5), 0.5)] if modulated else []
    op = f"_contrib_{'Modulated' if modulated else ''}DeformableConvolution"
    output = run(op, {"kernel": "(1, 1)", "num_filter": 3, "no_bias": True}, X, offset, *mask, w)
    moved = np.pad(X[:, :, 2:], ((0, 0), (0, 0), (0, 2), (0, 0)))
    expected = np.einsum("oc,nchw->nohw", w[:, :, 0, 0], moved) * (0.5 if modulated else 1)
    np.testing.assert_allclose(output, expected, atol=1e-5)


# --------------------------------------------------------------------------------------------------------- boxes
def overlap(a: Array, b: Array) -> float:
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


@pytest.mark.parametrize(("together", "topk", "center"), [(False, -1, False), (True, -1, False), (False, 5, True)])
def test_box_nms(together: bool, topk: int, center: bool) -> None:
    corners = RNG.uniform(0, 60, (9, 2))
    boxes = np.concatenate([corners, corners + RNG.uniform(20, 60, (9, 2))], 1).astype(np.float32)
    score, kind = RNG.uniform(0, 1, 9).astype(np.float32), RNG.integers(0, 2, 9).astype(np.float32)
    order = [i for i in np.argsort(-score, kind="stable") if score[i] > 0.1][: topk if topk > 0 else 9]
    kept: list[int] = []
    for i in order:
        rivals = [k for k in kept if together or kind[k] == kind[i]]
        if all(overlap(boxes[k], boxes[i]) <= 0.3 for k in rivals):
            kept.append(i)
    if center:
        boxes = np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)
    rows = np.concatenate([kind[:, None], score[:, None], boxes], 1)
    expected = np.full((1, 9, 6), -1.0)
    expected[0, : len(kept)] = rows[kept]
    form = "center" if center else "corner"
    options = {
        "overlap_thresh": 0.3,
        "valid_thresh": 0.1,
        "id_index": 0,
        "force_suppress": together,
        "topk": topk,
        "in_format": form,
        "out_format": form,
    }
    np.testing.assert_allclose(run("_contrib_box_nms", options, rows[None].astype(np.float32)), expected, atol=1e-5)
    assert 1 < len(kept) < len(order)


def test_box_iou() -> None:
    boxes = np.array([[0, 0, 2, 2], [1, 1, 3, 4], [5, 5, 6, 6]], np.float32)
    expected = [[overlap(a, b) for b in boxes[:2]] for a in boxes]
    np.testing.assert_allclose(run("_contrib_box_iou", {}, boxes, boxes[:2]), expected, atol=1e-6)


def test_proposals() -> None:
    scores = np.array([0, 0, 0.2, 0.9], np.float32).reshape(1, 2, 1, 2)
    options = {"scales": "(1,)", "ratios": "(1,)", "feature_stride": 16, "rpn_min_size": 2, "rpn_post_nms_top_n": 3}
    output = run("_contrib_Proposal", options, scores, np.zeros((1, 4, 1, 2)), np.array([[40, 60, 1]]))
    np.testing.assert_allclose(output, [[0, 16, 0, 31, 15], [0, 0, 0, 15, 15], [0] * 5], atol=1)


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        ("topk", {"ret_typ": "odd"}, "ret_typ odd"),
        ("_contrib_box_nms", {"out_format": "center"}, "change their form"),
        ("norm", {"ord": 3}, "norm 3"),
    ],
)
def test_refusals(op: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        run(op, options, RNG.uniform(0, 1, (1, 7, 6)).astype(np.float32))


SOFT = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
LIKE_MXNET: list[tuple[str, dict[str, Any], list[Array], Array]] = [
    ("sum", {}, [X], X.sum().reshape(1)),
    ("norm", {}, [X], np.sqrt((X * X).sum()).reshape(1)),
    ("argmax", {}, [M], np.array([M.argmax()])),
    (
        "Pooling",
        {"kernel": "(2, 2)", "stride": "(2, 2)", "pool_type": "avg", "pooling_convention": "full"},
        [X],
        np.concatenate(
            [(X[..., 0:4] + 0).reshape(2, 4, 3, 2, 2, 2).mean((3, 5)), X[..., 4:].reshape(2, 4, 3, 2, 1).mean(3)], -1
        ),
    ),
    ("SoftmaxActivation", {}, [X], SOFT),
    ("tile", {"reps": "(2, 1, 3)"}, [M], np.tile(M, (2, 1, 3))),
    ("take", {}, [M, np.array([[-3, 1], [3, 9]])], M[[[0, 1], [3, 3]]]),
    ("take", {"mode": "wrap"}, [M, np.array([[-3, 1], [3, 9]])], M[[[1, 1], [3, 1]]]),
    ("slice", {"begin": "(None, 3)", "end": "(None, None)", "step": "(None, -2)"}, [X], X[:, 3::-2]),
    ("slice", {"begin": "(None, None)", "end": "(None, 1)", "step": "(1, -1)"}, [X], X[:, :1:-1]),
    ("_split_v2", {"indices": "(0, 1)", "axis": "1"}, [X], X[:, :1]),
    (
        "softmax",
        {"use_length": "True", "axis": "1"},
        [M, np.array([2, 5, 1, 3])],
        np.array(
            [[*(np.exp(r[:n]) / np.exp(r[:n]).sum()), *[0.0] * (5 - n)] for r, n in zip(M, (2, 5, 1, 3), strict=True)]
        ),
    ),
    ("_hypot_scalar", {"scalar": "2"}, [X], np.hypot(X, 2)),
]
"""Results of MXNet itself, where one would expect something else."""


@pytest.mark.parametrize("case", LIKE_MXNET, ids=lambda case: f"{case[0]} {case[1]}")
def test_recorded_results_of_mxnet(case: tuple[str, dict[str, Any], list[Array], Array]) -> None:
    op, options, inputs, expected = case
    output = run(op, options, *inputs)
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


def test_deformable_convolution_v1_at_the_border() -> None:
    """Samples beyond the last row are zero; those less than one row beyond it take the last row."""
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 4, 1)
    down = np.array([0.5, 0.75, 0.5, 1.5], np.float32)
    offsets = np.stack([down, np.zeros(4, np.float32)]).reshape(1, 2, 4, 1)
    options = {"kernel": "(1, 1)", "num_filter": "1", "no_bias": "True"}
    output = run("_contrib_DeformableConvolution", options, x, offsets, np.ones((1, 1, 1, 1)))
    np.testing.assert_allclose(output.ravel(), [1.5, 2.75, 3.5, 0.0])
    offsets[0, 0, 3] = 0.5
    output = run("_contrib_DeformableConvolution", options, x, offsets, np.ones((1, 1, 1, 1)))
    np.testing.assert_allclose(output.ravel(), [1.5, 2.75, 3.5, 4.0])
