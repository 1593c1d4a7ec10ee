"""Caffe layers that move or reduce numbers: Concat, Slice, Reshape, Permute, Crop, Interp, ArgMax, Softmax ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions import caffe_family as family
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.caffe.node import CaffeLayer, Table
from tenon.network.graph.graph import Value


def _axis(layer: CaffeLayer, old: str) -> int:
    """The axis of Concat and Slice, by its current or its old name."""
    p = layer.p
    return layer.along(getattr(p, old) if p.has(old) else p.axis)


def concat(layer: CaffeLayer) -> Value:
    axis = _axis(layer, "concat_dim")
    return layer.x if len(layer.inputs) == 1 else layer.add("Concat", *layer.inputs, axis=axis)


def slices(layer: CaffeLayer) -> Sequence[Value]:
    return family.cut(layer, layer.x, _axis(layer, "slice_dim"), layer.p.slice_point, len(layer.message.top))


def flatten(layer: CaffeLayer) -> Value:
    dims = layer.dims
    first = layer.along(layer.p.axis)
    last = layer.along(layer.p.end_axis)
    if first > last:
        raise RefusedError(f"flattens from axis {first} to axis {last}")
    return layer.reshape(layer.x, *dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :])


def reshape(layer: CaffeLayer) -> Value:
    """The axes from ``axis`` on in another shape, of which 0 keeps an axis."""
    p, dims = layer.p, layer.dims
    first = p.axis if p.axis >= 0 else p.axis + len(dims) + 1
    last = len(dims) if p.num_axes < 0 else first + p.num_axes
    if not 0 <= first <= last <= len(dims):
        raise RefusedError(f"reshapes the axes {first} to {last} of {len(dims)}")
    wanted = list(p.shape.dim)
    for i, extent in enumerate(wanted):
        if extent == 0 and first + i >= len(dims):
            raise RefusedError(f"copies axis {first + i} of a blob that has {len(dims)}")
        wanted[i] = extent or dims[first + i]
    return layer.reshape(layer.x, *dims[:first], *wanted, *dims[last:])


def permute(layer: CaffeLayer) -> Value:
    """Axes that are not named stay behind the others."""
    rank, order = len(layer.dims), list(layer.p.order)
    return layer.add("Transpose", layer.x, perm=(*order, *(i for i in range(rank) if i not in order)))


def crop(layer: CaffeLayer) -> Value:
    """The first bottom cut to the extents of the second, from an axis on."""
    dims, wanted, first = layer.dims, layer.dims_of(1), layer.along(layer.p.axis)
    count, offsets = len(dims) - first, layer.p.offset or [0]
    offsets = offsets * count if len(offsets) == 1 else offsets
    if len(offsets) != count or len(wanted) != len(dims):
        raise RefusedError(f"has {len(offsets)} offsets to crop {count} axes of {list(dims)} to {list(wanted)}")
    ends = [o + w for o, w in zip(offsets, wanted[first:], strict=True)]
    if any(e > d for e, d in zip(ends, dims[first:], strict=True)):
        raise RefusedError(f"crops {list(dims)} to {list(wanted)} at {offsets}: that lies outside")
    return layer.slice(layer.x, offsets, ends, range(first, len(dims)))


def tile(layer: CaffeLayer) -> Value:
    axis, tiles = layer.along(layer.p.axis), layer.p.tiles
    if not 0 < tiles < 1 << 20:
        raise RefusedError(f"tiles {tiles} times")
    return layer.add("Tile", layer.x, layer.ints(*(tiles if i == axis else 1 for i in range(len(layer.dims)))))


def interp(layer: CaffeLayer) -> Value:
    """Bilinear with aligned corners, after cropping (a negative padding) the borders."""
    begin, end, (*_, h, w) = layer.p.pad_beg, layer.p.pad_end, layer.image(layer.x)
    if begin > 0 or end > 0 or h + begin + end < 1 or w + begin + end < 1:
        raise RefusedError(f"pads {h} by {begin} and {end}", "Caffe's Interp can only cut")
    x = layer.slice(layer.x, [-begin] * 2, [h + end, w + end], [2, 3]) if begin or end else layer.x
    height, width = (_interpolated(layer, n + begin + end, side) for n, side in ((h, "height"), (w, "width")))
    return layer.resize(x, height, width, "linear", "align_corners")


def _interpolated(layer: CaffeLayer, extent: int, side: str) -> int:
    """The new extent of a side: that of the second bottom, the given one, or a multiple."""
    p = layer.p
    if len(layer.inputs) > 1:
        return layer.dims_of(1)[2 if side == "height" else 3]
    if getattr(p, side):
        return int(getattr(p, side))
    if p.shrink_factor < 1 or p.zoom_factor < 1:
        raise RefusedError(f"zooms by {p.zoom_factor} and shrinks by {p.shrink_factor}")
    extent = (extent - 1) // p.shrink_factor + 1
    return int(extent + (extent - 1) * (p.zoom_factor - 1))


def upsample(layer: CaffeLayer) -> Value:
    """The nearest element; with a second bottom, SegNet's max-unpooling with indices."""
    p, (*_, h, w) = layer.p, layer.image(layer.x)
    size = h * (p.scale_h or p.scale) - bool(p.pad_out_h), w * (p.scale_w or p.scale) - bool(p.pad_out_w)
    if p.upsample_h and p.upsample_w:
        size = p.upsample_h, p.upsample_w
    return _unpooled(layer, size) if len(layer.inputs) > 1 else layer.resize(layer.x, *size, "nearest", "asymmetric")


