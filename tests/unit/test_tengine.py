"""Small tmfiles: tables linked by offsets, weights in one buffer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluate import evaluate
from small_models import Words, tmfile
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.tengine.load import load
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="tengine")

X = np.random.default_rng(5).uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)


def run(type: int, parameters: Words, *weights: Array, x: Array = X) -> Array:
    (output,) = evaluate(importers.load(tmfile(type, parameters, *weights, shape=x.shape)), {"data": x}).values()
    return output


def test_convolution_with_relu6() -> None:
    w = np.random.default_rng(1).uniform(-2, 2, (3, 4, 1, 1)).astype(np.float32)
    b = np.array([1, 2, -3], np.float32).reshape(1, 1, 1, 3)
    output = run(5, [1, 1, 2, 1, 1, 1, 4, 3, 1, 6, 0, 0, 0, 0], w, b)
    expected = np.einsum("fc,nchw->nfhw", w[:, :, 0, 0], X[:, :, ::2]) + b.reshape(1, 3, 1, 1)
    np.testing.assert_allclose(output, np.clip(expected, 0, 6), atol=1e-6)


def test_quantised_weights_are_dequantised() -> None:
    w = np.arange(-8, 8, dtype=np.int8).reshape(4, 4)
    output = run(11, [4], w, x=X[:, :, 0, 0])
    np.testing.assert_allclose(output, X[:, :, 0, 0] @ ((w.astype(np.float32) - 3) * 0.5).T, atol=1e-5)


@pytest.mark.parametrize(("n", "kernel", "stride", "pad"), [(6, 3, 2, 0), (7, 3, 2, 1), (6, 2, 2, 0), (5, 3, 3, 1)])
def test_pooling_rounds_like_caffe(n: int, kernel: int, stride: int, pad: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, n, n)).astype(np.float32)
    output = run(16, [0, kernel, kernel, stride, stride, 0, 1, pad, pad, pad, pad], x=x)
    count = -(-(n + 2 * pad - kernel) // stride) + 1
    count -= pad > 0 and (count - 1) * stride >= n + pad
    assert output.shape == (1, 2, count, count)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, 9), (pad, 9)), constant_values=-9)
    first = padded[:, :, (count - 1) * stride :, :kernel][:, :, :kernel]
    np.testing.assert_array_equal(output[:, :, -1, 0], first.max((2, 3)))


@pytest.mark.parametrize(
    ("type", "parameters", "result"),
    [
        (28, [1], np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        (15, [0, 0, 2, 3, 1], X.transpose(0, 2, 3, 1)),
        (9, [17, 0, 1.0, 2.0, 0.5], (1 + 0.5 * X) ** 2),
        (20, [0.25], np.where(X > 0, X, 0.25 * X)),
        (55, [2], X.reshape(1, 2, 2, 6, 5).swapaxes(1, 2).reshape(X.shape)),
        (51, [2.0], X.repeat(2, 2).repeat(2, 3)),
        (45, [2, 3, -2, -2, 1, 1], X.mean((2, 3), keepdims=True)),
        (10, [1, 3], X.reshape(1, -1)),
        (40, [0, 0, 0, 0, 1, 0, 0, 2, 0, 0.5], np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5)),
        (59, [15], 1 / X),
    ],
)
def test_operators(type: int, parameters: list[int | float], result: Array) -> None:
    np.testing.assert_allclose(run(type, parameters), result, rtol=1e-5, atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"layer \(operator 200\): this operator is not supported"):
        importers.load(tmfile(200, []))
    with pytest.raises(FormatError, match=r"version 2.0 \(it says 1.0.0\)"):
        load(ModelFile("old.tmfile", b"\1\0" + bytes(70)), {}, None, None)


W = np.random.default_rng(6).uniform(-1, 1, (5, 3)).astype(np.float32)
SQUARES = np.pad(X[0] ** 2, ((0, 0), (0, 0), (0, 1)))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


@pytest.mark.parametrize(
    ("type", "parameters", "weights", "result"),
    [
        (53, [1, 1, 0, 0, 0, 0], [], X),
        (75, [1], [np.zeros_like(X)], (X != 0).astype(np.float32)),
        (78, [1], [X], np.zeros_like(X)),
        (78, [3], [0 * X], (X >= 0).astype(np.float32)),
        (81, [], [np.array([2], np.int32)], X[:, :, ::-1]),
        (86, [], [], 0 * X),
        (91, [], [np.eye(5, dtype=np.float32)], X),
        (92, [], [np.eye(5, dtype=np.float32)], X),
        (92, [[2, 4, 6, 5], 4], [], np.concatenate([X, X])),
        (91, [[2, 4, 6, 5], 4], [], np.concatenate([X, X])),
        (94, [], [], np.array([1, 4, 6, 5])),
        (95, [], [0 * X, 0 * X + 1], (X == 0).astype(np.float32)),
        (96, [1, 2, [2, 1]], [], np.tile(X, (1, 1, 2, 1))),
        (96, [1], [np.array([1, 2, 1, 3], np.int32)], np.tile(X, (1, 2, 1, 3))),
        (98, [0, 3, 2, 3, 2], [], np.sqrt((X**2)[..., :4].reshape(1, 4, 2, 3, 2, 2).mean((3, 5)))),
        (106, [], [], gelu(X)),
        (71, [4, 2.0, 2.0, 0, 0], [], None),
        (13, [3, 0.5, 0.75, 1, 2.0], [], None),
    ],
)
def test_more_operators(type: int, parameters: Words, weights: list[Array], result: Array | None) -> None:
    expected = {71: upsampled_align_corners, 13: lrn}[type](X) if result is None else result
    np.testing.assert_allclose(run(type, parameters, *weights), expected, rtol=1e-5, atol=1e-5)


def upsampled_align_corners(x: Array) -> Array:
    """Upsampling by two with aligned corners."""
    for axis in (2, 3):
        n = x.shape[axis]
        indices = np.linspace(0, n - 1, 2 * n)
        x = np.apply_along_axis(lambda line, p=indices, n=n: np.interp(p, np.arange(n), line), axis, x)
    return x


def lrn(x: Array) -> Array:
    """Divided by (2 + 0.5 * mean of the squares of 3 x 3 neighbours) ** 0.75."""
    padded = np.pad(x**2, ((0, 0), (0, 0), (1, 1), (1, 1)))
    mean = sum(padded[:, :, i : i + 6, j : j + 5] for i in range(3) for j in range(3)) / 9
    return np.asarray(x / (2 + 0.5 * mean) ** 0.75)


def test_space_to_batch() -> None:
    output = run(52, [3, 2, 0, 0, 1, 0])
    padded = np.pad(X, ((0, 0), (0, 0), (0, 0), (1, 0)))
    np.testing.assert_array_equal(
        output, np.concatenate([padded[:, :, i::2, j::3] for i in range(2) for j in range(3)])
    )
    back = run(53, [3, 2, 0, 0, 1, 0], x=output)
    np.testing.assert_array_equal(back, X)


def test_l2_pool_leaves_padding_out() -> None:
    outputs = run(98, [1, 1, 2, 1, 2])
    expected = np.sqrt(np.stack([SQUARES[..., :2].mean(-1), SQUARES[..., 2:4].mean(-1), SQUARES[..., 4]], -1))
    np.testing.assert_allclose(outputs[0], expected, atol=1e-5)


def test_layer_norm() -> None:
    g, b = W[:, 0], W[:, 1]
    mean, variance = X.mean(-1, keepdims=True), X.var(-1, keepdims=True)
    np.testing.assert_allclose(run(107, [1e-3], g, b), (X - mean) / np.sqrt(variance + 1e-3) * g + b, atol=1e-5)


def test_embedding() -> None:
    ids = np.array([[4, 0, 1]], np.float32)
    np.testing.assert_allclose(run(65, [3, 5, 1, 15], W, W[0], x=ids), W[[[4, 0, 1]]] + W[0], atol=1e-6)
    np.testing.assert_array_equal(run(65, [3, 5, 0, 15], W, x=np.array([[-1, 5, 99]], np.float32)), W[[[0, 4, 4]]])


def test_top_k() -> None:
    graph = importers.load(tmfile(44, [2, 1], shape=X.shape, outputs=2))
    values, indices = evaluate(graph, {"data": X}).values()
    np.testing.assert_array_equal(values, np.sort(X, -1)[..., :-3:-1])
    np.testing.assert_array_equal(indices, np.argsort(X, -1)[..., :-3:-1])


def test_scatter_and_sparse_to_dense() -> None:
    indices, values = np.array([[2], [0]], np.int32), np.array([[7], [8]], np.float32)
    expected = W.copy()
    expected[0, 2], expected[1, 0] = 7, 8
    np.testing.assert_array_equal(run(93, [1], indices, values, x=W[:2]), expected[:2])
    dense = run(82, [3, 4, -1], np.array([3, 4], np.int32), values[:, 0], x=np.array([[0, 1], [2, 3]], np.float32))
    expected = np.full((3, 4), -1)
    expected[0, 1], expected[2, 3] = 7, 8
    np.testing.assert_array_equal(dense, expected)


@pytest.mark.parametrize("number", [105, 98])
def test_spatial_transformer(number: int) -> None:
    """Half an image to the left, and mirrored; old versions use the operator number 98."""
    moved = run(number, [1, 0, 2, [6, 5]], np.array([[1, 0, 1, 0, -1, 0]], np.float32))
    expected = np.zeros_like(X)
    expected[..., :3] = X[:, :, ::-1, 2:]
    np.testing.assert_allclose(moved, expected, atol=1e-5)


def test_parameters_missing_in_old_versions() -> None:
    """A deconvolution without the output padding field: the data after it must not be read as one."""
    w = np.ones((4, 1, 2, 2), np.float32)
    assert run(6, [1, 2, 2, 2, 2, 0, 0, 0, 0, 1, 1, 1, -1], w).shape == (1, 1, 12, 10)


# ------------------------------------------------------------------------------------------- detectors
def test_region() -> None:
    x = np.random.default_rng(2).uniform(-1, 1, (1, 2 * 7, 3, 2)).astype(np.float32)
    output = run(19, [2, 0, 2, 4, 0.1, 0.1, 0], x=x).reshape(2, 7, 6)
    parts = x.reshape(2, 7, 6)
    for rows in ([0, 1], [4]):
        np.testing.assert_allclose(output[:, rows], 1 / (1 + np.exp(-parts[:, rows])), atol=1e-6)
    np.testing.assert_array_equal(output[:, 2:4], parts[:, 2:4])
    kinds = np.exp(parts[:, 5:])
    np.testing.assert_allclose(output[:, 5:], kinds / kinds.sum(1, keepdims=True), atol=1e-6)


REGIONS = np.array([[0, 0, 3, 5], [2, 2, 4, 3]], np.float32).reshape(1, 2, 4, 1)


def test_roi_pooling() -> None:
    output = run(24, [2, 2, 1.0], REGIONS)
    assert output.shape == (2, 4, 2, 2)
    np.testing.assert_array_equal(output[0, :, 1, 0], X[0, :, 3:6, 0:2].max((1, 2)))
    np.testing.assert_array_equal(output[1, :, 0, 1], X[0, :, 2:3, 3:5].max((1, 2)))


def test_roi_align_is_exact_on_a_linear_ramp() -> None:
    slope = np.tile(np.arange(5, dtype=np.float32), (1, 1, 6, 1))
    output = run(57, [2, 1, 1.0], np.array([[1, 1, 3, 2]], np.float32), x=slope)
    np.testing.assert_allclose(output[0, 0, 0], [1.5, 2.5], atol=1e-6)


def test_position_sensitive_pooling() -> None:
    output = run(58, [2, 2, 1.0, 1], np.array([[0, 0, 3, 3]], np.float32))
    expected = [X[0, 0, :2, :2].mean(), X[0, 1, :2, 2:4].mean(), X[0, 2, 2:4, :2].mean(), X[0, 3, 2:4, 2:4].mean()]
    np.testing.assert_allclose(output.ravel(), expected, atol=1e-6)


def test_proposals() -> None:
    """Two positions, one anchor each, far apart: both are kept, the higher score first."""
    scores = np.array([0, 0, 0.2, 0.9], np.float32).reshape(1, 2, 1, 2)
    deltas, info = np.zeros((1, 4, 1, 2), np.float32), np.array([[40, 60, 1]], np.float32)
    anchors = np.array([[0, 0, 9, 9]], np.float32)
    parameters: Words = [[1.0], [1.0], 16, 16, 2, 10, 3, 0.7, anchors]
    output = run(25, parameters, deltas, info, x=scores)
    assert output.shape == (1, 3, 4, 1)
    np.testing.assert_allclose(output[0, :, :, 0], [[16, 0, 25, 9], [0, 0, 9, 9], [0, 0, 0, 0]], atol=1)


@pytest.mark.parametrize("turned", [False, True])
def test_detection_post_process(turned: bool) -> None:
    """One anchor of size 1 in the middle of the image, of class 1 of two behind the background."""
    boxes, scores = np.zeros((1, 2, 4), np.float32), np.array([[[0, 0.1, 0.9], [0, 0.2, 0.1]]], np.float32)
    anchors = np.array([[0.5, 0.5, 1, 1], [0.5, 0.5, 0.1, 0.1]], np.float32)
    if turned:
        boxes, scores = boxes.transpose(0, 2, 1), scores.transpose(0, 2, 1)
    file = tmfile(
        30,
        [1, 1, 0.5, 0.5, 2, [10.0, 10.0, 5.0, 5.0]],
        np.ascontiguousarray(scores),
        anchors,
        shape=boxes.shape,
        outputs=4,
    )
    box, kind, score, count = evaluate(importers.load(file), {"data": boxes}).values()
    assert box.shape == ((1, 4, 1) if turned else (1, 1, 4))
    np.testing.assert_allclose([*box.ravel(), *kind.ravel(), *score.ravel(), *count], [0, 0, 1, 1, 1, 0.9, 1])
