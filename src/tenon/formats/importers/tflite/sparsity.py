"""Sparse constants of TFLite files: where in the dense tensor the stored elements lie.

The levels of the form are the axes in a stated order, and then the axes within blocks.  A dense level has all its
coordinates; a level of compressed sparse rows has, for each entry of the level before it, the range of its entries
(``segments``) and their coordinates (``indices``).  Source: SparsityParameters of tensorflow/lite/schema/schema.fbs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.importers.tflite import schema
from tenon.formats.wire.flatbuffer import FlatTable
from tenon.network.graph.graph import Array

_DENSE, _COMPRESSED = 0, 1
_KINDS = {1: "i32", 2: "u16", 3: "u8"}
"""Element types of the vectors by their number in the union."""


def sparse_positions(table: FlatTable, shape: Sequence[int]) -> Array | str:
    """The positions of the stored elements in the flattened dense tensor, i64; if the form is invalid, why."""
    slots = schema.SPARSITY
    order, blocked = table.ints(slots["order"]), table.ints(slots["blocked"])
    levels, rank = table.tables(slots["levels"]), len(shape)
    if sorted(order) != list(range(rank + len(blocked))) or len(levels) != len(order):
        return f"its {len(levels)} levels in the order {order} do not fit {rank} axes and {len(blocked)} of blocks"
    if len(set(blocked)) < len(blocked) or not all(0 <= axis < rank for axis in blocked):
        return f"its blocks along the axes {blocked} do not fit {rank} axes"
    sizes = _extents(shape, blocked, {axis: levels[k] for k, axis in enumerate(order)})
    return sizes if isinstance(sizes, str) else _walk(order, levels, sizes, _strides(shape, blocked, sizes))


def _extents(shape: Sequence[int], blocked: Sequence[int], level_of: dict[int, FlatTable]) -> list[int] | str:
    """The extent of every axis in blocks, then of every axis within a block."""
    rank, extents = len(shape), list(shape)
    for k, axis in enumerate(blocked):
        size = level_of[rank + k].get(schema.SPARSE_LEVEL["size"], "i32")
        if size < 1 or shape[axis] % size:
            return f"blocks of {size} do not divide axis {axis} of {shape[axis]}"
        extents[axis] //= size
        extents.append(size)
    return extents


def _strides(shape: Sequence[int], blocked: Sequence[int], extents: Sequence[int]) -> list[int]:
    """How far a step along every axis of ``extents`` moves in the flattened tensor."""
    plain = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    within = [plain[axis] for axis in blocked]
    for k, axis in enumerate(blocked):
        plain[axis] *= extents[len(shape) + k]
    return [*plain, *within]


def _walk(
    order: Sequence[int], levels: Sequence[FlatTable], extents: Sequence[int], strides: Sequence[int]
) -> Array | str:
    """Positions of the entries of the last level."""
    positions, size = np.zeros(1, np.int64), math.prod(extents)
    for axis, level in zip(order, levels, strict=True):
        kind = level.get(schema.SPARSE_LEVEL["format"], "i8")
        if kind == _DENSE:
            if len(positions) * extents[axis] > size:
                return "it stores more elements than the tensor has"
            step = np.arange(extents[axis], dtype=np.int64) * strides[axis]
            positions = (positions[:, None] + step).ravel()
        elif kind == _COMPRESSED:
            segments, indices = _vector(level, "segments"), _vector(level, "indices")
            counts = np.diff(segments)
            fits = len(segments) == len(positions) + 1 and segments[0] == 0 and segments[-1] == len(indices)
            if not fits or (counts < 0).any() or ((indices < 0) | (indices >= extents[axis])).any():
                return f"the segments and indices of axis {axis} do not fit its {extents[axis]} entries"
            positions = np.repeat(positions, counts) + indices * strides[axis]
        else:
            return f"its axis {axis} is stored in the unknown form {kind}"
    return positions if len(np.unique(positions)) == len(positions) else "it stores an element twice"


def _vector(level: FlatTable, name: str) -> Array:
    """A vector of 8, 16 or 32-bit integers as i64; empty if it is absent."""
    slots = schema.SPARSE_LEVEL
    table, kind = level.table(slots[name]), _KINDS.get(level.get(slots[f"{name}_type"], "u8"))
    return np.empty(0, np.int64) if table is None or kind is None else table.vector(0, kind).astype(np.int64)
