"""Writes small programs of most of Paddle's operators, and networks, with inputs and outputs; run by a Python with
Paddle.

    FLAGS_enable_pir_api=0 python tests/paddle_programs.py FOLDER

writes programs in the format of 2.x, without the flag in that of 3.x, each with NAME.npz (input and outputs).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

paddle: Any = import_module("paddle")
nn, F = paddle.nn, paddle.nn.functional
Layer: Any = nn.Layer
Array = NDArray[Any]
RNG = np.random.default_rng(4)
Case = tuple[Callable[..., Any], tuple[int, ...]]

X = (2, 4, 6, 5)
LINE, CUBE = (2, 4, 7), (1, 4, 4, 3, 5)
LAYERS: dict[str, Case] = {
    "conv1d": (lambda: nn.Conv1D(4, 3, 3, stride=2, padding=1), LINE),
    "conv2d": (lambda: nn.Conv2D(4, 3, 3), X),
    "conv2d sides": (lambda: nn.Conv2D(4, 3, 3, padding=[0, 1, 2, 0], bias_attr=False), X),
    "conv2d dilated": (lambda: nn.Conv2D(4, 6, (3, 2), stride=(2, 1), padding=[1, 2], dilation=(1, 2), groups=2), X),
    "conv2d same": (lambda: nn.Conv2D(4, 3, (3, 2), stride=2, padding="SAME"), X),
    "conv2d valid": (lambda: nn.Conv2D(4, 3, 3, stride=2, padding="VALID"), X),
    "conv2d reflected": (lambda: nn.Conv2D(4, 3, 3, padding=1, padding_mode="reflect"), X),
    "conv2d depthwise": (lambda: nn.Conv2D(4, 8, 3, padding=1, groups=4), X),
    "conv3d": (lambda: nn.Conv3D(4, 3, 2, stride=(1, 1, 2), padding=1), CUBE),
    "deconv1d": (lambda: nn.Conv1DTranspose(4, 3, 3, stride=2), LINE),
    "deconv2d": (lambda: nn.Conv2DTranspose(4, 3, 3, stride=2, padding=1, output_padding=1), X),
    "deconv2d groups": (lambda: nn.Conv2DTranspose(4, 6, (2, 3), dilation=2, padding=[0, 1, 1, 0], groups=2), X),
    "deconv2d same": (lambda: nn.Conv2DTranspose(4, 3, 3, stride=2, padding="SAME"), X),
    "deconv2d depthwise": (lambda: nn.Conv2DTranspose(4, 4, 4, stride=2, padding=1, groups=4), X),
    "deconv3d": (lambda: nn.Conv3DTranspose(4, 2, 2, stride=2), CUBE),
    "batch norm 1d": (lambda: nn.BatchNorm1D(4, epsilon=1e-3), LINE),
    "batch norm 1d of rows": (lambda: nn.BatchNorm1D(4), (3, 4)),
    "batch norm 2d": (lambda: nn.BatchNorm2D(4), X),
    "batch norm 3d": (lambda: nn.BatchNorm3D(4), CUBE),
    "layer norm": (lambda: nn.LayerNorm([6, 5], epsilon=1e-3), X),
    "layer norm plain": (lambda: nn.LayerNorm(5, weight_attr=False, bias_attr=False), X),
    "instance norm": (lambda: nn.InstanceNorm2D(4), X),
    "instance norm plain": (lambda: nn.InstanceNorm1D(4, weight_attr=False, bias_attr=False), LINE),
    "group norm": (lambda: nn.GroupNorm(2, 4), X),
    "group norm plain": (lambda: nn.GroupNorm(4, 4, weight_attr=False, bias_attr=False), X),
    "response norm": (lambda: nn.LocalResponseNorm(3, alpha=0.1), X),
    "max pool 1d": (lambda: nn.MaxPool1D(3, stride=2, padding=1), LINE),
    "max pool": (lambda: nn.MaxPool2D(3, stride=2, padding=1), X),
    "max pool ceil": (lambda: nn.MaxPool2D(2, stride=2, ceil_mode=True), X),
    "max pool sides": (lambda: nn.MaxPool2D((3, 2), stride=1, padding=[0, 1, 1, 0]), X),
    "max pool 3d": (lambda: nn.MaxPool3D(2, stride=1), CUBE),
    "average pool 1d": (lambda: nn.AvgPool1D(3, stride=2, padding=1), LINE),
    "average pool": (lambda: nn.AvgPool2D(3, stride=2, padding=1), X),
    "average pool with padding": (lambda: nn.AvgPool2D(3, stride=2, padding=1, exclusive=False), X),
    "average pool ceil": (lambda: nn.AvgPool2D(3, stride=2, padding=1, ceil_mode=True), X),
    "average pool ceil with padding": (
        lambda: nn.AvgPool2D(3, stride=2, padding=1, ceil_mode=True, exclusive=False),
        (1, 4, 8, 6),
    ),
    "average pool divisor": (lambda: nn.AvgPool2D(2, divisor_override=3), X),
    "average pool same": (lambda: nn.AvgPool2D(3, stride=2, padding="SAME"), X),
    "average pool 3d": (lambda: nn.AvgPool3D(2, stride=2, padding=1), CUBE),
    "adaptive average": (lambda: nn.AdaptiveAvgPool2D(1), X),
    "adaptive average uneven": (lambda: nn.AdaptiveAvgPool2D((4, 3)), X),
    "adaptive average one axis": (lambda: nn.AdaptiveAvgPool2D((None, 2)), X),
    "adaptive average 1d": (lambda: nn.AdaptiveAvgPool1D(3), LINE),
    "adaptive average 3d": (lambda: nn.AdaptiveAvgPool3D(2), CUBE),
    "adaptive maximum": (lambda: nn.AdaptiveMaxPool2D((4, 3)), X),
    "adaptive maximum 1d": (lambda: nn.AdaptiveMaxPool1D(3), LINE),
    "linear": (lambda: nn.Linear(5, 3), X),
    "linear without bias": (lambda: nn.Linear(5, 3, bias_attr=False), (2, 5)),
    "prelu": (lambda: nn.PReLU(4), X),
    "prelu of one": (lambda: nn.PReLU(), X),
    "maxout": (lambda: nn.Maxout(2), X),
    "pixel shuffle": (lambda: nn.PixelShuffle(2), X),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (1, 3, 4, 6)),
    "channel shuffle": (lambda: nn.ChannelShuffle(2), X),
    "flatten": (lambda: nn.Flatten(1, 2), X),
    "pad 1d": (lambda: nn.Pad1D([1, 2], mode="replicate"), LINE),
    "pad 2d": (lambda: nn.Pad2D([1, 2, 3, 0]), X),
    "pad 2d reflected": (lambda: nn.Pad2D([1, 2, 3, 0], mode="reflect"), X),
    "pad 2d constant": (lambda: nn.Pad2D([1, 0, 2, 1], value=0.5), X),
    "pad 3d": (lambda: nn.Pad3D([1, 0, 2, 1, 0, 1]), CUBE),
    "zero pad": (lambda: nn.ZeroPad2D([1, 0, 2, 1]), X),
    "unfold": (lambda: nn.Unfold([2, 3], strides=[2, 1], paddings=[1, 0]), X),
    "fold": (lambda: nn.Fold([4, 5], [2, 2]), (1, 8, 12)),
    "dropout": (lambda: nn.Dropout(0.3), X),
    "dropout downscaled": (lambda: nn.Dropout(0.3, mode="downscale_in_infer"), X),
    "cosine similarity": (lambda: Apply(lambda x: F.cosine_similarity(x, x * x + 1, axis=1)), X),
    "lstm": (lambda: nn.LSTM(5, 3, num_layers=2), (2, 4, 5)),
    "lstm both ways": (lambda: nn.LSTM(5, 3, direction="bidirectional", time_major=True), (4, 2, 5)),
    "gru": (lambda: nn.GRU(5, 3), (2, 4, 5)),
    "gru both ways": (lambda: nn.GRU(5, 3, num_layers=2, direction="bidirect"), (2, 4, 5)),
    "rnn": (lambda: nn.SimpleRNN(5, 3), (2, 4, 5)),
    "rnn relu": (lambda: nn.SimpleRNN(5, 3, activation="relu"), (2, 4, 5)),
    "attention": (lambda: nn.MultiHeadAttention(8, 2), (2, 5, 8)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu"), (2, 5, 8)),
    "set": (lambda: Put(), X),
    "embedding": (lambda: Apply(lambda x, e: e(x.argmax(-1)), nn.Embedding(7, 3)), (2, 5, 7)),
}


class Apply(Layer):  # type: ignore[misc]
    """A function of the input and of some layers."""

    def __init__(self, function: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.function, self.layers = function, nn.LayerList(list(layers))

    def forward(self, x: Any) -> Any:
        return self.function(x, *self.layers)


class Put(Layer):  # type: ignore[misc]
    """Slices overwritten."""

    def forward(self, x: Any) -> Any:
        y = x * 1
        y[:, :, 1:4:2] = 7.0
        y[:, 0] = x[:, 1]
        return y


def grid_sampled(mode: str, padding: str, corners: bool) -> Callable[[Any], Any]:
    """Sampling positions, some of them outside of the image."""
    return lambda x: F.grid_sample(x, (x[:, :2] * 1.3).transpose([0, 2, 3, 1]), mode, padding, corners)


def t(*numbers: Any, dtype: str = "int64") -> Any:
    return paddle.to_tensor(list(numbers), dtype=dtype)


ELEMENTWISE = """
    relu sigmoid tanh silu mish softsign relu6 elu selu celu gelu leaky_relu swish hardswish hardsigmoid hardtanh
    hardshrink softshrink tanhshrink softplus log_sigmoid thresholded_relu softmax log_softmax normalize
