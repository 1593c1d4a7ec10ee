"""Paddle's operators of sorting, scattering, sampling, quantisation and detection, against definitions in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluate import evaluate
from small_models import Option, paddle, paddle_operator, paddle_tensor
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from wire import field, message

pytestmark = pytest.mark.quick(importer="paddle")

RNG = np.random.default_rng(2)
X = RNG.uniform(-1, 1, (2, 4, 6, 5)).astype(np.float32)
M = RNG.uniform(-1, 1, (4, 5)).astype(np.float32)
Inputs = dict[str, Array | list[Array]]


def run(type: str, inputs: Inputs, out: str = "Out", /, **options: Option) -> Array:
    """The first input is the program's, the others are parameters."""
    slots: dict[str, str | list[str]] = {}
    stored: dict[str, Array] = {}
    for i, (slot, value) in enumerate(inputs.items()):
        values = value if isinstance(value, list) else [value]
        names = [f"a{i}_{k}" for k in range(len(values))]
        stored |= dict(zip(names, values, strict=True))
        slots[slot] = names
    first = next(iter(stored))
    x = stored.pop(first).astype(np.float32)
    head = next(iter(slots))
    slots[head] = ["x", *list(slots[head])[1:]]
    program = paddle(
        paddle_operator(type, slots, {out: "y"}, **options),
        shape=x.shape,
        parameters={n: a.shape for n, a in stored.items()},
    )
    weights = b"".join(paddle_tensor(stored[n].astype(np.float32)) for n in sorted(stored)) or None
    (output,) = evaluate(importers.load(program, weights=weights), {"x": x}).values()
    return output


def ints(*numbers: int | list[int]) -> Array:
    return np.array(numbers, np.int64)


