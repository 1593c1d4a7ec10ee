"""ncnn's layers that index, flip or sample a blob, and pooling of one region.

Definitions: src/layer/{argmax,copyto,cumulativesum,diag,flip,gridsample,spectrogram}.cpp,
src/layer/{roialign,roipooling,psroipooling}.cpp; a region is x0, y0, x1, y1, and there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions.layers import sampled
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32

_MAX_WINDOW = 1 << 14
"""Samples in one window of a spectrogram."""


def greatest(layer: NcnnLayer) -> Value:
    """ArgMax: the indices of the largest as f32, preceded by the values if asked for."""
    count = layer.integer(1, 1)
    flat = layer.reshape(layer.x, 1, 1, -1)
    if not 0 < count <= layer.builder.dims(flat)[2]:
        raise RefusedError(f"it needs {count} of {layer.builder.dims(flat)[2]}")
    values, positions = layer.builder.adds("TopK", 2, flat, layer.ints(count), axis=2)
    numbers = layer.add("Cast", positions, to=str(F32))
    return layer.add("Concat", values, numbers, axis=1) if layer.integer(0) else numbers


def copy_to(layer: NcnnLayer) -> Value:
    """The second blob copied over a part of the first."""
    whole, part = layer.dims, layer.builder.dims(layer.inputs[1])
    if whole == part:
        return layer.inputs[1]
    rank = len(whole) - 1
    first = [layer.integer(id) for id in layer.by_axis(0, 1, 13, 2)]
    if starts := layer.integers(9):
        axes = [layer.inner(a, rank + 1) - 1 for a in layer.integers(11)] or list(range(len(starts)))
        first = [0] * rank
        for axis, start in zip(axes, starts, strict=True):
            first[axis] = 0 if start == -233 else start + whole[axis + 1] if start < 0 else start
    sizes = [*(1,) * (rank + 1 - len(part)), *part[1:]]
    after = [n - a - m for n, a, m in zip(whole[1:], first, sizes, strict=True)]
    if min(*first, *after) < 0:
        raise RefusedError(f"{list(part)} at {first} does not fit into {list(whole)}")
    pads = (0, *first, 0, *after)
    laid = layer.add("Pad", layer.reshape(layer.inputs[1], 1, *sizes), layer.ints(*pads), 0.0)
    covered = np.pad(np.ones((1, *sizes), bool), list(zip(pads[: rank + 1], pads[rank + 1 :], strict=True)))
    return layer.add("Where", covered, laid, layer.x)


def diagonal(layer: NcnnLayer) -> Value:
    """A matrix of a vector, or the vector of a matrix, ``diagonal`` above the main one."""
    above, dims = layer.integer(0), layer.dims[1:]
    if len(dims) == 1:
        x = layer.add("Mul", layer.reshape(layer.x, 1, 1, -1), np.eye(dims[0], dtype=np.float32))
        return layer.add("Pad", x, layer.ints(0, max(-above, 0), max(above, 0), 0, max(above, 0), max(-above, 0)), 0.0)
    positions = np.arange(math.prod(dims), dtype=np.int64).reshape(dims).diagonal(above) if len(dims) == 2 else ()
    if not len(positions):
        raise RefusedError(f"{dims} has no diagonal {above}")
    return layer.add("Gather", layer.reshape(layer.x, 1, -1), np.ascontiguousarray(positions), axis=1)


def flip(layer: NcnnLayer) -> Value:
    axes = sorted({layer.inner(a, len(layer.dims)) for a in layer.integers(0)})
    count = len(axes)
    return layer.slice(layer.x, [-1] * count, [-(1 << 31)] * count, axes, [-1] * count)


def grid_sample(layer: NcnnLayer) -> Value:
    mode = {1: "linear", 2: "nearest", 3: "cubic"}.get(layer.integer(0, 1))
    padding = {1: "zeros", 2: "border", 3: "reflection"}.get(layer.integer(1, 1))
    rank = len(layer.dims)
    if mode is None or padding is None or len(layer.inputs) != 2 or rank not in (4, 5):
        raise RefusedError(
            f"sample_type {layer.integer(0, 1)} with padding_mode {layer.integer(1, 1)} is not supported"
        )
    grid = (
        layer.add("Transpose", layer.inputs[1], perm=(0, *range(2, rank), 1)) if layer.integer(3) else layer.inputs[1]
    )
    return sampled(layer, layer.x, grid, mode, padding, corners=bool(layer.integer(2)))


# --------------------------------------------------------------------------------------------- regions
def _region(layer: NcnnLayer) -> Value:
    if len(layer.inputs) != 2 or math.prod(layer.builder.dims(layer.inputs[1])) != 4:
        raise RefusedError("it takes a blob and one region of 4 numbers")
    return layer.reshape(layer.inputs[1], 1, 4)


def _numbered(layer: NcnnLayer) -> Value:
    """The region after the index of its image."""
    return layer.add("Concat", np.zeros((1, 1), np.float32), _region(layer), axis=1)


def roi_pooling(layer: NcnnLayer) -> Value:
    shape = (layer.integer(1), layer.integer(0))
    return layer.add("MaxRoiPool", layer.x, _numbered(layer), pooled_shape=shape, spatial_scale=layer.number(2, 1.0))


def position_sensitive(layer: NcnnLayer) -> Value:
    size, options = layer.integer(0, 7), {"output_dim": layer.integer(3), "spatial_scale": layer.number(2, 0.0625)}
    if layer.integer(1, 7) != size:
        raise RefusedError("bins that do not make a square are not supported")
    return layer.add("PsRoiPool", layer.x, _numbered(layer), group_size=size, **options)


def roi_align(layer: NcnnLayer) -> Value:
    """RoIAlign as in detectron2; the first version of ncnn clips every bin before it samples."""
    if layer.integer(5) != 1:
        raise RefusedError("version 0, which clips bins before it samples them, is not supported")
    centre = "half_pixel" if layer.integer(4) else "output_half_pixel"
    return layer.add(
        "RoiAlign",
        layer.x,
        _region(layer),
        np.zeros(1, np.int64),
        output_height=layer.integer(1),
        output_width=layer.integer(0),
        spatial_scale=layer.number(2, 1.0),
        sampling_ratio=layer.integer(3),
        coordinate_transformation_mode=centre,
    )


# ---------------------------------------------------------------------------------------------- sound
def spectrogram(layer: NcnnLayer) -> Value:
    """Fourier transforms of windows of a vector: [frequencies, frames], or [frequencies, frames, 2] of both parts."""
    n = layer.integer(0)
    power, hop, size = layer.integer(1), layer.integer(2, n // 4), layer.integer(3, n)
    x = layer.reshape(layer.x, 1, -1)
    if not 0 < size <= n <= _MAX_WINDOW or hop < 1 or power not in (0, 1, 2) or layer.integer(4) not in (0, 1, 2):
        raise RefusedError(f"windows of {size} in {n} samples by {hop} are not supported")
    if layer.integer(5, 1):
        mode = ("constant", "edge", "reflect")[layer.integer(6, 2)]
        x = layer.add("Pad", x, layer.ints(0, n // 2, 0, n // 2), 0.0 if mode == "constant" else None, mode=mode)
    if layer.builder.dims(x)[1] < n:
        raise RefusedError(f"{layer.builder.dims(x)[1]} samples are less than a window of {n}")
    window = layer.value(_window(n, size, layer.integer(4), layer.integer(7)))
    spectrum = decomposed(layer.builder, "STFT", [x, layer.ints(hop), window], 1, onesided=int(layer.integer(8, 1)))[0]
    spectrum = layer.add("Transpose", spectrum, perm=(0, 2, 1, 3))
    if not power:
        return spectrum
    energy = layer.add("ReduceSumSquare", spectrum, layer.ints(3), keepdims=0)
    return energy if power == 2 else layer.add("Sqrt", energy)


def _window(n: int, size: int, kind: int, normal: int) -> Array:
    """Ones, Hann's or Hamming's in the middle of n samples."""
    turn = np.cos(2 * np.pi * np.arange(size) / size)
    shape = (np.ones(size), 0.5 * (1 - turn), 0.54 - 0.46 * turn)[kind]
    window = np.pad(shape, ((n - size) // 2, n - size - (n - size) // 2))
    length = math.sqrt(n if normal == 1 else float(np.square(window).sum())) if normal else 1.0
    return np.asarray(window / length, np.float32)


DATA_MOVEMENT: dict[str, Callable[[NcnnLayer], Outputs]] = {
    "ArgMax": greatest,
    "CopyTo": copy_to,
    "CumulativeSum": lambda layer: layer.add("CumSum", layer.x, layer.ints(layer.along(0))),
    "Diag": diagonal,
    "Flip": flip,
    "GridSample": grid_sample,
    "ROIPooling": roi_pooling,
    "PSROIPooling": position_sensitive,
    "ROIAlign": roi_align,
    "Spectrogram": spectrogram,
}
