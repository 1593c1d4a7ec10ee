"""Scatters, gathers and rearrangements that TensorFlow and TFLite share; all values have bound types."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType

MAX_ELEMENTS = 1 << 28
"""Elements of a result."""


def filled(builder: ChannelsLast, dims: Sequence[int], number: float, dtype: DType) -> Value:
    if any(d < 0 for d in dims) or math.prod(dims) > MAX_ELEMENTS:
        raise RefusedError(f"the shape {list(dims)} is impossible")
    return builder.constant(np.broadcast_to(np.array(number, dtype.numpy), tuple(dims)), "filled")


def as_i64(builder: ChannelsLast, x: Value) -> Value:
    """As i64."""
    return x if builder.type(x).dtype is DType.I64 else builder.add("Cast", x, to="i64")


def scatter_nd(builder: ChannelsLast, indices: Value, updates: Value, dims: Sequence[int]) -> Value:
    """Zeros, to which updates are added at their indices."""
    zeros = filled(builder, dims, 0, builder.type(updates).dtype)
    return builder.add("ScatterND", zeros, as_i64(builder, indices), updates, reduction="add")


def sparse_to_dense(builder: ChannelsLast, indices: Value, dims: Sequence[int], values: Value, default: Value) -> Value:
    """Indices are a scalar, [n] or [n, rank]; there is one value, or one for each."""
    at = builder.dims(indices)
    indices = builder.reshape(indices, (-1, at[-1] if len(at) > 1 else 1))
    values = builder.add("Expand", builder.reshape(values, (-1,)), builder.ints(builder.dims(indices)[0]))
    dense = builder.add("Expand", builder.reshape(default, (1,) * len(dims)), builder.ints(*dims))
    return builder.add("ScatterND", dense, as_i64(builder, indices), values)


_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def segments(builder: ChannelsLast, x: Value, numbers: Value, count: int, how: str) -> Value:
    """Blocks of ``x`` with the same segment number combined; negative numbers are dropped."""
    type, lead = builder.type(x), builder.type(numbers).rank
    dims = builder.dims(x)
    inner = dims[lead:]
    rows, block = math.prod(dims[:lead]), math.prod(inner)
    info = np.finfo(np.float32) if type.dtype.is_float else np.iinfo(type.dtype.numpy.name)
    start = {"sum": 0, "prod": 1, "max": info.min, "min": info.max}[how]
    flat = as_i64(builder, builder.reshape(numbers, (rows, 1)))
    last = builder.constant(np.array(count, np.int64), "last")
    at = builder.add("Where", builder.add("Less", flat, builder.constant(np.array(0, np.int64), "zero")), last, flat)
    table = filled(builder, (count + 1, block), float(start), type.dtype)
    result = builder.add("ScatterND", table, at, builder.reshape(x, (rows, block)), reduction=_REDUCTIONS[how])
    return builder.reshape(builder.slice(result, [0], [count], [0]), (count, *inner))


def gather(builder: ChannelsLast, x: Value, indices: Value, axis: int, batch: int) -> Value:
    """Elements along an axis, where the first ``batch`` axes of the data and of the indices are batch axes."""
    rank, depth = builder.type(x).rank, builder.type(indices).rank
    axis, batch = axis % rank, batch % depth if batch < 0 else batch
    if not batch:
        return builder.add("Gather", x, indices, axis=axis)
    if not batch <= axis or builder.dims(x)[:batch] != builder.dims(indices)[:batch]:
        raise RefusedError(
            f"{batch} axes of {list(builder.dims(x))} and {list(builder.dims(indices))} do not belong together"
        )
    moved = builder.transpose(x, (*range(batch), axis, *(i for i in range(batch, rank) if i != axis)))
    gathered = builder.add("GatherND", moved, as_i64(builder, builder.expand_dims(indices, -1)), batch_dims=batch)
    new, before = depth - batch, axis - batch  # axes of the indices, and axes before the gathered one
    order = [*range(batch), *range(depth, depth + before), *range(batch, depth), *range(depth + before, rank + new - 1)]
    return builder.transpose(gathered, order)


def reverse_sequence(builder: ChannelsLast, x: Value, lengths: Value, time: int, batch: int) -> Value:
    """The first elements along the axis of time in reverse order, as many as each of the batch has."""
    rank = builder.type(x).rank
    order = [time % rank, batch % rank, *(i for i in range(rank) if i not in (time % rank, batch % rank))]
    reversed_rows = builder.add(
        "ReverseSequence", builder.transpose(x, order), as_i64(builder, lengths), time_axis=0, batch_axis=1
    )
    return builder.transpose(reversed_rows, [int(i) for i in np.argsort(order)])


def matrix_diagonal(builder: ChannelsLast, x: Value) -> Value:
    """Square matrices with these diagonals, zeros beside them."""
    n = builder.dims(x)[-1]
    zero = builder.number(0, x)
    return builder.add("Where", builder.constant(np.eye(n, dtype=bool), "diagonal"), builder.expand_dims(x, -1), zero)


def set_diagonal(builder: ChannelsLast, x: Value, diagonal: Value) -> Value:
    rows, columns = builder.dims(x)[-2:]
    n = min(rows, columns)
    row = builder.expand_dims(diagonal, -1) if rows == n else builder.expand_dims(diagonal, -2)
    return builder.add("Where", builder.constant(np.eye(rows, columns, dtype=bool), "diagonal"), row, x)


def band(builder: ChannelsLast, x: Value, below: int, above: int) -> Value:
    """Zeros outside of the band around the diagonal; negative numbers keep all."""
    rows, columns = builder.dims(x)[-2:]
    distance = np.arange(columns) - np.arange(rows)[:, None]
    kept = ((below < 0) | (-distance <= below)) & ((above < 0) | (distance <= above))
    return builder.add("Where", builder.constant(kept, "kept"), x, builder.number(0, x))


def update_slice(builder: ChannelsLast, x: Value, update: Value, start: Value) -> Value:
    """``x`` with ``update`` written at ``start``, clamped so that it fits."""
    dims, size = builder.dims(x), builder.dims(update)
    room = [n - m for n, m in zip(dims, size, strict=True)]
    if not dims or min(room) < 0:
        raise RefusedError(f"{list(size)} do not fit into {list(dims)}")
    at = builder.add("Max", as_i64(builder, start), builder.constant(np.array(0, np.int64), "zero"))
    at = builder.add("Min", at, builder.ints(*room))
    indices = np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), -1).astype(np.int64)
    return builder.add("ScatterND", x, builder.add("Add", builder.constant(indices, "places"), at), update)


def bucketize(builder: ChannelsLast, x: Value, bounds: Array) -> Value:
    """i32: how many bounds an element reaches."""
    wide = builder.add("Cast", builder.expand_dims(x, -1), to="f32")
    reached = builder.add("GreaterOrEqual", wide, builder.constant(bounds.astype(np.float32), "bounds"))
    return builder.reduce("Sum", builder.add("Cast", reached, to="i32"), [builder.type(x).rank], keep=False)


def atan2(builder: ChannelsLast, y: Value, x: Value) -> Value:
    """The angle of (x, y), -pi .. pi."""
    zero, pi = builder.number(0, x), builder.number(math.pi, x)
    left, down = builder.add("Less", x, zero), builder.add("Less", y, zero)
    quotient = builder.add("Div", y, builder.add("Where", builder.add("Equal", x, zero), builder.number(1, x), x))
    turn = builder.add("Where", down, builder.add("Neg", pi), pi)
    slope = builder.add("Atan", quotient)
    level = builder.add("Where", builder.add("Equal", y, zero), zero, builder.add("Mul", turn, builder.number(0.5, x)))
    slanted = builder.add("Add", slope, builder.add("Where", left, turn, zero))
    return builder.add("Where", builder.add("Equal", x, zero), level, slanted)


def roll(builder: ChannelsLast, x: Value, shifts: Sequence[int], axes: Sequence[int]) -> Value:
    """Elements shifted along axes, wrapping around."""
    for shift, axis in zip(shifts, axes, strict=True):
        n = builder.dims(x)[axis]
        if n and shift % n:
            ends = builder.split(x, [n - shift % n, shift % n], axis % builder.type(x).rank)
            x = builder.add("Concat", *ends[::-1], axis=axis)
    return x
