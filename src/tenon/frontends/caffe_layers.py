"""What the layers of Caffe mean, spelled out in ONNX operators.

``LAYERS`` is the table of layer types; each entry takes a ``Layer`` and gives the values of its tops.  Semantics are
those of BVLC Caffe's CPU code when testing, and of the fork that made a layer known.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.frontends.net import Net, RefusedError
from tenon.frontends.protobuf import Message
from tenon.ir.graph import Array, Value

Tops = Value | Sequence[Value]


@dataclass
class Layer:
    """A layer about to be imported.  ``blobs`` are the weights by layer, None when there is no weights file."""

    net: Net
    message: Message
    blobs: Mapping[str, list[Array]] | None
    shared: dict[str, Array]
    bottoms: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.type: str = self.message.type

    @property
    def x(self) -> Value:
        """The first bottom."""
        return self.bottom(0)

    def bottom(self, i: int) -> Value:
        if i >= len(self.bottoms):
            raise RefusedError(f"needs {i + 1} bottoms, but has {len(self.bottoms)}")
        return self.bottoms[i]

    def dims(self, i: int = 0) -> tuple[int, ...]:
        return self.net.dims(self.bottom(i))

    def axis(self, axis: int, i: int = 0, *, end: int = 0) -> int:
        """A possibly negative axis of bottom ``i`` as a positive one; ``end`` allows one past the last."""
        rank = len(self.dims(i))
        if not -rank <= axis < rank + end:
            raise RefusedError(f"has the axis {axis}, but its bottom has {rank} axes")
        return axis + rank if axis < 0 else axis

    def add(self, type: str, *inputs: Value | None, **attributes: object) -> Value:
        return self.net.add(type, *inputs, **attributes)

    def reshape(self, x: Value, dims: Sequence[int]) -> Value:
        return self.net.add("Reshape", x, self.net.ints(*dims))

    # ---------------------------------------------------------------------------------------- weights
    @property
    def count(self) -> int | None:
        """How many blobs the weights file has for this layer; None when there is no weights file."""
        return None if self.blobs is None else len(self.blobs.get(self.message.name, ()))

    def array(self, i: int, shape: Sequence[int], filler: Message | None = None) -> Array | None:
        """Blob ``i`` in the shape that it must have; None without a weights file.  Raises RefusedError."""
        shape = tuple(shape)
        if math.prod(shape) >= 2**31:
            raise RefusedError(f"has impossible weights: {list(shape)}")
        name = self.message.param[i].name if i < len(self.message.param) else ""
        if self.blobs is None:
            return None
        found = self.blobs.get(self.message.name, [])
        if i < len(found):
            if found[i].size != math.prod(shape):
                raise RefusedError(
                    f"its weights {i} have the shape {list(found[i].shape)}, expected {list(shape)}",
                    "the weights belong to another version of the net",
                )
            return self.shared.setdefault(name, found[i].reshape(shape)) if name else found[i].reshape(shape)
        if name in self.shared and name and self.shared[name].size == math.prod(shape):
            return self.shared[name].reshape(shape)
        if filler is not None and filler.type == "constant":
            return np.full(shape, filler.value, np.float32)
        if filler is not None and filler.type == "bilinear" and len(shape) == 4:
            return bilinear(shape)
        raise RefusedError("has no weights in the file", "give the weights of this net with --weights")

    def weights(self, i: int, shape: Sequence[int], filler: Message | None = None) -> Value:
        """Blob ``i`` as a constant; a placeholder when there is no weights file."""
        found = self.array(i, shape, filler)
        return self.net.placeholder(shape) if found is None else self.net.constant(found, f"blob{i}")


def bilinear(shape: Sequence[int]) -> Array:
    """Caffe's filler for interpolating deconvolutions."""
    kernel = shape[3]
    factor = (kernel + 1) // 2
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    ramp = 1 - np.abs(np.arange(kernel) / factor - centre)
    return np.broadcast_to(np.outer(ramp, ramp)[: shape[2]], tuple(shape)).astype(np.float32)


