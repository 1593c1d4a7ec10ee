"""Caffe layers that move or reduce numbers: Concat, Slice, Reshape, Permute, Crop, Interp, ArgMax, Softmax ..."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.frontends.caffe.layer import Layer, Tops
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Value


def concat(layer: Layer) -> Value:
    parameter = layer.message.concat_param
    axis = layer.axis(parameter.concat_dim if parameter.has("concat_dim") else parameter.axis)
    return layer.x if len(layer.bottoms) == 1 else layer.add("Concat", *layer.bottoms, axis=axis)


def slices(layer: Layer) -> Sequence[Value]:
    parameter, count = layer.message.slice_param, len(layer.message.top)
    axis = layer.axis(parameter.slice_dim if parameter.has("slice_dim") else parameter.axis)
    extent, points = layer.dims()[axis], list(parameter.slice_point)
    if not points and extent % count == 0:
        points = [extent // count * i for i in range(1, count)]
    sizes = np.diff([0, *points, extent])
    if len(points) != count - 1 or min(sizes) < 1:
        raise RefusedError(f"cuts {extent} at {points} to make {count} tops")
    if count == 1:
        return [layer.x]
    return layer.net.adds("Split", count, layer.x, layer.net.ints(*map(int, sizes)), axis=axis)


def flatten(layer: Layer) -> Value:
    parameter, dims = layer.message.flatten_param, layer.dims()
    first, last = layer.axis(parameter.axis), layer.axis(parameter.end_axis)
    if first > last:
        raise RefusedError(f"flattens from axis {first} to axis {last}")
    return layer.reshape(layer.x, (*dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :]))


def reshape(layer: Layer) -> Value:
    parameter, dims = layer.message.reshape_param, layer.dims()
    first = layer.axis(parameter.axis, end=1) if parameter.axis >= 0 else parameter.axis + len(dims) + 1
    last = len(dims) if parameter.num_axes < 0 else first + parameter.num_axes
    if not 0 <= first <= last <= len(dims):
        raise RefusedError(f"reshapes the axes {first} to {last} of {len(dims)}")
    wanted = list(parameter.shape.dim)
    for i, extent in enumerate(wanted):
        if extent == 0:
            if first + i >= len(dims):
                raise RefusedError(f"copies axis {first + i} of a blob that has {len(dims)}")
            wanted[i] = dims[first + i]
    return layer.reshape(layer.x, (*dims[:first], *wanted, *dims[last:]))


def permute(layer: Layer) -> Value:
    rank = len(layer.dims())
    order = list(layer.message.permute_param.order)
    if len(set(order)) != len(order) or any(i >= rank for i in order):
        raise RefusedError(f"has the order {order} for {rank} axes")
    return layer.add("Transpose", layer.x, perm=(*order, *(i for i in range(rank) if i not in order)))


def crop(layer: Layer) -> Value:
    """The first bottom cut to the extents of the second, from an axis on."""
    parameter, dims, wanted = layer.message.crop_param, layer.dims(), layer.dims(1)
    first = layer.axis(parameter.axis)
    count = len(dims) - first
    offsets = list(parameter.offset) or [0]
    offsets = offsets * count if len(offsets) == 1 else offsets
    if len(offsets) != count or len(wanted) != len(dims):
        raise RefusedError(f"has {len(offsets)} offsets to crop {count} axes of {list(dims)} to {list(wanted)}")
    ends = [o + w for o, w in zip(offsets, wanted[first:], strict=True)]
    if any(e > d for e, d in zip(ends, dims[first:], strict=True)):
        raise RefusedError(f"crops {list(dims)} to {list(wanted)} at {offsets}: that lies outside")
    ints = layer.net.ints
    return layer.add("Slice", layer.x, ints(*offsets), ints(*ends), ints(*range(first, len(dims))))


def tile(layer: Layer) -> Value:
    parameter, rank = layer.message.tile_param, len(layer.dims())
    axis = layer.axis(parameter.axis)
    if not 0 < parameter.tiles < 1 << 20:
        raise RefusedError(f"tiles {parameter.tiles} times")
    return layer.add("Tile", layer.x, layer.net.ints(*(parameter.tiles if i == axis else 1 for i in range(rank))))


def shuffle_channel(layer: Layer) -> Value:
    dims, group = layer.dims(), layer.message.shuffle_channel_param.group
    if not group or dims[1] % group:
        raise RefusedError(f"shuffles {dims[1]} channels in {group} groups")
    split = layer.reshape(layer.x, (dims[0], group, dims[1] // group, *dims[2:]))
    mixed = layer.add("Transpose", split, perm=(0, 2, 1, *range(3, len(dims) + 1)))
    return layer.reshape(mixed, dims)


def reorg(layer: Layer) -> Value:
    """Darknet's: squares of pixels become channels, in the order that its weights were trained with.

    Darknet takes the buffer [C, H, W] for one of [C / s², H s, W s], gathers squares of that, and calls the result
    [C s², H / s, W / s].
    """
    parameter, (n, c, h, w) = layer.message.reorg_param, _four(layer)
    s = parameter.stride
    if not s or c % (s * s) or (not parameter.reverse and (h % s or w % s)):
        raise RefusedError(f"cuts [{c}, {h}, {w}] in squares of {s}")
    if parameter.reverse:
        y = layer.add("DepthToSpace", layer.x, blocksize=s, mode="DCR")
        return layer.reshape(y, (n, c // (s * s), h * s, w * s))
    wide = layer.reshape(layer.x, (n, c // (s * s), h * s, w * s))
    return layer.reshape(layer.add("SpaceToDepth", wide, blocksize=s), (n, c * s * s, h // s, w // s))


def _four(layer: Layer) -> tuple[int, int, int, int]:
    dims = layer.dims()
    if len(dims) != 4:
        raise RefusedError(f"needs a blob of four axes, not {list(dims)}")
    return dims[0], dims[1], dims[2], dims[3]


def interp(layer: Layer) -> Value:
    """Bilinear, corner on corner, after cutting (a negative padding) the borders."""
    parameter, (_, _, h, w) = layer.message.interp_param, _four(layer)
    begin, end = parameter.pad_beg, parameter.pad_end
    if begin > 0 or end > 0 or h + begin + end < 1 or w + begin + end < 1:
        raise RefusedError(f"pads {h} by {begin} and {end}", "Caffe's Interp can only cut")
    x = layer.x
    if begin or end:
        ints = layer.net.ints
        x = layer.add("Slice", x, ints(-begin, -begin), ints(h + end, w + end), ints(2, 3))
    size = [_interpolated(layer, n + begin + end, i) for i, n in enumerate((h, w))]
    return resized(layer, x, size, "linear", "align_corners")


def _interpolated(layer: Layer, extent: int, i: int) -> int:
    parameter = layer.message.interp_param
    if len(layer.bottoms) > 1:
        return layer.dims(1)[2 + i]
    given = (parameter.height, parameter.width)[i]
    if given:
        return int(given)
    if parameter.shrink_factor < 1 or parameter.zoom_factor < 1:
        raise RefusedError(f"zooms by {parameter.zoom_factor} and shrinks by {parameter.shrink_factor}")
    extent = (extent - 1) // parameter.shrink_factor + 1
    return int(extent + (extent - 1) * (parameter.zoom_factor - 1))


def resized(layer: Layer, x: Value, size: Sequence[int], mode: str, where: str) -> Value:
    dims = layer.net.dims(x)
    if min(size) < 1 or max(size) > 1 << 16:
        raise RefusedError(f"resizes to {list(size)}")
    options = {"mode": mode, "coordinate_transformation_mode": where, "nearest_mode": "floor"}
    return layer.add("Resize", x, None, None, layer.net.ints(*dims[:2], *size), **options)


def upsample(layer: Layer) -> Value:
    """The nearest element; with a second bottom, SegNet's layer, which undoes a pooling."""
    parameter, (_, _, h, w) = layer.message.upsample_param, _four(layer)
    size = [
        h * (parameter.scale_h or parameter.scale) - bool(parameter.pad_out_h),
        w * (parameter.scale_w or parameter.scale) - bool(parameter.pad_out_w),
    ]
    if parameter.upsample_h and parameter.upsample_w:
        size = [parameter.upsample_h, parameter.upsample_w]
    if len(layer.bottoms) > 1:
        return _unpooled(layer, size)
    return resized(layer, layer.x, size, "nearest", "asymmetric")


