"""Darknet's layers in ONNX operators: one function per layer, and ``LAYERS``, which says which is which.

Definitions: the forward functions of pjreddie/darknet and AlexeyAB/darknet, src/*_layer.c; where the two differ the
comment says which one is meant.  Images are [1, C, H, W], what follows a fully connected layer is [1, N].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenon.frontends.darknet.cfg import Parameters, Section
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Array, Value

EPSILON = 1e-6
"""Of batch normalisation, under the root as OpenCV has it.  Darknet itself is of several minds: pjreddie's C code adds
1e-6 to the root, its CUDA code and AlexeyAB's put 1e-5 under it."""


class Layer(Protocol):
    """A layer about to be made: ``x`` is the result of the one before it."""

    section: Section
    parameters: Parameters
    x: Value

    def add(self, type: str, *inputs: Value | Array | float | None, **attributes: Any) -> Value:
        """A node with one output.  Arrays become constants, numbers become f32 scalars."""

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> Sequence[Value]: ...

    def earlier(self, index: float) -> Value:
        """The result of another layer, counted from 0, or back from this one when negative."""

    def beside(self, path: str) -> bytes | None:
        """A file that the .cfg names, looked for beside it whatever its folder was; None if it is not there."""


def image(layer: Layer, value: Value | None = None) -> tuple[int, int, int]:
    """Channels, height and width of a value.  Raises RefusedError for what is no image."""
    dims = (value or layer.x).type.dims
    if len(dims) != 4:
        raise RefusedError(f"it needs an image, and what comes before it is a vector of {dims[-1]} numbers")
    return dims[1], dims[2], dims[3]


def reshape(layer: Layer, value: Value, *dims: int) -> Value:
    return layer.add("Reshape", value, np.array(dims, np.int64))


def flat(layer: Layer, value: Value | None = None) -> Value:
    value = value or layer.x
    return value if value.type.rank == 2 else layer.add("Flatten", value, axis=1)


# ----------------------------------------------------------------------------------------- activations
def _loggy(layer: Layer, x: Value) -> Value:
    return layer.add("Sub", layer.add("Mul", layer.add("Sigmoid", x), 2.0), 1.0)


def _ramp(layer: Layer, x: Value) -> Value:
    return layer.add("Add", layer.add("Relu", x), layer.add("Mul", x, 0.1))


def _pieces(layer: Layer, x: Value, low: float, high: float, outer: float, inner: float, middle: float) -> Value:
    """A line of slope ``inner`` through ``middle`` at 0 between two bounds, of slope ``outer`` beyond them."""
    inside = layer.add("Clip", x, low, high)
    outside = layer.add("Mul", layer.add("Sub", x, inside), outer)
    return layer.add("Add", layer.add("Add", layer.add("Mul", inside, inner), middle), outside)


def _stair(layer: Layer, x: Value) -> Value:
    """floor(x / 2), and between odd whole numbers and the next a ramp."""
    floor = layer.add("Floor", x)
    half = layer.add("Floor", layer.add("Mul", x, 0.5))
    whole = layer.add("Floor", layer.add("Mul", floor, 0.5))
    odd = layer.add("Sub", floor, layer.add("Mul", whole, 2.0))
    return layer.add("Add", layer.add("Mul", layer.add("Sub", x, floor), odd), half)


def _hard_mish(layer: Layer, x: Value) -> Value:
    """x above 0, x^2/2 + x between -2 and 0, 0 below: with m = min(x, 0) clipped at -2, (m/2 + 1) m + relu(x)."""
    low = layer.add("Clip", x, -2.0, 0.0)
    bent = layer.add("Mul", layer.add("Add", layer.add("Mul", low, 0.5), 1.0), low)
    return layer.add("Add", bent, layer.add("Relu", x))


def _over_channels(layer: Layer, x: Value) -> Value:
    positive = layer.add("Relu", x)
    total = layer.add("ReduceSum", positive, np.array([1], np.int64), keepdims=1)
    return layer.add("Div", positive, layer.add("Add", total, 1e-4))


