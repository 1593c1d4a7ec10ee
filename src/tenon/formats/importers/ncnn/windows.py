"""ncnn's layers of windows over one, two or three axes: convolutions, their transposes, and pooling.

An option of the last axis stands for the others that are not given.  Definitions: "operators" of the ncnn
documentation, src/layer/{convolution,deconvolution,pooling}*.cpp, src/layer/{fold,unfold,deformableconv2d}.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import adaptive_pool, deformed, unfolded
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.formats.importers.ncnn.pointwise import activation
from tenon.network.graph.graph import Array, Value

_SAME = {-233: "SAME_UPPER", -234: "SAME_LOWER"}


def _each(layer: NcnnLayer, axes: int, id: int, default: int = 0) -> tuple[int, ...]:
    """An option along d, h and w, as many as there are: ``id`` + 20, + 10 and ``id``."""
    last = layer.integer(id, default)
    return tuple(layer.integer(id + 10 * step, last) for step in range(axes))[::-1]


def _window(layer: NcnnLayer, axes: int) -> dict[str, Any]:
    """Kernel, strides, dilations, groups and pads; -233 and -234 mean SAME."""
    left = layer.integer(4)
    top, right, front = layer.integer(14, left), layer.integer(15, left), layer.integer(24, left)
    before, after = (front, top, left), (layer.integer(17, front), layer.integer(16, top), right)
    window: dict[str, Any] = {
        "kernel_shape": _each(layer, axes, 1),
        "dilations": _each(layer, axes, 2, 1),
        "strides": _each(layer, axes, 3, 1),
        "group": layer.integer(7, 1) if "DepthWise" in layer.record.type else 1,
    }
    if left in _SAME:
        return window | {"auto_pad": _SAME[left]}
    return window | {"pads": (*before[3 - axes :], *after[3 - axes :])}


def _filters(layer: NcnnLayer, window: dict[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    """How many filters a convolution has, how many inputs each, and its kernel."""
    outputs, size, kernel = layer.integer(0), layer.integer(6), window["kernel_shape"]
    if min(outputs, size, window["group"], *kernel) < 1 or size % (outputs * math.prod(kernel)):
        raise RefusedError(f"{size} weights do not make {outputs} filters of {list(kernel)}")
    return outputs, size // (outputs * math.prod(kernel)), kernel


def weights(layer: NcnnLayer, size: int, outputs: int, bias_id: int) -> tuple[Array, Array | None]:
    """Weights [outputs, ...] as f32 and the bias; int8 weights are stored with one scale per output or in all."""
    raw = layer.weights.array(size)
    offset = layer.weights.floats(outputs) if layer.integer(bias_id) else None
    stored = layer.integer(8)
    if stored:
        group = layer.integer(7, 1) if layer.record.type.startswith("ConvolutionDepthWise") else 0
        count = outputs if not group else group if stored in (1, 101) else 1
        scales = layer.weights.floats(count)
        layer.weights.floats(1)  # of the input, for arithmetic in integers
        if stored > 100:
            layer.weights.floats(1)  # of the output
        raw = layer.scaled(raw, scales)
    if raw.dtype == np.int8:
        raise RefusedError("its weights are int8 without scales")
    return raw, offset


def convolution(layer: NcnnLayer, axes: int = 2) -> Value:
    """A vector under a kernel of 1 x 1 is so many channels, and remains a vector."""
    window, computed = _window(layer, axes), layer.integer(19)
    offset: Value | Array | None
    if computed:
        filters, offset = _computed(layer, window)
    else:
        outputs, inputs, kernel = _filters(layer, window)
        raw, offset = weights(layer, layer.integer(6), outputs, 5)
        filters = layer.builder.constant(raw.reshape(outputs, inputs, *kernel), "weights")
    x, vector = layer.x, axes == 2 and len(layer.dims) == 2
    if vector and window["kernel_shape"] == (1, 1):
        x = layer.reshape(x, 1, -1, 1, 1)
    if layer.number(18) and "pads" in window:
        pads = window.pop("pads")
        x = layer.add("Pad", x, layer.ints(0, 0, *pads[:axes], 0, 0, *pads[axes:]), layer.number(18))
    x = layer.reshape(x, 1, 1, -1) if axes == 1 and len(layer.builder.dims(x)) == 2 else x
    x = activation(layer, layer.add("Conv", x, filters, offset, **window))
    return layer.reshape(x, 1, -1) if vector else x


def _computed(layer: NcnnLayer, window: dict[str, Any]) -> tuple[Value, Value | None]:
    """Filters and bias from other blobs, whose shape gives their number and size."""
    if len(layer.inputs) != (3 if layer.integer(5) else 2):
        raise RefusedError(f"it has {len(layer.inputs)} inputs, and weights computed at run time")
    dims = layer.builder.dims(layer.inputs[1])[1:]
    window["kernel_shape"] = tuple(dims[2:])
    return layer.reshape(layer.inputs[1], *dims), layer.reshape(layer.inputs[2], -1) if layer.integer(5) else None


def deconvolution(layer: NcnnLayer, axes: int = 2) -> Value:
    """Pads are cropped afterwards, or what exceeds a given size."""
    window, extra = _window(layer, axes), layer.integer(18)
    filters: Value | Array
    offset: Value | Array | None
    filters, offset = _computed(layer, window) if layer.integer(28) else _transposed(layer, window)
    behind = layer.integer(20, extra) if axes == 3 else 0
    window["output_padding"] = (behind, layer.integer(19, extra), extra)[3 - axes :]
    first = 25 if axes == 3 else 20
    wide = layer.integer(first)
    if "auto_pad" in window:
        if not wide:
            raise RefusedError("padding by -233 needs an output size")
        window["output_shape"] = tuple(layer.integer(first + i, wide) for i in range(axes))[::-1]
    x = layer.add("ConvTranspose", layer.x, filters, offset, **window)
    return activation(layer, x)


def _transposed(layer: NcnnLayer, window: dict[str, Any]) -> tuple[Array, Array | None]:
    """Filters that are stored [group, out, in, ...] as ONNX has them, [inputs, outputs of a group, ...]; the bias."""
    outputs, inputs, kernel = _filters(layer, window)
    group = window["group"]
    if outputs % group:
        raise RefusedError(f"{outputs} outputs do not make {group} groups")
    stored = layer.weights.array(layer.integer(6)).reshape(group, outputs // group, inputs, *kernel).swapaxes(1, 2)
    offset = layer.weights.floats(outputs) if layer.integer(5) else None
    return np.ascontiguousarray(stored).reshape(-1, outputs // group, *kernel), offset


def deformable(layer: NcnnLayer) -> Value:
    """Inputs: x, offsets and optional factors."""
    window = _window(layer, 2)
    outputs, inputs, kernel = _filters(layer, window)
    raw, offset = weights(layer, layer.integer(6), outputs, 5)
    filters, bias = layer.value(raw.reshape(outputs, inputs, *kernel)), layer.value(offset)
    x = deformed(layer, [layer.x, filters, layer.inputs[1], bias, *layer.inputs[2:3]], window, 1)
    return activation(layer, x)


# --------------------------------------------------------------------------------------------- pooling
def pooling(layer: NcnnLayer, axes: int = 2) -> Value:
    """Global pooling makes a vector; the pads that ncnn adds to cover the last row and column are explicit."""
    average, dims = layer.integer(0) == 1, layer.dims
    if len(dims) != 2 + axes:
        raise RefusedError(f"it needs {axes} axes and channels, not {list(dims)}")
    if layer.integer(4):
        pooled = layer.add("GlobalAveragePool" if average else "GlobalMaxPool", layer.x)
        return layer.reshape(pooled, 1, dims[1])
    if layer.integer(7):
        sizes = _each(layer, axes, 8)
        return adaptive_pool(
            layer, layer.x, [n if k == -233 else k for k, n in zip(sizes, dims[2:], strict=True)], average=average
        )
    window: dict[str, Any] = {"kernel_shape": _each(layer, axes, 1), "strides": _each(layer, axes, 2, 1)}
    if min(*window["kernel_shape"], *window["strides"]) < 1:
        raise RefusedError(f"windows of {window['kernel_shape']} by {window['strides']} are impossible")
    left = layer.integer(3)
    top = layer.integer(13, left)
    front = layer.integer(23, top)
    before = (front, top, left)[3 - axes :]
    after = (layer.integer(16, front), layer.integer(15, top), layer.integer(14, left))[3 - axes :]
    mode = layer.integer(5)
    if mode in (2, 3):
        before, after = _around(dims[2:], window, larger_first=mode == 3)
    elif mode == 0:
        spans = zip(dims[2:], before, after, window["kernel_shape"], window["strides"], strict=True)
        after = tuple(q + -(n + p + q - k) % s for n, p, q, k, s in spans)
    window["pads"] = (*before, *after)
    if average:  # pads by rule are zeros like any other number
        return layer.add(
            "AveragePool", layer.x, count_include_pad=int(bool(layer.integer(6)) or mode in (2, 3)), **window
        )
    return layer.add("MaxPool", layer.x, **window)


def _around(sizes: Sequence[int], window: dict[str, Any], *, larger_first: bool) -> tuple[tuple[int, ...], ...]:
    """Pads for one window per stride; of three axes the depth always has the smaller half first."""
    spans = zip(sizes, window["kernel_shape"], window["strides"], strict=True)
    total = [max(k + (n - 1) // s * s - n, 0) for n, k, s in spans]
    first = tuple((n + (larger_first and (i > 0 or len(total) < 3))) // 2 for i, n in enumerate(total))
    return first, tuple(n - p for n, p in zip(total, first, strict=True))


def pyramid(layer: NcnnLayer) -> Value:
    """SPP: pooled to 1, 2, 4, ... bins along both axes, zeros around, all of it a vector."""
    _, channels, *sizes = (1, *layer.image(layer.x)[1:])
    parts = []
    if not 0 < layer.integer(1, 1) <= 8:
        raise RefusedError(f"a pyramid of {layer.integer(1, 1)} levels is not supported")
    for level in range(layer.integer(1, 1)):
        bins = 1 << level
        kernel = [-(-n // bins) for n in sizes]
        rest = [k * bins - n for k, n in zip(kernel, sizes, strict=True)]
        pads = [*((r + 1) // 2 for r in rest), *(r // 2 for r in rest)]
        x = layer.add("Pad", layer.x, layer.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0) if any(pads) else layer.x
        y = layer.add("AveragePool" if layer.integer(0) else "MaxPool", x, kernel_shape=kernel, strides=kernel)
        parts.append(layer.reshape(y, 1, channels * bins * bins))
    return layer.add("Concat", *parts, axis=1)


def statistics(layer: NcnnLayer) -> Value:
    """Means of the channels, and standard deviations after them; one or two axes are a single channel."""
    dims = layer.dims
    x = layer.reshape(layer.x, 1, dims[1] if len(dims) > 3 else 1, -1)
    mean = layer.add("ReduceMean", x, layer.ints(2), keepdims=1)
    if not layer.integer(0):
        return layer.reshape(mean, 1, -1)
    spread = layer.add(
        "Sqrt", layer.add("ReduceMean", layer.square(layer.add("Sub", x, mean)), layer.ints(2), keepdims=1)
    )
    return layer.reshape(layer.add("Concat", mean, spread, axis=1), 1, -1)


def unfold(layer: NcnnLayer) -> Value:
    window = _window(layer, 2)
    x = layer.x
    layer.image(x)
    if "pads" not in window:
        raise RefusedError("padding by -233 is not supported")
    pads, edge = window["pads"], layer.number(18)
    if edge:
        x, pads = layer.add("Pad", x, layer.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), edge), (0, 0, 0, 0)
    return unfolded(layer, x, window["kernel_shape"], window["strides"], pads, window["dilations"])


def fold(layer: NcnnLayer) -> Value:
    """Columns [C * taps, positions] summed at their origins (col2im)."""
    window, size = _window(layer, 2), (layer.integer(21, layer.integer(20)), layer.integer(20))
    kernel, pads = window["kernel_shape"], window.get("pads")
    if len(layer.dims) != 3 or min(*kernel, *size, *window["strides"], *window["dilations"]) < 1 or pads is None:
        raise RefusedError(f"{list(layer.dims)} does not fold by windows of {list(kernel)} into {list(size)}")
    options = {name: window[name] for name in ("strides", "dilations", "pads")}
    return decomposed(layer.builder, "Col2Im", [layer.x, layer.ints(*size), layer.ints(*kernel)], 1, **options)[0]


_OVER_AXES = {
    "Convolution": convolution,
    "ConvolutionDepthWise": convolution,
    "Deconvolution": deconvolution,
    "DeconvolutionDepthWise": deconvolution,
    "Pooling": pooling,
}
"""Layers over two axes, which have others of the same name over one and three."""

WINDOWS: dict[str, Callable[[NcnnLayer], Outputs]] = {
    **_OVER_AXES,
    **{f"{name}{axes}D": partial(function, axes=axes) for name, function in _OVER_AXES.items() for axes in (1, 3)},
    "DeformableConv2D": deformable,
    "SPP": pyramid,
    "StatisticsPooling": statistics,
    "Fold": fold,
    "Unfold": unfold,
}
