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

from tenon.decompositions.layers import adaptive_pool, deformed, unfolded
from tenon.decompositions.onnx_operator import spelled
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.ncnn.pointwise import Context, activation
from tenon.ir.graph import Array, Value

_SAME = {-233: "SAME_UPPER", -234: "SAME_LOWER"}


def _each(c: Context, axes: int, id: int, default: int = 0) -> tuple[int, ...]:
    """An option along d, h and w, as many as there are: ``id`` + 20, + 10 and ``id``."""
    last = c.integer(id, default)
    return tuple(c.integer(id + 10 * step, last) for step in range(axes))[::-1]


def _window(c: Context, axes: int) -> dict[str, Any]:
    """Kernel, strides, dilations, groups and pads; -233 and -234 mean SAME."""
    left = c.integer(4)
    top, right, front = c.integer(14, left), c.integer(15, left), c.integer(24, left)
    before, after = (front, top, left), (c.integer(17, front), c.integer(16, top), right)
    window: dict[str, Any] = {
        "kernel_shape": _each(c, axes, 1),
        "dilations": _each(c, axes, 2, 1),
        "strides": _each(c, axes, 3, 1),
        "group": c.integer(7, 1) if "DepthWise" in c.layer.type else 1,
    }
    if left in _SAME:
        return window | {"auto_pad": _SAME[left]}
    return window | {"pads": (*before[3 - axes :], *after[3 - axes :])}


def _filters(c: Context, window: dict[str, Any]) -> tuple[int, int, tuple[int, ...]]:
    """How many filters a convolution has, how many inputs each, and its kernel."""
    outputs, size, kernel = c.integer(0), c.integer(6), window["kernel_shape"]
    if min(outputs, size, window["group"], *kernel) < 1 or size % (outputs * math.prod(kernel)):
        raise RefusedError(f"{size} weights do not make {outputs} filters of {list(kernel)}")
    return outputs, size // (outputs * math.prod(kernel)), kernel


def weights(c: Context, size: int, outputs: int, bias_id: int) -> tuple[Array, Array | None]:
    """Weights [outputs, ...] as f32 and the bias; int8 weights are stored with one scale per output or in all."""
    raw = c.weights.array(size)
    offset = c.weights.floats(outputs) if c.integer(bias_id) else None
    stored = c.integer(8)
    if stored:
        group = c.integer(7, 1) if c.layer.type.startswith("ConvolutionDepthWise") else 0
        count = outputs if not group else group if stored in (1, 101) else 1
        scales = c.weights.floats(count)
        c.weights.floats(1)  # of the input, for arithmetic in integers
        if stored > 100:
            c.weights.floats(1)  # of the output
        raw = c.scaled(raw, scales)
    if raw.dtype == np.int8:
        raise RefusedError("its weights are int8 without scales")
    return raw, offset


def convolution(c: Context, axes: int = 2) -> Value:
    """A vector under a kernel of 1 x 1 is so many channels, and remains a vector."""
    window, computed = _window(c, axes), c.integer(19)
    offset: Value | Array | None
    if computed:
        filters, offset = _computed(c, window)
    else:
        outputs, inputs, kernel = _filters(c, window)
        raw, offset = weights(c, c.integer(6), outputs, 5)
        filters = c.builder.constant(raw.reshape(outputs, inputs, *kernel), "weights")
    x, vector = c.x, axes == 2 and len(c.dims()) == 2
    if vector and window["kernel_shape"] == (1, 1):
        x = c.reshape(x, 1, -1, 1, 1)
    if c.number(18) and "pads" in window:
        pads = window.pop("pads")
        x = c.add("Pad", x, c.ints(0, 0, *pads[:axes], 0, 0, *pads[axes:]), c.number(18))
    x = c.reshape(x, 1, 1, -1) if axes == 1 and len(c.dims(x)) == 2 else x
    x = activation(c, c.add("Conv", x, filters, offset, **window))
    return c.reshape(x, 1, -1) if vector else x