def bins(x: Array, count: int, axis: int, how: str) -> Array:
    n = x.shape[axis]
    parts = [x.take(range(i * n // count, -(-(i + 1) * n // count)), axis) for i in range(count)]
    return np.stack([getattr(p, how)(axis) for p in parts], axis)


def quantised(x: Array, scale: Array | float, low: int = -128) -> Array:
    return np.asarray(np.clip(np.round(x / (scale / np.float32(127))), low, 127))


SHIFTED = X.reshape(1, 2, 4, 6, 5).copy()
SHIFTED[0, 0, 0], SHIFTED[0, 1, 0] = 0, X[0, 0]
SHIFTED[0, 0, 1], SHIFTED[0, 1, 1] = X[1, 1], 0
CASES: list[tuple[str, Inputs, dict[str, Option], Array]] = [
    ("gather_nd", {"X": M, "Index": ints([1, 2], [3, 0])}, {}, M[[1, 3], [2, 0]]),
    (
        "scatter",
        {"X": M, "Ids": ints(2, 0), "Updates": M[:2] + 9},
        {"overwrite": 1},
        np.stack([M[1] + 9, M[1], M[0] + 9, M[3]]),
    ),
    (
        "scatter",
        {"X": M, "Ids": ints(2, 2), "Updates": M[:2]},
        {"overwrite": 0},
        np.stack([M[0], M[1], M[0] + M[1], M[3]]),
    ),
    (
        "scatter_nd_add",
        {"X": M, "Index": ints([1], [1]), "Updates": M[:2]},
        {},
        np.stack([M[0], M[0] + 2 * M[1], M[2], M[3]]),
    ),
    ("index_select", {"X": M, "Index": ints(3, 1)}, {"dim": 1}, M[:, [3, 1]]),
    (
        "index_sample",
        {"X": M, "Index": ints([0, 1], [2, 2], [3, 0], [4, 4])},
        {},
        np.take_along_axis(M, ints([0, 1], [2, 2], [3, 0], [4, 4]), 1),
    ),
    (
        "put_along_axis",
        {"Input": M, "Index": ints([0], [1], [2], [3]), "Value": np.full((1, 1), 7.0)},
        {"Axis": 1, "Reduce": "assign"},
        np.where(np.eye(4, 5), 7, M),
    ),
    ("flip", {"X": X}, {"axis": [1, 3]}, X[:, ::-1, :, ::-1]),
    ("roll", {"X": X}, {"shifts": [2, -1], "axis": [2, 3]}, np.roll(X, (2, -1), (2, 3))),
    ("roll", {"X": M}, {"shifts": [3], "axis": []}, np.roll(M, 3)),
    ("tril_triu", {"X": M}, {"diagonal": 1, "lower": 1}, np.tril(M, 1)),
    ("tril_triu", {"X": M}, {"diagonal": 0, "lower": 0}, np.triu(M)),
    ("diag_v2", {"X": M[0]}, {"offset": 1}, np.diag(M[0], 1)),
    ("diag_v2", {"X": M[0]}, {"offset": -2, "padding_value": 0.0}, np.diag(M[0], -2)),
    ("diag_v2", {"X": M}, {"offset": 1}, np.diagonal(M, 1)),
    (
        "unfold",
        {"X": X},
        {"kernel_sizes": [2, 3], "strides": [2, 1], "paddings": [0, 0, 0, 0], "dilations": [1, 1]},
        np.stack([X[:, :, r : r + 2, c : c + 3].reshape(2, -1) for r in (0, 2, 4) for c in range(3)], 2),
    ),
    ("temporal_shift", {"X": X}, {"seg_num": 2, "shift_ratio": 0.25}, SHIFTED[0]),
    ("fill_any_like", {"X": M}, {"value": 2.5, "dtype": -1}, np.full((4, 5), 2.5)),
    ("one_hot_v2", {"X": ints(2, 0, 1)}, {"depth": 4}, np.eye(4)[[2, 0, 1]]),
    ("one_hot_v2", {"X": ints(2, -1, 3, 4)}, {"depth": 3, "allow_out_of_range": 1}, np.eye(4)[[2, 3, 3, 3], :3]),
    ("lookup_table_v2", {"Ids": ints(2, 1, 0), "W": M}, {"padding_idx": 1}, np.stack([M[2], 0 * M[1], M[0]])),
    ("lookup_table_v2", {"Ids": ints(2, 1, 0), "W": M}, {"padding_idx": -1}, M[[2, 1, 0]]),
    (
        "space_to_depth",
        {"X": X[..., :4]},
        {"blocksize": 2},
        X[..., :4].reshape(2, 4, 3, 2, 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 16, 3, 2),
    ),
    ("cumsum", {"X": X}, {"axis": 2, "reverse": 1}, np.cumsum(X[:, :, ::-1], 2)[:, :, ::-1]),
    ("cumsum", {"X": M}, {"flatten": 1}, np.cumsum(M)),
    ("expand_as_v2", {"X": M[:1]}, {"target_shape": [3, 4, 5]}, np.broadcast_to(M[:1], (3, 4, 5))),
    (
        "set_value",
        {"Input": X},
        {"axes": [2, 3], "starts": [1, 0], "ends": [6, 3], "steps": [2, 1], "fp32_values": [7.0], "shape": [1]},
        X,
    ),
    (
        "set_value",
        {"Input": M, "ValueTensor": np.arange(5.0)},
        {"axes": [0], "starts": [2], "ends": [3], "steps": [1], "decrease_axes": [0]},
        M,
    ),
    (
        "pool2d",
        {"X": X},
        {"adaptive": 1, "ksize": [4, 2], "pooling_type": "avg"},
        bins(bins(X, 4, 2, "mean"), 2, 3, "mean"),
    ),
    (
        "pool2d",
        {"X": X},
        {"adaptive": 1, "ksize": [4, 3], "pooling_type": "max"},
        bins(bins(X, 4, 2, "max"), 3, 3, "max"),
    ),
    ("softplus", {"X": X}, {"beta": 2.0}, np.log1p(np.exp(2 * X)) / 2),
    ("softplus", {"X": X}, {}, np.log1p(np.exp(X))),
    ("softshrink", {"X": X}, {"lambda": 0.25}, np.sign(X) * np.maximum(np.abs(X) - 0.25, 0)),
    ("hard_shrink", {"X": X}, {"threshold": 0.25}, np.where(np.abs(X) > 0.25, X, 0)),
    ("maxout", {"X": X}, {"groups": 2, "axis": 1}, X.reshape(2, 2, 2, 6, 5).max(2)),
    ("tanh_shrink", {"X": X}, {}, X - np.tanh(X)),
    ("logsigmoid", {"X": X}, {}, -np.log1p(np.exp(-X))),
    ("log1p", {"X": X + 1}, {}, np.log1p(X + 1)),
    ("log2", {"X": X + 2}, {}, np.log2(X + 2)),
    ("softplus", {"X": 8 * X}, {"threshold": 2.0}, np.where(8 * X > 2, 8 * X, np.log1p(np.exp(8 * X)))),
    ("thresholded_relu", {"X": X}, {"threshold": 0.25, "value": -0.5}, np.where(X > 0.25, X, -0.5)),
    ("trunc", {"X": 3 * X}, {}, np.trunc(3 * X)),
    ("kron", {"X": M, "Y": M[:2]}, {}, np.kron(M, M[:2])),
    (
        "pixel_unshuffle",
        {"X": X[..., :4]},
        {"downscale_factor": 2},
        X[..., :4].reshape(2, 4, 3, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 16, 3, 2),
    ),
    ("repeat_interleave", {"X": X}, {"dim": 1, "Repeats": 2}, X.repeat(2, 1)),
    ("crop_tensor", {"X": M}, {"offsets": [1, 2], "shape": [2, -1]}, M[1:3, 2:]),
    ("diagonal", {"Input": X}, {"axis1": 2, "axis2": 3, "offset": 1}, X.diagonal(1, 2, 3)),
    (
        "index_add",
        {"X": M, "Index": ints(2, 2), "AddValue": M[:, :2]},
        {"axis": 1},
        M + np.stack([0 * M[:, 0], 0 * M[:, 0], M[:, :2].sum(1), 0 * M[:, 0], 0 * M[:, 0]], 1),
    ),
    ("einsum", {"Operands": [M, M]}, {"equation": "ij,kj->ik"}, M @ M.T),
    ("strided_slice", {"Input": M}, {"axes": [0], "starts": [2**31 - 1], "ends": [-1], "strides": [-1]}, M[::-1]),
    ("strided_slice", {"Input": M}, {"axes": [0], "starts": [1], "ends": [-1], "strides": [1]}, M[1:-1]),
    ("reduce_amax", {"X": X}, {"dim": [1, 2]}, X.max((1, 2))),
    (
        "nearest_interp_v2",
        {"X": X[:1, :1]},
        {"scale": [1.7, 1.7], "align_corners": 0},
        X[:1, :1, (np.arange(10) / np.float32(1.7)).astype(int)][..., (np.arange(8) / np.float32(1.7)).astype(int)],
    ),
    (
        "pad3d",
        {"X": X[:, :, None]},
        {"paddings": [1, 2, 0, 3, 0, 0], "mode": "circular"},
        np.pad(X[:, :, None], ((0, 0), (0, 0), (0, 0), (0, 3), (1, 2)), "wrap"),
    ),
    ("stanh", {"X": X}, {}, 1.7159 * np.tanh(0.67 * X)),
    ("celu", {"X": X}, {"alpha": 0.5}, np.where(X > 0, X, 0.5 * np.expm1(X / 0.5))),
    ("thresholded_relu", {"X": X}, {"threshold": 0.25}, np.where(X > 0.25, X, 0)),
    ("elementwise_mod", {"X": 3 * X, "Y": np.full(1, 0.75)}, {}, np.mod(3 * X, np.float32(0.75))),
    ("elementwise_floordiv", {"X": 3 * X, "Y": np.full(1, 0.75)}, {}, np.floor(3 * X / np.float32(0.75))),
    ("p_norm", {"X": X}, {"porder": 3.0, "axis": 1}, (np.abs(X) ** 3).sum(1) ** (1 / 3)),
    ("p_norm", {"X": X}, {"porder": math.inf, "axis": 1, "keepdim": 1}, np.abs(X).max(1, keepdims=True)),
    ("frobenius_norm", {"X": X}, {"dim": [2, 3], "keep_dim": 0}, np.sqrt((X**2).sum((2, 3)))),
    ("logsumexp", {"X": X}, {"axis": [1], "keepdim": 0}, np.log(np.exp(X).sum(1))),
    ("addmm", {"Input": M[:, :4], "X": M, "Y": M.T}, {"Alpha": 2.0, "Beta": 0.5}, 0.5 * M[:, :4] + 2 * M @ M.T),
    ("mv", {"X": M, "Vec": M[0]}, {}, M @ M[0]),
    ("dot", {"X": M, "Y": M}, {}, (M * M).sum(-1)),
    (
        "fake_quantize_dequantize_moving_average_abs_max",
        {"X": X, "InScale": np.array([0.5])},
        {"bit_length": 8},
        quantised(X, 0.5, -127) * 0.5 / 127,
    ),
    (
        "fake_quantize_moving_average_abs_max",
        {"X": X, "InScale": np.array([0.5])},
        {"bit_length": 8, "round_type": 0},
        quantised(X, 0.5),
    ),
    (
        "fake_channel_wise_dequantize_max_abs",
        {"X": X, "Scales": [np.arange(1.0, 5), np.array([0.5])]},
        {"quant_bits": [8, 8]},
        X * np.arange(1, 5).reshape(1, 4, 1, 1) / 127 * 0.5 / 127,
    ),
    (
        "fake_channel_wise_quantize_dequantize_abs_max",
        {"X": X},
        {"quant_axis": 1},
        quantised(X, np.abs(X).max((0, 2, 3), keepdims=True)) * np.abs(X).max((0, 2, 3), keepdims=True) / 127,
    ),
]


@pytest.mark.parametrize(
    ("type", "inputs", "options", "result"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_operators(type: str, inputs: Inputs, options: dict[str, Option], result: Array) -> None:
    if type == "set_value":
        result = result.copy()
        if "ValueTensor" in inputs:
            result[2] = np.arange(5)
        else:
            result[:, :, 1:6:2, :3] = 7
    np.testing.assert_allclose(run(type, inputs, **options), result, rtol=1e-4, atol=1e-5)


def test_same_padding() -> None:
    """SAME padding of a transposed convolution is that of the corresponding convolution; it disables dilation."""
    w = RNG.uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)
    options: dict[str, Option] = {"strides": [2, 2], "dilations": [2, 2], "groups": 1, "paddings": [0, 0]}
    same = run("conv2d_transpose", {"Input": X, "Filter": w}, "Output", padding_algorithm="SAME", **options)
    options["dilations"] = [1, 1]
    whole = run("conv2d_transpose", {"Input": X, "Filter": w}, "Output", **options)
    assert whole.shape == (2, 3, 13, 11)
    np.testing.assert_allclose(same, whole[:, :, :12, 1:10], atol=1e-6)
    filters = w.transpose(1, 0, 2, 3).copy()
    plain = run("conv2d", {"Input": X, "Filter": filters}, "Output", padding_algorithm="SAME", **options)
    options["dilations"] = [2, 2]
    dilated = run("conv2d", {"Input": X, "Filter": filters}, "Output", padding_algorithm="SAME", **options)
    np.testing.assert_array_equal(plain, dilated)


def test_typed_scalar_attributes() -> None:
    """Scalar attributes from Paddle 2.5, in which each number has a type."""
    numbers = b"".join(field(21, message((1, 2), (3, n))) for n in (1, 2, 3, 4, 5))
    values = field(4, message((1, "values"), (2, 17)) + numbers)
    made = paddle_operator("assign_value", {}, {"Out": "v"}, shape=[5], dtype=5) + values
    graph = importers.load(
        paddle(
            made, paddle_operator("elementwise_add", {"X": "x", "Y": "v"}, {"Out": "y"}), shape=X.shape, parameters={}
        )
    )
    np.testing.assert_allclose(evaluate(graph, {"x": X})["y"], X + np.arange(1, 6, dtype=np.float32), atol=1e-6)


def test_quantize_and_dequantize() -> None:
    scales = np.array([0.5, 1, 2, 0.25], np.float32)
    steps = quantised(X, scales.reshape(1, 4, 1, 1))
    output = run("quantize_linear", {"X": X, "Scale": scales}, "Y", quant_axis=1)
    np.testing.assert_array_equal(output, steps)
    back = run("dequantize_linear", {"X": steps, "Scale": scales}, "Y", quant_axis=1)
    np.testing.assert_allclose(back, steps * scales.reshape(1, 4, 1, 1) / 127, atol=1e-6)


def test_sorting() -> None:
    np.testing.assert_array_equal(run("top_k_v2", {"X": X}, k=2, axis=1), np.sort(X, 1)[:, :1:-1])
    indices = run("argsort", {"X": X}, "Indices", axis=2, descending=0)
    np.testing.assert_array_equal(indices, np.argsort(X, 2, kind="stable"))


def test_sampling() -> None:
    """An affine grid that mirrors an image, and samples of it."""
    theta = np.tile(np.array([[-1, 0, 0], [0, 1, 0]], np.float32), (2, 1, 1))
    for corners in (0, 1):
        grid = run("affine_grid", {"Theta": theta}, "Output", output_shape=[2, 4, 6, 5], align_corners=corners)
        output = run("grid_sampler", {"X": X, "Grid": grid}, "Output", align_corners=corners, mode="bilinear")
        np.testing.assert_allclose(output, X[..., ::-1], atol=1e-5)


def test_deformable_convolution() -> None:
    """Offsets of whole pixels to the right, and factors of a half."""
    w = RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32)
    offset, mask = np.zeros((2, 2, 6, 5), np.float32), np.full((2, 1, 6, 5), 0.5, np.float32)
    offset[:, 1] = 1
    output = run(
        "deformable_conv",
        {"Input": X, "Offset": offset, "Mask": mask, "Filter": w},
        "Output",
        strides=[1, 1],
        paddings=[0, 0],
        dilations=[1, 1],
        groups=1,
        deformable_groups=1,
    )
    moved = np.pad(X[..., 1:], ((0, 0), (0, 0), (0, 0), (0, 1)))
    np.testing.assert_allclose(output, 0.5 * np.einsum("oc,nchw->nohw", w[:, :, 0, 0], moved), atol=1e-5)


def test_max_unpool() -> None:
    x = X[..., :4]
    options: dict[str, Option] = {"ksize": [2, 2], "strides": [2, 2], "paddings": [0, 0]}
    values, indices = (run("max_pool2d_with_index", {"X": x}, slot, **options) for slot in ("Out", "Mask"))
    np.testing.assert_array_equal(
        np.take_along_axis(x.reshape(2, 4, -1), indices.reshape(2, 4, -1).astype(int), 2), values.reshape(2, 4, -1)
    )
    back = run("unpool", {"X": values, "Indices": indices}, unpooling_type="max", **options)
    np.testing.assert_array_equal(back, np.where(values.repeat(2, 2).repeat(2, 3) == x, x, 0))


@pytest.mark.parametrize("kind", ["linear", "trilinear", "nearest"])
def test_resize_of_other_ranks(kind: str) -> None:
    """Aligned corners, to twice the size minus one."""
    x = X[0] if kind == "linear" else X[:, :, None] if kind == "trilinear" else X
    sizes: dict[str, Option] = {"out_w": 9, "out_h": 11, "out_d": 1}
    output = run(f"{kind}_interp_v2", {"X": x}, **sizes, align_corners=1)
    if kind == "linear":
        assert output.shape == (4, 6, 9)
    np.testing.assert_allclose(output[..., ::2] if kind == "linear" else output[..., ::2, ::2], x, atol=1e-5)


# --------------------------------------------------------------------------------------------------------- boxes
def test_prior_boxes() -> None:
    image = np.zeros((1, 3, 12, 10), np.float32)
    options: dict[str, Option] = {
        "min_sizes": [4.0],
        "max_sizes": [9.0],
        "aspect_ratios": [4.0],
        "variances": [0.1, 0.1, 0.2, 0.2],
        "flip": 1,
        "clip": 0,
        "step_w": 0.0,
        "step_h": 0.0,
        "offset": 0.5,
    }
    boxes = run("prior_box", {"Input": X, "Image": image}, "Boxes", **options)
    assert boxes.shape == (6, 5, 4, 4)
    sizes = (boxes[1, 2, :, 2:] - boxes[1, 2, :, :2]) * [10, 12]
    np.testing.assert_allclose(sizes, [[4, 4], [8, 2], [2, 8], [6, 6]], atol=1e-5)
    np.testing.assert_allclose((boxes[1, 2, 0, :2] + boxes[1, 2, 0, 2:]) / 2, [5 / 10, 3 / 12], atol=1e-6)
    ordered = run("prior_box", {"Input": X, "Image": image}, "Boxes", **options, min_max_aspect_ratios_order=1)
    np.testing.assert_allclose(ordered[1, 2], boxes[1, 2, [0, 3, 1, 2]], atol=1e-6)


def test_box_coder() -> None:
    priors = np.array([[0, 0, 4, 2], [1, 1, 3, 5]], np.float32)
    target = RNG.uniform(-1, 1, (2, 2, 4)).astype(np.float32)
    spread = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
    output = run(
        "box_coder",
        {"TargetBox": target, "PriorBox": priors, "PriorBoxVar": np.tile(spread, (2, 1))},
        "OutputBox",
        code_type="decode_center_size",
        box_normalized=1,
        axis=0,
    )
    size, centre = priors[:, 2:] - priors[:, :2], (priors[:, 2:] + priors[:, :2]) / 2
    middle, half = target[..., :2] * 0.1 * size + centre, np.exp(target[..., 2:] * 0.2) * size / 2
    np.testing.assert_allclose(output, np.concatenate([middle - half, middle + half], -1), atol=1e-5)


def overlap(a: Array, b: Array) -> float:
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


@pytest.mark.parametrize("gaussian", [0, 1])
def test_matrix_nms(gaussian: int) -> None:
    corners = RNG.uniform(0, 6, (7, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + RNG.uniform(1, 6, (7, 2))], 1).astype(np.float32)
    scores = RNG.uniform(0, 1, (3, 7)).astype(np.float32)
    rows: list[list[float]] = []
    for c in (1, 2):
        order = [p for p in np.argsort(-scores[c], kind="stable")[:5] if scores[c, p] > 0.2]
        for j, p in enumerate(order):
            decay = 1.0
            for i in range(j):
                covered = max([overlap(boxes[order[k]], boxes[order[i]]) for k in range(i)], default=0.0)
                mine = overlap(boxes[order[i]], boxes[p])
                faded = math.exp((covered**2 - mine**2) * 2) if gaussian else (1 - mine) / (1 - covered)
                decay = min(decay, faded)
            if scores[c, p] * decay > 0.1:
                rows.append([c, scores[c, p] * decay, *boxes[p]])
    expected = np.full((6, 6), -1.0)
    best = sorted(rows, key=lambda row: -row[1])[:6]
    expected[: len(best)] = best
    made = run(
        "matrix_nms",
        {"BBoxes": boxes[None], "Scores": scores[None]},
        score_threshold=0.2,
        post_threshold=0.1,
        nms_top_k=5,
        keep_top_k=6,
        background_label=0,
        use_gaussian=gaussian,
        gaussian_sigma=2.0,
    )
    np.testing.assert_allclose(made, expected, atol=1e-5)


def test_roi_align_and_roi_pool() -> None:
    x, regions = X[:1], np.array([[0, 0, 3, 3]], np.float32)
    pooled: dict[str, Option] = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 1.0}
    output = run("roi_pool", {"X": x, "ROIs": regions}, **pooled)
    np.testing.assert_array_equal(output[0, :, 1, 1], x[0, :, 2:4, 2:4].max((1, 2)))
    slope = np.tile(np.arange(5, dtype=np.float32), (1, 1, 6, 1))
    output = run("roi_align", {"X": slope, "ROIs": np.array([[1, 1, 3, 3]], np.float32)}, **pooled, sampling_ratio=2)
    np.testing.assert_allclose(output[0, 0, 0], [1.5, 2.5], atol=1e-6)
    output = run("psroi_pool", {"X": x, "ROIs": regions}, **pooled, output_channels=1)
    np.testing.assert_allclose(output[0, 0, 0], [x[0, 0, :2, :2].mean(), x[0, 1, :2, 2:4].mean()], atol=1e-6)
    clipped = run(
        "box_clip", {"Input": np.array([[-1, 2, 20, 8]], np.float32), "ImInfo": np.array([[12, 20, 2]])}, "Output"
    )
    np.testing.assert_array_equal(clipped, [[0, 2, 9, 5]])


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="only decoding"):
        run("box_coder", {"TargetBox": M[:, :4], "PriorBox": M[:, :4]}, "OutputBox", code_type="encode_center_size")
    many = np.zeros((1, 9000, 4), np.float32)
    with pytest.raises(UnsupportedError, match="too many to compare"):
        run("matrix_nms", {"BBoxes": many, "Scores": np.zeros((1, 2, 9000))}, nms_top_k=-1, background_label=-1)
