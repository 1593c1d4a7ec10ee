"""MegEngine's operators that move elements: shapes, slices, gathers, sorting."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.megengine.node import MegengineNode
from tenon.network.graph.graph import Value


def dimshuffle(node: MegengineNode) -> Value:
    """A permutation in which -1 stands for a new axis; an axis left out must be of one element."""
    pattern = node.int_fields(0)
    kept = [p for p in pattern if p >= 0]
    removed_axes = [a for a in range(len(node.dims)) if a not in kept]
    x = node.add("Squeeze", node.x, node.ints(*removed_axes)) if removed_axes else node.x
    left = sorted(kept)
    x = node.add("Transpose", x, perm=[left.index(p) for p in kept])
    new = [i for i, p in enumerate(pattern) if p < 0]
    return node.add("Unsqueeze", x, node.ints(*new)) if new else x


def reshape(node: MegengineNode) -> Value:
    """Reshape; one extent may be inferred."""
    if len(node.inputs) != 2:
        raise RefusedError(f"it has {len(node.inputs)} inputs instead of 2")
    free = node.field(0, "i32", 7)
    shape = [int(n) for n in node.constant_input(1).ravel()]
    return node.reshape(node.x, *(-1 if i == free else n for i, n in enumerate(shape)))


def axes_of_structs(node: MegengineNode) -> Value:
    """AxisAddRemove: axes of one element added and removed in sequence."""
    x = node.x
    for row in node.struct_fields(0, 8):
        method, axis = row[0], int.from_bytes(row[4:], "little", signed=True)
        if method > 1:
            raise RefusedError(f"method {method} is not supported")
        x = node.add("Squeeze" if method else "Unsqueeze", x, node.ints(axis))
    return x


def subtensor(node: MegengineNode) -> Value:
    """Begins, ends, steps and indices are inputs; flags mark which of them each axis has."""
    at, x, removed_axes = 1, node.x, []
    for axis, *marks in (struct.unpack("b4?", row) for row in node.struct_fields(0, 5)):
        given: list[int | None] = []
        for mark in marks:
            given.append(int(node.constant_input(at).item()) if mark else None)
            at += mark
        begin, end, step, position = given
        axis = node.axis(axis, len(node.dims))
        if position is not None:
            x = node.slice(x, [position], [position + 1 or 1 << 31], [axis])
            removed_axes.append(axis)
            continue
        step = 1 if step is None else step
        begin = (0 if step > 0 else -1) if begin is None else begin
        end = (1 << 31 if step > 0 else -(1 << 31)) if end is None else end
        x = node.slice(x, [begin], [end], [axis], [step])
    return node.add("Squeeze", x, node.ints(*removed_axes)) if removed_axes else x


def picked(node: MegengineNode) -> Value:
    """IndexingMultiAxisVec: a gather along one axis."""
    rows = [struct.unpack("b4?", row) for row in node.struct_fields(0, 5)]
    if len(rows) != 1 or rows[0][1:] != (False, False, False, True):
        raise RefusedError("only indices along one axis are supported, not ranges or several axes")
    return node.add(
        "Gather", node.x, node.add("Cast", node.inputs[1], to="i64"), axis=node.axis(rows[0][0], len(node.dims))
    )


def one_hot_picked(node: MegengineNode) -> Value:
    """One element of an axis for every position of the others."""
    axis = node.axis(node.field(0, "i32"), len(node.dims))
    at = node.add("Unsqueeze", node.add("Cast", node.inputs[1], to="i64"), node.ints(axis))
    return node.add("GatherElements", node.x, at, axis=axis)


def split(node: MegengineNode) -> Sequence[Value]:
    sizes = [int(node.constant_input(i).item()) for i in range(1, len(node.inputs))]
    return node.split(node.x, node.axis(node.field(0, "i32"), len(node.dims)), sizes)


def shape_of(node: MegengineNode) -> Value:
    axis = node.field(0, "i32", 7)
    return node.builder.constant(np.array(node.dims if axis == 7 else [node.dims[axis]], np.int32), "shape")


def top(node: MegengineNode) -> Sequence[Value]:
    """TopK along the last axis; a negative k sorts in descending order."""
    count = int(node.constant_input(1).item())
    if node.field(0, "u32") == 0 or not count:
        raise RefusedError("only the values and indices of the largest or smallest are supported")
    values, numbers = node.builder.adds(
        "TopK", 2, node.x, node.ints(abs(count)), axis=len(node.dims) - 1, largest=int(count < 0)
    )
    return [values, node.add("Cast", numbers, to="i32")]


def sorted_(node: MegengineNode) -> Sequence[Value]:
    size, axis = node.dims[-1], len(node.dims) - 1
    values, numbers = node.builder.adds("TopK", 2, node.x, node.ints(size), axis=axis, largest=node.field(0, "u32"))
    return [values, node.add("Cast", numbers, to="i32")]


def cumsum(node: MegengineNode) -> Value:
    return node.add(
        "CumSum",
        node.x,
        node.ints(node.axis(node.field(0, "i32", 2**31 - 1), len(node.dims))),
        exclusive=node.field(1, "bool", 1),
        reverse=node.field(2, "bool"),
    )


def pad(node: MegengineNode) -> Value:
    rank, mode = len(node.dims), node.field(15, "u32", 2)
    if mode > 2 or rank > 7:
        raise RefusedError(f"mode {mode} of {rank} axes is not supported")
    pads = node.ints(*(node.field(first + i, "u32") for first in (0, 7) for i in range(rank)))
    return node.add(
        "Pad", node.x, pads, node.float_field(14) if mode == 2 else None, mode=("edge", "reflect", "constant")[mode]
    )
