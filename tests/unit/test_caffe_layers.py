"""Each Caffe layer compared with a NumPy definition that follows Caffe's code."""

from __future__ import annotations

import math

import numpy as np
import pytest

from caffe_models import head, layer, loaded, random, run
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array


def same(output: Array, expected: Array, tolerance: float = 1e-5) -> None:
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, rtol=tolerance, atol=tolerance)


def one(type: str, options: str, x: Array, *blobs: Array) -> Array:
    """The answer of a net of one layer."""
    (y,) = run(head(*x.shape) + layer(type, options), x, blobs={"it": blobs} if blobs else {})
    return y


# ---------------------------------------------------------------------------------------------- pooling
def caffe_pool(x: Array, method: str, kernel: int, stride: int, pad: int, ceil: bool = True) -> Array:
    """pooling_layer.cpp, for square windows."""
    n, c, h, w = x.shape
    out = []
    for extent in (h, w):
        size = (extent + 2 * pad - kernel) / stride
        count = (math.ceil(size) if ceil else math.floor(size)) + 1
        out.append(count - 1 if pad and (count - 1) * stride >= extent + pad else count)
    y = np.zeros((n, c, *out), np.float32)
    for i in range(out[0]):
        for j in range(out[1]):
            top, left = i * stride - pad, j * stride - pad
            bottom, right = min(top + kernel, h + pad), min(left + kernel, w + pad)
            area = (bottom - top) * (right - left)
            window = x[:, :, max(top, 0) : min(bottom, h), max(left, 0) : min(right, w)]
            y[:, :, i, j] = window.max((2, 3)) if method == "MAX" else window.sum((2, 3)) / area
    return y


@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"),
    [(3, 2, 0), (3, 2, 1), (2, 2, 0), (5, 3, 2), (4, 3, 1), (3, 1, 1), (2, 2, 1), (7, 4, 3)],
)
def test_pooling_rounds_up(method: str, kernel: int, stride: int, pad: int) -> None:
    for extent in (7, 8, 9, 12):
        x = random(1, 2, extent, 11)
        options = f"pooling_param {{ pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad} }}"
        same(one("Pooling", options, x), caffe_pool(x, method, kernel, stride, pad))


def test_pooling_of_forks_rounds_down() -> None:
    x = random(1, 2, 8, 8)
    for spelled in ("ceil_mode: false", "round_mode: FLOOR", "round_mode: 1"):
        options = f"pooling_param {{ pool: MAX kernel_size: 3 stride: 2 {spelled} }}"
        same(one("Pooling", options, x), caffe_pool(x, "MAX", 3, 2, 0, ceil=False))


def test_pooling_windows_outside_of_the_image_are_rejected() -> None:
    for method in ("MAX", "AVE"):
        options = f"pooling_param {{ pool: {method} kernel_size: 1 stride: 2 }}"
        same(one("Pooling", options, random(1, 2, 5, 7)), random(1, 2, 5, 7)[:, :, ::2, ::2])
        with pytest.raises(UnsupportedError, match=r"pools 4 elements by 1 in steps of 2: .* would hold nothing"):
            one("Pooling", options, random(1, 2, 4, 7))


def test_global_pooling() -> None:
    x = random(2, 3, 4, 5)
    same(one("Pooling", "pooling_param { pool: AVE global_pooling: true }", x), x.mean((2, 3), keepdims=True))


def test_spatial_pyramid() -> None:
    x = random(1, 3, 9, 7)
    same(one("SPP", "spp_param { pyramid_height: 1 }", x), x.max((2, 3)))
    assert one("SPP", "spp_param { pyramid_height: 3 pool: AVE }", x).shape == (1, 3 * (1 + 4 + 16))


# ---------------------------------------------------------------------------------------------- weights
def test_inner_product_from_an_axis_and_transposed() -> None:
    x, w, b = random(2, 3, 4), random(5, 4), random(5)
    same(one("InnerProduct", "inner_product_param { num_output: 5 axis: 2 }", x, w, b), x @ w.T + b)
    y = one("InnerProduct", "inner_product_param { num_output: 5 axis: -1 transpose: true bias_term: false }", x, w.T)
    same(y, x @ w.T)


def test_old_blobs_have_four_axes() -> None:
    x, w = random(2, 12), random(1, 1, 5, 12)
    same(one("InnerProduct", "inner_product_param { num_output: 5 bias_term: false }", x, w), x @ w[0, 0].T)


