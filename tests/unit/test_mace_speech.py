"""MACE's operators of speech models and of detectors, compared with definitions in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evaluate import evaluate
from small_models import MaceOptions, mace_net
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(8)
X = RNG.uniform(-1, 1, (2, 6, 10)).astype(np.float32)


def every(type: str, options: MaceOptions, *weights: Array, x: Array = X, outputs: Sequence[str] = ()) -> list[Array]:
    data = b"".join(w.tobytes() for w in weights)
    net = mace_net(type, options, weights, dims=x.shape, outputs=outputs)
    return list(evaluate(importers.load(net, weights=data or b"\0"), {"x": x}).values())


def run(type: str, options: MaceOptions, *weights: Array, x: Array = X) -> Array:
    (output,) = every(type, options, *weights, x=x)
    return output


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def rms(x: Array, target: float, block: int) -> Array:
    parts = x.reshape(-1, block)
    roots = np.sqrt((parts**2).mean(1, keepdims=True)) / target
    return np.concatenate([parts / roots, np.log(target) + np.log(roots)], 1).reshape(*x.shape[:-1], -1)


G, B = RNG.uniform(0.5, 1, 5).astype(np.float32), RNG.uniform(-1, 1, 5).astype(np.float32)
BLOCKS = X.reshape(-1, 5)
CASES: list[tuple[str, MaceOptions, tuple[Array, ...], Array]] = [
    ("Subsample", {"forward_indexes": [0, 3, 5]}, (), X[:, [0, 3, 5]]),
    ("ReplaceIndex", {"forward_indexes": [2, 2]}, (), X[:, [2, 2]]),
    ("PadContext", {"left_context": 2, "right_context": 1}, (), X[:, [0, 0, 0, 1, 2, 3, 4, 5, 5]]),
    (
        "Splice",
        {"context": [-1, 1], "forward_indexes": [0, 2, 1, 3]},
        (),
        np.stack([np.concatenate([X[:, a], X[:, b]], -1) for a, b in ((0, 2), (1, 3))], 1),
    ),
    (
        "Splice",
        {"context": [0, 1], "forward_indexes": [0, 1], "const_component_dim": 3, "forward_const_indexes": [4]},
        (),
        np.concatenate([X[:, 0, :7], X[:, 1, :7], X[:, 4, 7:]], -1)[:, None],
    ),
    ("PNorm", {"p": 1, "output_dim": 5}, (), np.abs(X).reshape(2, 6, 5, 2).sum(-1)),
    ("PNorm", {"p": 0, "output_dim": 5}, (), np.full((2, 6, 5), 2.0)),
    ("PNorm", {"output_dim": 5}, (), np.sqrt((X**2).reshape(2, 6, 5, 2).sum(-1))),
    ("TargetRMSNorm", {"target_rms": 0.5, "block_dim": 5, "add_log_stddev": 1}, (), rms(X, 0.5, 5)),
    ("KaldiBatchNorm", {"block_dim": 5, "test_mode": 1}, (G, B), (BLOCKS * G + B).reshape(X.shape)),
    (
        "KaldiBatchNorm",
        {"block_dim": 5, "target_rms": 2.0, "epsilon": 0.01},
        (),
        (2 * (BLOCKS - BLOCKS.mean(0)) / np.sqrt(BLOCKS.var(0) + 0.01)).reshape(X.shape),
    ),
    (
        "SumGroup",
        {},
        (np.array([3, 6, 1], np.int32),),
        np.stack([X[..., :3].sum(-1), X[..., 3:9].sum(-1), X[..., 9]], -1),
    ),
    (
        "ExtractPooling",
        {"include_variance": 1, "num_log_count": 1, "forward_indexes": [0, 4, 1, 6], "counts": [4.0, 5.0]},
        (),
        np.stack(
            [
                np.concatenate([np.full((2, 1), np.log(n)), p.mean(1), p.std(1)], 1)
                for n, p in ((4, X[:, :4]), (5, X[:, 1:]))
            ],
            1,
        ),
    ),
    ("Cumsum", {"axis": 1, "exclusive": 1}, (), np.cumsum(X, 1) - X),
    ("Slice", {"starts": [1, 0], "ends": [4, 8], "axes": [1, 2]}, (), X[:, 1:4, :8]),
    ("Eltwise", {"type": 11, "scalar_input": 0.25}, (), np.floor(X / 0.25)),
    ("ScalarMath", {"type": 13}, (), np.sign(X)),
    ("Reshape", {"axis": 1, "end_axis": -1}, (), X.reshape(2, -1)),
]


@pytest.mark.parametrize(
    ("type", "options", "weights", "result"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_operators(type: str, options: MaceOptions, weights: tuple[Array, ...], result: Array) -> None:
    np.testing.assert_allclose(run(type, options, *weights), result, rtol=1e-4, atol=1e-5)


def test_missing_context_frames() -> None:
    """Frames before the beginning are zeros, or those of the previous run."""
    options: MaceOptions = {"forward_indexes": [-2, -1, 0, 1, 2, 3], "cache_forward_indexes": [4, 5]}
    zeros = np.zeros((2, 2, 10), np.float32)
    np.testing.assert_array_equal(
        run("IfDefined", {"forward_indexes": options["forward_indexes"]}), np.concatenate([zeros, X[:, :4]], 1)
    )
    before = RNG.uniform(-1, 1, X.shape).astype(np.float32)
    np.testing.assert_array_equal(run("IfDefined", options, before), np.concatenate([before[:, 4:], X[:, :4]], 1))


def cell(gates: Array, memory: Array, peeps: Array, scales: Sequence[float] = (1, 1, 1)) -> tuple[Array, Array]:
    i, f, g, o = np.split(gates, 4, -1)
    new = scales[1] * sigmoid(f + peeps[1] * memory) * memory + scales[0] * sigmoid(i + peeps[0] * memory) * np.tanh(g)
    return new, scales[2] * sigmoid(o + peeps[2] * new) * np.tanh(new)


@pytest.mark.parametrize("scaled", [False, True])
def test_lstm_cell(scaled: bool) -> None:
    peeps = RNG.uniform(-1, 1, (3, 4)).astype(np.float32)
    x = RNG.uniform(-1, 1, (2, 23 if scaled else 20)).astype(np.float32)
    if scaled:
        x[:, 20:] = (0.5, 0.25, 2)
    expected = np.concatenate(cell(x[:, :16], x[:, 16:20], peeps, x[0, 20:].tolist() if scaled else (1, 1, 1)), -1)
    np.testing.assert_allclose(run("LSTMNonlinear", {}, peeps, x=x), expected, atol=1e-5)


def test_dynamic_lstm() -> None:
    """A delay of two frames: even and odd frames have separate states, used alternately."""
    n, out, size = 3, 4, 2
    a, b = (RNG.uniform(-1, 1, dims).astype(np.float32) for dims in ((4 * size, n + 3), (out, size)))
    first, second = (RNG.uniform(-1, 1, d).astype(np.float32) for d in (4 * size, out))
    said, kept = (RNG.uniform(-1, 1, (1, 2, d)).astype(np.float32) for d in (3, size))
    peeps, x = (RNG.uniform(-1, 1, d).astype(np.float32) for d in ((3, size), (1, 5, n)))
    options: MaceOptions = {
        "prev_out_delay": -2,
        "prev_cell_delay": -2,
        "prev_out_offset": 1,
        "prev_out_dim": 3,
        "prev_cell_dim": size,
        "scale": 0.5,
        "forward_indexes": [0, 1, 3, 4],
        "out_cache_indexes": [2, 3],
        "cell_cache_indexes": [2, 3],
    }
    outputs = every("DynamicLSTM", options, said, kept, a, peeps, b, first, second, x=x, outputs=("out", "cell"))
    say, keep, rows = list(said[0]), list(kept[0]), []
    for i, frame in enumerate([0, 1, 3, 4]):
        memory, spoken = cell(a @ np.concatenate([x[0, frame], say[i % 2]]) + first, keep[i % 2], peeps)
        rows.append(b @ spoken + second)
        say[i % 2], keep[i % 2] = rows[-1][1:] * 0.5, memory * 0.5
    for mine, theirs in zip(outputs, (rows, say, keep), strict=True):
        np.testing.assert_allclose(mine[0], np.stack(theirs), atol=1e-5)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"needs the frames \[7\] of 6"):
        run("Subsample", {"forward_indexes": [7]})


# -------------------------------------------------------------------------------------------- images
P = RNG.uniform(-1, 1, (1, 4, 6, 4)).astype(np.float32)


def test_group_normalisation_and_mean() -> None:
    grouped = P.reshape(1, 4, 6, 2, 2)
    mean, variance = grouped.mean((1, 2, 4), keepdims=True), grouped.var((1, 2, 4), keepdims=True)
    expected = ((grouped - mean) / np.sqrt(variance + 0.01)).reshape(P.shape)
    np.testing.assert_allclose(run("GroupNorm", {"group_num": 2, "epsilon": 0.01}, x=P), expected, atol=1e-5)
    apart = P - P.mean((1, 2), keepdims=True)
    expected = apart / (P.std((1, 2), keepdims=True) + 0.1)
    np.testing.assert_allclose(run("MVNorm", {"epsilon": 0.1}, x=P), expected, atol=1e-5)


def test_symmetric_padding() -> None:
    widths = [0, 0, 1, 4, 2, 0, 0, 3]
    expected = np.pad(P, np.reshape(widths, (4, 2)), mode="symmetric")
    np.testing.assert_array_equal(run("Pad", {"paddings": widths, "pad_type": 2}, x=P), expected)


@pytest.mark.parametrize("group", [2, 4])
def test_grouped_deconvolution(group: int) -> None:
    """Stored [outputs of a group, inputs, h, w]."""
    w = RNG.uniform(-1, 1, (4 // group, 4, 2, 2)).astype(np.float32)
    output = run("DepthwiseDeconv2d", {"strides": [2, 2], "padding_values": [0, 0], "group": group}, w, x=P)
    expected = np.zeros((1, 8, 12, 4))
    inner = 4 // group
    for o in range(4):
        g, p = divmod(o, inner)
        for q in range(g * inner, (g + 1) * inner):
            expected[0, :, :, o] += np.kron(P[0, :, :, q], w[p, q])
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_prior_boxes() -> None:
    """On a map of 4 x 6 over an image of 8 x 12 pixels: two boxes at each position."""
    image = np.zeros((1, 8, 12, 3), np.float32)
    options: MaceOptions = {
        "min_size": [4.0],
        "max_size": [9.0],
        "aspect_ratio": [1.0],
        "variance": [0.1, 0.1, 0.2, 0.2],
        "clip": 0,
    }
    output = run("PriorBox", options, image, x=P)
    assert output.shape == (1, 2, 4 * 2 * 24)
    boxes = output[0, 0].reshape(4, 6, 2, 4)
    np.testing.assert_allclose(boxes[1, 2, 0], [3 / 12, 1 / 8, 7 / 12, 5 / 8], atol=1e-6)
    np.testing.assert_allclose(boxes[1, 2, 1], [2 / 12, 0 / 8, 8 / 12, 6 / 8], atol=1e-6)
    np.testing.assert_allclose(output[0, 1, :4], [0.1, 0.1, 0.2, 0.2], atol=1e-6)


def test_detection_output_is_sorted_by_score() -> None:
    """Two distant boxes of two classes; the second class has the higher score."""
    corners = np.array([[0, 0, 0.2, 0.2], [0.5, 0.5, 0.9, 0.9]], np.float32)
    priors = np.stack([corners.ravel(), np.full(8, 0.1, np.float32)])[None]
    scores = np.array([[0.1, 0.7, 0.2, 0.1, 0.1, 0.8]], np.float32)
    options: MaceOptions = {"num_classes": 3, "keep_top_k": 4, "confidence_threshold": 0.5}
    output = run("DetectionOutput", options, scores, priors, x=np.zeros((1, 8), np.float32))
    assert output.shape == (1, 1, 4, 7)
    np.testing.assert_allclose(output[0, 0, 0, 1:], [2, 0.8, *corners[1]], atol=1e-6)
    np.testing.assert_allclose(output[0, 0, 1, 1:], [1, 0.7, *corners[0]], atol=1e-6)
    np.testing.assert_array_equal(output[0, 0, 2:], -1)


def test_proposals() -> None:
    """One anchor of 16 pixels at each of two positions; the second has the higher score."""
    scores = np.array([0, 0.2, 0, 0.9], np.float32).reshape(1, 1, 2, 2)
    deltas, info = np.zeros((1, 1, 2, 4), np.float32), np.array([[40, 60, 1]], np.float32)
    options: MaceOptions = {
        "scales": [1],
        "ratios": [1.0],
        "base_size": 16,
        "feat_stride": 16,
        "min_size": 2,
        "pre_nms_top_n": 10,
        "post_nms_top_n": 3,
        "nms_thresh": 0.7,
    }
    output = run("Proposal", options, deltas, info, x=scores)
    np.testing.assert_allclose(output, [[0, 16, 0, 31, 15], [0, 0, 0, 15, 15], [0] * 5], atol=1)


def test_position_sensitive_align_of_a_constant_image() -> None:
    flat = np.ones((1, 6, 6, 4), np.float32) * np.arange(4, dtype=np.float32)
    options: MaceOptions = {"spatial_scale": 1.0, "output_dim": 1, "group_size": 2}
    output = run("PSROIAlign", options, np.array([[0, 1, 1, 4, 4]], np.float32), x=flat)
    np.testing.assert_allclose(output.reshape(2, 2), [[0, 1], [2, 3]], atol=1e-6)
