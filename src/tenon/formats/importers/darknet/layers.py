"""Darknet's layers in ONNX operators: one function per layer, and ``LAYERS``.

Definitions: the forward functions of pjreddie/darknet and AlexeyAB/darknet, src/*_layer.c; where the two differ a
comment names the one that is followed.  Images are [1, C, H, W], results of fully connected layers are [1, N].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.formats.importers.darknet import tree
from tenon.formats.importers.darknet.cfg import CfgSection
from tenon.formats.importers.darknet.node import DarknetLayer
from tenon.network.graph.graph import Array, Value

EPSILON = 1e-6
"""Epsilon of batch normalisation, under the root as OpenCV has it.  Darknet's versions differ: pjreddie's C code adds
1e-6 to the root, its CUDA code and AlexeyAB's put 1e-5 under it."""

Activation = Callable[[NodeContext, Value], Value]
"""The ONNX operators for an activation."""


# ----------------------------------------------------------------------------------------- activations
def _pieces(low: float, high: float, outer: float, inner: float, middle: float) -> Activation:
    """A line of slope ``inner`` through ``middle`` at 0 between two bounds, of slope ``outer`` beyond them."""

    def function(node: NodeContext, x: Value) -> Value:
        inside = node.add("Clip", x, low, high)
        outside = node.add("Mul", node.add("Sub", x, inside), outer)
        return node.add("Add", family.affine(node, inside, inner, middle), outside)

    return function


def _ramp(node: NodeContext, x: Value) -> Value:
    return node.add("Add", node.add("Relu", x), node.add("Mul", x, 0.1))


def _stair(node: NodeContext, x: Value) -> Value:
    """floor(x / 2), and between odd whole numbers and the next a ramp."""
    floor = node.add("Floor", x)
    half = node.add("Floor", node.add("Mul", x, 0.5))
    whole = node.add("Floor", node.add("Mul", floor, 0.5))
    odd = node.add("Sub", floor, node.add("Mul", whole, 2.0))
    return node.add("Add", node.add("Mul", node.add("Sub", x, floor), odd), half)


def _hard_mish(node: NodeContext, x: Value) -> Value:
    """x above 0, x^2/2 + x between -2 and 0, 0 below: with m = min(x, 0) clipped at -2, (m/2 + 1) m + relu(x)."""
    low = node.add("Clip", x, -2.0, 0.0)
    return node.add("Add", node.add("Mul", family.affine(node, low, 0.5, 1.0), low), node.add("Relu", x))


def _over_channels(node: NodeContext, x: Value) -> Value:
    positive = node.add("Relu", x)
    return node.add("Div", positive, node.add("Add", node.add("ReduceSum", positive, node.ints(1)), 1e-4))


def _one(type: str, **attributes: Any) -> Activation:
    return lambda node, x: node.add(type, x, **attributes)


ACTIVATIONS: dict[str, Activation] = {
    "linear": lambda node, x: x,
    "logistic": _one("Sigmoid"),
    "relu": _one("Relu"),
    "tanh": _one("Tanh"),
    "loggy": lambda node, x: family.affine(node, node.add("Sigmoid", x), 2.0, -1.0),
    "relu6": lambda node, x: node.add("Clip", x, 0.0, 6.0),
    "hardtan": lambda node, x: node.add("Clip", x, -1.0, 1.0),
    "relie": _one("LeakyRelu", alpha=0.01),
    "leaky": _one("LeakyRelu", alpha=0.1),
    "ramp": _ramp,
    "elu": _one("Elu", alpha=1.0),
    "selu": _one("Selu", alpha=1.6732, gamma=1.0507),
    "gelu": _one("Gelu", approximate="tanh"),
    "swish": _one("Swish"),
    "silu": _one("Swish"),
    "mish": _one("Mish"),
    "lhtan": _pieces(0.0, 1.0, 0.001, 1.0, 0.0),
    "plse": _pieces(-4.0, 4.0, 0.01, 0.125, 0.5),
    "stair": _stair,
    "hard_mish": _hard_mish,
    "normalize_channels": _over_channels,
    "normalize_channels_softmax": _one("Softmax", axis=1),
    "normalize_channels_softmax_maxval": _one("Softmax", axis=1),
}


_FOREIGN = ("xnor", "binary", "share_index", "cbn", "coordconv", "sway", "rotate", "stretch", "stretch_sway")
"""Options of AlexeyAB's convolutions that change the result and are not supported."""