def _unpooled(layer: Layer, size: Sequence[int]) -> Value:
    """Zeros, but for the elements of the first bottom where the second says that the maxima were in their plane."""
    n, channels = layer.dims()[:2]
    if layer.dims(1) != layer.dims() or min(size) < 1 or n * channels * math.prod(size) >= 1 << 31:
        raise RefusedError(f"spreads {list(layer.dims())} by the mask {list(layer.dims(1))} to {list(size)}")
    planes = np.arange(n * channels, dtype=np.int64).reshape(n, channels, 1, 1) * math.prod(size)
    places = layer.add("Add", layer.add("Cast", layer.bottom(1), to="i64"), layer.net.constant(planes, "planes"))
    zeros = layer.net.constant(np.zeros(n * channels * math.prod(size), np.float32), "zeros")
    flat = [layer.reshape(value, (-1,)) for value in (places, layer.x)]
    return layer.reshape(layer.add("ScatterElements", zeros, *flat), (n, channels, *size))


def softmax(layer: Layer) -> Value:
    return layer.add("Softmax", layer.x, axis=layer.axis(layer.message.softmax_param.axis))


def arg_max(layer: Layer) -> Value:
    """Indices as floats; without an axis, of each item, flattened, in a blob [N, 1 or 2, top_k]."""
    parameter, dims = layer.message.argmax_param, layer.dims()
    if parameter.has("axis"):
        where, most = _largest(layer, layer.x, layer.axis(parameter.axis))
        return most if parameter.out_max_val else where
    where, most = _largest(layer, layer.reshape(layer.x, (dims[0], 1, math.prod(dims[1:]))), 2)
    return layer.add("Concat", where, most, axis=1) if parameter.out_max_val else where