def import_layer(layer: Layer) -> None:
    """Name the values of a layer's tops in its net.  Raises RefusedError."""
    message = layer.message
    maker = LAYERS.get(message.type)
    if maker is None:
        near = difflib.get_close_matches(message.type, LAYERS, 1, 0.75)
        hint = f"the nearest supported layer is {near[0]}" if near else "cut the net around it with inputs and outputs"
        raise RefusedError("this layer is not supported", hint)
    _check_names(message)
    layer.bottoms = [layer.net[name] for name in message.bottom]
    made = maker(layer)
    tops = [made] if isinstance(made, Value) else list(made)
    if len(tops) < len(message.top):
        raise RefusedError(f"its top '{message.top[len(tops)]}' is not supported")
    for name, value in zip(message.top, tops, strict=False):
        layer.net[name] = value


def _check_names(message: Message) -> None:
    """Refuse parameters that the schema lacks: they may change what the layer means."""
    for row, value in message.items():
        if row.name.endswith("_param") and row.name != "transform_param" and value.unknown_names:
            raise RefusedError(f"{row.name}: the parameter '{value.unknown_names[0]}' is not known")


# ------------------------------------------------------------------------------------------ convolution
def spatial(parameter: Message, name: str, short: str, default: int, count: int) -> tuple[int, ...]:
    """A geometry of convolutions: X_h and X_w, or X once, or X for each axis."""
    if short and (parameter.has(f"{short}_h") or parameter.has(f"{short}_w")):
        return (getattr(parameter, f"{short}_h") or default, getattr(parameter, f"{short}_w") or default)
    given = tuple(getattr(parameter, name)) or (default,)
    if len(given) not in (1, count):
        raise RefusedError(f"gives {len(given)} times {name} for {count} axes")
    return given * count if len(given) == 1 else given


def geometry(layer: Layer) -> dict[str, tuple[int, ...]]:
    parameter = layer.message.convolution_param
    count = len(layer.dims()) - 2
    kernel = spatial(parameter, "kernel_size", "kernel", 0, count)
    strides, pads = spatial(parameter, "stride", "stride", 1, count), spatial(parameter, "pad", "pad", 0, count)
    if not kernel or min(kernel) < 1 or min(strides) < 1 or max((*kernel, *strides, *pads)) > 1 << 16:
        raise RefusedError(f"has the impossible kernel {list(kernel)}, stride {list(strides)} or pad {list(pads)}")
    dilations = spatial(parameter, "dilation", "", 1, count)
    return {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "dilations": dilations}


def groups_of(layer: Layer) -> int:
    parameter = layer.message.convolution_param
    if "Depthwise" in layer.type and not parameter.has("group"):
        return layer.dims()[1]
    return int(parameter.group) or 1