ACTIVATIONS: dict[str, Callable[[Layer, Value], Value]] = {
    "linear": lambda layer, x: x,
    "logistic": lambda layer, x: layer.add("Sigmoid", x),
    "loggy": _loggy,
    "relu": lambda layer, x: layer.add("Relu", x),
    "relu6": lambda layer, x: layer.add("Clip", x, 0.0, 6.0),
    "relie": lambda layer, x: layer.add("LeakyRelu", x, alpha=0.01),
    "leaky": lambda layer, x: layer.add("LeakyRelu", x, alpha=0.1),
    "ramp": _ramp,
    "elu": lambda layer, x: layer.add("Elu", x, alpha=1.0),
    "selu": lambda layer, x: layer.add("Selu", x, alpha=1.6732, gamma=1.0507),
    "gelu": lambda layer, x: layer.add("Gelu", x, approximate="tanh"),
    "tanh": lambda layer, x: layer.add("Tanh", x),
    "hardtan": lambda layer, x: layer.add("Clip", x, -1.0, 1.0),
    "lhtan": lambda layer, x: _pieces(layer, x, 0.0, 1.0, 0.001, 1.0, 0.0),
    "plse": lambda layer, x: _pieces(layer, x, -4.0, 4.0, 0.01, 0.125, 0.5),
    "stair": _stair,
    "swish": lambda layer, x: layer.add("Swish", x),
    "silu": lambda layer, x: layer.add("Swish", x),
    "mish": lambda layer, x: layer.add("Mish", x),
    "hard_mish": _hard_mish,
    "normalize_channels": _over_channels,
    "normalize_channels_softmax": lambda layer, x: layer.add("Softmax", x, axis=1),
    "normalize_channels_softmax_maxval": lambda layer, x: layer.add("Softmax", x, axis=1),
}  # fmt: skip


_FOREIGN = ("xnor", "binary", "share_index", "cbn", "coordconv", "sway", "rotate", "stretch", "stretch_sway")
"""Options of AlexeyAB's convolutions that change the result and are not supported."""


def check(section: Section) -> None:
    """Raise RefusedError for options that nothing here knows, whatever the layer's input may be."""
    for option in _FOREIGN:
        if section.integer(option):
            raise RefusedError(f"the option {option} is not supported")
    kind = section.text("activation", "linear")
    if kind not in ACTIVATIONS:
        raise RefusedError(f"the activation '{kind}' is not known", f"known are {', '.join(ACTIVATIONS)}")


def activate(layer: Layer, x: Value, default: str) -> Value:
    return ACTIVATIONS[layer.section.text("activation", default)](layer, x)


# ------------------------------------------------------------------------------------- with parameters
def _normalized(layer: Layer, x: Value, scale: Array, bias: Array, mean: Array, variance: Array) -> Value:
    return layer.add("BatchNormalization", x, scale, bias, mean, variance, epsilon=EPSILON)


def convolution(layer: Layer, x: Value, filters: int, window: dict[str, Any], weights: Sequence[int]) -> Value:
    """A convolution with its bias or batch normalisation, whose floats come next in the file; no activation."""
    take, normalize = layer.parameters.take, layer.section.integer("batch_normalize")
    bias = take(filters)
    statistics = [take(filters) for _ in range(3)] if normalize else []
    kernel = take(*weights)
    if layer.section.integer("flipped"):
        kernel = kernel.reshape(math.prod(weights[1:]), weights[0]).T.reshape(tuple(weights))
    if not normalize:
        return layer.add("Conv", x, kernel, bias, **window)
    scale, mean, variance = statistics
    return _normalized(layer, layer.add("Conv", x, kernel, **window), scale, bias, mean, variance)


def window(section: Section, size: int, pad: int) -> dict[str, Any]:
    """Kernel, strides, pads and dilations: as the options say."""
    stride = section.integer("stride", 1)
    strides = (section.integer("stride_y", stride), section.integer("stride_x", stride))
    dilation = section.integer("dilation", 1) if size > 1 else 1
    pads = (pad * dilation,) * 4
    return {"kernel_shape": (size, size), "strides": strides, "pads": pads, "dilations": (dilation, dilation)}


def padding(section: Section, size: int) -> int:
    return size // 2 if section.integer("pad") else section.integer("padding")


