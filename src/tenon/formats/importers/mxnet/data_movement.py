"""MXNet's operators that pick, sort, repeat and sample elements, make constants, or are parts of attention.

Definitions: the symbol API of MXNet 1.x, src/operator of apache/mxnet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions import layers
from tenon.formats.decompositions.layers import adaptive_pool, affine_grid, deformed, sampled, unfolded
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.network.graph.graph import Value

MAX_ELEMENTS = 1 << 26
"""Elements of a constant that is written out."""

_NUMPY = {"float32": "f4", "float64": "f8", "float16": "f4", "int32": "i4", "int64": "i8", "uint8": "u1", "int8": "i1"}


def _whole(node: MxnetNode, value: Value) -> Value:
    return node.add("Cast", value, to="i64")


def limited(node: MxnetNode, index: Value, size: int, mode: str) -> Value:
    """Indices into ``size`` elements as i64: clamped ("clip"), modulo the size ("wrap"), or as they are."""
    index = _whole(node, index)
    if mode == "wrap":
        return node.add("Mod", index, np.array(size, np.int64))
    if mode == "clip":
        return node.add("Clip", index, np.array(0, np.int64), np.array(size - 1, np.int64))
    return index


# ------------------------------------------------------------------------------------------------------ constants
def _filled(node: MxnetNode, dims: Sequence[int], number: float) -> Value:
    if any(d < 0 for d in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise RefusedError(f"the shape {list(dims)} is impossible")
    return node.builder.constant(
        np.full(tuple(dims), number, _NUMPY.get(node.text("dtype", "float32"), "f4")), "filled"
    )


def filled(number: float | None) -> Callable[[MxnetNode], Value]:
    return lambda node: _filled(node, node.integers("shape"), node.number("value") if number is None else number)


def filled_like(number: float) -> Callable[[MxnetNode], Value]:
    return lambda node: _filled(node, node.dims, number)


def counted(node: MxnetNode) -> Value:
    start, step, repeat = node.number("start"), node.number("step", 1.0), node.integer("repeat", 1)
    stop = node.number("stop", math.nan)
    start, stop = (0.0, start) if math.isnan(stop) else (start, stop)
    if not step or repeat < 1 or abs((stop - start) / step) * repeat > MAX_ELEMENTS:
        raise RefusedError(f"a range from {start} to {stop} by {step} is impossible")
    numbers = np.repeat(np.arange(start, stop, step), repeat)
    return node.builder.constant(numbers.astype(_NUMPY.get(node.text("dtype", "float32"), "f4")), "range")


def counted_like(node: MxnetNode) -> Value:
    """A range as long as the input's number of elements, or as one of its axes."""
    start = node.number("start")
    step = node.number("step", 1.0)
    repeat = max(1, node.integer("repeat", 1))
    every = node.text("axis", "None") == "None"
    count = math.prod(node.dims) if every else node.dims[node.axis(node.integer("axis"), len(node.dims))]
    numbers = (start + step * (np.arange(count) // repeat)).astype(np.float32)
    return node.builder.constant(numbers.reshape(node.dims) if every else numbers, "range")


# ------------------------------------------------------------------------------------------------- shapes of others
def slice_like(node: MxnetNode) -> Value:
    like, rank = node.builder.dims(node.parameter(1)), len(node.dims)
    axes = [node.axis(a, rank) for a in node.integers("axes")] or list(range(rank))
    return node.slice(node.x, [0] * len(axes), [like[a] for a in axes], axes)


def broadcast_like(node: MxnetNode) -> Value:
    like, dims = node.builder.dims(node.parameter(1)), list(node.dims)
    ours, theirs = node.integers("lhs_axes", range(len(dims))), node.integers("rhs_axes", range(len(like)))
    for a, b in zip(ours, theirs, strict=True):
        dims[a] = like[b]
    return node.add("Expand", node.x, node.ints(*dims))


def broadcast_axis(node: MxnetNode) -> Value:
    dims = list(node.dims)
    for axis, size in zip(node.integers("axis"), node.integers("size"), strict=True):
        dims[node.axis(axis, len(dims))] = size
    return node.add("Expand", node.x, node.ints(*dims))


def broadcast_to(node: MxnetNode) -> Value:
    return node.add(
        "Expand", node.x, node.ints(*(s or n for s, n in zip(node.integers("shape"), node.dims, strict=True)))
    )


def repeat(node: MxnetNode) -> Value:
    times = node.integer("repeats", 1)
    every = node.text("axis", "None") == "None"
    x = node.reshape(node.x, -1) if every else node.x
    dims = node.builder.dims(x)
    axis = 0 if every else node.axis(node.integer("axis"), len(dims))
    if not 0 < times * math.prod(dims) <= MAX_ELEMENTS:
        raise RefusedError(f"{times} times {list(dims)} is too much")
    return node.add("Gather", x, np.repeat(np.arange(dims[axis]), times).astype(np.int64), axis=axis)


def reverse(node: MxnetNode) -> Value:
    axes = [node.axis(a, len(node.dims)) for a in node.integers("axis")]
    return node.slice(node.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


# ------------------------------------------------------------------------------------------------ picking, sorting
def one_hot(node: MxnetNode) -> Value:
    values = np.array([node.number("off_value", 0.0), node.number("on_value", 1.0)], np.float32)
    return layers.one_hot(node, _whole(node, node.x), node.integer("depth", 1), values)


def pick(node: MxnetNode) -> Value:
    """One element along an axis for every position of the others."""
    axis = node.axis(node.integer("axis", -1), len(node.dims))
    index = node.parameter(1)
    if len(node.builder.dims(index)) < len(node.dims):
        index = node.add("Unsqueeze", index, node.ints(axis))
    index = limited(node, index, node.dims[axis], node.text("mode", "clip"))
    picked = node.add("GatherElements", node.x, index, axis=axis)
    return picked if node.flag("keepdims") else node.add("Squeeze", picked, node.ints(axis))


def top_k(node: MxnetNode) -> Outputs:
    """Values, indices (as f32) or both; a mask has ones at the indices."""
    every = node.text("axis", "-1") == "None"
    x = node.reshape(node.x, -1) if every else node.x
    axis = 0 if every else node.axis(node.integer("axis", -1), len(node.dims))
    size, kind = node.builder.dims(x)[axis], node.text("ret_typ", "indices")
    k = node.integer("k", 1)
    ascending = {"largest": int(not node.flag("is_ascend"))}
    values, positions = node.builder.adds("TopK", 2, x, node.ints(k if 0 < k < size else size), axis=axis, **ascending)
    if kind == "mask":
        zeros, ones = np.zeros(node.builder.dims(x), np.float32), np.ones(node.builder.dims(positions), np.float32)
        return node.add("ScatterElements", zeros, positions, ones, axis=axis)
    numbers = node.add("Cast", positions, to="f32")
    if kind not in ("value", "indices", "both"):
        raise RefusedError(f"ret_typ {kind} is not supported")
    return [values, numbers] if kind == "both" else values if kind == "value" else numbers


def ordered(which: int) -> Callable[[MxnetNode], Value]:
    """Sorted values (0), or their indices (1)."""

    def import_node(node: MxnetNode) -> Value:
        axis = node.axis(node.integer("axis", -1), len(node.dims))
        largest = {"largest": int(not node.flag("is_ascend", True))}
        ranked = node.builder.adds("TopK", 2, node.x, node.ints(node.dims[axis]), axis=axis, **largest)[which]
        return node.add("Cast", ranked, to="f32") if which else ranked

    return import_node


def _indices(node: MxnetNode, value: Value) -> Value:
    """Coordinates along the first axis, moved to the last."""
    rank = len(node.builder.dims(value))
    return node.add("Transpose", _whole(node, value), perm=(*range(1, rank), 0))


def gather_nd(node: MxnetNode) -> Value:
    return node.add("GatherND", node.x, _indices(node, node.parameter(1)))


def scatter_nd(node: MxnetNode) -> Value:
    return node.add("ScatterND", _filled(node, node.integers("shape"), 0.0), _indices(node, node.parameter(1)), node.x)


def batch_take(node: MxnetNode) -> Value:
    index = node.reshape(limited(node, node.parameter(1), node.dims[-1], "clip"), -1, 1)
    return node.reshape(node.add("GatherElements", node.reshape(node.x, -1, node.dims[-1]), index, axis=1), -1)


# ------------------------------------------------------------------------------------------------------ sequences
def _lengths(node: MxnetNode) -> Value | None:
    return node.parameter(1) if node.flag("use_sequence_length") and len(node.names) > 1 else None


def _times(node: MxnetNode) -> tuple[int, np.ndarray]:
    """The axis of time (0 or 1), and the number of every step, shaped [T, 1, ...] or [1, T, ...]."""
    axis = node.integer("axis")
    if axis not in (0, 1):
        raise RefusedError(f"time along axis {axis} is not supported")
    shape = [1] * len(node.dims)
    shape[axis] = -1
    return axis, np.arange(node.dims[axis], dtype=np.float32).reshape(shape)


def _of_batch(node: MxnetNode, lengths: Value, axis: int) -> Value:
    shape = [1] * len(node.dims)
    shape[1 - axis] = -1
    return node.reshape(node.add("Cast", lengths, to="f32"), *shape)


def sequence_mask(node: MxnetNode) -> Value:
    lengths = _lengths(node)
    if lengths is None:
        return node.x
    axis, steps = _times(node)
    return node.add("Where", node.add("Less", steps, _of_batch(node, lengths, axis)), node.x, node.number("value"))


def sequence_reverse(node: MxnetNode) -> Value:
    lengths = _lengths(node)
    if lengths is None:
        return node.slice(node.x, [-1], [-(2**31)], [node.integer("axis")], [-1])
    axis, _ = _times(node)
    return node.add("ReverseSequence", node.x, _whole(node, lengths), time_axis=axis, batch_axis=1 - axis)


def sequence_last(node: MxnetNode) -> Value:
    lengths = _lengths(node)
    axis, steps = _times(node)
    if lengths is None:
        return node.add(
            "Squeeze", node.slice(node.x, [node.dims[axis] - 1], [node.dims[axis]], [axis]), node.ints(axis)
        )
    last = node.add("Equal", node.add("Sub", _of_batch(node, lengths, axis), 1.0), steps)
    return node.add("ReduceSum", node.add("Where", last, node.x, 0.0), node.ints(axis), keepdims=0)


# -------------------------------------------------------------------------------------------------------- sampling
def adaptive(node: MxnetNode) -> Value:
    sizes = node.integers("output_size", (1,))
    return adaptive_pool(node, node.x, sizes if len(sizes) == 2 else sizes * 2, average=True)


def grid(node: MxnetNode) -> Value:
    """[N, 2, h, w]: a sampling grid from affine matrices, or from the offset of every pixel."""
    if node.text("transform_type", "affine") == "affine":
        size = node.integers("target_shape")
        if len(size) != 2:
            raise RefusedError(f"target_shape {size} is not that of an image")
        return node.add("Transpose", affine_grid(node, node.x, (size[0], size[1])), perm=(0, 3, 1, 2))
    _, _, h, w = node.dims
    rows, columns = np.mgrid[:h, :w].astype(np.float32)
    half = np.array([max(w - 1, 1) / 2, max(h - 1, 1) / 2], np.float32).reshape(1, 2, 1, 1)
    moved = node.add("Add", node.x, np.stack([columns, rows])[None])
    return node.add("Sub", node.add("Div", moved, half), 1.0)


def bilinear_sampler(node: MxnetNode) -> Value:
    positions = node.add("Transpose", node.parameter(1), perm=(0, 2, 3, 1))
    return sampled(node, node.x, positions, "linear", "zeros", corners=True)


def spatial_transformer(node: MxnetNode) -> Value:
    size = node.integers("target_shape") or list(node.dims[2:])
    if node.text("transform_type", "affine") != "affine" or node.text("sampler_type", "bilinear") != "bilinear":
        raise RefusedError("only affine transformations with linear sampling are supported")
    return sampled(
        node, node.x, affine_grid(node, node.parameter(1), (size[0], size[1])), "linear", "zeros", corners=True
    )


def deformable(node: MxnetNode) -> Value:
    """With factors for every sample (modulated) or without."""
    kernel = node.integers("kernel")
    outputs = node.integer("num_filter", 1)
    group = max(1, node.integer("num_group", 1))
    ones, modulated = [1] * len(kernel), node.kind.startswith("_contrib_Modulated")
    at = 3 if modulated else 2
    weights = node.parameter(at, outputs, node.dims[1] // group, *kernel)
    bias = None if node.flag("no_bias") or len(node.names) <= at + 1 else node.parameter(at + 1, outputs)
    window: dict[str, Any] = {
        "strides": node.integers("stride", ones),
        "dilations": node.integers("dilate", ones),
        "group": group,
        "pads": node.integers("pad", [0] * len(kernel)) * 2,
    }
    offsets, factors = (node.parameter(1), node.parameter(2)) if modulated else _within(node, window)
    inputs = [node.x, weights, offsets, bias, factors]
    return deformed(node, inputs, window, max(1, node.integer("num_deformable_group", 1)))


def _within(node: MxnetNode, window: Mapping[str, Any]) -> tuple[Value, Value]:
    """The offsets of the first version, and factors: places outside of the image count nothing there, and what lies
    in its last row or column is not mixed with what is beyond."""
    offsets, kernel = node.parameter(1), node.integers("kernel")
    n, channels, *out = node.builder.dims(offsets)
    taps = math.prod(kernel)
    if len(kernel) != 2 or channels % (2 * taps):
        raise RefusedError(f"{channels} offsets do not fit windows of {kernel}")
    grids = np.indices((*kernel, *out)).reshape(4, taps, *out)
    base = np.stack(
        [grids[2 + i] * window["strides"][i] - window["pads"][i] + grids[i] * window["dilations"][i] for i in (0, 1)], 1
    ).astype(np.float32)
    last = np.array([size - 1 for size in node.dims[2:]], np.float32).reshape(2, 1, 1)
    position = node.add("Add", node.reshape(offsets, n, -1, taps, 2, *out), base)
    there = node.add("And", node.add("GreaterOrEqual", position, 0.0), node.add("Less", position, last + 1))
    inside = node.add("Min", node.add("Max", position, 0.0), last)
    factors = node.add("ReduceProd", node.add("Cast", there, to="f32"), node.ints(3), keepdims=0)
    return node.reshape(node.add("Sub", inside, base), *node.builder.dims(offsets)), node.reshape(
        factors, n, channels // 2, *out
    )


def columns(node: MxnetNode) -> Value:
    kernel = node.integers("kernel")
    ones = [1] * len(kernel)
    return unfolded(
        node,
        node.x,
        kernel,
        node.integers("stride", ones),
        node.integers("pad", [0] * len(kernel)) * 2,
        node.integers("dilate", ones),
    )


# ------------------------------------------------------------------------------------------------------- attention
def _heads(node: MxnetNode, count: int, of: int, which: Sequence[int]) -> list[Value]:
    """Parts of [L, N, heads * parts * d] as [N * heads, L, d] each."""
    length, batch, width = node.dims
    if count < 1 or width % (count * of):
        raise RefusedError(f"{width} numbers do not make {count} heads of {of} parts")
    size = width // (count * of)
    x = node.add("Transpose", node.reshape(node.x, length, batch * count, of, size), perm=(2, 1, 0, 3))
    return [node.add("Gather", x, np.array(k, np.int64), axis=0) for k in which]


def attention_scores(node: MxnetNode) -> Value:
    """Queries times keys that lie beside values, over the root of their length."""
    queries, keys = _heads(node, node.integer("heads", 1), 3, (0, 1))
    scaled = node.add("Mul", queries, 1 / math.sqrt(node.builder.dims(queries)[-1]))
    return node.add("MatMul", scaled, node.add("Transpose", keys, perm=(0, 2, 1)))


def attention_values(node: MxnetNode) -> Value:
    (values,) = _heads(node, node.integer("heads", 1), 3, (2,))
    length, batch, width = node.dims
    result = node.add("Transpose", node.add("MatMul", node.parameter(1), values), perm=(1, 0, 2))
    return node.reshape(result, length, batch, width // 3)


def product(node: MxnetNode) -> Value:
    """linalg_gemm2, and linalg_gemm with a third matrix added."""
    sides = []
    for value, name in zip((node.x, node.parameter(1)), ("transpose_a", "transpose_b"), strict=True):
        rank = len(node.builder.dims(value))
        swap = (*range(rank - 2), rank - 1, rank - 2)
        sides.append(node.add("Transpose", value, perm=swap) if node.flag(name) else value)
    y = node.add("Mul", node.add("MatMul", *sides), node.number("alpha", 1.0))
    return (
        node.add("Add", y, node.add("Mul", node.parameter(2), node.number("beta", 1.0))) if len(node.names) > 2 else y
    )


ELEMENTS: dict[str, Callable[[MxnetNode], Outputs]] = {
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
    "reshape_like": lambda node: node.reshape(node.x, *node.builder.dims(node.parameter(1))),
    "shape_array": lambda node: node.builder.constant(np.array(node.dims, np.int64), "shape"),
    "size_array": lambda node: node.builder.constant(np.array([math.prod(node.dims)], np.int64), "size"),
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
    "_contrib_div_sqrt_dim": lambda node: node.add("Mul", node.x, 1 / math.sqrt(node.dims[-1])),
    "_contrib_interleaved_matmul_selfatt_qk": attention_scores,
    "_contrib_interleaved_matmul_selfatt_valatt": attention_values,
    **dict.fromkeys(("linalg_gemm2", "_linalg_gemm2", "linalg_gemm", "_linalg_gemm"), product),
}