def check(section: CfgSection) -> None:
    """Raise RefusedError for options that nothing here knows, whatever the layer's input is."""
    for option in _FOREIGN:
        if section.integer(option):
            raise RefusedError(f"the option {option} is not supported")
    kind = section.text("activation", "linear")
    if kind not in ACTIVATIONS:
        raise RefusedError(f"the activation '{kind}' is not known", f"known are {', '.join(ACTIVATIONS)}")


def activate(layer: DarknetLayer, x: Value, default: str) -> Value:
    return ACTIVATIONS[layer.text("activation", default)](layer, x)


# ------------------------------------------------------------------------------------- with parameters
@dataclass(frozen=True)
class Offsets:
    """The parameters after a product: its bias, and scale, mean and variance if it is normalised."""

    bias: Array
    statistics: Sequence[Array]

    def after(self, layer: DarknetLayer, type: str, x: Value, weights: Array, **attributes: Any) -> Value:
        """A product by its operator, biased or normalised; no activation."""
        if not self.statistics:
            return layer.add(type, x, weights, self.bias, **attributes)
        scale, mean, variance = self.statistics
        return _normalized(layer, layer.add(type, x, weights, **attributes), scale, self.bias, mean, variance)


def _statistics(layer: DarknetLayer, outputs: int) -> list[Array]:
    """Scale, mean and variance, which come next in the file if the layer normalises."""
    return [layer.parameters.take(outputs) for _ in range(3 if layer.integer("batch_normalize") else 0)]


def _normalized(layer: DarknetLayer, x: Value, scale: Array, bias: Array, mean: Array, variance: Array) -> Value:
    return layer.add("BatchNormalization", x, scale, bias, mean, variance, epsilon=EPSILON)


def convolution(layer: DarknetLayer, x: Value, filters: int, window: dict[str, Any], weights: Sequence[int]) -> Value:
    """A convolution with its bias or batch normalisation, whose floats come next in the file; no activation."""
    take = layer.parameters.take
    offsets, kernel = Offsets(take(filters), _statistics(layer, filters)), take(*weights)
    if layer.integer("flipped"):
        kernel = kernel.reshape(math.prod(weights[1:]), weights[0]).T.reshape(tuple(weights))
    return offsets.after(layer, "Conv", x, kernel, **window)


def window(section: CfgSection, size: int, pad: int) -> dict[str, Any]:
    """Kernel, strides, pads and dilations: as the options say."""
    dilation = section.integer("dilation", 1) if size > 1 else 1
    pads = (pad * dilation,) * 4
    return {"kernel_shape": (size, size), "strides": _strides(section), "pads": pads, "dilations": (dilation,) * 2}


def _strides(section: CfgSection) -> tuple[int, int]:
    stride = section.integer("stride", 1)
    return section.integer("stride_y", stride), section.integer("stride_x", stride)


def padding(section: CfgSection, size: int) -> int:
    return size // 2 if section.integer("pad") else section.integer("padding")