def convolutional(layer: Layer) -> Value:
    section = layer.section
    channels, _, _ = image(layer)
    filters, size = section.integer("filters", 1), section.integer("size", 1)
    groups = max(1, section.integer("groups", 1))
    options = window(section, size, padding(section, size)) | {"group": groups}
    blur = section.integer("antialiasing") and options["strides"] != (1, 1)
    strides = options["strides"]
    if blur:
        options["strides"] = (1, 1)
    x = convolution(layer, layer.x, filters, options, (filters, channels // groups, size, size))
    x = activate(layer, x, "logistic")
    return _blurred(layer, x, filters, strides) if blur else x


def _blurred(layer: Layer, x: Value, filters: int, strides: Sequence[int]) -> Value:
    """The strides of an anti-aliased layer, taken after it on a smoothed image (AlexeyAB)."""
    two = layer.section.integer("antialiasing") == 2
    taps = np.ones(2, np.float32) / 2 if two else np.array([1, 2, 1], np.float32) / 4
    kernel = np.broadcast_to(np.outer(taps, taps), (filters, 1, taps.size, taps.size))
    pads = (0 if two else 1,) * 4
    return layer.add("Conv", x, kernel, kernel_shape=kernel.shape[2:], strides=strides, pads=pads, group=filters)


def deconvolutional(layer: Layer) -> Value:
    section, take = layer.section, layer.parameters.take
    channels, _, _ = image(layer)
    filters, size = section.integer("filters", 1), section.integer("size", 1)
    options = window(section, size, padding(section, size))
    bias, normalize = take(filters), section.integer("batch_normalize")
    statistics = [take(filters) for _ in range(3)] if normalize else []
    kernel = take(channels, filters, size, size)
    if normalize:
        scale, mean, variance = statistics
        x = _normalized(layer, layer.add("ConvTranspose", layer.x, kernel, **options), scale, bias, mean, variance)
    else:
        x = layer.add("ConvTranspose", layer.x, kernel, bias, **options)
    return activate(layer, x, "logistic")


@dataclass(frozen=True)
class Matrix:
    """What a fully connected layer keeps: [outputs, inputs], and scale, mean and variance if it normalises."""

    weights: Array
    bias: Array
    statistics: tuple[Array, ...]

    def apply(self, layer: Layer, x: Value) -> Value:
        """Of x [1, inputs]; no activation."""
        if not self.statistics:
            return layer.add("Gemm", x, self.weights, self.bias, transB=1)
        scale, mean, variance = self.statistics
        return _normalized(layer, layer.add("Gemm", x, self.weights, transB=1), scale, self.bias, mean, variance)


def matrix(layer: Layer, inputs: int, outputs: int) -> Matrix:
    """The fully connected layer whose floats come next in the file."""
    take = layer.parameters.take
    bias, weights = take(outputs), take(outputs, inputs)
    if layer.parameters.transposed:
        weights = weights.reshape(inputs, outputs).T
    count = 3 if layer.section.integer("batch_normalize") else 0
    return Matrix(weights, bias, tuple(take(outputs) for _ in range(count)))


def connected(layer: Layer) -> Value:
    x = flat(layer)
    stored = matrix(layer, x.type.dims[1], layer.section.integer("output", 1))
    return activate(layer, stored.apply(layer, x), "logistic")


def local(layer: Layer) -> Value:
    """A convolution with weights of its own at every position: its windows, one product each."""
    section, take = layer.section, layer.parameters.take
    channels, height, width = image(layer)
    filters, size, stride = section.integer("filters", 1), section.integer("size", 1), section.integer("stride", 1)
    pad = section.integer("pad")
    if min(size, stride) < 1 or size**2 > 2**16:
        raise RefusedError(f"windows of size {size} and stride {stride} are impossible")
    high, wide = ((n - (1 if pad else size)) // stride + 1 for n in (height, width))
    places, terms = high * wide, channels * size * size
    bias, weights = take(filters, high, wide), take(places, filters, terms)
    taps = np.tile(np.eye(size * size, dtype=np.float32).reshape(-1, 1, size, size), (channels, 1, 1, 1))
    ends = [(n - 1) * stride + size - m - pad for n, m in ((high, height), (wide, width))]
    windows = layer.add("Conv", layer.x, taps, group=channels, kernel_shape=(size, size), strides=(stride, stride),
                        pads=(pad, pad, max(0, ends[0]), max(0, ends[1])))  # fmt: skip
    columns = layer.add("Transpose", reshape(layer, windows, terms, places, 1), perm=(1, 0, 2))
    product = layer.add("Transpose", layer.add("MatMul", weights, columns), perm=(2, 1, 0))
    x = layer.add("Add", reshape(layer, product, 1, filters, high, wide), bias[None])
    return activate(layer, x, "logistic")


def batchnorm(layer: Layer) -> Value:
    """The original keeps no bias for it."""
    take, channels = layer.parameters.take, layer.x.type.dims[1]
    bias = take(channels) if layer.parameters.alexey else np.zeros(channels, np.float32)
    scale, mean, variance = (take(channels) for _ in range(3))
    return _normalized(layer, layer.x, scale, bias, mean, variance)


# ------------------------------------------------------------------------------------------- combining
def shortcut(layer: Layer) -> Value:
    section = layer.section
    others = [_fitted(layer, layer.earlier(i)) for i in section.numbers("from")]
    if not others:
        raise RefusedError("it does not say from which layer")
    terms = [layer.x, *others]
    kind = section.text("weights_type", "none")
    if kind != "none":
        terms = _weighted(layer, terms, kind)
    elif (section.number("alpha", 1.0), section.number("beta", 1.0)) != (1.0, 1.0):
        raise RefusedError("alpha and beta other than 1 are not supported")
    total = terms[0]
    for term in terms[1:]:
        total = layer.add("Add", total, term)
    return activate(layer, total, "linear")


def _fitted(layer: Layer, other: Value) -> Value:
    """Another layer's result with as many channels and pixels as this one's: cut, filled with zeros, or thinned out."""
    if other.type == layer.x.type:
        return other
    (c, h, w), (channels, height, width) = image(layer, other), image(layer)
    if (h, w) != (height, width):
        step = h // height
        if not step or (h, w) != (height * step, width * step):
            raise RefusedError(f"it adds images of {h}x{w} and {height}x{width} pixels")
        starts, steps = np.zeros(2, np.int64), np.full(2, step, np.int64)
        other = layer.add("Slice", other, starts, np.array([h, w], np.int64), np.array([2, 3], np.int64), steps)
    if c > channels:
        return layer.split(other, 1, [channels, c - channels])[0]
    return layer.add("Pad", other, np.array([0, 0, 0, 0, 0, channels - c, 0, 0], np.int64)) if c < channels else other


def _weighted(layer: Layer, terms: Sequence[Value], kind: str) -> list[Value]:
    """The terms times learnt weights, one each or one per channel of each."""
    if kind not in ("per_feature", "per_layer", "per_channel"):
        raise RefusedError(f"weights_type={kind} is not known")
    channels = image(layer)[0] if kind == "per_channel" else 1
    weights = layer.parameters.take(len(terms), channels).astype(np.float32)
    normalization = layer.section.text("weights_normalization", "none")
    if normalization in ("relu", "avg_relu"):
        weights = np.maximum(weights, 0)
        weights = weights / (weights.sum(0) + np.float32(1e-4))
    elif normalization == "softmax":
        weights = np.exp(weights - weights.max(0))
        weights = weights / (weights.sum(0) + np.float32(1e-4))
    shape = (1, channels, 1, 1)
    return [layer.add("Mul", term, w.reshape(shape)) for term, w in zip(terms, weights, strict=True)]


def route(layer: Layer) -> Value:
    section = layer.section
    parts = [layer.earlier(i) for i in section.numbers("layers")]
    if not parts:
        raise RefusedError("it does not say which layers")
    groups, chosen = section.integer("groups", 1), section.integer("group_id")
    if groups > 1:
        cut = []
        for part in parts:
            size = part.type.dims[1] // groups
            if not 0 <= chosen < groups or size * groups != part.type.dims[1]:
                raise RefusedError(f"group {chosen} of {groups} of {part.type.dims[1]} channels is impossible")
            cut.append(layer.split(part, 1, [size] * groups)[chosen])
        parts = cut
    return parts[0] if len(parts) == 1 else layer.add("Concat", *parts, axis=1)


def scale_channels(layer: Layer) -> Value:
    """An earlier layer's result times this one's: one number per channel, or per pixel with scale_wh."""
    other = layer.earlier(layer.section.number("from"))
    c, h, w = image(layer)
    wanted = (1, *image(layer, other)[1:]) if layer.section.integer("scale_wh") else (image(layer, other)[0], 1, 1)
    if (c, h, w) != wanted:
        raise RefusedError(f"it scales by {[c, h, w]} where {list(wanted)} is needed")
    return activate(layer, layer.add("Mul", other, layer.x), "linear")


def sam(layer: Layer) -> Value:
    other = layer.earlier(layer.section.number("from"))
    if other.type != layer.x.type:
        raise RefusedError(f"it multiplies {other.type} with {layer.x.type}")
    return activate(layer, layer.add("Mul", layer.x, other), "linear")


# --------------------------------------------------------------------------------------------- windows
def _pool_window(layer: Layer) -> dict[str, Any]:
    """Darknet pads by ``padding`` in all, the smaller half first: (n + padding - size) / stride + 1 windows."""
    section = layer.section
    _, height, width = image(layer)
    stride = section.integer("stride", 1)
    size = section.integer("size", stride)
    pad = section.integer("padding", size - 1)
    strides = (section.integer("stride_y", stride), section.integer("stride_x", stride))
    if min(*strides, size) < 1 or pad < 0:
        raise RefusedError(f"windows of size {size}, stride {stride} and padding {pad} are impossible")
    before = pad // 2
    steps = [(n + pad - size) // s + 1 for n, s in zip((height, width), strides, strict=True)]
    ends = [max(0, (k - 1) * s + size - n - before) for k, s, n in zip(steps, strides, (height, width), strict=True)]
    return {"kernel_shape": (size, size), "strides": strides, "pads": (before, before, *ends)}


def maxpool(layer: Layer) -> Value:
    section = layer.section
    if section.integer("maxpool_depth"):
        return _maxpool_depth(layer)
    options = _pool_window(layer)
    blur = section.integer("antialiasing") and options["strides"] != (1, 1)
    if not blur:
        return layer.add("MaxPool", layer.x, **options)
    stride = options["strides"]
    section.options |= {"stride": "1", "stride_x": "1", "stride_y": "1", "size": str(options["kernel_shape"][0])}
    return _blurred(layer, layer.add("MaxPool", layer.x, **_pool_window(layer)), image(layer)[0], stride)


def _maxpool_depth(layer: Layer) -> Value:
    """The largest of every ``out_channels``-th channel (AlexeyAB)."""
    channels, height, width = image(layer)
    out = layer.section.integer("out_channels", 1)
    if out < 1 or channels % out:
        raise RefusedError(f"{channels} channels cannot be pooled to {out}")
    groups = reshape(layer, layer.x, 1, channels // out, out, height * width)
    most = layer.add("ReduceMax", groups, np.array([1], np.int64), keepdims=0)
    return reshape(layer, most, 1, out, height, width)


def local_avgpool(layer: Layer) -> Value:
    return layer.add("AveragePool", layer.x, **_pool_window(layer))


def avgpool(layer: Layer) -> Value:
    image(layer)
    return layer.add("GlobalAveragePool", layer.x)


def upsample(layer: Layer) -> Value:
    """Nearest neighbours; a negative stride sums blocks instead."""
    image(layer)
    stride, scale = layer.section.integer("stride", 2), layer.section.number("scale", 1.0)
    if not 0 < abs(stride) <= 64:
        raise RefusedError(f"stride={stride} is impossible")
    if stride > 0:
        factors = np.array([1, 1, stride, stride], np.float32)
        x = layer.add("Resize", layer.x, None, factors, coordinate_transformation_mode="asymmetric",
                      nearest_mode="floor")  # fmt: skip
    else:
        x = layer.add("AveragePool", layer.x, kernel_shape=(-stride, -stride), strides=(-stride, -stride))
        scale *= stride * stride
    return x if scale == 1.0 else layer.add("Mul", x, scale)


def reorg(layer: Layer) -> Value:
    """Space to depth as Darknet does it: through a picture of c / s^2 channels that nobody sees.

    The input's memory is read as [c/s^2, h, s, w, s] and written as [s, s, c/s^2, h, w], or back with ``reverse``;
    with ``extra`` it becomes a vector with so many zeros behind it instead.
    """
    channels, h, w = image(layer)
    s, extra = layer.section.integer("stride", 1), layer.section.integer("extra")
    if extra > 0:
        zeros = np.zeros((1, min(extra, 2**20)), np.float32)
        return layer.add("Concat", flat(layer), zeros, axis=1)
    if s < 1 or channels % (s * s) or h % s or w % s:
        raise RefusedError(f"it cannot rearrange {channels} channels of {h}x{w} pixels by {s}")
    inner = channels // (s * s)
    if layer.section.integer("reverse"):
        split = reshape(layer, layer.x, s, s, inner, h, w)
        return reshape(layer, layer.add("Transpose", split, perm=(2, 3, 0, 4, 1)), 1, inner, h * s, w * s)
    split = reshape(layer, layer.x, inner, h, s, w, s)
    return reshape(layer, layer.add("Transpose", split, perm=(2, 4, 0, 1, 3)), 1, channels * s * s, h // s, w // s)


def reorg3d(layer: Layer) -> Value:
    """AlexeyAB's: the same permutation, of the output's shape."""
    channels, h, w = image(layer)
    s = layer.section.integer("stride", 1)
    if s < 1 or h % s or w % s or layer.section.integer("reverse"):
        raise RefusedError(f"it cannot rearrange {h}x{w} pixels by {s}")
    split = reshape(layer, layer.x, channels, h // s, s, w // s, s)
    return reshape(layer, layer.add("Transpose", split, perm=(2, 4, 0, 1, 3)), 1, channels * s * s, h // s, w // s)


def crop(layer: Layer) -> Value:
    """The middle of the picture, its values 0..1 made -1..1 unless ``noadjust``."""
    _, height, width = image(layer)
    h, w = layer.section.integer("crop_height", 1), layer.section.integer("crop_width", 1)
    if not (0 < h <= height and 0 < w <= width):
        raise RefusedError(f"{h}x{w} cannot be cut out of {height}x{width} pixels")
    top, left = (height - h) // 2, (width - w) // 2
    starts, ends = np.array([top, left], np.int64), np.array([top + h, left + w], np.int64)
    x = layer.add("Slice", layer.x, starts, ends, np.array([2, 3], np.int64))
    return x if layer.section.integer("noadjust") else layer.add("Sub", layer.add("Mul", x, 2.0), 1.0)


# ---------------------------------------------------------------------------------------------- others
def softmax(layer: Layer) -> Value:
    section, dims = layer.section, layer.x.type.dims
    x, temperature, groups = layer.x, section.number("temperature", 1.0), section.integer("groups", 1)
    if temperature not in (0.0, 1.0):
        x = layer.add("Mul", x, 1.0 / temperature)
    if section.integer("spatial"):
        return layer.add("Softmax", x, axis=1)
    size = math.prod(dims)
    if groups < 1 or size % groups:
        raise RefusedError(f"{size} numbers cannot be cut into {groups} groups")
    return reshape(layer, layer.add("Softmax", reshape(layer, x, groups, size // groups), axis=1), *dims)


def lrn(layer: Layer) -> Value:
    section, size = layer.section, layer.section.integer("size", 5)
    alpha, beta, kappa = section.number("alpha", 1e-4), section.number("beta", 0.75), section.number("kappa", 1.0)
    return layer.add("LRN", layer.x, size=size, alpha=alpha * size, beta=beta, bias=kappa)


def same(layer: Layer) -> Value:
    return layer.x


LAYERS: dict[str, Callable[[Layer], Value]] = {
    "convolutional": convolutional, "conv": convolutional,
    "deconvolutional": deconvolutional, "deconv": deconvolutional,
    "connected": connected, "conn": connected, "local": local, "batchnorm": batchnorm,
    "shortcut": shortcut, "route": route, "scale_channels": scale_channels, "sam": sam,
    "maxpool": maxpool, "max": maxpool, "local_avgpool": local_avgpool, "local_avg": local_avgpool,
    "avgpool": avgpool, "avg": avgpool, "upsample": upsample, "reorg": reorg, "reorg3d": reorg3d, "crop": crop,
    "softmax": softmax, "soft": softmax, "normalization": lrn, "lrn": lrn,
    "activation": lambda layer: activate(layer, layer.x, "linear"),
    "logistic": lambda layer: layer.add("Sigmoid", layer.x),
    "dropout": same, "cost": same, "empty": same, "silence": same,
}  # fmt: skip
"""By section; [crnn], [rnn], [gru], [lstm] and the detection heads are in files of their own."""