def _computed(c: Context, window: dict[str, Any]) -> tuple[Value, Value | None]:
    """Filters and bias from other blobs, whose shape says how many there are and how large."""
    if len(c.inputs) != (3 if c.integer(5) else 2):
        raise RefusedError(f"it has {len(c.inputs)} inputs, and weights computed at run time")
    dims = c.dims(c.inputs[1])[1:]
    window["kernel_shape"] = tuple(dims[2:])
    return c.reshape(c.inputs[1], *dims), c.reshape(c.inputs[2], -1) if c.integer(5) else None


def deconvolution(c: Context, axes: int = 2) -> Value:
    """The pads are cut off afterwards, or what is more than a size that is given."""
    window, extra = _window(c, axes), c.integer(18)
    filters: Value | Array
    offset: Value | Array | None
    filters, offset = _computed(c, window) if c.integer(28) else _transposed(c, window)
    behind = c.integer(20, extra) if axes == 3 else 0
    window["output_padding"] = (behind, c.integer(19, extra), extra)[3 - axes :]
    first = 25 if axes == 3 else 20
    wide = c.integer(first)
    if "auto_pad" in window:
        if not wide:
            raise RefusedError("padding by -233 needs an output size")
        window["output_shape"] = tuple(c.integer(first + i, wide) for i in range(axes))[::-1]
    x = c.add("ConvTranspose", c.x, filters, offset, **window)
    return activation(c, x)