def _largest(layer: Layer, x: Value, axis: int) -> tuple[Value, Value]:
    """(indices as floats, values) of the ``top_k`` largest elements along an axis."""
    count = layer.message.argmax_param.top_k
    if not 0 < count <= layer.net.dims(x)[axis]:
        raise RefusedError(f"takes the {count} largest of {layer.net.dims(x)[axis]}")
    if count == 1:
        where, most = layer.add("ArgMax", x, axis=axis), layer.add("ReduceMax", x, layer.net.ints(axis))
    else:
        most, where = layer.net.adds("TopK", 2, x, layer.net.ints(count), axis=axis)
    return layer.add("Cast", where, to="f32"), most


def reduction(layer: Layer) -> Value:
    parameter, dims = layer.message.reduction_param, layer.dims()
    axis = layer.axis(parameter.axis)
    types = {"SUM": "ReduceSum", "ASUM": "ReduceL1", "SUMSQ": "ReduceSumSquare", "MEAN": "ReduceMean"}
    axes = layer.net.ints(*range(axis, len(dims)))
    y = layer.add(types[parameter.operation], layer.x, axes, keepdims=0)
    return y if parameter.coeff == 1 else layer.add("Mul", y, layer.net.scalar(float(parameter.coeff)))


def split(layer: Layer) -> Sequence[Value]:
    return [layer.x] * len(layer.message.top)


def parameter(layer: Layer) -> Value:
    return layer.weights(0, tuple(layer.message.parameter_param.shape.dim))


LAYERS: dict[str, Callable[[Layer], Tops]] = {
    "ArgMax": arg_max,
    "Concat": concat,
    "Crop": crop,
    "Flatten": flatten,
    "Interp": interp,
    "Parameter": parameter,
    "Permute": permute,
    "Reduction": reduction,
    "Reorg": reorg,
    "Reshape": reshape,
    "ShuffleChannel": shuffle_channel,
    "Slice": slices,
    "Softmax": softmax,
    "Split": split,
    "Tile": tile,
    "Upsample": upsample,
}