def _unpooled(layer: CaffeLayer, size: Sequence[int]) -> Value:
    """Zeros, but for the elements of the first bottom at the indices within their plane that the second gives."""
    planes, plane = math.prod(layer.dims[:2]), math.prod(size)
    if layer.dims_of(1) != layer.dims or min(size) < 1 or planes * plane >= 1 << 31:
        raise RefusedError(f"spreads {list(layer.dims)} by the mask {list(layer.dims_of(1))} to {list(size)}")
    starts = np.arange(planes, dtype=np.int64).reshape(*layer.dims[:2], 1, 1) * plane
    indices = layer.add("Add", layer.add("Cast", layer.input(1), to="i64"), starts)
    flat = [layer.reshape(value, -1) for value in (indices, layer.x)]
    result = layer.add("ScatterElements", np.zeros(planes * plane, np.float32), *flat)
    return layer.reshape(result, *layer.dims[:2], *size)


def arg_max(layer: CaffeLayer) -> Value:
    """Indices as floats; without an axis, of each item, flattened, in a blob [N, 1 or 2, top_k]."""
    p, flat = layer.p, not layer.p.has("axis")
    x = layer.reshape(layer.x, layer.dims[0], 1, -1) if flat else layer.x
    where, most = _largest(layer, x, 2 if flat else layer.along(p.axis))
    if not p.out_max_val:
        return where
    return layer.add("Concat", where, most, axis=1) if flat else most


def _largest(layer: CaffeLayer, x: Value, axis: int) -> tuple[Value, Value]:
    """(indices as floats, values) of the ``top_k`` largest elements along an axis."""
    count = layer.p.top_k
    if not 0 < count <= layer.builder.dims(x)[axis]:
        raise RefusedError(f"takes the {count} largest of {layer.builder.dims(x)[axis]}")
    if count == 1:
        where, most = layer.add("ArgMax", x, axis=axis), layer.add("ReduceMax", x, layer.ints(axis))
    else:
        most, where = layer.builder.adds("TopK", 2, x, layer.ints(count), axis=axis)
    return layer.add("Cast", where, to="f32"), most


_REDUCTIONS = {"SUM": "ReduceSum", "ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}


def reduction(layer: CaffeLayer) -> Value:
    p, axes = layer.p, range(layer.along(layer.p.axis), len(layer.dims))
    y = layer.add(_REDUCTIONS[p.operation], layer.x, layer.ints(*axes), keepdims=0)
    return family.affine(layer, y, p.coeff, 0.0)


LAYERS: Table = {
    "ArgMax": ("argmax_param", arg_max),
    "Concat": ("concat_param", concat),
    "Crop": ("crop_param", crop),
    "Flatten": ("flatten_param", flatten),
    "Interp": ("interp_param", interp),
    "Parameter": ("parameter_param", lambda layer: layer.weights(0, tuple(layer.p.shape.dim))),
    "Permute": ("permute_param", permute),
    "Reduction": ("reduction_param", reduction),
    "Reorg": ("reorg_param", lambda layer: family.reorg(layer, layer.x, layer.p.stride, reverse=layer.p.reverse)),
    "Reshape": ("reshape_param", reshape),
    "ShuffleChannel": ("shuffle_channel_param", lambda layer: layer.channel_shuffle(layer.x, layer.p.group)),
    "Slice": ("slice_param", slices),
    "Softmax": ("softmax_param", lambda layer: layer.add("Softmax", layer.x, axis=layer.along(layer.p.axis))),
    "Split": ("", lambda layer: [layer.x] * len(layer.message.top)),
    "Tile": ("tile_param", tile),
    "Upsample": ("upsample_param", upsample),
}
