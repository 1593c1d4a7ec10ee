"""MXNet's operators that pick, sort, repeat and sample elements, make constants, or are parts of attention.

Definitions: the symbol API of MXNet 1.x, src/operator of apache/mxnet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.decompositions.layers import adaptive_pool, affine_grid, deformed, sampled, unfolded
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.mxnet.context import Context
from tenon.ir.graph import Value

MOST = 1 << 26
"""Elements of a constant that is written out."""

_NUMPY = {"float32": "f4", "float64": "f8", "float16": "f4", "int32": "i4", "int64": "i8", "uint8": "u1", "int8": "i1"}


def _whole(c: Context, value: Value) -> Value:
    return c.add("Cast", value, to="i64")


# ------------------------------------------------------------------------------------------------------ constants
def _filled(c: Context, dims: Sequence[int], number: float) -> Value:
    if any(d < 0 for d in dims) or math.prod(dims) > MOST:
        raise RefusedError(f"the shape {list(dims)} is impossible")
    return c.builder.constant(np.full(tuple(dims), number, _NUMPY.get(c.text("dtype", "float32"), "f4")), "filled")


def filled(number: float | None) -> Callable[[Context], Value]:
    return lambda c: _filled(c, c.numbers("shape"), c.number("value") if number is None else number)


def filled_like(number: float) -> Callable[[Context], Value]:
    return lambda c: _filled(c, c.dims, number)


def counted(c: Context) -> Value:
    start, step, repeat = c.number("start"), c.number("step", 1.0), c.integer("repeat", 1)
    stop = c.number("stop", math.nan)
    start, stop = (0.0, start) if math.isnan(stop) else (start, stop)
    if not step or repeat < 1 or abs((stop - start) / step) * repeat > MOST:
        raise RefusedError(f"a range from {start} to {stop} by {step} is impossible")
    numbers = np.repeat(np.arange(start, stop, step), repeat)
    return c.builder.constant(numbers.astype(_NUMPY.get(c.text("dtype", "float32"), "f4")), "range")


def counted_like(c: Context) -> Value:
    """As many numbers as the input has elements, or as one of its axes has."""
    start, step, repeat = c.number("start"), c.number("step", 1.0), max(1, c.integer("repeat", 1))
    every = c.text("axis", "None") == "None"
    count = math.prod(c.dims) if every else c.dims[c.axis(c.integer("axis"), len(c.dims))]
    numbers = (start + step * (np.arange(count) // repeat)).astype(np.float32)
    return c.builder.constant(numbers.reshape(c.dims) if every else numbers, "range")


# ------------------------------------------------------------------------------------------------- shapes of others
def slice_like(c: Context) -> Value:
    like, rank = c.builder.dims(c.parameter(1)), len(c.dims)
    axes = [c.axis(a, rank) for a in c.numbers("axes")] or list(range(rank))
    return c.slice(c.x, [0] * len(axes), [like[a] for a in axes], axes)


def broadcast_like(c: Context) -> Value:
    like, dims = c.builder.dims(c.parameter(1)), list(c.dims)
    ours, theirs = c.numbers("lhs_axes", range(len(dims))), c.numbers("rhs_axes", range(len(like)))
    for a, b in zip(ours, theirs, strict=True):
        dims[a] = like[b]
    return c.add("Expand", c.x, c.ints(*dims))


def broadcast_axis(c: Context) -> Value:
    dims = list(c.dims)
    for axis, size in zip(c.numbers("axis"), c.numbers("size"), strict=True):
        dims[c.axis(axis, len(dims))] = size
    return c.add("Expand", c.x, c.ints(*dims))


def broadcast_to(c: Context) -> Value:
    return c.add("Expand", c.x, c.ints(*(s or n for s, n in zip(c.numbers("shape"), c.dims, strict=True))))


def repeat(c: Context) -> Value:
    times = c.integer("repeats", 1)
    every = c.text("axis", "None") == "None"
    x = c.reshape(c.x, -1) if every else c.x
    dims = c.builder.dims(x)
    axis = 0 if every else c.axis(c.integer("axis"), len(dims))
    if not 0 < times * math.prod(dims) <= MOST:
        raise RefusedError(f"{times} times {list(dims)} is too much")
    return c.add("Gather", x, np.repeat(np.arange(dims[axis]), times).astype(np.int64), axis=axis)


def reverse(c: Context) -> Value:
    axes = [c.axis(a, len(c.dims)) for a in c.numbers("axis")]
    return c.slice(c.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


# ------------------------------------------------------------------------------------------------ picking, sorting
def one_hot(c: Context) -> Value:
    values = np.array([c.number("off_value", 0.0), c.number("on_value", 1.0)], np.float32)
    return c.add("OneHot", _whole(c, c.x), c.ints(c.integer("depth", 1)), values, axis=-1)


def pick(c: Context) -> Value:
    """One element of every line of an axis; numbers past its ends mean the ends."""
    axis = c.axis(c.integer("axis", -1), len(c.dims))
    index = c.parameter(1)
    if len(c.builder.dims(index)) < len(c.dims):
        index = c.add("Unsqueeze", index, c.ints(axis))
    index = _whole(c, c.add("Clip", c.add("Cast", index, to="f32"), 0.0, float(c.dims[axis] - 1)))
    found = c.add("GatherElements", c.x, index, axis=axis)
    return found if c.flag("keepdims") else c.add("Squeeze", found, c.ints(axis))


def top_k(c: Context) -> Made:
    """Values, places (as f32) or both; a mask has ones at the places."""
    every = c.text("axis", "-1") == "None"
    x = c.reshape(c.x, -1) if every else c.x
    axis = 0 if every else c.axis(c.integer("axis", -1), len(c.dims))
    size, kind = c.builder.dims(x)[axis], c.text("ret_typ", "indices")
    k = c.integer("k", 1)
    ascending = {"largest": int(not c.flag("is_ascend"))}
    values, places = c.builder.adds("TopK", 2, x, c.ints(k if 0 < k < size else size), axis=axis, **ascending)
    if kind == "mask":
        zeros, ones = np.zeros(c.builder.dims(x), np.float32), np.ones(c.builder.dims(places), np.float32)
        return c.add("ScatterElements", zeros, places, ones, axis=axis)
    numbers = c.add("Cast", places, to="f32")
    if kind not in ("value", "indices", "both"):
        raise RefusedError(f"ret_typ {kind} is not supported")
    return [values, numbers] if kind == "both" else values if kind == "value" else numbers


def ordered(which: int) -> Callable[[Context], Value]:
    """Sorted values (0), or where they were (1)."""

    def made(c: Context) -> Value:
        axis = c.axis(c.integer("axis", -1), len(c.dims))
        largest = {"largest": int(not c.flag("is_ascend", True))}
        found = c.builder.adds("TopK", 2, c.x, c.ints(c.dims[axis]), axis=axis, **largest)[which]
        return c.add("Cast", found, to="f32") if which else found

    return made


def _places(c: Context, value: Value) -> Value:
    """Coordinates that stand along the first axis, moved to the last."""
    rank = len(c.builder.dims(value))
    return c.add("Transpose", _whole(c, value), perm=(*range(1, rank), 0))


def gather_nd(c: Context) -> Value:
    return c.add("GatherND", c.x, _places(c, c.parameter(1)))


def scatter_nd(c: Context) -> Value:
    return c.add("ScatterND", _filled(c, c.numbers("shape"), 0.0), _places(c, c.parameter(1)), c.x)


def batch_take(c: Context) -> Value:
    index = c.reshape(_whole(c, c.parameter(1)), -1, 1)
    return c.reshape(c.add("GatherElements", c.reshape(c.x, -1, c.dims[-1]), index, axis=1), -1)


# ------------------------------------------------------------------------------------------------------ sequences
def _lengths(c: Context) -> Value | None:
    return c.parameter(1) if c.flag("use_sequence_length") and len(c.names) > 1 else None


def _times(c: Context) -> tuple[int, np.ndarray]:
    """The axis of time (0 or 1), and the number of every step, shaped [T, 1, ...] or [1, T, ...]."""
    axis = c.integer("axis")
    if axis not in (0, 1):
        raise RefusedError(f"time along axis {axis} is not supported")
    shape = [1] * len(c.dims)
    shape[axis] = -1
    return axis, np.arange(c.dims[axis], dtype=np.float32).reshape(shape)


def _of_batch(c: Context, lengths: Value, axis: int) -> Value:
    shape = [1] * len(c.dims)
    shape[1 - axis] = -1
    return c.reshape(c.add("Cast", lengths, to="f32"), *shape)


def sequence_mask(c: Context) -> Value:
    lengths = _lengths(c)
    if lengths is None:
        return c.x
    axis, steps = _times(c)
    return c.add("Where", c.add("Less", steps, _of_batch(c, lengths, axis)), c.x, c.number("value"))


def sequence_reverse(c: Context) -> Value:
    lengths = _lengths(c)
    if lengths is None:
        return c.slice(c.x, [-1], [-(2**31)], [c.integer("axis")], [-1])
    axis, _ = _times(c)
    return c.add("ReverseSequence", c.x, _whole(c, lengths), time_axis=axis, batch_axis=1 - axis)


def sequence_last(c: Context) -> Value:
    lengths = _lengths(c)
    axis, steps = _times(c)
    if lengths is None:
        return c.add("Squeeze", c.slice(c.x, [c.dims[axis] - 1], [c.dims[axis]], [axis]), c.ints(axis))
    last = c.add("Equal", c.add("Sub", _of_batch(c, lengths, axis), 1.0), steps)
    return c.add("ReduceSum", c.add("Where", last, c.x, 0.0), c.ints(axis), keepdims=0)


# -------------------------------------------------------------------------------------------------------- sampling
def adaptive(c: Context) -> Value:
    sizes = c.numbers("output_size", (1,))
    return adaptive_pool(c, c.x, sizes if len(sizes) == 2 else sizes * 2, average=True)


def grid(c: Context) -> Value:
    """[N, 2, h, w]: of affine matrices, or of how far every pixel is moved."""
    if c.text("transform_type", "affine") == "affine":
        size = c.numbers("target_shape")
        if len(size) != 2:
            raise RefusedError(f"target_shape {size} is not that of a picture")
        return c.add("Transpose", affine_grid(c, c.x, (size[0], size[1])), perm=(0, 3, 1, 2))
    _, _, h, w = c.dims
    rows, columns = np.mgrid[:h, :w].astype(np.float32)
    half = np.array([max(w - 1, 1) / 2, max(h - 1, 1) / 2], np.float32).reshape(1, 2, 1, 1)
    moved = c.add("Add", c.x, np.stack([columns, rows])[None])
    return c.add("Sub", c.add("Div", moved, half), 1.0)


def bilinear_sampler(c: Context) -> Value:
    places = c.add("Transpose", c.parameter(1), perm=(0, 2, 3, 1))
    return sampled(c, c.x, places, "linear", "zeros", corners=True)


def spatial_transformer(c: Context) -> Value:
    size = c.numbers("target_shape") or list(c.dims[2:])
    if c.text("transform_type", "affine") != "affine" or c.text("sampler_type", "bilinear") != "bilinear":
        raise RefusedError("only affine transformations with linear sampling are supported")
    return sampled(c, c.x, affine_grid(c, c.parameter(1), (size[0], size[1])), "linear", "zeros", corners=True)


def deformable(c: Context) -> Value:
    """With factors for every sample (modulated) or without."""
    kernel, outputs, group = c.numbers("kernel"), c.integer("num_filter", 1), max(1, c.integer("num_group", 1))
    ones, modulated = [1] * len(kernel), c.kind.startswith("_contrib_Modulated")
    at = 3 if modulated else 2
    weights = c.parameter(at, outputs, c.dims[1] // group, *kernel)
    bias = None if c.flag("no_bias") or len(c.names) <= at + 1 else c.parameter(at + 1, outputs)
    window: dict[str, Any] = {
        "strides": c.numbers("stride", ones),
        "dilations": c.numbers("dilate", ones),
        "group": group,
        "pads": c.numbers("pad", [0] * len(kernel)) * 2,
    }
    offsets, factors = (c.parameter(1), c.parameter(2)) if modulated else _within(c, window)
    inputs = [c.x, weights, offsets, bias, factors]
    return deformed(c, inputs, window, max(1, c.integer("num_deformable_group", 1)))


def _within(c: Context, window: Mapping[str, Any]) -> tuple[Value, Value]:
    """The offsets of the first version, and factors: places outside of the picture count nothing there, and what lies
    in its last row or column is not mixed with what is beyond."""
    offsets, kernel = c.parameter(1), c.numbers("kernel")
    n, channels, *out = c.builder.dims(offsets)
    taps = math.prod(kernel)
    if len(kernel) != 2 or channels % (2 * taps):
        raise RefusedError(f"{channels} offsets do not fit windows of {kernel}")
    grids = np.indices((*kernel, *out)).reshape(4, taps, *out)
    base = np.stack(
        [grids[2 + i] * window["strides"][i] - window["pads"][i] + grids[i] * window["dilations"][i] for i in (0, 1)], 1
    ).astype(np.float32)
    last = np.array([size - 1 for size in c.dims[2:]], np.float32).reshape(2, 1, 1)
    place = c.add("Add", c.reshape(offsets, n, -1, taps, 2, *out), base)
    there = c.add("And", c.add("GreaterOrEqual", place, 0.0), c.add("Less", place, last + 1))
    inside = c.add("Min", c.add("Max", place, 0.0), last)
    factors = c.add("ReduceProd", c.add("Cast", there, to="f32"), c.ints(3), keepdims=0)
    return c.reshape(c.add("Sub", inside, base), *c.builder.dims(offsets)), c.reshape(factors, n, channels // 2, *out)


def columns(c: Context) -> Value:
    kernel = c.numbers("kernel")
    ones = [1] * len(kernel)
    return unfolded(
        c, c.x, kernel, c.numbers("stride", ones), c.numbers("pad", [0] * len(kernel)) * 2, c.numbers("dilate", ones)
    )


# ------------------------------------------------------------------------------------------------------- attention
def _heads(c: Context, count: int, of: int, which: Sequence[int]) -> list[Value]:
    """Parts of [L, N, heads * parts * d] as [N * heads, L, d] each."""
    length, batch, width = c.dims
    if count < 1 or width % (count * of):
        raise RefusedError(f"{width} numbers do not make {count} heads of {of} parts")
    size = width // (count * of)
    x = c.add("Transpose", c.reshape(c.x, length, batch * count, of, size), perm=(2, 1, 0, 3))
    return [c.add("Gather", x, np.array(k, np.int64), axis=0) for k in which]


def attention_scores(c: Context) -> Value:
    """Queries times keys that lie beside values, over the root of their length."""
    queries, keys = _heads(c, c.integer("heads", 1), 3, (0, 1))
    scaled = c.add("Mul", queries, 1 / math.sqrt(c.builder.dims(queries)[-1]))
    return c.add("MatMul", scaled, c.add("Transpose", keys, perm=(0, 2, 1)))


def attention_values(c: Context) -> Value:
    (values,) = _heads(c, c.integer("heads", 1), 3, (2,))
    length, batch, width = c.dims
    made = c.add("Transpose", c.add("MatMul", c.parameter(1), values), perm=(1, 0, 2))
    return c.reshape(made, length, batch, width // 3)


def product(c: Context) -> Value:
    """linalg_gemm2, and linalg_gemm with a third matrix added."""
    sides = []
    for value, name in zip((c.x, c.parameter(1)), ("transpose_a", "transpose_b"), strict=True):
        rank = len(c.builder.dims(value))
        swap = (*range(rank - 2), rank - 1, rank - 2)
        sides.append(c.add("Transpose", value, perm=swap) if c.flag(name) else value)
    y = c.add("Mul", c.add("MatMul", *sides), c.number("alpha", 1.0))
    return c.add("Add", y, c.add("Mul", c.parameter(2), c.number("beta", 1.0))) if len(c.names) > 2 else y


ELEMENTS: dict[str, Callable[[Context], Made]] = {
    **dict.fromkeys(("_zeros", "_zeros_without_dtype"), filled(0.0)),
    "_ones": filled(1.0),
    "_full": filled(None),
    "zeros_like": filled_like(0.0),
    "ones_like": filled_like(1.0),
    "_arange": counted,
    "_contrib_arange_like": counted_like,
    "slice_like": slice_like,
    "broadcast_like": broadcast_like,
    **dict.fromkeys(("broadcast_axis", "broadcast_axes"), broadcast_axis),
    "broadcast_to": broadcast_to,
    "reshape_like": lambda c: c.reshape(c.x, *c.builder.dims(c.parameter(1))),
    "shape_array": lambda c: c.builder.constant(np.array(c.dims, np.int64), "shape"),
    "size_array": lambda c: c.builder.constant(np.array([math.prod(c.dims)], np.int64), "size"),
    "repeat": repeat,
    **dict.fromkeys(("reverse", "flip"), reverse),
    "one_hot": one_hot,
    "pick": pick,
    "topk": top_k,
    "sort": ordered(0),
    "argsort": ordered(1),
    "gather_nd": gather_nd,
    "scatter_nd": scatter_nd,
    "batch_take": batch_take,
    "SequenceMask": sequence_mask,
    "SequenceReverse": sequence_reverse,
    "SequenceLast": sequence_last,
    "_contrib_AdaptiveAvgPooling2D": adaptive,
    "GridGenerator": grid,
    "BilinearSampler": bilinear_sampler,
    "SpatialTransformer": spatial_transformer,
    "im2col": columns,
    **dict.fromkeys(("_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution"), deformable),
    "_contrib_div_sqrt_dim": lambda c: c.add("Mul", c.x, 1 / math.sqrt(c.dims[-1])),
    "_contrib_interleaved_matmul_selfatt_qk": attention_scores,
    "_contrib_interleaved_matmul_selfatt_valatt": attention_values,
    **dict.fromkeys(("linalg_gemm2", "_linalg_gemm2", "linalg_gemm", "_linalg_gemm"), product),
}
