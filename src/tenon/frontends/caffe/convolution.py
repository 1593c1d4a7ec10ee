"""Caffe layers that weigh and pool: Convolution, Deconvolution, InnerProduct, Embed, Pooling, SPP."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.frontends.caffe.layer import Layer, Tops
from tenon.frontends.refused import RefusedError
from tenon.frontends.wire.protobuf import Message
from tenon.ir.graph import Value


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


def pooling(layer: Layer) -> Tops:
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
    if parameter.pool == "MAX" and len(layer.message.top) > 1:
        return _with_mask(layer, kernel, strides, pads, ceil)
    return pooled(layer, layer.x, parameter.pool, kernel, strides, pads, ceil)


def _with_mask(
    layer: Layer, kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int], ceil: bool
) -> Tops:
    """The maxima, and where each of them is in its plane, as a float."""
    dims = layer.dims()
    whole = (*pads, *_after(dims[2:], kernel, strides, pads, ceil))
    options = {"kernel_shape": kernel, "strides": strides, "pads": whole}
    y, places = layer.net.adds("MaxPoolWithIndices", 2, layer.x, **options)
    plane = layer.net.constant(np.array(dims[2] * dims[3], np.int64), "plane")
    return [y, layer.add("Cast", layer.add("Mod", places, plane), to="f32")]


def _after(
    dims: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], ceil: bool
) -> list[int]:
    """The padding after each axis that Caffe's extents amount to.  Raises RefusedError."""
    if min(*kernel, *strides) < 1 or max((*kernel, *strides, *pads)) > 1 << 16:
        raise RefusedError(f"has the impossible kernel {list(kernel)}, stride {list(strides)} or pad {list(pads)}")
    after = []
    for n, k, s, p in zip(dims, kernel, strides, pads, strict=True):
        if p >= k or n + 2 * p < k:
            raise RefusedError(f"pools {n} elements with a kernel of {k} and a padding of {p}")
        count = (n + 2 * p - k + (s - 1 if ceil else 0)) // s + 1
        count -= 1 if p and (count - 1) * s >= n + p else 0
        after.append(max(0, (count - 1) * s + k - n - p))
    return after


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
    if method not in ("MAX", "AVE"):
        raise RefusedError(f"pools in the way {method}", "only MAX and AVE give the same answer every time")
    after = _after(dims, kernel, strides, pads, ceil)
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


LAYERS: dict[str, Callable[[Layer], Tops]] = {
    "Convolution": convolution,
    "ConvolutionDepthwise": convolution,
    "Deconvolution": deconvolution,
    "DeconvolutionDepthwise": deconvolution,
    "DepthwiseConvolution": convolution,
    "Embed": embed,
    "InnerProduct": inner_product,
    "Pooling": pooling,
    "SPP": spatial_pyramid,
}
