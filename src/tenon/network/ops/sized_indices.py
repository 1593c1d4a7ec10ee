"""The rules of operators that write to places by index, where extents are known only at run time."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.sizes import Expression
from tenon.network.graph.types import I64
from tenon.network.ops.base import Operator
from tenon.network.ops.sized_slices import from_start


def counts_up(indices: Value) -> bool:
    """Whether indices are known not to be negative."""
    if indices.data is not None:
        return not indices.data.size or int(indices.data.min()) >= 0
    node = indices.producer
    if node is None or not isinstance(node.op, Operator):
        return False
    if node.op.counts_up and (node.outputs[0] is not indices or indices.type.dtype is I64):
        return True
    if node.op.rearranges or node.op.converts:
        return counts_up(node.input(0))
    return node.op.moves and all(v is not None and counts_up(v) for v in node.inputs)


def alike(node: SizedNode, *axes: tuple[int, int]) -> None:
    """Let operands have buffers of the least extent of some of their axes, (operand, axis), which have the same extents
    in every run."""
    least = min(node.type(operand).dims[axis] for operand, axis in axes)
    for operand, axis in axes:
        extents = node.extents(operand)
        if node.type(operand).dims[axis] > least:
            node.inputs[operand] = node.sizes.state(node.cut(node.input(operand), axis, least), extents)


def scattered(node: SizedNode, axis: int) -> Value:
    """A scatter whose indices select along ``axis`` (the first of tuples): what lies beyond the extent of the updates
    goes to a row behind the data, which is cut off."""
    extent, indices = node.extents(0)[axis], node.made(1)
    if not counts_up(indices) and (axis in node.changing(0) or node.changing(1)):
        moved = from_start(node, indices, extent) if axis in node.changing(0) else _from_start(node, indices, extent)
        indices = node.sizes.state(moved, node.extents(1))
    if not node.changing(1) and not node.changing(2):
        return node.same(node.extents(0), inputs=[node.input(0), indices, node.input(2)])[0]
    x, n, rank = node.input(0), node.type(0).dims[axis], node.type(0).rank
    pads = [0] * (2 * rank)
    pads[rank + axis] = 1
    wide = node.whole("Pad", x, node.ints(*pads))
    indices = node.masked(indices, node.changing(1), n)
    name = node.writer.fresh(f"{node.names[0]}_part")
    whole = node.writer.plain(node.op, [wide, indices, node.input(2)], [name], node.origin)[0]
    return node.state(node.cut(whole, axis, n), node.extents(0))


def _from_start(node: SizedNode, indices: Value, extent: Expression) -> Value:
    """Indices of an axis of a known extent, those that are negative counted from its start."""
    size = node.constant(np.array(extent.number, indices.type.dtype.numpy))
    zero = node.constant(np.zeros((), indices.type.dtype.numpy))
    return node.whole("Where", node.whole("Less", indices, zero), node.whole("Add", indices, size), indices)