def _transposed(c: Context, window: dict[str, Any]) -> tuple[Array, Array | None]:
    """Filters that are stored [group, out, in, ...] as ONNX has them, [inputs, outputs of a group, ...]; the bias."""
    outputs, inputs, kernel = _filters(c, window)
    group = window["group"]
    if outputs % group:
        raise RefusedError(f"{outputs} outputs do not make {group} groups")
    stored = c.weights.array(c.integer(6)).reshape(group, outputs // group, inputs, *kernel).swapaxes(1, 2)
    offset = c.weights.floats(outputs) if c.integer(5) else None
    return np.ascontiguousarray(stored).reshape(-1, outputs // group, *kernel), offset


def deformable(c: Context) -> Value:
    """Of x, offsets and, where there are any, factors."""
    window = _window(c, 2)
    outputs, inputs, kernel = _filters(c, window)
    raw, offset = weights(c, c.integer(6), outputs, 5)
    filters, bias = c.value(raw.reshape(outputs, inputs, *kernel)), c.value(offset)
    x = deformed(c, [c.x, filters, c.inputs[1], bias, *c.inputs[2:3]], window, 1)
    return activation(c, x)


# --------------------------------------------------------------------------------------------- pooling
def pooling(c: Context, axes: int = 2) -> Value:
    """Global pooling makes a vector; the pads that ncnn adds to use up the last row and column are spelled out."""
    average, dims = c.integer(0) == 1, c.dims()
    if len(dims) != 2 + axes:
        raise RefusedError(f"it needs {axes} axes and channels, not {list(dims)}")
    if c.integer(4):
        pooled = c.add("GlobalAveragePool" if average else "GlobalMaxPool", c.x)
        return c.reshape(pooled, 1, dims[1])
    if c.integer(7):
        sizes = _each(c, axes, 8)
        return adaptive_pool(
            c, c.x, [n if k == -233 else k for k, n in zip(sizes, dims[2:], strict=True)], average=average
        )
    window: dict[str, Any] = {"kernel_shape": _each(c, axes, 1), "strides": _each(c, axes, 2, 1)}
    if min(*window["kernel_shape"], *window["strides"]) < 1:
        raise RefusedError(f"windows of {window['kernel_shape']} by {window['strides']} are impossible")
    left = c.integer(3)
    top = c.integer(13, left)
    front = c.integer(23, top)
    before = (front, top, left)[3 - axes :]
    after = (c.integer(16, front), c.integer(15, top), c.integer(14, left))[3 - axes :]
    mode = c.integer(5)
    if mode in (2, 3):
        before, after = _around(dims[2:], window, larger_first=mode == 3)
    elif mode == 0:
        spans = zip(dims[2:], before, after, window["kernel_shape"], window["strides"], strict=True)
        after = tuple(q + -(n + p + q - k) % s for n, p, q, k, s in spans)
    window["pads"] = (*before, *after)
    if average:  # pads by rule are zeros like any other number
        return c.add("AveragePool", c.x, count_include_pad=int(bool(c.integer(6)) or mode in (2, 3)), **window)
    return c.add("MaxPool", c.x, **window)


def _around(sizes: Sequence[int], window: dict[str, Any], *, larger_first: bool) -> tuple[tuple[int, ...], ...]:
    """Pads for one window per stride; of three axes the depth always has the smaller half first."""
    spans = zip(sizes, window["kernel_shape"], window["strides"], strict=True)
    total = [max(k + (n - 1) // s * s - n, 0) for n, k, s in spans]
    first = tuple((n + (larger_first and (i > 0 or len(total) < 3))) // 2 for i, n in enumerate(total))
    return first, tuple(n - p for n, p in zip(total, first, strict=True))


def pyramid(c: Context) -> Value:
    """SPP: pooled to 1, 2, 4, ... bins along both axes, zeros around, all of it a vector."""
    _, channels, *sizes = (1, *c.image(c.x)[1:])
    parts = []
    if not 0 < c.integer(1, 1) <= 8:
        raise RefusedError(f"a pyramid of {c.integer(1, 1)} levels is not supported")
    for level in range(c.integer(1, 1)):
        bins = 1 << level
        kernel = [-(-n // bins) for n in sizes]
        rest = [k * bins - n for k, n in zip(kernel, sizes, strict=True)]
        pads = [*((r + 1) // 2 for r in rest), *(r // 2 for r in rest)]
        x = c.add("Pad", c.x, c.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0) if any(pads) else c.x
        y = c.add("AveragePool" if c.integer(0) else "MaxPool", x, kernel_shape=kernel, strides=kernel)
        parts.append(c.reshape(y, 1, channels * bins * bins))
    return c.add("Concat", *parts, axis=1)


def statistics(c: Context) -> Value:
    """Means of the channels, and standard deviations after them; one or two axes are a single channel."""
    dims = c.dims()
    x = c.reshape(c.x, 1, dims[1] if len(dims) > 3 else 1, -1)
    mean = c.add("ReduceMean", x, c.ints(2), keepdims=1)
    if not c.integer(0):
        return c.reshape(mean, 1, -1)
    spread = c.add("Sqrt", c.add("ReduceMean", c.square(c.add("Sub", x, mean)), c.ints(2), keepdims=1))
    return c.reshape(c.add("Concat", mean, spread, axis=1), 1, -1)


def unfold(c: Context) -> Value:
    window = _window(c, 2)
    x = c.x
    c.image(x)
    if "pads" not in window:
        raise RefusedError("padding by -233 is not supported")
    pads, edge = window["pads"], c.number(18)
    if edge:
        x, pads = c.add("Pad", x, c.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), edge), (0, 0, 0, 0)
    return unfolded(c, x, window["kernel_shape"], window["strides"], pads, window["dilations"])


def fold(c: Context) -> Value:
    """Columns [C * taps, places] added up where they came from."""
    window, size = _window(c, 2), (c.integer(21, c.integer(20)), c.integer(20))
    kernel, pads = window["kernel_shape"], window.get("pads")
    if len(c.dims()) != 3 or min(*kernel, *size, *window["strides"], *window["dilations"]) < 1 or pads is None:
        raise RefusedError(f"{list(c.dims())} does not fold by windows of {list(kernel)} into {list(size)}")
    options = {name: window[name] for name in ("strides", "dilations", "pads")}
    return spelled(c.builder, "Col2Im", [c.x, c.ints(*size), c.ints(*kernel)], 1, **options)[0]


_OVER_AXES = {
    "Convolution": convolution,
    "ConvolutionDepthWise": convolution,
    "Deconvolution": deconvolution,
    "DeconvolutionDepthWise": deconvolution,
    "Pooling": pooling,
}
"""Layers over two axes, which have others of the same name over one and three."""

WINDOWS: dict[str, Callable[[Context], Made]] = {
    **_OVER_AXES,
    **{f"{name}{axes}D": partial(spell, axes=axes) for name, spell in _OVER_AXES.items() for axes in (1, 3)},
    "DeformableConv2D": deformable,
    "SPP": pyramid,
    "StatisticsPooling": statistics,
    "Fold": fold,
    "Unfold": unfold,
}
