"""ncnn's layers that pick, turn or sample places of a blob, and the pooling of one region.

Definitions: src/layer/{argmax,copyto,cumulativesum,diag,flip,gridsample,spectrogram}.cpp,
src/layer/{roialign,roipooling,psroipooling}.cpp; a region is x0, y0, x1, y1, and there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.decompositions.layers import sampled
from tenon.decompositions.onnx_operator import spelled
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.ncnn.pointwise import Context
from tenon.ir.graph import Array, Value
from tenon.ir.types import F32

_LONGEST = 1 << 14
"""Samples in one window of a spectrogram."""


def greatest(c: Context) -> Value:
    """ArgMax: the numbers of the greatest as f32, and the values themselves before them."""
    count = c.integer(1, 1)
    flat = c.reshape(c.x, 1, 1, -1)
    if not 0 < count <= c.dims(flat)[2]:
        raise RefusedError(f"it wants {count} of {c.dims(flat)[2]}")
    values, places = c.builder.adds("TopK", 2, flat, c.ints(count), axis=2)
    numbers = c.add("Cast", places, to=str(F32))
    return c.add("Concat", values, numbers, axis=1) if c.integer(0) else numbers


def copy_to(c: Context) -> Value:
    """The second blob over a part of the first."""
    whole, part = c.dims(), c.dims(c.inputs[1])
    if whole == part:
        return c.inputs[1]
    rank = len(whole) - 1
    first = [c.integer(id) for id in c.by_axis(0, 1, 13, 2)]
    if starts := c.layer.integers(9):
        axes = [c.inner(a, rank + 1) - 1 for a in c.layer.integers(11)] or list(range(len(starts)))
        first = [0] * rank
        for axis, start in zip(axes, starts, strict=True):
            first[axis] = 0 if start == -233 else start + whole[axis + 1] if start < 0 else start
    sizes = [*(1,) * (rank + 1 - len(part)), *part[1:]]
    after = [n - a - m for n, a, m in zip(whole[1:], first, sizes, strict=True)]
    if min(*first, *after) < 0:
        raise RefusedError(f"{list(part)} at {first} does not fit into {list(whole)}")
    pads = (0, *first, 0, *after)
    laid = c.add("Pad", c.reshape(c.inputs[1], 1, *sizes), c.ints(*pads), 0.0)
    covered = np.pad(np.ones((1, *sizes), bool), list(zip(pads[: rank + 1], pads[rank + 1 :], strict=True)))
    return c.add("Where", covered, laid, c.x)


def diagonal(c: Context) -> Value:
    """A matrix of a vector, or the vector of a matrix, ``diagonal`` above the main one."""
    above, dims = c.integer(0), c.dims()[1:]
    if len(dims) == 1:
        x = c.add("Mul", c.reshape(c.x, 1, 1, -1), np.eye(dims[0], dtype=np.float32))
        return c.add("Pad", x, c.ints(0, max(-above, 0), max(above, 0), 0, max(above, 0), max(-above, 0)), 0.0)
    places = np.arange(math.prod(dims), dtype=np.int64).reshape(dims).diagonal(above) if len(dims) == 2 else ()
    if not len(places):
        raise RefusedError(f"{dims} has no diagonal {above}")
    return c.add("Gather", c.reshape(c.x, 1, -1), np.ascontiguousarray(places), axis=1)


def flip(c: Context) -> Value:
    axes = sorted({c.inner(a, len(c.dims())) for a in c.layer.integers(0)})
    count = len(axes)
    return c.slice(c.x, [-1] * count, [-(1 << 31)] * count, axes, [-1] * count)


def grid_sample(c: Context) -> Value:
    mode = {1: "linear", 2: "nearest", 3: "cubic"}.get(c.integer(0, 1))
    padding = {1: "zeros", 2: "border", 3: "reflection"}.get(c.integer(1, 1))
    rank = len(c.dims())
    if mode is None or padding is None or len(c.inputs) != 2 or rank not in (4, 5):
        raise RefusedError(f"sample_type {c.integer(0, 1)} with padding_mode {c.integer(1, 1)} is not supported")
    grid = c.add("Transpose", c.inputs[1], perm=(0, *range(2, rank), 1)) if c.integer(3) else c.inputs[1]
    return sampled(c, c.x, grid, mode, padding, corners=bool(c.integer(2)))


# --------------------------------------------------------------------------------------------- regions
def _region(c: Context) -> Value:
    if len(c.inputs) != 2 or math.prod(c.dims(c.inputs[1])) != 4:
        raise RefusedError("it takes a blob and one region of 4 numbers")
    return c.reshape(c.inputs[1], 1, 4)


def _numbered(c: Context) -> Value:
    """The region after the number of its picture."""
    return c.add("Concat", np.zeros((1, 1), np.float32), _region(c), axis=1)


def roi_pooling(c: Context) -> Value:
    shape = (c.integer(1), c.integer(0))
    return c.add("MaxRoiPool", c.x, _numbered(c), pooled_shape=shape, spatial_scale=c.number(2, 1.0))


def position_sensitive(c: Context) -> Value:
    size, options = c.integer(0, 7), {"output_dim": c.integer(3), "spatial_scale": c.number(2, 0.0625)}
    if c.integer(1, 7) != size:
        raise RefusedError("bins that do not make a square are not supported")
    return c.add("PsRoiPool", c.x, _numbered(c), group_size=size, **options)


def roi_align(c: Context) -> Value:
    """Of detectron2; the first version of ncnn clips every bin before it samples."""
    if c.integer(5) != 1:
        raise RefusedError("version 0, which clips bins before it samples them, is not supported")
    centre = "half_pixel" if c.integer(4) else "output_half_pixel"
    return c.add(
        "RoiAlign",
        c.x,
        _region(c),
        np.zeros(1, np.int64),
        output_height=c.integer(1),
        output_width=c.integer(0),
        spatial_scale=c.number(2, 1.0),
        sampling_ratio=c.integer(3),
        coordinate_transformation_mode=centre,
    )


# ---------------------------------------------------------------------------------------------- sound
def spectrogram(c: Context) -> Value:
    """Fourier transforms of windows of a vector: [frequencies, frames], or [frequencies, frames, 2] of both parts."""
    n = c.integer(0)
    power, hop, size = c.integer(1), c.integer(2, n // 4), c.integer(3, n)
    x = c.reshape(c.x, 1, -1)
    if not 0 < size <= n <= _LONGEST or hop < 1 or power not in (0, 1, 2) or c.integer(4) not in (0, 1, 2):
        raise RefusedError(f"windows of {size} in {n} samples by {hop} are not supported")
    if c.integer(5, 1):
        mode = ("constant", "edge", "reflect")[c.integer(6, 2)]
        x = c.add("Pad", x, c.ints(0, n // 2, 0, n // 2), 0.0 if mode == "constant" else None, mode=mode)
    if c.dims(x)[1] < n:
        raise RefusedError(f"{c.dims(x)[1]} samples are less than a window of {n}")
    window = c.value(_window(n, size, c.integer(4), c.integer(7)))
    found = spelled(c.builder, "STFT", [x, c.ints(hop), window], 1, onesided=int(c.integer(8, 1)))[0]
    found = c.add("Transpose", found, perm=(0, 2, 1, 3))
    if not power:
        return found
    energy = c.add("ReduceSumSquare", found, c.ints(3), keepdims=0)
    return energy if power == 2 else c.add("Sqrt", energy)


def _window(n: int, size: int, kind: int, normal: int) -> Array:
    """Ones, Hann's or Hamming's in the middle of n samples."""
    turn = np.cos(2 * np.pi * np.arange(size) / size)
    shape = (np.ones(size), 0.5 * (1 - turn), 0.54 - 0.46 * turn)[kind]
    window = np.pad(shape, ((n - size) // 2, n - size - (n - size) // 2))
    length = math.sqrt(n if normal == 1 else float(np.square(window).sum())) if normal else 1.0
    return np.asarray(window / length, np.float32)


PLACES: dict[str, Callable[[Context], Made]] = {
    "ArgMax": greatest,
    "CopyTo": copy_to,
    "CumulativeSum": lambda c: c.add("CumSum", c.x, c.ints(c.along(0))),
    "Diag": diagonal,
    "Flip": flip,
    "GridSample": grid_sample,
    "ROIPooling": roi_pooling,
    "PSROIPooling": position_sensitive,
    "ROIAlign": roi_align,
    "Spectrogram": spectrogram,
}
