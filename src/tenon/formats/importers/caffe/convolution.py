"""Caffe layers of convolutions and pooling: Convolution, Deconvolution, InnerProduct, Embed, Pooling, SPP."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.caffe.node import CaffeLayer, Table, Tops
from tenon.network.graph.graph import Value


def extents(layer: CaffeLayer, name: str, default: int) -> tuple[int, ...]:
    """A geometry of windows: X_h and X_w, or X once, or X for each axis."""
    p, count, short = layer.p, len(layer.dims) - 2, name.removesuffix("_size")
    given = [int(n) for n in np.ravel(getattr(p, name))] or [default]
    if p.has(f"{short}_h") or p.has(f"{short}_w"):
        given = [getattr(p, f"{short}_{side}") or given[0] for side in "hw"]
    if len(given) not in (1, count):
        raise RefusedError(f"gives {len(given)} times {name} for {count} axes")
    return tuple(given * count if len(given) == 1 else given)


def window(layer: CaffeLayer) -> dict[str, Any]:
    kernel = extents(layer, "kernel_size", 0)
    strides = extents(layer, "stride", 1)
    pads = extents(layer, "pad", 0)
    if min((*kernel, *strides), default=0) < 1 or max((*kernel, *strides, *pads)) > 1 << 16:
        raise RefusedError(f"has the impossible kernel {list(kernel)}, stride {list(strides)} or pad {list(pads)}")
    return {"kernel_shape": kernel, "strides": strides, "pads": pads * 2}


def convolution(layer: CaffeLayer) -> Value:
    """Convolution and Deconvolution, whose weights have inputs and outputs in the opposite order."""
    p = layer.p
    dims = layer.dims
    back = layer.type.startswith("Deconvolution")
    options, channels, output = window(layer), dims[1], p.num_output
    depthwise = "Depthwise" in layer.type and not p.has("group")
    group = channels if depthwise else p.group or 1
    if not output or channels % group or output % group:
        raise RefusedError(f"cannot make {output} channels of {channels} in {group} groups")
    if p.axis not in (1, 1 - len(dims)):
        raise RefusedError(f"convolves with channels on axis {p.axis}")
    ends = (channels, output // group) if back else (output, channels // group)
    w = layer.weights(0, (*ends, *options["kernel_shape"]), p.weight_filler)
    options |= {"dilations": extents(layer, "dilation", 1), "group": group}
    return layer.add("ConvTranspose" if back else "Conv", layer.x, w, layer.bias(output), **options)


def inner_product(layer: CaffeLayer) -> Value:
    p, dims, axis = layer.p, layer.dims, layer.along(layer.p.axis)
    rows, output = layer.as_matrix(layer.x, axis), p.num_output
    size = layer.builder.dims(rows)[1]
    w = layer.weights(0, (size, output) if p.transpose else (output, size), p.weight_filler)
    y = layer.add("Gemm", rows, w, layer.bias(output), transB=int(not p.transpose))
    return y if axis == 1 else layer.reshape(y, *dims[:axis], output)


def embed(layer: CaffeLayer) -> Value:
    p = layer.p
    table = layer.weights(0, (p.input_dim, p.num_output), p.weight_filler)
    bias, y = layer.bias(p.num_output), layer.add("Gather", table, layer.add("Cast", layer.x, to="i64"), axis=0)
    return y if bias is None else layer.add("Add", y, bias)


def pooling(layer: CaffeLayer) -> Tops:
    p = layer.p
    *_, h, w = layer.image(layer.x)
    if p.global_pooling:
        return layer.add("GlobalMaxPool" if p.pool == "MAX" else "GlobalAveragePool", layer.x)
    ceil = p.ceil_mode and p.round_mode == "CEIL"
    if p.pool != "MAX" or len(layer.message.top) == 1:
        return pooled(layer, p.pool, layer.x, window(layer), ceil)
    y, positions = layer.builder.adds("MaxPoolWithIndices", 2, layer.x, **rounded(layer, layer.x, window(layer), ceil))
    return [y, layer.add("Cast", layer.add("Mod", positions, np.array(h * w, np.int64)), to="f32")]


def pooled(layer: CaffeLayer, method: str, x: Value, window: dict[str, Any], ceil: bool = True) -> Value:
    """Caffe's pooling, whose averages count the padding but not what lies beyond it."""
    if method not in ("MAX", "AVE"):
        raise RefusedError(f"the pooling method {method} is not supported", "only MAX and AVE are deterministic")
    options = rounded(layer, x, window, ceil)
    if method == "MAX":
        return layer.add("MaxPool", x, **options)
    return layer.add("AveragePool", x, count_include_pad=1, **options)


def rounded(layer: CaffeLayer, x: Value, window: dict[str, Any], ceil: bool) -> dict[str, Any]:
    """Pooling with ceil_mode.  Raises RefusedError where Caffe's last window would be empty."""
    sizes = layer.image(x)[2:]
    for n, k, s, p in zip(sizes, window["kernel_shape"], window["strides"], window["pads"][:2], strict=True):
        if p >= k or n + 2 * p < k:
            raise RefusedError(f"pools {n} elements with a kernel of {k} and a padding of {p}")
        if ceil and not p and -(-(n - k) // s) * s >= n:
            raise RefusedError(f"pools {n} elements by {k} in steps of {s}: Caffe's last window would hold nothing")
    return window | {"ceil_mode": int(ceil)}


def spatial_pyramid(layer: CaffeLayer) -> Value:
    """Levels of 1, 2, 4 ... bins along each axis, one after another in a row."""
    p, (*_, h, w) = layer.p, layer.image(layer.x)
    if not 0 < p.pyramid_height < 16:
        raise RefusedError(f"has a pyramid of {p.pyramid_height} levels")
    levels = []
    for bins in (1 << level for level in range(p.pyramid_height)):
        kernel = (-(-h // bins), -(-w // bins))
        pads = ((kernel[0] * bins - h + 1) // 2, (kernel[1] * bins - w + 1) // 2)
        y = pooled(layer, p.pool, layer.x, {"kernel_shape": kernel, "strides": kernel, "pads": pads * 2})
        levels.append(layer.add("Flatten", y, axis=1))
    return levels[0] if len(levels) == 1 else layer.add("Concat", *levels, axis=1)


LAYERS: Table = {
    **dict.fromkeys(
        ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Deconvolution", "DeconvolutionDepthwise"),
        ("convolution_param", convolution),
    ),
    "Embed": ("embed_param", embed),
    "InnerProduct": ("inner_product_param", inner_product),
    "Pooling": ("pooling_param", pooling),
    "SPP": ("spp_param", spatial_pyramid),
}