def convolution(layer: Layer) -> Value:
    parameter, channels = layer.message.convolution_param, layer.dims()[1]
    shape, group, output = geometry(layer), groups_of(layer), parameter.num_output
    if not output or channels % group or output % group:
        raise RefusedError(f"cannot make {output} channels of {channels} in {group} groups")
    if parameter.axis not in (1, 1 - len(layer.dims())):
        raise RefusedError(f"convolves with channels on axis {parameter.axis}")
    w = layer.weights(0, (output, channels // group, *shape["kernel_shape"]), parameter.weight_filler)
    b = layer.weights(1, (output,), parameter.bias_filler) if parameter.bias_term else None
    return layer.add("Conv", layer.x, w, b, group=group, **shape)


def deconvolution(layer: Layer) -> Value:
    parameter, channels = layer.message.convolution_param, layer.dims()[1]
    shape, group, output = geometry(layer), groups_of(layer), parameter.num_output
    if not output or channels % group or output % group:
        raise RefusedError(f"cannot make {output} channels of {channels} in {group} groups")
    w = layer.weights(0, (channels, output // group, *shape["kernel_shape"]), parameter.weight_filler)
    b = layer.weights(1, (output,), parameter.bias_filler) if parameter.bias_term else None
    return layer.add("ConvTranspose", layer.x, w, b, group=group, **shape)


def inner_product(layer: Layer) -> Value:
    parameter = layer.message.inner_product_param
    dims, axis = layer.dims(), layer.axis(parameter.axis)
    size, output = math.prod(dims[axis:]), parameter.num_output
    rows = layer.reshape(layer.x, (math.prod(dims[:axis]), size))
    shape = (size, output) if parameter.transpose else (output, size)
    w = layer.weights(0, shape, parameter.weight_filler)
    b = layer.weights(1, (output,), parameter.bias_filler) if parameter.bias_term else None
    y = layer.add("Gemm", rows, w, b, transB=0 if parameter.transpose else 1)
    return y if axis == 1 else layer.reshape(y, (*dims[:axis], output))


def embed(layer: Layer) -> Value:
    parameter = layer.message.embed_param
    table = layer.weights(0, (parameter.input_dim, parameter.num_output), parameter.weight_filler)
    y = layer.add("Gather", table, layer.add("Cast", layer.x, to="i64"), axis=0)
    if parameter.bias_term:
        y = layer.add("Add", y, layer.weights(1, (parameter.num_output,), parameter.bias_filler))
    return y


# ---------------------------------------------------------------------------------------------- pooling
def pooling(layer: Layer) -> Value:
    parameter, dims = layer.message.pooling_param, layer.dims()
    if len(dims) != 4:
        raise RefusedError(f"pools a blob of {len(dims)} axes; Caffe pools 4")
    if parameter.global_pooling:
        return layer.add("GlobalMaxPool" if parameter.pool == "MAX" else "GlobalAveragePool", layer.x)

    def pair(name: str, short: str, default: int) -> tuple[int, int]:
        both = getattr(parameter, name) or default
        h, w = getattr(parameter, f"{short}_h"), getattr(parameter, f"{short}_w")
        return (h or both, w or both)

    kernel, strides, pads = pair("kernel_size", "kernel", 0), pair("stride", "stride", 1), pair("pad", "pad", 0)
    ceil = parameter.ceil_mode and parameter.round_mode == "CEIL"
    return pooled(layer, layer.x, parameter.pool, kernel, strides, pads, ceil)


def pooled(
    layer: Layer,
    x: Value,
    method: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int],
    ceil: bool = True,
) -> Value:
    """Caffe's pooling: extents rounded up, and averages that count the padding but not what lies beyond it."""
    dims = layer.net.dims(x)[2:]
    if min(kernel) < 1 or min(strides) < 1 or max((*kernel, *strides, *pads)) > 1 << 16:
        raise RefusedError(f"has the impossible kernel {list(kernel)}, stride {list(strides)} or pad {list(pads)}")
    if method not in ("MAX", "AVE"):
        raise RefusedError(f"pools in the way {method}", "only MAX and AVE give the same answer every time")
    after = []
    for n, k, s, p in zip(dims, kernel, strides, pads, strict=True):
        if p >= k or n + 2 * p < k:
            raise RefusedError(f"pools {n} elements with a kernel of {k} and a padding of {p}")
        count = (n + 2 * p - k + (s - 1 if ceil else 0)) // s + 1
        count -= 1 if p and (count - 1) * s >= n + p else 0
        after.append(max(0, (count - 1) * s + k - n - p))
    whole = {"kernel_shape": kernel, "strides": strides}
    if method == "MAX":
        return layer.add("MaxPool", x, pads=(*pads, *after), **whole)
    if all(a <= p for a, p in zip(after, pads, strict=True)):
        return layer.add("AveragePool", x, pads=(*pads, *after), count_include_pad=1, **whole)
    if any(pads):
        x = layer.add("Pad", x, layer.net.ints(0, 0, *pads, 0, 0, *pads))
    beyond = [max(0, a - p) for a, p in zip(after, pads, strict=True)]
    return layer.add("AveragePool", x, pads=(0, 0, *beyond), **whole)


def spatial_pyramid(layer: Layer) -> Value:
    """Levels of 1, 2, 4 ... bins along each axis, one after another in a row."""
    parameter, dims = layer.message.spp_param, layer.dims()
    if not 0 < parameter.pyramid_height < 16:
        raise RefusedError(f"has a pyramid of {parameter.pyramid_height} levels")
    levels = []
    for level in range(parameter.pyramid_height):
        bins = 1 << level
        kernel = (-(-dims[2] // bins), -(-dims[3] // bins))
        pads = ((kernel[0] * bins - dims[2] + 1) // 2, (kernel[1] * bins - dims[3] + 1) // 2)
        y = pooled(layer, layer.x, parameter.pool, kernel, kernel, pads)
        levels.append(layer.add("Flatten", y, axis=1))
    return levels[0] if len(levels) == 1 else layer.add("Concat", *levels, axis=1)


# -------------------------------------------------------------------------------------------- normalising
def per_channel(layer: Layer, data: Array) -> Value:
    """One number per channel, in a shape that spreads over axis 1."""
    return layer.net.constant(data.reshape(-1, *(1,) * (len(layer.dims()) - 2)).astype(np.float32), "per_channel")


def batch_norm(layer: Layer) -> Value:
    """Blobs: mean, variance, the factor that both are to be divided by; of NVIDIA's fork also scale and bias."""
    parameter, dims = layer.message.batch_norm_param, layer.dims()
    channels = dims[1] if len(dims) > 1 else 1
    eps = max(float(parameter.eps), 1e-12)
    if parameter.has("use_global_stats") and not parameter.use_global_stats:
        return _batch_statistics(layer, eps)
    affine = layer.count == 5
    mean, variance = layer.array(0, (channels,)), layer.array(1, (channels,))
    if mean is None or variance is None:
        net = layer.net
        return layer.add("BatchNormalization", layer.x, *(net.placeholder((channels,)) for _ in range(4)), epsilon=eps)
    factor = layer.array(2, (1,))
    assert factor is not None
    rate = np.float32(0 if factor[0] == 0 else 1 / factor[0])
    scale = layer.array(3, (channels,)) if affine else np.ones(channels, np.float32)
    bias = layer.array(4, (channels,)) if affine else np.zeros(channels, np.float32)
    constants = [layer.net.constant(a, n) for a, n in _named(scale, bias, mean * rate, variance * rate)]
    return layer.add("BatchNormalization", layer.x, *constants, epsilon=eps)


def _named(*arrays: Array | None) -> list[tuple[Array, str]]:
    names = ("scale", "bias", "mean", "variance")
    return [(np.asarray(a, np.float32), n) for a, n in zip(arrays, names, strict=True)]


def _batch_statistics(layer: Layer, eps: float) -> Value:
    """Mean and variance of the batch at hand, for nets that ask for them even when testing."""
    axes = layer.net.ints(0, *range(2, len(layer.dims())))
    centred = layer.add("Sub", layer.x, layer.add("ReduceMean", layer.x, axes))
    variance = layer.add("ReduceMean", layer.add("Mul", centred, centred), axes)
    return layer.add("Div", centred, layer.add("Sqrt", layer.add("Add", variance, layer.net.floats(eps))))


def segnet_batch_norm(layer: Layer) -> Value:
    """``BN``: scale and shift, and in PSPNet's fork mean and variance (SegNet folds them into the first two)."""
    channels = layer.dims()[1]
    shape = (channels,)
    if layer.count == 2:
        scale, shift = layer.array(0, shape), layer.array(1, shape)
        assert scale is not None
        assert shift is not None
        return layer.add("Add", layer.add("Mul", layer.x, per_channel(layer, scale)), per_channel(layer, shift))
    eps = max(float(layer.message.bn_param.eps), 1e-12)
    return layer.add("BatchNormalization", layer.x, *(layer.weights(i, shape) for i in range(4)), epsilon=eps)


def _covered(layer: Layer, axis: int, num_axes: int) -> tuple[int, ...]:
    """The part of the bottom's shape that a learned scale or bias covers."""
    dims, first = layer.dims(), layer.axis(axis)
    return dims[first:] if num_axes < 0 else dims[first : first + num_axes]


def _spread(layer: Layer, value: Value, axis: int) -> Value:
    """``value``, aligned with the bottom's axes from ``axis`` on, in a shape that broadcasts."""
    dims, rank = layer.net.dims(value), len(layer.dims())
    first = layer.axis(axis) if dims else rank
    after = rank - first - len(dims)
    if after < 0:
        raise RefusedError(f"spreads a blob {list(dims)} from axis {first} over {list(layer.dims())}")
    wanted = (*dims, *(1,) * after)
    if value.data is not None:
        return layer.net.constant(value.data.reshape(wanted), "spread")
    return value if wanted == dims else layer.reshape(value, wanted)


def scale(layer: Layer) -> Value:
    parameter = layer.message.scale_param
    if len(layer.bottoms) > 1:
        factor, shape = layer.bottom(1), layer.dims(1)
    else:
        shape = _covered(layer, parameter.axis, parameter.num_axes)
        filler = parameter.filler if parameter.has("filler") else _constant_filler(parameter.filler, 1.0)
        factor = layer.weights(0, shape, filler)
    y = layer.add("Mul", layer.x, _spread(layer, factor, parameter.axis))
    if parameter.bias_term:
        bias = layer.weights(0 if len(layer.bottoms) > 1 else 1, shape, parameter.bias_filler)
        y = layer.add("Add", y, _spread(layer, bias, parameter.axis))
    return y


def _constant_filler(filler: Message, value: float) -> Message:
    return filler.schema.new("FillerParameter", type="constant", value=value)


def bias(layer: Layer) -> Value:
    parameter = layer.message.bias_param
    if len(layer.bottoms) > 1:
        added = layer.bottom(1)
    else:
        added = layer.weights(0, _covered(layer, parameter.axis, parameter.num_axes), parameter.filler)
    return layer.add("Add", layer.x, _spread(layer, added, parameter.axis))


def local_response(layer: Layer) -> Value:
    parameter = layer.message.lrn_param
    size, alpha, beta, k = parameter.local_size, float(parameter.alpha), float(parameter.beta), float(parameter.k)
    if size % 2 == 0:
        raise RefusedError(f"its local_size {size} is not odd")
    if parameter.norm_region == "ACROSS_CHANNELS":
        return layer.add("LRN", layer.x, size=size, alpha=alpha, beta=beta, bias=k)
    pad = (size - 1) // 2
    near = pooled(layer, layer.add("Mul", layer.x, layer.x), "AVE", (size, size), (1, 1), (pad, pad))
    base = layer.add("Add", layer.add("Mul", near, layer.net.floats(alpha)), layer.net.floats(1.0))
    return layer.add("Mul", layer.x, layer.add("Pow", base, layer.net.floats(-beta)))


def mean_variance(layer: Layer) -> Value:
    """Caffe adds eps to the standard deviation, not to the variance."""
    parameter, rank = layer.message.mvn_param, len(layer.dims())
    axes = layer.net.ints(*range(1 if parameter.across_channels else 2, rank))
    centred = layer.add("Sub", layer.x, layer.add("ReduceMean", layer.x, axes))
    if not parameter.normalize_variance:
        return centred
    deviation = layer.add("Sqrt", layer.add("ReduceMean", layer.add("Mul", centred, centred), axes))
    return layer.add("Div", centred, layer.add("Add", deviation, layer.net.floats(float(parameter.eps))))


def normalize(layer: Layer) -> Value:
    """SSD's: each place (or the whole picture) to length one, times a learned scale."""
    parameter, dims = layer.message.norm_param, layer.dims()
    axes = layer.net.ints(*(range(1, len(dims)) if parameter.across_spatial else (1,)))
    squares = layer.add("ReduceSumSquare", layer.x, axes)
    length = layer.add("Sqrt", layer.add("Add", squares, layer.net.floats(float(parameter.eps))))
    count = 1 if parameter.channel_shared else dims[1]
    factor = layer.weights(0, (count, *(1,) * (len(dims) - 2)), parameter.scale_filler)
    return layer.add("Mul", layer.add("Div", layer.x, length), factor)


# ------------------------------------------------------------------------------------------- elementwise
def eltwise(layer: Layer) -> Value:
    parameter, values = layer.message.eltwise_param, list(layer.bottoms)
    if not values:
        raise RefusedError("has no bottoms")
    coefficients = [float(c) for c in parameter.coeff]
    if parameter.operation == "SUM" and coefficients:
        if len(coefficients) != len(values):
            raise RefusedError(f"has {len(coefficients)} coefficients for {len(values)} bottoms")
        scaled = zip(values, coefficients, strict=True)
        values = [v if c == 1 else layer.add("Mul", v, layer.net.floats(c)) for v, c in scaled]
    type = {"SUM": "Add", "PROD": "Mul", "MAX": "Max", "MIN": "Min"}[parameter.operation]
    y = values[0]
    for value in values[1:]:
        y = layer.add(type, y, value)
    return y


def axpy(layer: Layer) -> Value:
    """The first bottom, one number per channel, times the second, plus the third."""
    factor = _spread_over(layer, layer.bottom(0), layer.dims(1))
    return layer.add("Add", layer.add("Mul", factor, layer.bottom(1)), layer.bottom(2))


def _spread_over(layer: Layer, value: Value, dims: Sequence[int]) -> Value:
    own = layer.net.dims(value)
    return value if len(own) == len(dims) else layer.reshape(value, (*own, *(1,) * (len(dims) - len(own))))


def affine(layer: Layer, factor: float, offset: float) -> Value:
    """The first bottom times ``factor`` plus ``offset``."""
    y = layer.x
    if factor != 1:
        y = layer.add("Mul", y, layer.net.floats(factor))
    return layer.add("Add", y, layer.net.floats(offset)) if offset else y


def power(layer: Layer) -> Value:
    parameter = layer.message.power_param
    y = affine(layer, float(parameter.scale), float(parameter.shift))
    return y if parameter.power == 1 else layer.add("Pow", y, layer.net.floats(float(parameter.power)))


def _log_of_base(base: float) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise RefusedError(f"has the base {base}")
    return 1.0 if base == -1 else math.log(base)


def exponential(layer: Layer) -> Value:
    parameter = layer.message.exp_param
    rate = _log_of_base(float(parameter.base))
    return layer.add("Exp", affine(layer, float(parameter.scale) * rate, float(parameter.shift) * rate))


def logarithm(layer: Layer) -> Value:
    parameter = layer.message.log_param
    rate = _log_of_base(float(parameter.base))
    y = layer.add("Log", affine(layer, float(parameter.scale), float(parameter.shift)))
    return y if rate == 1 else layer.add("Mul", y, layer.net.floats(1 / rate))


def relu(layer: Layer) -> Value:
    slope = float(layer.message.relu_param.negative_slope)
    return layer.add("LeakyRelu", layer.x, alpha=slope) if slope else layer.add("Relu", layer.x)


def prelu(layer: Layer) -> Value:
    parameter, dims = layer.message.prelu_param, layer.dims()
    count = 1 if parameter.channel_shared else dims[1]
    filler = parameter.filler if parameter.has("filler") else _constant_filler(parameter.filler, 0.25)
    slope = layer.weights(0, (count, *(1,) * (len(dims) - 2)), filler)
    return layer.add("PRelu", layer.x, slope)


def clip(layer: Layer) -> Value:
    if layer.type == "ReLU6":
        low, high = 0.0, float(layer.message.relu6_param.threshold)
    else:
        low, high = float(layer.message.clip_param.min), float(layer.message.clip_param.max)
    return layer.add("Clip", layer.x, layer.net.scalar(low), layer.net.scalar(high))


def threshold(layer: Layer) -> Value:
    above = layer.add("Greater", layer.x, layer.net.floats(float(layer.message.threshold_param.threshold)))
    return layer.add("Cast", above, to="f32")


def dropout(layer: Layer) -> Value:
    parameter = layer.message.dropout_param
    return layer.x if parameter.scale_train else affine(layer, 1 - float(parameter.dropout_ratio), 0.0)


def simple(type: str) -> Callable[[Layer], Value]:
    """A layer that is one operator without attributes."""
    return lambda layer: layer.add(type, layer.x)


# ------------------------------------------------------------------------------------------------ table
def _table() -> dict[str, Callable[[Layer], Tops]]:
    from tenon.frontends import caffe_detection, caffe_recurrent, caffe_shape

    return {**_PLAIN, **caffe_shape.LAYERS, **caffe_recurrent.LAYERS, **caffe_detection.LAYERS}


_PLAIN: dict[str, Callable[[Layer], Tops]] = {
    "AbsVal": simple("Abs"),
    "Axpy": axpy,
    "BatchNorm": batch_norm,
    "Bias": bias,
    "BN": segnet_batch_norm,
    "BNLL": simple("Softplus"),
    "Clip": clip,
    "Convolution": convolution,
    "ConvolutionDepthwise": convolution,
    "Deconvolution": deconvolution,
    "DeconvolutionDepthwise": deconvolution,
    "DepthwiseConvolution": convolution,
    "Dropout": dropout,
    "Eltwise": eltwise,
    "ELU": lambda layer: layer.add("Elu", layer.x, alpha=float(layer.message.elu_param.alpha)),
    "Embed": embed,
    "Exp": exponential,
    "HSwish": simple("HardSwish"),
    "InnerProduct": inner_product,
    "Log": logarithm,
    "LRN": local_response,
    "Mish": simple("Mish"),
    "MVN": mean_variance,
    "Normalize": normalize,
    "Pooling": pooling,
    "Power": power,
    "PReLU": prelu,
    "ReLU": relu,
    "ReLU6": clip,
    "Scale": scale,
    "Sigmoid": simple("Sigmoid"),
    "SPP": spatial_pyramid,
    "Swish": lambda layer: layer.add("Swish", layer.x, alpha=float(layer.message.swish_param.beta)),
    "TanH": simple("Tanh"),
    "Threshold": threshold,
}