def convolutional(layer: DarknetLayer) -> Value:
    section = layer.section
    filters = section.integer("filters", 1)
    size = section.integer("size", 1)
    groups = section.integer("groups", 1)
    options = window(section, size, padding(section, size)) | {"group": max(1, groups)}
    strides = options["strides"]
    blur = section.integer("antialiasing") and strides != (1, 1)
    if blur:
        options["strides"] = (1, 1)
    weights = (filters, layer.planes()[0] // options["group"], size, size)
    x = activate(layer, convolution(layer, layer.x, filters, options, weights), "logistic")
    return _blurred(layer, x, filters, strides) if blur else x


def _blurred(layer: DarknetLayer, x: Value, filters: int, strides: Sequence[int]) -> Value:
    """The strides of an anti-aliased layer, taken after it on a smoothed image (AlexeyAB)."""
    two = layer.integer("antialiasing") == 2
    taps = np.ones(2, np.float32) / 2 if two else np.array([1, 2, 1], np.float32) / 4
    kernel = np.broadcast_to(np.outer(taps, taps), (filters, 1, taps.size, taps.size))
    pads = (0 if two else 1,) * 4
    return layer.add("Conv", x, kernel, kernel_shape=kernel.shape[2:], strides=strides, pads=pads, group=filters)


def deconvolutional(layer: DarknetLayer) -> Value:
    section, take = layer.section, layer.parameters.take
    filters, size = section.integer("filters", 1), section.integer("size", 1)
    offsets = Offsets(take(filters), _statistics(layer, filters))
    kernel, options = take(layer.planes()[0], filters, size, size), window(section, size, padding(section, size))
    return activate(layer, offsets.after(layer, "ConvTranspose", layer.x, kernel, **options), "logistic")


@dataclass(frozen=True)
class DarknetMatrix:
    """The weights [outputs, inputs] of a fully connected layer, and its offset or batch normalisation."""

    weights: Array
    offsets: Offsets

    def apply(self, layer: DarknetLayer, x: Value) -> Value:
        """The product with x [1, inputs] and its offset or batch normalisation; no activation."""
        return self.offsets.after(layer, "Gemm", x, self.weights, transB=1)


def matrix(layer: DarknetLayer, inputs: int, outputs: int) -> DarknetMatrix:
    """The fully connected layer whose floats come next in the file."""
    bias, weights = layer.parameters.take(outputs), layer.parameters.take(outputs, inputs)
    if layer.parameters.transposed:
        weights = weights.reshape(inputs, outputs).T
    return DarknetMatrix(weights, Offsets(bias, _statistics(layer, outputs)))


def connected(layer: DarknetLayer) -> Value:
    x = layer.flat()
    stored = matrix(layer, layer.builder.dims(x)[1], layer.integer("output", 1))
    return activate(layer, stored.apply(layer, x), "logistic")


def local(layer: DarknetLayer) -> Value:
    """A convolution with weights of its own at every position: its windows, one product each."""
    section, take = layer.section, layer.parameters.take
    channels, height, width = layer.planes()
    filters = section.integer("filters", 1)
    size = section.integer("size", 1)
    stride = section.integer("stride", 1)
    pad = section.integer("pad")
    if min(size, stride) < 1 or size**2 > 2**16:
        raise RefusedError(f"windows of size {size} and stride {stride} are impossible")
    high, wide = ((n - (1 if pad else size)) // stride + 1 for n in (height, width))
    positions, terms = high * wide, channels * size * size
    bias, weights = take(filters, high, wide), take(positions, filters, terms)
    taps = np.tile(np.eye(size * size, dtype=np.float32).reshape(-1, 1, size, size), (channels, 1, 1, 1))
    ends = [(n - 1) * stride + size - m - pad for n, m in ((high, height), (wide, width))]
    windows = layer.add(
        "Conv",
        layer.x,
        taps,
        group=channels,
        kernel_shape=(size, size),
        strides=(stride, stride),
        pads=(pad, pad, max(0, ends[0]), max(0, ends[1])),
    )
    columns = layer.add("Transpose", layer.reshape(windows, terms, positions, 1), perm=(1, 0, 2))
    product = layer.add("Transpose", layer.add("MatMul", weights, columns), perm=(2, 1, 0))
    x = layer.add("Add", layer.reshape(product, 1, filters, high, wide), bias[None])
    return activate(layer, x, "logistic")


def batchnorm(layer: DarknetLayer) -> Value:
    """The original keeps no bias for it."""
    take, channels = layer.parameters.take, layer.dims[1]
    bias = take(channels) if layer.parameters.alexey else np.zeros(channels, np.float32)
    scale, mean, variance = (take(channels) for _ in range(3))
    return _normalized(layer, layer.x, scale, bias, mean, variance)


# ------------------------------------------------------------------------------------------- combining
def shortcut(layer: DarknetLayer) -> Value:
    section = layer.section
    others = [_fitted(layer, layer.earlier(i)) for i in section.numbers("from")]
    if not others:
        raise RefusedError("it does not name its source layer (from=)")
    terms = [layer.x, *others]
    kind = section.text("weights_type", "none")
    if kind != "none":
        terms = _weighted(layer, terms, kind)
    elif (section.number("alpha", 1.0), section.number("beta", 1.0)) != (1.0, 1.0):
        raise RefusedError("alpha and beta other than 1 are not supported")
    return activate(layer, layer.fold("Add", terms), "linear")


def _fitted(layer: DarknetLayer, other: Value) -> Value:
    """Another layer's result with as many channels and pixels as this one's: cut, filled with zeros, or subsampled."""
    if other.type == layer.x.type:
        return other
    (c, h, w), (channels, height, width) = layer.planes(other), layer.planes()
    if (h, w) != (height, width):
        step = h // height
        if not step or (h, w) != (height * step, width * step):
            raise RefusedError(f"it adds images of {h}x{w} and {height}x{width} pixels")
        other = layer.slice(other, [0, 0], [h, w], [2, 3], [step, step])
    if c > channels:
        return layer.split(other, 1, [channels, c - channels])[0]
    return layer.add("Pad", other, layer.ints(0, 0, 0, 0, 0, channels - c, 0, 0)) if c < channels else other


def _weighted(layer: DarknetLayer, terms: Sequence[Value], kind: str) -> list[Value]:
    """The terms times learnt weights, one each or one per channel of each."""
    if kind not in ("per_feature", "per_layer", "per_channel"):
        raise RefusedError(f"weights_type={kind} is not known")
    channels = layer.planes()[0] if kind == "per_channel" else 1
    weights = layer.parameters.take(len(terms), channels).astype(np.float32)
    normalization = layer.text("weights_normalization", "none")
    if normalization in ("relu", "avg_relu"):
        weights = np.maximum(weights, 0)
        weights = weights / (weights.sum(0) + np.float32(1e-4))
    elif normalization == "softmax":
        weights = np.exp(weights - weights.max(0))
        weights = weights / (weights.sum(0) + np.float32(1e-4))
    shape = (1, channels, 1, 1)
    return [layer.add("Mul", term, w.reshape(shape)) for term, w in zip(terms, weights, strict=True)]


def route(layer: DarknetLayer) -> Value:
    section = layer.section
    parts = [layer.earlier(i) for i in section.numbers("layers")]
    if not parts:
        raise RefusedError("it does not name its layers (layers=)")
    groups, chosen = section.integer("groups", 1), section.integer("group_id")
    if groups > 1:
        if not 0 <= chosen < groups:
            raise RefusedError(f"group {chosen} of {groups} is impossible")
        parts = [layer.equal_parts(part, 1, groups)[chosen] for part in parts]
    return parts[0] if len(parts) == 1 else layer.add("Concat", *parts, axis=1)


def scale_channels(layer: DarknetLayer) -> Value:
    """An earlier layer's result times this one's: one number per channel, or per pixel with scale_wh."""
    other = layer.earlier(layer.number("from"))
    c, h, w = layer.planes()
    wanted = (1, *layer.planes(other)[1:]) if layer.integer("scale_wh") else (layer.planes(other)[0], 1, 1)
    if (c, h, w) != wanted:
        raise RefusedError(f"it scales by {[c, h, w]} where {list(wanted)} is needed")
    return activate(layer, layer.add("Mul", other, layer.x), "linear")


def sam(layer: DarknetLayer) -> Value:
    other = layer.earlier(layer.number("from"))
    if other.type != layer.x.type:
        raise RefusedError(f"it multiplies {other.type} with {layer.x.type}")
    return activate(layer, layer.add("Mul", layer.x, other), "linear")


# --------------------------------------------------------------------------------------------- windows
def _pool_window(layer: DarknetLayer, strides: tuple[int, int]) -> dict[str, Any]:
    """Darknet pads by ``padding`` in all, the smaller half first: (n + padding - size) / stride + 1 windows."""
    section, (_, *sizes) = layer.section, layer.planes()
    size = section.integer("size", section.integer("stride", 1))
    pad = section.integer("padding", size - 1)
    if min(*strides, size) < 1 or pad < 0:
        raise RefusedError(f"windows of size {size}, stride {strides[0]} and padding {pad} are impossible")
    before, ends = pad // 2, []
    for n, stride in zip(sizes, strides, strict=True):
        last = (n + pad - size) // stride * stride
        ends.append(max(0, last + size - n - before))
    return {"kernel_shape": (size, size), "strides": strides, "pads": (before, before, *ends)}


def maxpool(layer: DarknetLayer) -> Value:
    section, strides = layer.section, _strides(layer.section)
    if section.integer("maxpool_depth"):
        return _maxpool_depth(layer)
    blur = section.integer("antialiasing") and strides != (1, 1)
    x = layer.add("MaxPool", layer.x, **_pool_window(layer, (1, 1) if blur else strides))
    return _blurred(layer, x, layer.planes()[0], strides) if blur else x


def _maxpool_depth(layer: DarknetLayer) -> Value:
    """The largest of every ``out_channels``-th channel (AlexeyAB)."""
    channels, height, width = layer.planes()
    out = layer.integer("out_channels", 1)
    if out < 1 or channels % out:
        raise RefusedError(f"{channels} channels cannot be pooled to {out}")
    groups = layer.reshape(layer.x, 1, channels // out, out, height * width)
    most = layer.add("ReduceMax", groups, layer.ints(1), keepdims=0)
    return layer.reshape(most, 1, out, height, width)


def local_avgpool(layer: DarknetLayer) -> Value:
    return layer.add("AveragePool", layer.x, **_pool_window(layer, _strides(layer.section)))


def avgpool(layer: DarknetLayer) -> Value:
    layer.planes()
    return layer.add("GlobalAveragePool", layer.x)


def upsample(layer: DarknetLayer) -> Value:
    """Nearest neighbours; a negative stride sums blocks instead."""
    layer.planes()
    stride, scale = layer.integer("stride", 2), layer.number("scale", 1.0)
    if not 0 < abs(stride) <= 64:
        raise RefusedError(f"stride={stride} is impossible")
    if stride > 0:
        factors = np.array([1, 1, stride, stride], np.float32)
        x = layer.add(
            "Resize", layer.x, None, factors, coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
    else:
        x = layer.add("AveragePool", layer.x, kernel_shape=(-stride, -stride), strides=(-stride, -stride))
        scale *= stride * stride
    return family.affine(layer, x, scale, 0.0)


def reorg(layer: DarknetLayer) -> Value:
    """Blocks of pixels as channels; with ``extra`` a vector with so many zeros behind it instead."""
    section, extra = layer.section, layer.integer("extra")
    if extra > 0:
        return layer.add("Concat", layer.flat(), np.zeros((1, min(extra, 2**20)), np.float32), axis=1)
    return family.reorg(layer, layer.x, section.integer("stride", 1), reverse=bool(section.integer("reverse")))


def reorg3d(layer: DarknetLayer) -> Value:
    """AlexeyAB's, which means what ONNX does."""
    if layer.integer("reverse"):
        raise RefusedError("reverse=1 is not supported")
    return layer.add("SpaceToDepth", layer.x, blocksize=layer.integer("stride", 1))


def crop(layer: DarknetLayer) -> Value:
    """The centre of the image, its values 0..1 scaled to -1..1 unless ``noadjust``."""
    _, height, width = layer.planes()
    h, w = layer.integer("crop_height", 1), layer.integer("crop_width", 1)
    if not (0 < h <= height and 0 < w <= width):
        raise RefusedError(f"{h}x{w} cannot be cut out of {height}x{width} pixels")
    top, left = (height - h) // 2, (width - w) // 2
    x = layer.slice(layer.x, [top, left], [top + h, left + w], [2, 3])
    return x if layer.integer("noadjust") else family.affine(layer, x, 2.0, -1.0)


# ---------------------------------------------------------------------------------------------- others
def softmax(layer: DarknetLayer) -> Value:
    section, size = layer.section, math.prod(layer.dims)
    if section.text("tree"):
        classes = tree.tree(layer)
        return tree.softmax(layer, layer.x, classes, 1) if classes else layer.x
    temperature, groups = section.number("temperature", 1.0), section.integer("groups", 1)
    x = family.affine(layer, layer.x, 1.0 / temperature if temperature else 1.0, 0.0)
    if section.integer("spatial"):
        return layer.add("Softmax", x, axis=1)
    if groups < 1 or size % groups:
        raise RefusedError(f"{size} numbers cannot be cut into {groups} groups")
    return layer.reshape(layer.add("Softmax", layer.reshape(x, groups, size // groups), axis=1), *layer.dims)


def lrn(layer: DarknetLayer) -> Value:
    section, size = layer.section, layer.integer("size", 5)
    alpha = section.number("alpha", 1e-4)
    beta = section.number("beta", 0.75)
    kappa = section.number("kappa", 1.0)
    return layer.add("LRN", layer.x, size=size, alpha=alpha * size, beta=beta, bias=kappa)


def same(layer: DarknetLayer) -> Value:
    return layer.x


LAYERS: dict[str, Callable[[DarknetLayer], Value]] = {
    "convolutional": convolutional,
    "conv": convolutional,
    "deconvolutional": deconvolutional,
    "deconv": deconvolutional,
    "connected": connected,
    "conn": connected,
    "local": local,
    "batchnorm": batchnorm,
    "shortcut": shortcut,
    "route": route,
    "scale_channels": scale_channels,
    "sam": sam,
    "maxpool": maxpool,
    "max": maxpool,
    "local_avgpool": local_avgpool,
    "local_avg": local_avgpool,
    "avgpool": avgpool,
    "avg": avgpool,
    "upsample": upsample,
    "reorg": reorg,
    "reorg3d": reorg3d,
    "crop": crop,
    "softmax": softmax,
    "soft": softmax,
    "normalization": lrn,
    "lrn": lrn,
    "activation": lambda layer: activate(layer, layer.x, "linear"),
    "logistic": lambda layer: layer.add("Sigmoid", layer.x),
    "dropout": same,
    "cost": same,
    "empty": same,
    "silence": same,
}
"""By section; [crnn], [rnn], [gru], [lstm] and the detection heads are in files of their own."""