def test_depthwise_convolution_needs_no_group() -> None:
    x, w = random(1, 4, 6, 6), random(4, 1, 3, 3)
    options = "convolution_param { num_output: 4 kernel_size: 3 bias_term: false pad: 1 }"
    grouped = options.replace("pad: 1", "pad: 1 group: 4")
    for type in ("ConvolutionDepthwise", "DepthwiseConvolution"):
        same(one(type, options, x, w), one("Convolution", grouped, x, w))


def test_convolution_geometry_in_both_forms() -> None:
    x, w = random(1, 2, 9, 9), random(3, 2, 3, 1)
    a = "convolution_param { num_output: 3 bias_term: false kernel_h: 3 kernel_w: 1 stride_h: 2 stride_w: 1 pad_h: 1 }"
    b = "convolution_param { num_output: 3 bias_term: false kernel_size: [3, 1] stride: 2 stride: 1 pad: 1 pad: 0 }"
    y = one("Convolution", a, x, w)
    assert y.shape == (1, 3, 5, 9)
    same(one("Convolution", b, x, w), y)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_deconvolution(group: int) -> None:
    x, w = random(1, 4, 3, 5), random(4, 8 // group, 4, 4)
    options = f"convolution_param {{ num_output: 8 kernel_size: 4 stride: 2 pad: 1 group: {group} bias_term: false }}"
    y = one("Deconvolution", options, x, w)
    full = np.zeros((1, 8, 2 * 2 + 4, 4 * 2 + 4), np.float32)
    per_in, per_out = 4 // group, 8 // group
    for c in range(4):
        g = c // per_in
        for i in range(3):
            for j in range(5):
                part = x[0, c, i, j] * w[c]
                full[0, g * per_out : (g + 1) * per_out, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4] += part
    same(y, full[:, :, 1:-1, 1:-1])


def test_bilinear_filler_replaces_weights() -> None:
    options = (
        "convolution_param { num_output: 3 group: 3 kernel_size: 4 stride: 2 pad: 1 bias_term: false "
        'weight_filler { type: "bilinear" } }'
    )
    net = head(1, 3, 5, 5) + layer("Deconvolution", options)
    (y,) = run(net, np.ones((1, 3, 5, 5)), blobs={"another": [np.ones(1)]})
    same(y[:, :, 1:-1, 1:-1], np.ones((1, 3, 8, 8), np.float32))


def test_embed() -> None:
    table, b = random(7, 3), random(3)
    x = np.array([[0, 6], [2, 2]], np.float32)
    same(one("Embed", "embed_param { num_output: 3 input_dim: 7 }", x, table, b), table[x.astype(int)] + b)


# ------------------------------------------------------------------------------------------ normalising
def test_batch_norm_divides_by_its_scale_factor() -> None:
    x, mean, variance = random(2, 3, 4, 4), random(3), random(3) + 2
    y = one("BatchNorm", "batch_norm_param { eps: 0.01 }", x, mean, variance, np.array([4.0]))
    shape = (1, 3, 1, 1)
    same(y, (x - mean.reshape(shape) / 4) / np.sqrt(variance.reshape(shape) / 4 + 0.01))
    zero = one("BatchNorm", "batch_norm_param { eps: 0.25 }", x, mean, variance, np.array([0.0]))
    same(zero, x * 2)


def test_batch_norm_with_batch_statistics() -> None:
    x = random(4, 3, 5, 5)
    y = one("BatchNorm", "batch_norm_param { use_global_stats: false }", x)
    same(y, (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5), 1e-4)


def test_batch_norm_with_scale_inside() -> None:
    x, blobs = random(2, 3, 4, 4), [random(3), random(3) + 2, np.array([1.0]), random(3, seed=1), random(3, seed=2)]
    mean, variance, _, scale, bias = (b.reshape(-1, 1, 1) for b in blobs)
    same(one("BatchNorm", "", x, *blobs), (x - mean) / np.sqrt(variance + 1e-5) * scale + bias)


def test_segnet_batch_norm() -> None:
    x, scale, shift = random(2, 3, 4, 4), random(1, 3, 1, 1), random(1, 3, 1, 1, seed=1)
    same(one("BN", "", x, scale, shift), x * scale + shift)


def test_scale_and_bias_on_any_axes() -> None:
    x = random(2, 3, 4, 5)
    s, b = random(4, 5), random(4, 5, seed=1)
    same(one("Scale", "scale_param { axis: 2 num_axes: 2 bias_term: true }", x, s, b), x * s + b)
    same(one("Scale", "scale_param { axis: 0 num_axes: -1 }", x, x), x * x)
    same(one("Scale", "scale_param { num_axes: 0 }", x, np.array(3.0)), x * 3)
    same(one("Bias", "bias_param { axis: -1 num_axes: 1 }", x, b[0]), x + b[0])


def test_scale_by_a_second_bottom() -> None:
    x, s = random(2, 3, 4, 5), random(2, 3)
    text = head(2, 3, 4, 5) + head(2, 3, name="s") + layer("Scale", "scale_param { axis: 0 }", ("data", "s"))
    same(run(text, x, s)[0], x * s[:, :, None, None])
    biased = text.replace("axis: 0", "axis: 0 bias_term: true")
    b = random(2, 3, seed=4)
    same(run(biased, x, s, blobs={"it": [b]})[0], x * s[:, :, None, None] + b[:, :, None, None])


def test_lrn_within_channels() -> None:
    x = random(1, 2, 6, 6)
    options = "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 norm_region: WITHIN_CHANNEL }"
    same(one("LRN", options, x), x * (1 + 0.5 * caffe_pool(x * x, "AVE", 3, 1, 1)) ** -0.75)


def test_lrn_across_channels() -> None:
    x = random(1, 6, 2, 2)
    y = one("LRN", "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 }", x)
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    same(y, x * (2 + 0.5 / 3 * near) ** -0.75)


def test_mvn() -> None:
    x = random(2, 3, 4, 4)
    mean, deviation = x.mean((2, 3), keepdims=True), x.std((2, 3), keepdims=True)
    same(one("MVN", "mvn_param { eps: 0.1 }", x), (x - mean) / (deviation + 0.1))
    same(
        one("MVN", "mvn_param { across_channels: true normalize_variance: false }", x),
        x - x.mean((1, 2, 3), keepdims=True),
    )


def test_normalize() -> None:
    x, s = random(1, 3, 4, 4), random(3)
    y = one("Normalize", "norm_param { across_spatial: false channel_shared: false eps: 0.01 }", x, s)
    same(y, x / np.sqrt((x * x).sum(1, keepdims=True) + 0.01) * s.reshape(3, 1, 1))
    same(one("Normalize", "norm_param { }", x, np.array([2.0])), x / np.sqrt((x * x).sum()) * 2)


# ------------------------------------------------------------------------------------------- elementwise
def test_eltwise() -> None:
    a, b = random(2, 3), random(2, 3, seed=1)
    both = head(2, 3) + head(2, 3, name="b")
    for options, expected in {
        "": a + b,
        "eltwise_param { operation: SUM coeff: 1 coeff: -0.5 }": a - b / 2,
        "eltwise_param { operation: PROD }": a * b,
        "eltwise_param { operation: MAX }": np.maximum(a, b),
    }.items():
        same(run(both + layer("Eltwise", options, ("data", "b")), a, b)[0], expected)


@pytest.mark.parametrize(
    ("type", "options", "expected"),
    [
        ("AbsVal", "", abs),
        ("BNLL", "", lambda x: np.log1p(np.exp(x))),
        ("ELU", "elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
        ("Exp", "exp_param { base: 2 scale: 3 shift: 1 }", lambda x: 2 ** (1 + 3 * x)),
        ("Exp", "", np.exp),
        ("Log", "log_param { base: 10 scale: 1 shift: 2 }", lambda x: np.log10(2 + x)),
        ("Power", "power_param { power: 2 scale: 3 shift: 1 }", lambda x: (1 + 3 * x) ** 2),
        ("Power", "", lambda x: x),
        ("ReLU", "relu_param { negative_slope: 0.1 }", lambda x: np.where(x > 0, x, 0.1 * x)),
        ("ReLU6", "relu6_param { threshold: 0.5 }", lambda x: x.clip(0, 0.5)),
        ("Clip", "clip_param { min: -0.2 max: 0.3 }", lambda x: x.clip(-0.2, 0.3)),
        ("Sigmoid", "", lambda x: 1 / (1 + np.exp(-x))),
        ("Swish", "swish_param { beta: 2 }", lambda x: x / (1 + np.exp(-2 * x))),
        ("TanH", "", np.tanh),
        ("Threshold", "threshold_param { threshold: 0.25 }", lambda x: (x > 0.25).astype(np.float32)),
        ("Dropout", "", lambda x: x),
        ("Dropout", "dropout_param { dropout_ratio: 0.25 scale_train: false }", lambda x: x * 0.75),
    ],
)
def test_activations(type: str, options: str, expected: object) -> None:
    x = random(2, 3, 4, 5)
    assert callable(expected)
    same(one(type, options, x), np.asarray(expected(x), np.float32))


def test_prelu() -> None:
    x, slope = random(2, 3, 4), random(3)
    same(one("PReLU", "", x, slope), np.where(x > 0, x, x * slope.reshape(3, 1)))
    same(one("PReLU", "prelu_param { channel_shared: true }", x, slope[:1]), np.where(x > 0, x, x * slope[0]))
    (y,) = run(head(2, 3, 4) + layer("PReLU"), x, blobs={"another": [slope]})
    same(y, np.where(x > 0, x, x * 0.25))


def test_axpy() -> None:
    s, x, y = random(2, 3, 1, 1), random(2, 3, 4, 5), random(2, 3, 4, 5, seed=1)
    text = head(2, 3, 1, 1) + head(2, 3, 4, 5, name="x") + head(2, 3, 4, 5, name="z")
    same(run(text + layer("Axpy", "", ("data", "x", "z")), s, x, y)[0], s * x + y)


# --------------------------------------------------------------------------------------- data movement
def test_slice_in_equal_parts_and_at_slice_points() -> None:
    x = random(1, 6, 2, 2)
    text = head(1, 6, 2, 2) + layer("Slice", 'top: "b" top: "c"', top="a")
    for output, expected in zip(run(text, x), np.split(x, 3, 1), strict=True):
        same(output, expected)
    cut = text.replace('top: "c"', 'top: "c" slice_param { axis: 1 slice_point: 1 slice_point: 4 }')
    for output, expected in zip(run(cut, x), np.split(x, [1, 4], 1), strict=True):
        same(output, expected)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ("shape { dim: 0 dim: -1 }", (2, 12)),
        ("shape { dim: 3 dim: 2 } axis: 1 num_axes: 1", (2, 3, 2, 2)),
        ("shape { dim: 1 } axis: 1 num_axes: 0", (2, 1, 6, 2)),
        ("shape { dim: 12 } axis: -3", (2, 12)),
        ("shape { dim: 1 dim: 1 } axis: -1", (2, 6, 2, 1, 1)),
    ],
)
def test_reshape(options: str, shape: tuple[int, ...]) -> None:
    x = random(2, 6, 2)
    same(one("Reshape", f"reshape_param {{ {options} }}", x), x.reshape(shape))


