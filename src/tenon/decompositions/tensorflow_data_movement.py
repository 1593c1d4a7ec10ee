"""What TensorFlow and TFLite share of scattering, gathering and rearranging elements; all values have bound types."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.decompositions.channels_last import ChannelsLast
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType

MOST = 1 << 28
"""Elements of a result."""


def filled(net: ChannelsLast, dims: Sequence[int], number: float, dtype: DType) -> Value:
    if any(d < 0 for d in dims) or math.prod(dims) > MOST:
        raise RefusedError(f"the shape {list(dims)} is impossible")
    return net.constant(np.broadcast_to(np.array(number, dtype.numpy), tuple(dims)), "filled")


def whole(net: ChannelsLast, x: Value) -> Value:
    """As i64."""
    return x if net.type(x).dtype is DType.I64 else net.add("Cast", x, to="i64")


def scatter_nd(net: ChannelsLast, places: Value, updates: Value, dims: Sequence[int]) -> Value:
    """Zeros, to which updates are added at their places."""
    zeros = filled(net, dims, 0, net.type(updates).dtype)
    return net.add("ScatterND", zeros, whole(net, places), updates, reduction="add")


def sparse_to_dense(net: ChannelsLast, places: Value, dims: Sequence[int], values: Value, default: Value) -> Value:
    """Places are a number, [n] or [n, rank]; there is one value, or one for each."""
    at = net.dims(places)
    places = net.reshape(places, (-1, at[-1] if len(at) > 1 else 1))
    values = net.add("Expand", net.reshape(values, (-1,)), net.ints(net.dims(places)[0]))
    dense = net.add("Expand", net.reshape(default, (1,) * len(dims)), net.ints(*dims))
    return net.add("ScatterND", dense, whole(net, places), values)


_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def segments(net: ChannelsLast, x: Value, numbers: Value, count: int, how: str) -> Value:
    """Blocks of ``x`` with the same number combined; what has a negative number is left out."""
    type, lead = net.type(x), net.type(numbers).rank
    inner = type.dims[lead:]
    rows, block = math.prod(type.dims[:lead]), math.prod(inner)
    info = np.finfo(np.float32) if type.dtype.is_float else np.iinfo(type.dtype.numpy.name)
    start = {"sum": 0, "prod": 1, "max": info.min, "min": info.max}[how]
    flat = whole(net, net.reshape(numbers, (rows, 1)))
    last = net.constant(np.array(count, np.int64), "last")
    at = net.add("Where", net.add("Less", flat, net.constant(np.array(0, np.int64), "zero")), last, flat)
    table = filled(net, (count + 1, block), float(start), type.dtype)
    made = net.add("ScatterND", table, at, net.reshape(x, (rows, block)), reduction=_REDUCTIONS[how])
    return net.reshape(net.slice(made, [0], [count], [0]), (count, *inner))


def gather(net: ChannelsLast, x: Value, places: Value, axis: int, batch: int) -> Value:
    """Elements along an axis, where the first ``batch`` axes of the data and of the places belong together."""
    rank, depth = net.type(x).rank, net.type(places).rank
    axis, batch = axis % rank, batch % depth if batch < 0 else batch
    if not batch:
        return net.add("Gather", x, places, axis=axis)
    if not batch <= axis or net.dims(x)[:batch] != net.dims(places)[:batch]:
        raise RefusedError(f"{batch} axes of {list(net.dims(x))} and {list(net.dims(places))} do not belong together")
    moved = net.transpose(x, (*range(batch), axis, *(i for i in range(batch, rank) if i != axis)))
    found = net.add("GatherND", moved, whole(net, net.expand_dims(places, -1)), batch_dims=batch)
    new, before = depth - batch, axis - batch  # axes of the places, and axes that stood before the one gathered
    order = [*range(batch), *range(depth, depth + before), *range(batch, depth), *range(depth + before, rank + new - 1)]
    return net.transpose(found, order)


def reverse_sequence(net: ChannelsLast, x: Value, lengths: Value, time: int, batch: int) -> Value:
    """The first elements along the axis of time in reverse order, as many as each of the batch has."""
    rank = net.type(x).rank
    order = [time % rank, batch % rank, *(i for i in range(rank) if i not in (time % rank, batch % rank))]
    turned = net.add("ReverseSequence", net.transpose(x, order), whole(net, lengths), time_axis=0, batch_axis=1)
    return net.transpose(turned, [int(i) for i in np.argsort(order)])


def matrix_diagonal(net: ChannelsLast, x: Value) -> Value:
    """Square matrices with these diagonals, zeros beside them."""
    n = net.dims(x)[-1]
    zero = net.number(0, x)
    return net.add("Where", net.constant(np.eye(n, dtype=bool), "diagonal"), net.expand_dims(x, -1), zero)


def set_diagonal(net: ChannelsLast, x: Value, diagonal: Value) -> Value:
    rows, columns = net.dims(x)[-2:]
    n = min(rows, columns)
    row = net.expand_dims(diagonal, -1) if rows == n else net.expand_dims(diagonal, -2)
    return net.add("Where", net.constant(np.eye(rows, columns, dtype=bool), "diagonal"), row, x)


def band(net: ChannelsLast, x: Value, below: int, above: int) -> Value:
    """Zeros further than that from the diagonal; negative numbers keep all."""
    rows, columns = net.dims(x)[-2:]
    distance = np.arange(columns) - np.arange(rows)[:, None]
    kept = ((below < 0) | (-distance <= below)) & ((above < 0) | (distance <= above))
    return net.add("Where", net.constant(kept, "kept"), x, net.number(0, x))


def update_slice(net: ChannelsLast, x: Value, update: Value, start: Value) -> Value:
    """``update`` in the place of what stands from ``start`` on, moved so that it lies inside."""
    dims, size = net.dims(x), net.dims(update)
    room = [n - m for n, m in zip(dims, size, strict=True)]
    if not dims or min(room) < 0:
        raise RefusedError(f"{list(size)} do not fit into {list(dims)}")
    at = net.add("Max", whole(net, start), net.constant(np.array(0, np.int64), "zero"))
    at = net.add("Min", at, net.ints(*room))
    places = np.stack(np.meshgrid(*(np.arange(n) for n in size), indexing="ij"), -1).astype(np.int64)
    return net.add("ScatterND", x, net.add("Add", net.constant(places, "places"), at), update)


def bucketize(net: ChannelsLast, x: Value, bounds: Array) -> Value:
    """i32: how many bounds an element reaches."""
    wide = net.add("Cast", net.expand_dims(x, -1), to="f32")
    reached = net.add("GreaterOrEqual", wide, net.constant(bounds.astype(np.float32), "bounds"))
    return net.reduce("Sum", net.add("Cast", reached, to="i32"), [net.type(x).rank], keep=False)


def atan2(net: ChannelsLast, y: Value, x: Value) -> Value:
    """The angle of (x, y), -pi .. pi."""
    zero, pi = net.number(0, x), net.number(math.pi, x)
    left, down = net.add("Less", x, zero), net.add("Less", y, zero)
    quotient = net.add("Div", y, net.add("Where", net.add("Equal", x, zero), net.number(1, x), x))
    turn = net.add("Where", down, net.add("Neg", pi), pi)
    slope = net.add("Atan", quotient)
    level = net.add("Where", net.add("Equal", y, zero), zero, net.add("Mul", turn, net.number(0.5, x)))
    slanted = net.add("Add", slope, net.add("Where", left, turn, zero))
    return net.add("Where", net.add("Equal", x, zero), level, slanted)


def roll(net: ChannelsLast, x: Value, shifts: Sequence[int], axes: Sequence[int]) -> Value:
    """Elements moved along axes; those that fall off come in at the other end."""
    for shift, axis in zip(shifts, axes, strict=True):
        n = net.dims(x)[axis]
        if n and shift % n:
            ends = net.split(x, [n - shift % n, shift % n], axis % net.type(x).rank)
            x = net.add("Concat", *ends[::-1], axis=axis)
    return x