"""
MATH = """
    abs acos asin atan asinh atanh ceil cos cosh erf exp expm1 floor neg reciprocal round sign sin sinh square stanh
    tan trunc isnan isinf isfinite mean sum max min prod logsumexp cumsum argmax argmin argsort sort rad2deg frac
    sgn
"""
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(F, name) for name in ELEMENTWISE.split()},
    **{name: getattr(paddle, name) for name in MATH.split()},
    "acosh": lambda x: paddle.acosh(x.abs() + 1),
    "log": lambda x: paddle.log(x + 2),
    "log2": lambda x: paddle.log2(x + 2),
    "log10": lambda x: paddle.log10(x + 2),
    "log1p": lambda x: paddle.log1p(x + 2),
    "sqrt": lambda x: paddle.sqrt(x + 2),
    "rsqrt": lambda x: paddle.rsqrt(x + 2),
    "elu 2": lambda x: F.elu(x, 0.3),
    "celu 2": lambda x: F.celu(x, 0.3),
    "gelu tanh": lambda x: F.gelu(x, approximate=True),
    "leaky relu 2": lambda x: F.leaky_relu(x, 0.3),
    "softplus 2": lambda x: F.softplus(x, beta=3),
    "softplus threshold": lambda x: F.softplus(8 * x, threshold=5),
    "hardtanh 2": lambda x: F.hardtanh(x, -0.3, 0.4),
    "thresholded 2": lambda x: F.thresholded_relu(x, 0.3, value=-0.5),
    "hardsigmoid 2": lambda x: F.hardsigmoid(4 * x, 0.3, 0.4),
    "softmax 1": lambda x: F.softmax(x, 1),
    "log softmax 1": lambda x: F.log_softmax(x, 1),
    "normalize 3": lambda x: F.normalize(x, p=3, axis=2),
    "stanh 2": lambda x: paddle.stanh(x, 0.5, 2.0),
    "scale": lambda x: paddle.scale(x, 2.0, 0.5, False),
    "clip": lambda x: paddle.clip(x, -0.3, 0.4),
    "clip below": lambda x: x.clip(min=0.1),
    "pow": lambda x: (x + 2) ** 3,
    "power of": lambda x: 2.0**x,
    "logit 2": lambda x: paddle.logit(x, 0.1),
    "logit": lambda x: paddle.logit(x * 0.5 + 0.5),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **ACTIVATIONS,
    "arithmetic": lambda x: (2 - x, x * x, x / 3, 1 / (x + 2), -x, x + x[0], x * x[:, :1], x - x.mean(-1, True)),
    "operands of rows": lambda x: (x + x[0, 0, 0], x * x[:, :, :1, :1], x.add(x[0, 0, :, :1])),
    "extremes": lambda x: (paddle.maximum(x, -x), paddle.minimum(x, x * x), paddle.fmax(x, -x), paddle.fmin(x, -x)),
    "powers": lambda x: (paddle.pow(x + 2, x), paddle.pow(x + 2, 0.5)),
    "remainders": lambda x: (3 * x % 0.7, (3 * x) // 0.7, paddle.mod(5 * x, x + 2), (9 * x).astype("int64") % 4),
    "whole divisions": lambda x: (9 * x).astype("int64") // 4,
    "lerp": lambda x: (paddle.lerp(x, -x, 0.3), paddle.lerp(x, -x, x)),
    "comparisons": lambda x: (x > 0, x >= x[0], x < 0.5, x <= 0, x == x[:1], x != x[:1]),
    "logic": lambda x: (
        paddle.logical_and(x > 0, x < 0.5),
        paddle.logical_or(x > 0.5, x < 0),
        paddle.logical_not(x > 0),
        paddle.logical_xor(x > 0, x > 0.5),
    ),
    "bits": lambda x: tuple(
        f((9 * x).astype("int32"), (5 * x).astype("int32") + 3)
        for f in (paddle.bitwise_and, paddle.bitwise_or, paddle.bitwise_xor)
    ),
    "bits not": lambda x: paddle.bitwise_not((9 * x).astype("int32")),
    "truth": lambda x: (paddle.all(x > 0, axis=1), paddle.any(x > 0.5, axis=[2, 3], keepdim=True), paddle.all(x > -2)),
    "sums": lambda x: (x.sum(), x.sum(1), x.sum([2, 3], keepdim=True), x.sum(-1), paddle.sum(x > 0, axis=1)),
    "means": lambda x: (x.mean(), x.mean(1), x.mean([2, 3], keepdim=True), x.mean([-1, 0])),
    "reductions": lambda x: (x.max(1), x.min([2, 3]), x.prod(1), x.max([1, 2], keepdim=True), x.amax(1), x.amin(2)),
    "spread": lambda x: (x.std(), x.var(axis=1), x.var(axis=[2, 3], unbiased=False)),
    "norms": lambda x: (
        x.norm(),
        x.norm(p=1, axis=1),
        x.norm(p=3, axis=-1),
        x.norm(p=float("inf"), axis=1),
        x.norm(p="fro", axis=[2, 3]),
    ),
    "log of sums": lambda x: (x.logsumexp(1), x.logsumexp([2, 3], keepdim=True), x.logsumexp()),
    "where maxima are": lambda x: (x.argmax(1), x.argmin(-1, keepdim=True), x.argmax(), x.argmax(2, dtype="int32")),
    "best": lambda x: (*x.topk(3), *x.topk(2, axis=1, largest=False)),
    "sorted": lambda x: (x.sort(2), x.argsort(1, descending=True), x.sort(-1, descending=True)),
    "running sums": lambda x: (x.cumsum(), x.cumsum(1), x.cumsum(-1)),
    "matrices": lambda x: (
        x @ x.transpose([0, 1, 3, 2]),
        paddle.matmul(x, x, transpose_y=True),
        paddle.matmul(x, x, transpose_x=True),
        x @ x[0, 0, 0],
        x[0] @ x[0, 0].T,
    ),
    "products": lambda x: (
        paddle.bmm(x[0], x[1].transpose([0, 2, 1])),
        paddle.mv(x[0, 0], x[0, 0, 0]),
        paddle.dot(x[0, 0, 0], x[0, 0, 1]),
        paddle.mm(x[0, 0], x[0, 1].T),
        paddle.addmm(x[0, 0, :, :3], x[0, 1], x[1, 1, :5, :3], beta=0.5, alpha=2.0),
    ),
    "einsum": lambda x: paddle.einsum("bchw,bcwk->bchk", x, x.transpose([0, 1, 3, 2])),
    "outer": lambda x: paddle.outer(x[0, 0, 0], x[0, 0, 1]),
    "kron": lambda x: paddle.kron(x[0, 0], x[0, 1, :2]),
    "reshape": lambda x: (x.reshape([0, -1]), x.reshape([x.shape[0], x.shape[1], -1]), x.reshape([2, 2, 2, 6, -1])),
    "flatten": lambda x: (x.flatten(), x.flatten(2), x.flatten(1, 2)),
    "transpose": lambda x: (x.transpose([3, 0, 2, 1]), x.moveaxis(1, 3), x.swapaxes(1, 2), x[0, 0].t()),
    "squeeze": lambda x: (
        x[:1, :, :, :1].squeeze(),
        x[:1, :, :, :1].squeeze(0),
        x.squeeze(1),
        x[:1, :1].squeeze([0, 1]),
    ),
    "unsqueeze": lambda x: (x.unsqueeze(0), x.unsqueeze([1, -1]), x.unsqueeze(-2)),
    "slices": lambda x: (x[0], x[:, 1:3], x[..., -1], x[:, :, 1:-1, ::2], x[:, :, ::-1], x[1, :, 2:], x[:, None, 2]),
    "strided slice": lambda x: paddle.strided_slice(x, [2, 3], [4, 0], [0, 5], [-2, 2]),
    "slices of a list": lambda x: (x[:, [2, 0]], x[:, :, [1, 1, 3]]),
    "crop": lambda x: paddle.crop(x, [2, 2, 3, 3], [0, 1, 2, 1]),
    "split": lambda x: (*paddle.split(x, 2, 1), *paddle.split(x, [1, 2, -1], 1), *x.chunk(2, 2), *x.unbind(1)),
    "joined": lambda x: (paddle.concat([x, x * 2, x[:, :1]], 1), paddle.stack([x, -x], 2), paddle.concat([x, x], -1)),
    "unstack": lambda x: paddle.unstack(x, 3),
    "sum of several": lambda x: paddle.add_n([x, x * x, x]),
    "expand": lambda x: (
        x[:, :1].expand([2, 3, 6, 5]),
        x[0].expand([2, -1, -1, 5]),
        x[:1].expand_as(x),
        x[0].broadcast_to([3, 4, 6, 5]),
    ),
    "tile": lambda x: (x.tile([1, 2, 1, 3]), x[0, 0].tile([2, 1, 2]), x.tile([2])),
    "repeat": lambda x: x.repeat_interleave(2, 1),
    "flip": lambda x: (x.flip([1, 3]), x.flip(-1)),
    "rotate": lambda x: x.rot90(1, [2, 3]),
    "roll": lambda x: (x.roll(2, 1), x.roll([1, -2], [2, 3]), x.roll(3)),
    "pad": lambda x: (
        F.pad(x, [1, 2, 3, 0]),
        F.pad(x, [0, 0, 1, 1, 0, 0, 2, 0], value=1.5),
        F.pad(x[0], [1, 2], data_format="NCL"),
        F.pad(x, [1, 1, 2, 2], mode="replicate"),
        F.pad(x, [0, 1, 2, 1], mode="reflect"),
    ),
    "pad around": lambda x: F.pad(x, [1, 1, 2, 2], mode="circular"),
    "nearest": lambda x: (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, [9, 4]),
        F.upsample(x, scale_factor=[2, 3]),
    ),
    "bilinear": lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, [9, 8], mode="bilinear", align_corners=True),
        F.interpolate(x, [3, 7], mode="bilinear", align_mode=1),
    ),
    "bilinear by a factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bicubic": lambda x: (
        F.interpolate(x, [9, 8], mode="bicubic"),
        F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=True),
    ),
    "other ranks": lambda x: (
        F.interpolate(x[0], [9], mode="linear", data_format="NCW"),
        F.interpolate(x[0], [7], mode="linear", data_format="NCW", align_corners=True),
        F.interpolate(x[None], [2, 9, 4], mode="trilinear", data_format="NCDHW"),
    ),
    "area": lambda x: F.interpolate(x, [3, 5], mode="area"),
    "size of another": lambda x: F.interpolate(x, paddle.shape(F.max_pool2d(x, 2))[2:], mode="nearest"),
    "gather": lambda x: (
        paddle.gather(x, t(1, 0, 1)),
        paddle.gather(x, t(3, 1), axis=1),
        paddle.index_select(x, t(2, 2), axis=2),
    ),
    "gather nd": lambda x: paddle.gather_nd(x, t([0, 1], [1, 3])),
    "sample": lambda x: paddle.index_sample(x[0, 0], t(*[[0, 2]] * 6)),
    "along axis": lambda x: (
        paddle.take_along_axis(x[0, 0], t(*[[1, 4]] * 6), 1),
        paddle.put_along_axis(x[0, 0], t(*[[1]] * 6), 7.0, 1),
        paddle.put_along_axis(x[0, 0], t(*[[1]] * 6), 2.0, 1, reduce="add"),
    ),
    "scatter": lambda x: (
        paddle.scatter(x[0, 0], t(2, 0), x[1, 1, :2]),
        paddle.scatter(x[0, 0], t(2, 2), x[1, 1, :2], overwrite=False),
        paddle.scatter_nd_add(x[0, 0], t([1], [1]), x[1, 1, :2]),
    ),
    "index add": lambda x: paddle.index_add(x, t(0, 2), 1, x[:, :2]),
    "where": lambda x: (paddle.where(x > 0, x, x * 0.1), paddle.where(x > 0, x, paddle.zeros_like(x))),
    "triangles": lambda x: (x.tril(), x.triu(1), x.tril(-1)),
    "diagonals": lambda x: (paddle.diag(x[0, 0, 0]), paddle.diag(x[0, 0]), paddle.diag(x[0, 0, 0], 1, 0.5)),
    "diagonal": lambda x: paddle.diagonal(x, 0, 2, 3),
    "meshgrid": lambda x: paddle.meshgrid(x[0, 0, 0], x[0, 1, :, 0]),
    "one hot": lambda x: F.one_hot(x.argmax(1), 4),
    "masked": lambda x: paddle.where(x > 0, paddle.full_like(x, 2.0), x),
    "constants": lambda x: (
        paddle.ones([2, 3]),
        paddle.zeros_like(x),
        paddle.full([2], 3, "int64"),
        paddle.eye(3, 4),
        paddle.arange(2, 9, 3),
        paddle.linspace(0, 1, 5),
        x + t(1.0, 2, 3, 4, 5, dtype="float32"),
    ),
    "arange of a shape": lambda x: paddle.arange(x.shape[2]).astype("float32") + x[..., :1],
    "shape": lambda x: (paddle.shape(x).astype("int64"), paddle.numel(x), paddle.rank(x)),
    "cast": lambda x: ((9 * x).astype("int32"), x.astype("bool"), (x > 0).astype("float32"), x.astype("float64")),
    "temporal shift": lambda x: F.temporal_shift(x, 2, 0.25),
    "maxima with places": lambda x: F.max_pool2d(x, 2, stride=2, return_mask=True),
    "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x[..., :4], 2, return_mask=True), 2),
    "grid": lambda x: F.affine_grid(x[:, 0, :2, :3], [2, 4, 5, 6], align_corners=False),
    "grid on corners": lambda x: F.affine_grid(x[:, 0, :2, :3], [2, 4, 5, 6]),
    **{
        f"grid sample {mode} {padding} {corners}": grid_sampled(mode, padding, corners)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
    },
    "deformable": lambda x: paddle.vision.ops.deform_conv2d(
        x,
        paddle.concat([x, x * 0.5], 1)[:, :, :5, :4],
        t(*np.sin(np.arange(48)).reshape(3, 4, 2, 2).tolist(), dtype="float32"),
    ),
    "regions": lambda x: (
        regions(paddle.vision.ops.roi_align, x),
        regions(paddle.vision.ops.roi_pool, x),
        regions(paddle.vision.ops.psroi_pool, paddle.concat([x, -x], 1)),
    ),
    "regions unaligned": lambda x: regions(paddle.vision.ops.roi_align, x, aligned=False, sampling_ratio=2),
    "boxes of cells": lambda x: paddle.vision.ops.yolo_box(
        paddle.concat([x] * 4, 1)[:1, :14], t([48, 80], dtype="int32"), [10, 14, 23, 27], 2, 0.45, 8
    ),
    "prior boxes": lambda x: paddle.vision.ops.prior_box(
        x, paddle.zeros([1, 3, 24, 20]), [4.0], [9.0], [1.0, 2.0], flip=True, clip=True
    ),
    "decoded boxes": lambda x: paddle.vision.ops.box_coder(
        x[0, 0, :, :4].abs().cumsum(1), [0.1, 0.1, 0.2, 0.2], x[1, 0, :, :4].unsqueeze(0), "decode_center_size"
    ),
    "softmax attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "multiclass": lambda x: paddle.vision.ops.matrix_nms(
        x[:1, 0, :, :4].abs().cumsum(2), x[:1, :3, :, 0].abs(), 0.05, 0.01, 5, 6, background_label=0
    )[0][:3],
}


def regions(f: Callable[..., Any], x: Any, **options: Any) -> Any:
    boxes = paddle.to_tensor(np.array([[0, 0, 3, 3], [1, 1, 4, 5]], np.float32))
    return f(x[:1], boxes, t(2, dtype="int32"), 2, 1.0, **options)


MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "resnet18": ({}, 32),
    "mobilenet_v1": ({"scale": 0.25}, 32),
    "mobilenet_v2": ({"scale": 0.25}, 32),
    "mobilenet_v3_small": ({"scale": 0.5}, 32),
    "shufflenet_v2_x0_25": ({}, 64),
    "squeezenet1_1": ({}, 64),
    "densenet121": ({}, 32),
    "googlenet": ({}, 224),
    "inception_v3": ({}, 80),
    "squeezenet1_0": ({}, 64),
    "mobilenet_v3_large": ({"scale": 0.5}, 32),
    "shufflenet_v2_swish": ({}, 64),
}


def randomised(layer: Any) -> Any:
    """The layer with random parameters, so that no normalisation or bias is an identity."""
    for name, value in layer.state_dict().items():
        if value.dtype == paddle.float32:
            low, high = (0.5, 1.5) if name.endswith("_variance") else (-1, 1)
            scale = min(1.0, 2 / max(1, np.prod(value.shape[1:])) ** 0.5) if low < 0 else 1.0
            value.set_value((RNG.uniform(low, high, value.shape) * scale).astype(np.float32))
    layer.eval()
    return layer


def flat(made: Any) -> list[Array]:
    if isinstance(made, list | tuple):
        return [a for one in made for a in flat(one)]
    return [made.numpy()]


def cases() -> dict[str, tuple[Callable[[], Any], tuple[int, ...]]]:
    """Layers by name, and the shapes of their inputs."""
    functions = {name: ((lambda f=f: Apply(f)), X) for name, f in FUNCTIONS.items()}
    models = {
        name: ((lambda name=name, options=options: getattr(paddle.vision.models, name)(**options)), (1, 3, size, size))
        for name, (options, size) in MODELS.items()
    }
    return LAYERS | functions | models


def write(folder: Path, name: str, layer: Any, x: Array) -> None:
    layer = randomised(layer)
    expected = flat(layer(paddle.to_tensor(x)))
    paddle.jit.save(layer, str(folder / name), input_spec=[paddle.static.InputSpec(x.shape, "float32", name="x")])
    np.savez(folder / f"{name}.npz", x, *expected)


NUMBERS = np.random.default_rng(9)
SCALES, LINES, MATRIX = NUMBERS.uniform(0.4, 1, 4), NUMBERS.uniform(-1, 1, 4), NUMBERS.uniform(-1, 1, (30, 3))
IMAGES: dict[str, Any] = {"out_h": 9, "out_w": 4, "align_mode": 1}
RANGE: dict[str, Any] = {"bit_length": 8, "is_test": True, "moving_rate": 0.9}
OPERATORS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "affine channel": ("affine_channel", {"X": X, "Scale": SCALES, "Bias": LINES}, "Out", {"data_layout": "NCHW"}),
    "lrn": ("lrn", {"X": X}, "Out MidOut", {"n": 3, "alpha": 0.1, "beta": 0.6, "k": 1.5}),
    "matmul 1": (
        "matmul",
        {"X": X, "Y": NUMBERS.uniform(-1, 1, (2, 4, 3, 5))},
        "Out",
        {"transpose_Y": True, "alpha": 0.5},
    ),
    "mul": ("mul", {"X": X, "Y": MATRIX}, "Out", {"x_num_col_dims": 2, "y_num_col_dims": 1}),
    "fc": ("fc", {"Input": X, "W": MATRIX, "Bias": LINES[:3]}, "Out", {"in_num_col_dims": 2}),
    "mean 1": ("mean", {"X": X}, "Out", {}),
    "norm 1": ("norm", {"X": X}, "Out Norm", {"axis": 1, "epsilon": 1e-3}),
    "expand 1": ("expand", {"X": X}, "Out", {"expand_times": [1, 2, 1, 3]}),
    "flatten 2": ("flatten2", {"X": X}, "Out XShape", {"axis": 2}),
    "reverse": ("reverse", {"X": X}, "Out", {"axis": [1]}),
    "top k 1": ("top_k", {"X": X}, "Out Indices", {"k": 2}),
    "shuffle 1": ("shuffle_channel", {"X": X}, "Out", {"group": 2}),
    "soft relu": ("soft_relu", {"X": X}, "Out", {"threshold": 0.5}),
    "squared norm": ("squared_l2_norm", {"X": X}, "Out", {}),
    "increment": ("increment", {"X": (1,)}, "Out", {"step": 2.0}),
    "nearest 1": ("nearest_interp", {"X": X}, "Out", {**IMAGES, "interp_method": "nearest", "align_corners": False}),
    "nearest 1 corners": (
        "nearest_interp",
        {"X": X},
        "Out",
        {**IMAGES, "interp_method": "nearest", "align_corners": True},
    ),
    "bilinear 1": ("bilinear_interp", {"X": X}, "Out", {**IMAGES, "interp_method": "bilinear", "align_corners": False}),
    "bilinear 1 corners": (
        "bilinear_interp",
        {"X": X},
        "Out",
        {**IMAGES, "interp_method": "bilinear", "align_corners": True},
    ),
    "nearest 2 corners": (
        "nearest_interp_v2",
        {"X": X},
        "Out",
        {**IMAGES, "interp_method": "nearest", "align_corners": True},
    ),
    "lookup 1": ("lookup_table", {"W": (7, 3), "Ids": np.array([[1], [6]])}, "Out", {}),
    "fill like a batch": (
        "fill_constant_batch_size_like",
        {"Input": X},
        "Out",
        {"shape": [-1, 3], "value": 2.5, "dtype": 5, "input_dim_idx": 1},
    ),
    "zeros like": ("fill_zeros_like", {"X": X}, "Out", {}),
    **{
        f"quantised {i}": (type, {"X": X, "InScale": np.array([0.7])}, "Out OutScale", {**RANGE, "round_type": i % 2})
        for i, type in enumerate(
            (
                "fake_quantize_dequantize_moving_average_abs_max",
                "fake_quantize_range_abs_max",
                "fake_quantize_moving_average_abs_max",
            )
            * 2
        )
    },
    **{
        f"quantised by itself {i}": (
            "fake_quantize_dequantize_abs_max",
            {"X": X},
            "Out OutScale",
            {"bit_length": 8, "round_type": i},
        )
        for i in (0, 1)
    },
    **{
        f"quantised channels {i}": (
            "fake_channel_wise_quantize_dequantize_abs_max",
            {"X": X},
            "Out OutScale",
            {"bit_length": 8, "quant_axis": i, "round_type": 1 - i},
        )
        for i in (0, 1)
    },
    "dequantised": ("fake_dequantize_max_abs", {"X": X, "Scale": np.array([0.7])}, "Out", {"max_range": 127.0}),
    "dequantised channels": (
        "fake_channel_wise_dequantize_max_abs",
        {"X": X, "Scales": SCALES},
        "Out",
        {"quant_bits": [8], "quant_axis": 1},
    ),
    "quantised steps": (
        "quantize_linear",
        {"X": X, "Scale": SCALES, "ZeroPoint": 0 * SCALES},
        "Y",
        {"quant_axis": 1, "bit_length": 8, "round_type": 0},
    ),
    "steps back": (
        "dequantize_linear",
        {"X": X, "Scale": SCALES, "ZeroPoint": 0 * SCALES},
        "Y",
        {"quant_axis": 1, "bit_length": 8},
    ),
    "range watched": ("moving_average_abs_max_scale", {"X": X}, "Out OutScale", {"is_test": True}),
    "celu 1": ("celu", {"X": X}, "Out", {"alpha": 0.7}),
    "brelu": ("brelu", {"X": X}, "Out", {"t_min": -0.2, "t_max": 0.4}),
}
"""Operators that programs of 2.x have and no function makes any more: type, inputs (shapes, constants), outputs."""


def write_operator(folder: Path, name: str) -> None:
    type, inputs, slots, attributes = OPERATORS[name]
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        block, read = program.global_block(), {}
        for slot, given in inputs.items():
            if isinstance(given, tuple):
                x = paddle.static.data("x", given, "float32")
                read[slot] = [x]
            else:
                read[slot] = [paddle.assign(given if given.dtype == np.int64 else given.astype(np.float32))]
        whole = {"Indices": "int64", "XShape": "float32"}
        made = {slot: [block.create_var(name=slot.lower(), dtype=whole.get(slot, "float32"))] for slot in slots.split()}
        block.append_op(type=type, inputs=read, outputs=made, attrs=attributes)
        numbers = RNG.uniform(-0.95, 0.95, x.shape).astype(np.float32)
        run = paddle.static.Executor(paddle.CPUPlace())
        results = [v for slot, (v,) in made.items() if slot in ("Out", "Output", "Y", "Indices")]
        paddle.static.save_inference_model(str(folder / name), [x], results, run, program=program)
        kept, _, results = paddle.static.load_inference_model(str(folder / name), run)  # some attributes are not kept
        expected = run.run(kept, feed={"x": numbers}, fetch_list=results)
    np.savez(folder / f"{name}.npz", numbers, *expected)


def main(folder: Path) -> None:
    for name, (build, shape) in cases().items():
        x = RNG.uniform(-0.95, 0.95, shape).astype(np.float32)
        attempt(name, lambda build=build, name=name, x=x: write(folder, name, build(), x))  # type: ignore[misc]
    if not paddle.get_flags(FLAG)[FLAG] if paddle.__version__ >= "3" else True:
        paddle.enable_static()
        for name in OPERATORS:
            attempt(name, lambda name=name: write_operator(folder, name))  # type: ignore[misc]


def attempt(name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:  # Paddle cannot run or save this one
        print(f"{name}: {str(error).strip().splitlines()[-1][:150]}")


FLAG = "FLAGS_enable_pir_api"

if __name__ == "__main__":
    main(Path(sys.argv[1]))
