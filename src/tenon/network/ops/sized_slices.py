"""The rules of operators that read places along axes, where extents or places are known only at run time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression, Number, UndecidedError, below, expression, extreme, quotient
from tenon.network.ops.sized_skews import note_padding, skewed

FARTHEST = 1 << 30
"""A position in a slice that means its end, whatever the extent."""


def clamped(position: Expression, extent: Expression, low: Number, high: Number) -> Expression:
    """A position, counted from the end where it is negative, held between two others."""
    if position.known and abs(position.constant) >= FARTHEST:
        return expression(high if position.constant > 0 else low)
    try:
        negative = below(position, 0)
    except UndecidedError:
        what = f"it counts from {position}, which is negative in some runs and in some is not"
        raise SizeRefusedError(what) from None
    position = position + extent if negative else position
    return extreme([extreme([position, low], greatest=True), high], greatest=False)


def sliced(node: SizedNode) -> Value:
    """A Slice."""
    value, extents = node.input(0), node.extents(0)
    starts, ends = node.numbers(1, "starts"), node.numbers(2, "ends")
    axes = node.integers(3, "axes") if node.has(3) else list(range(len(starts)))
    steps = node.integers(4, "steps") if node.has(4) else [1] * len(starts)
    parts = {axis % len(extents): part for axis, *part in zip(axes, starts, ends, strict=True)}
    rows = node.sizes.rows.get(value)
    from_first = False
    if rows is not None and rows.width is not None and steps == [1] * len(parts):
        first, counts = _ranges(extents, parts)
        made = skewed(node, first, counts)
        if made is not None:
            return made
        from_first = all(f.known and not f.constant for f in first)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(extents)
        value, extents = along(node, value, extents, axis, (start, end, step))
    result = node.state(value, extents)
    if from_first and rows is not None:
        node.sizes.rows[result] = rows
    return result


def _ranges(
    extents: Sequence[Expression], parts: Mapping[int, Sequence[Expression]]
) -> tuple[list[Expression], list[Expression]]:
    """The first place and the number of places along each axis, for (start, end) of some."""
    first, counts = [expression(0)] * len(extents), list(extents)
    for axis, (start, end) in parts.items():
        extent = extents[axis]
        first[axis], last = (clamped(position, extent, 0, extent) for position in (start, end))
        counts[axis] = extreme([last - first[axis], 0], greatest=True)
    return first, counts


def along(
    node: SizedNode, value: Value, extents: list[Expression], axis: int, part: tuple[Expression, Expression, int]
) -> tuple[Value, list[Expression]]:
    """The slice (start, end, step) of a buffer along an axis, and the extents of the result."""
    start, end, step = part
    extent, n = extents[axis], value.type.dims[axis]
    if step > 0:
        first, last = clamped(start, extent, 0, extent), clamped(end, extent, 0, extent)
        count = extreme([-quotient(first - last, step), 0], greatest=True)
    else:
        end = end if not (end.known and end.constant < -FARTHEST) else expression(-FARTHEST)
        first, last = clamped(start, extent, 0, extent - 1), clamped(end, extent, -1, extent - 1)
        count = extreme([-quotient(last - first, -step), 0], greatest=True)
    most = min(node.largest(count), n)
    rest = [*extents[:axis], count, *extents[axis + 1 :]]
    if first.known:
        begin = first.number
        stop = min(n, begin + most * step) if step > 0 else begin + most * step
        if step > 0 and begin == 0 and stop == n and step == 1:
            return value, rest
        given = [node.ints(i) for i in (begin, stop if stop >= 0 else -(1 << 62), axis, step)]
        return node.whole("Slice", value, *given), rest
    return node.gathered(value, axis, positions(node, most, first, step)), rest


def positions(node: SizedNode, count: int, first: Number, step: int = 1) -> Value:
    """``count`` numbers from ``first`` on, i64, of which a run knows the first."""
    steps = node.constant(np.arange(count, dtype=np.int64) * step)
    return node.whole("Add", steps, node.number(first))


def part(node: SizedNode, value: Value, axis: int, first: Expression, count: Expression) -> Value:
    """``count`` places along an axis of a tensor, from ``first`` on."""
    extents = node.sizes.of(value)
    most = min(node.largest(count), value.type.dims[axis])
    if first.known:
        begin = first.number
        cut = node.whole("Slice", value, node.ints(begin), node.ints(begin + most), node.ints(axis))
    else:
        cut = node.gathered(value, axis, positions(node, most, first))
    return node.state(cut, [*extents[:axis], count, *extents[axis + 1 :]])


def lasting(indices: Sequence[Any]) -> bool:
    """Whether indices that are known are counted from the start."""
    return all(i >= 0 for i in indices)


def from_start(node: SizedNode, indices: Value, extent: Expression) -> Value:
    """Indices of an axis, those that are negative counted from its start."""
    if indices.data is not None and (not indices.data.size or int(indices.data.min()) >= 0):
        return indices
    if extent.known:
        return indices
    number = node.number(extent)
    if indices.type.dtype != number.type.dtype:
        number = node.whole("Cast", number, to=indices.type.dtype.value)
    zero = node.constant(np.zeros((), indices.type.dtype.numpy))
    return node.whole("Where", node.whole("Less", indices, zero), node.whole("Add", indices, number), indices)


def concatenated(node: SizedNode, axis: int) -> Value:
    """A Concat."""
    rank = node.type(0).rank
    axis %= rank
    count = len(node.inputs)
    extents = []
    for other in range(rank):
        if other == axis:
            total = expression(0)
            for i in range(count):
                total = total + node.extents(i)[axis]
            extents.append(total)
            continue
        extents.append(agreed(node, other))
    early = [i for i in range(count - 1) if axis in node.changing(i)]
    values = [node.input(i) for i in range(count)]
    if not early:
        return node.state(node.whole("Concat", *values, axis=axis), extents)
    return node.state(appended(node, axis, node.largest(extents[axis])), extents)


def agreed(node: SizedNode, axis: int, among: Sequence[int] = ()) -> Expression:
    """The extent along an axis that operands, by default all, have; their buffers are cut to the shortest."""
    return node.common_exactly([(i, axis) for i in among or range(len(node.inputs))])


def appended(node: SizedNode, axis: int, most: int) -> Value:
    """The operands one behind the other along an axis, in a buffer of ``most`` places."""
    total, value = node.extents(0)[axis], with_room(node, axis, most)
    for i in range(1, len(node.inputs)):
        count = node.extents(i)[axis]
        counted = [] if count.known else [node.number(count)]
        value = node.whole("Append", value, node.input(i), node.number(total), *counted, axis=axis)
        total = total + count
    return value


def with_room(node: SizedNode, axis: int, most: int) -> Value:
    """The first operand in a buffer of at least ``most`` places along an axis.

    An input of the graph that nothing else reads, such as a decoder's cache, gets that buffer itself, so that nothing
    is copied where the result is its next content.
    """
    first = node.input(0)
    missing = max(0, most - first.type.dims[axis])
    changes = axis in node.sizes.extents.get(first, {})
    if missing and changes and first in node.writer.graph.inputs and not first.uses:
        dims = first.type.dims
        first.type = replace(first.type, shape=(*dims[:axis], most, *dims[axis + 1 :]))
        return first
    if not missing:
        return first
    pads = [0] * (2 * first.type.rank)
    pads[first.type.rank + axis] = missing
    return node.whole("Pad", first, node.ints(*pads))


def padded(node: SizedNode, mode: str) -> Value:
    """A Pad."""
    extents, rank = node.extents(0), node.type(0).rank
    pads = node.numbers(1, "pads")
    axes = [a % rank for a in node.integers(3, "axes")] if node.has(3) else list(range(rank))
    value = node.input(0)
    fill = node.inputs[2] if node.has(2) else None
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        if before.known and after.known and not before.constant and not after.constant:
            continue
        value = padded_along(node, (value, extents), axis, before, after, (mode, fill))
        extents = [*extents[:axis], extents[axis] + before + after, *extents[axis + 1 :]]
        value = node.state(value, extents)
    whole = [expression(0)] * (2 * rank)
    for i, axis in enumerate(axes):
        whole[axis], whole[rank + axis] = pads[i], pads[i + len(axes)]
    zeros = mode == "constant" and (fill is None or (fill.data is not None and not fill.data.any()))
    note_padding(node, value, whole, zeros=zeros)
    return value


def padded_along(
    node: SizedNode,
    given: tuple[Value, list[Expression]],
    axis: int,
    before: Expression,
    after: Expression,
    how: tuple[str, Value | None],
) -> Value:
    """A buffer and its extents, ``given``, with more places before and after an axis; ``how``: the mode, and what these
    hold."""
    (value, extents), (mode, fill) = given, how
    extent, n = extents[axis], value.type.dims[axis]
    total = extent + before + after
    most = node.largest(total)
    if extent.known and before.known and after.known:
        pads = [0] * (2 * value.type.rank)
        pads[axis], pads[value.type.rank + axis] = before.number, after.number
        return node.whole("Pad", value, node.ints(*pads), fill, mode=mode)
    index = positions(node, most, -before)
    if mode == "reflect":
        last = node.number(extent - 1)
        index = node.whole("Abs", index)
        index = node.whole("Sub", last, node.whole("Abs", node.whole("Sub", last, index)))
    elif mode == "edge":
        index = node.whole("Max", node.whole("Min", index, node.number(extent - 1)), node.number(0))
    elif mode == "wrap":
        index = node.whole("Mod", index, node.whole("Max", node.number(extent), node.number(1)))
    if mode != "constant":
        return node.gathered(value, axis, index)
    if before.known and before.constant >= 0:
        pads = [0] * (2 * value.type.rank)
        pads[axis], pads[value.type.rank + axis] = before.number, most - before.number - n
        moved = node.whole("Pad", value, node.ints(*pads), fill)
    else:
        moved = node.gathered(value, axis, index)
    inside = node.whole("Less", index, node.number(extent))
    inside = node.whole("And", inside, node.whole("GreaterOrEqual", index, node.number(0)))
    shape = [1] * value.type.rank
    shape[axis] = most
    inside = node.whole("Reshape", inside, node.ints(*shape))
    zero = fill if fill is not None else node.constant(np.zeros((), value.type.dtype.numpy))
    if fill is not None and fill.type.rank:
        zero = node.whole("Reshape", fill, node.constant(np.zeros(0, np.int64)))
    return node.whole("Where", inside, moved, zero)


def tiled(node: SizedNode) -> Value:
    """A Tile."""
    extents, value = node.extents(0), node.input(0)
    repeats = node.numbers(1, "repeats")
    result = [a * b for a, b in zip(extents, repeats, strict=True)]
    for axis, (extent, count) in enumerate(zip(extents, repeats, strict=True)):
        if count.known and count.constant == 1:
            continue
        if extent.known:
            most = [1] * len(extents)
            most[axis] = node.largest(count)
            value = node.whole("Tile", value, node.ints(*most))
            continue
        index = node.constant(np.arange(node.largest(result[axis]), dtype=np.int64))
        index = node.whole("Mod", index, node.whole("Max", node.number(extent), node.number(1)))
        value = node.gathered(value, axis, index)
    return node.state(value, result)


def expanded(node: SizedNode) -> Value:
    """An Expand."""
    given, shape, value = node.extents(0), node.numbers(1, "the shape"), node.input(0)
    rank = max(len(given), len(shape))
    left = [expression(1)] * (rank - len(given)) + given
    right = [expression(1)] * (rank - len(shape)) + shape
    extents = [node.common(pair) for pair in zip(left, right, strict=True)]
    dims = [1] * (rank - len(given)) + list(value.type.dims)
    largest = [
        n if n > 1 or not (a.known and a.constant == 1) else node.largest(e)
        for n, a, e in zip(dims, left, extents, strict=True)
    ]
    if math.prod(largest) == 0:
        raise SizeRefusedError("a result that never has elements")
    return node.state(node.whole("Expand", value, node.ints(*largest)), extents)