def test_flatten_permute_tile_shuffle() -> None:
    x = random(2, 6, 3, 2)
    same(one("Flatten", "flatten_param { axis: 1 end_axis: 2 }", x), x.reshape(2, 18, 2))
    same(one("Permute", "permute_param { order: 0 order: 2 }", x), x.transpose(0, 2, 1, 3))
    same(one("Tile", "tile_param { axis: 2 tiles: 3 }", x), np.tile(x, (1, 1, 3, 1)))
    y = one("ShuffleChannel", "shuffle_channel_param { group: 3 }", x)
    same(y, x.reshape(2, 3, 2, 3, 2).swapaxes(1, 2).reshape(x.shape))


def test_crop() -> None:
    x, like = random(1, 3, 8, 9), random(1, 3, 4, 5)
    text = head(1, 3, 8, 9) + head(1, 3, 4, 5, name="like")
    options = "crop_param { axis: 2 offset: 1 offset: 2 }"
    same(run(text + layer("Crop", options, ("data", "like")), x, like)[0], x[:, :, 1:5, 2:7])


def test_reorg_matches_darknet() -> None:
    n, c, h, w, s = 2, 8, 4, 6, 2
    x = random(n, c, h, w)
    flat, y = x.reshape(n, -1), np.zeros((n, c * h * w), np.float32)
    out = c // (s * s)
    for k in range(c):
        for j in range(h):
            for i in range(w):
                c2, offset = k % out, k // out
                source = (i * s + offset % s) + w * s * ((j * s + offset // s) + h * s * c2)
                y[:, i + w * (j + h * k)] = flat[:, source]
    same(one("Reorg", "reorg_param { stride: 2 }", x), y.reshape(n, c * 4, h // 2, w // 2))


def test_interp_aligns_corners() -> None:
    x = random(1, 1, 3, 4)
    y = one("Interp", "interp_param { height: 5 width: 7 }", x)
    same(y[0, 0, ::2, ::2], x[0, 0])
    same(y[0, 0, 0, 1::2], (x[0, 0, 0, :-1] + x[0, 0, 0, 1:]) / 2)
    assert one("Interp", "interp_param { zoom_factor: 8 }", x).shape == (1, 1, 17, 25)
    assert one("Interp", "interp_param { shrink_factor: 2 }", x).shape == (1, 1, 2, 2)
    assert one("Interp", "interp_param { height: 2 width: 2 pad_beg: -1 }", x).shape == (1, 1, 2, 2)


def test_upsample_repeats_pixels() -> None:
    x = random(1, 2, 3, 3)
    same(one("Upsample", "upsample_param { scale: 2 }", x), x.repeat(2, 2).repeat(2, 3))


def test_arg_max() -> None:
    x = random(2, 3, 4)
    same(one("ArgMax", "argmax_param { axis: 1 }", x), x.argmax(1, keepdims=True).astype(np.float32))
    flat = x.reshape(2, -1)
    same(one("ArgMax", "", x), flat.argmax(1).reshape(2, 1, 1).astype(np.float32))
    y = one("ArgMax", "argmax_param { out_max_val: true }", x)
    same(y, np.stack([flat.argmax(1), flat.max(1)], 1)[..., None].astype(np.float32))
    order = np.argsort(-flat, 1)[:, None, :3]
    same(one("ArgMax", "argmax_param { top_k: 3 }", x), order.astype(np.float32))
    best = -np.sort(-x, 1)[:, :2]
    same(one("ArgMax", "argmax_param { top_k: 2 axis: 1 out_max_val: true }", x), best)


def test_reduction_and_softmax() -> None:
    x = random(2, 3, 4)
    same(one("Reduction", "reduction_param { operation: SUMSQ axis: 1 coeff: 2 }", x), 2 * (x * x).sum((1, 2)))
    same(one("Reduction", "reduction_param { operation: ASUM axis: -1 }", x), abs(x).sum(2))
    same(one("Reduction", "reduction_param { operation: MEAN }", x), np.asarray(x.mean(), np.float32))
    e = np.exp(x)
    same(one("Softmax", "", x), e / e.sum(1, keepdims=True))


# -------------------------------------------------------------------------------------------- detection
def test_prior_boxes() -> None:
    options = (
        "prior_box_param { min_size: 30 min_size: 50 max_size: 60 max_size: 80 aspect_ratio: 2 aspect_ratio: 3 "
        "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 step: 16 offset: 0.25 clip: true }"
    )
    text = head(1, 2, 2, 3) + head(1, 3, 100, 120, name="image") + layer("PriorBox", options, ("data", "image"))
    (y,) = run(text, random(1, 2, 2, 3), random(1, 3, 100, 120))
    expected = []
    for v in range(2):
        for u in range(3):
            x, z = (u + 0.25) * 16, (v + 0.25) * 16
            for low, high in ((30, 60), (50, 80)):
                sizes = [(low, low), (math.sqrt(low * high),) * 2]
                for ratio in (2, 1 / 2, 3, 1 / 3):
                    sizes.append((low * math.sqrt(ratio), low / math.sqrt(ratio)))
                expected += [
                    [(x - a / 2) / 120, (z - b / 2) / 100, (x + a / 2) / 120, (z + b / 2) / 100] for a, b in sizes
                ]
    same(y[0, 0], np.array(expected, np.float32).clip(0, 1).reshape(-1), 1e-4)
    same(y[0, 1], np.tile(np.array([0.1, 0.1, 0.2, 0.2], np.float32), len(expected)))


def test_detection_output() -> None:
    """NMS removes, per class, the box with the lower score of two overlapping ones, and keeps a separate one."""
    corners = np.array([[0.1, 0.1, 0.4, 0.4], [0.12, 0.1, 0.42, 0.4], [0.6, 0.6, 0.9, 0.9]], np.float32)
    priors = np.stack([corners, np.full((3, 4), 0.1)]).reshape(1, 2, 12)
    scores = np.array([[0.1, 0.8, 0.1], [0.2, 0.7, 0.1], [0.1, 0.3, 0.6]], np.float32)
    text = head(1, 12) + head(1, 9, name="conf") + head(1, 2, 12, name="priors")
    options = (
        "detection_output_param { num_classes: 3 code_type: CENTER_SIZE keep_top_k: 4 confidence_threshold: 0.25 "
        "nms_param { nms_threshold: 0.45 top_k: 10 } }"
    )
    net = text + layer("DetectionOutput", options, ("data", "conf", "priors"))
    (y,) = run(net, np.zeros((1, 12)), scores.reshape(1, 9), priors)
    rows = [[0, 1, 0.8, *corners[0]], [0, 1, 0.3, *corners[2]], [0, 2, 0.6, *corners[2]], [-1] * 7]
    same(y, np.array(rows, np.float32)[None, None])


def test_region_and_roi_pooling() -> None:
    x = random(1, 2 * 8, 3, 3)
    y = one("Region", "region_param { classes: 3 boxes_of_each_grid: 2 softmax: true }", x).reshape(2, 8, 9)
    raw = x.reshape(2, 8, 9)
    e = np.exp(raw[:, 5:])
    same(y[:, 5:], e / e.sum(1, keepdims=True))
    same(y[:, [0, 1, 4]], 1 / (1 + np.exp(-raw[:, [0, 1, 4]])))
    same(y[:, 2:4], raw[:, 2:4])
    image, rois = random(1, 4, 8, 8), np.array([[0, 0, 0, 7, 7]], np.float32)
    text = head(1, 4, 8, 8) + head(1, 5, name="rois")
    pool = layer("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 }", ("data", "rois"))
    same(run(text + pool, image, rois)[0], caffe_pool(image, "MAX", 4, 4, 0))
    options = "psroi_pooling_param { spatial_scale: 1 output_dim: 1 group_size: 2 }"
    means = caffe_pool(image, "AVE", 4, 4, 0)[0]
    expected = np.array([[means[0, 0, 0], means[1, 0, 1]], [means[2, 1, 0], means[3, 1, 1]]])[None, None]
    same(run(text + layer("PSROIPooling", options, ("data", "rois")), image, rois)[0], expected)
    options = "psroi_align_param { spatial_scale: 1 output_dim: 1 group_size: 2 sample_num: 1 }"
    middles = np.array([[image[0, 2 * v + u, 4 * v + 2, 4 * u + 2] for u in (0, 1)] for v in (0, 1)])[None, None]
    same(run(text + layer("PSROIAlign", options, ("data", "rois")), image, rois)[0], middles)


def test_proposals_of_the_python_layer() -> None:
    text = head(1, 18, 4, 5) + head(1, 36, 4, 5, name="deltas") + head(1, 3, name="info")
    options = "python_param { module: 'rpn.proposal_layer' layer: 'ProposalLayer' param_str: \"'feat_stride': 16\" }"
    net = text + layer("Python", options, ("data", "deltas", "info"))
    (rois,) = run(net, random(1, 18, 4, 5), np.zeros((1, 36, 4, 5)), np.array([[64, 80, 1]]))
    assert rois.shape == (300, 5)
    assert rois[:, 1:].min() >= 0
    assert rois[0, 3] > rois[0, 1]
    with pytest.raises(UnsupportedError, match=r"is code: os\.system"):
        loaded(net.replace("ProposalLayer", "system").replace("rpn.proposal_layer", "os"))


# -------------------------------------------------------------------------------------------- recurrent
def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm(
    x: Array, goes_on: Array, weights: tuple[Array, Array, Array], h: Array, c: Array
) -> list[tuple[Array, Array]]:
    """The output and the cell after every step."""
    w, b, u = weights
    states = []
    for inputs, going in zip(x, goes_on, strict=True):
        kept = going[:, None]
        i, f, o, g = np.split(inputs @ w.T + b + (h * kept) @ u.T, 4, 1)
        c = sigmoid(f) * c * kept + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append((h, c))
    assert states
    return states


def test_lstm_restarts_at_sequence_markers() -> None:
    steps, streams, width, size = 5, 2, 3, 4
    x, goes_on = random(steps, streams, width), np.ones((steps, streams), np.float32)
    goes_on[0] = goes_on[3, 1] = 0
    w, b, u = random(4 * size, width), random(4 * size), random(4 * size, size, seed=2)
    text = head(steps, streams, width) + head(steps, streams, name="cont")
    net = text + layer("LSTM", "recurrent_param { num_output: 4 }", ("data", "cont"))
    (y,) = run(net, x, goes_on, blobs={"it": [w, b, u]})
    h = c = np.zeros((streams, size), np.float32)
    for t, (hidden, _) in enumerate(lstm(x, goes_on, (w, b, u), h, c)):
        same(y[t], hidden)


def test_rnn_with_a_static_input() -> None:
    steps, streams, size = 3, 2, 4
    x, static, goes_on = random(steps, streams, 3), random(streams, 5), np.ones((steps, streams), np.float32)
    w, b, s, u, o, ob = (random(*d, seed=i) for i, d in enumerate([(4, 3), (4,), (4, 5), (4, 4), (4, 4), (4,)]))
    text = head(steps, streams, 3) + head(steps, streams, name="cont") + head(streams, 5, name="static")
    net = text + layer("RNN", "recurrent_param { num_output: 4 }", ("data", "cont", "static"))
    (y,) = run(net, x, goes_on, static, blobs={"it": [w, b, s, u, o, ob]})
    h = np.zeros((streams, size), np.float32)
    for t in range(steps):
        h = np.tanh(x[t] @ w.T + b + static @ s.T + h @ u.T)
        same(y[t], np.tanh(h @ o.T + ob))


def test_lstm_with_exposed_states() -> None:
    """The initial states are bottoms, which the sequence markers clear too; the final states are tops."""
    steps, streams, width, size = 3, 2, 3, 4
    x, goes_on = random(steps, streams, width), np.array([[1, 0], [1, 1], [0, 1]], np.float32)
    h, c = random(1, streams, size, seed=4), random(1, streams, size, seed=5)
    w, b, u = random(4 * size, width), random(4 * size), random(4 * size, size, seed=2)
    text = head(steps, streams, width) + head(steps, streams, name="cont")
    text += head(1, streams, size, name="h") + head(1, streams, size, name="c")
    more = 'top: "hidden" top: "cell" recurrent_param { num_output: 4 expose_hidden: true }'
    net = text + layer("LSTM", more, ("data", "cont", "h", "c"))
    y, last, memory = run(net, x, goes_on, h, c, blobs={"it": [w, b, u]})
    states = lstm(x, goes_on, (w, b, u), h[0], c[0])
    for t, (hidden, _) in enumerate(states):
        same(y[t], hidden)
    same(last[0], states[-1][0])
    same(memory[0], states[-1][1])


def test_max_unpooling() -> None:
    """SegNet: maxima are scattered to their positions, in a plane whose pooled size was rounded up."""
    x = random(2, 3, 5, 6)
    pooling = layer("Pooling", 'top: "mask" pooling_param { pool: MAX kernel_size: 2 stride: 2 }', top="p", name="p")
    upsample = layer("Upsample", "upsample_param { upsample_h: 5 upsample_w: 6 }", ("p", "mask"))
    (y,) = run(head(2, 3, 5, 6) + pooling + upsample, x)
    expected = np.zeros_like(x)
    for n, k, i, j in np.ndindex(2, 3, 3, 3):
        window = x[n, k, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        a, b = np.unravel_index(window.argmax(), window.shape)
        expected[n, k, 2 * i + a, 2 * j + b] = window.max()
    same(y, expected)


def test_max_pooling_mask() -> None:
    x = random(1, 2, 4, 4)
    pooling = layer("Pooling", 'top: "mask" pooling_param { pool: MAX kernel_size: 2 stride: 2 }')
    y, mask = run(head(1, 2, 4, 4) + pooling, x)
    same(x.reshape(2, 16)[np.arange(2)[:, None], mask.reshape(2, 4).astype(int)].reshape(y.shape), y)


def test_unknown_fillers_are_ignored() -> None:
    """Fillers matter for training only; other unknown parameters are still rejected."""
    x, w = random(1, 2, 3, 3), random(2, 2, 1, 1)
    options = "convolution_param {{ num_output: 2 kernel_size: 1 bias_term: false {} }}"
    plain = one("Convolution", options.format(""), x, w)
    for more in ('mask_filler { type: "drawn" [fork.width]: 3 }', 'weight_filler { type: "drawn" fork_width: 3 }'):
        np.testing.assert_array_equal(one("Convolution", options.format(more), x, w), plain)
    with pytest.raises(UnsupportedError, match="the parameter 'mask' is not known"):
        one("Convolution", options.format("mask: 1"), x, w)
