"""Operands of the generators: a box of elements inside a buffer.

``Box`` is generic; ``Image`` is the five-dimensional blocked activation of convolution and pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Expr, broadcast
from tenon.network.graph.types import F32, DType, TensorType

Epilogue = Callable[..., Expr]
"""f(result, *operands) -> Expr, applied to a result just before it is stored.  Lane-free by construction."""


def identity(result: Expr, *_: Expr) -> Expr:
    return result


@dataclass(frozen=True)
class Image:
    """Activations [n][channels / block][top + h + bottom][left + w + right][block] (see ``graph.types.Layout``)."""

    n: int
    channels: int
    h: int
    w: int
    block: int = 1
    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0
    dtype: DType = F32

    @classmethod
    def of(cls, type: TensorType) -> Image:
        """A tensor [N, C], [N, C, W] or [N, C, H, W] in its layout, as an image."""
        dims = type.dims
        if not 2 <= len(dims) <= 4:
            raise ValueError(f"{type} is not an image of at most two spatial axes")
        halos = type.layout.halos(len(dims))
        (top, bottom), (left, right) = ((0, 0), (0, 0), *halos)[-2:]
        h, w = (1, 1, *dims[2:])[-2:]
        return cls(dims[0], dims[1], h, w, type.block, top, bottom, left, right, type.dtype)

    @property
    def shown(self) -> str:
        """The channels, rows and columns, for comments in generated code."""
        return f"{self.channels}x{self.h}x{self.w}"

    @property
    def blocks(self) -> int:
        return -(-self.channels // self.block)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, self.blocks, self.top + self.h + self.bottom, self.left + self.w + self.right, self.block

    @property
    def dense(self) -> bool:
        """Whether rows are contiguous, so that the plane can be treated as one row."""
        return not (self.left or self.right or self.top or self.bottom)

    def flat(self) -> Image:
        """The same elements of a dense image as a single row."""
        assert self.dense
        return Image(self.n, self.channels, 1, self.h * self.w, self.block, dtype=self.dtype)

    def at(self, n: IndexLike, channel: IndexLike, row: IndexLike, col: IndexLike, lanes: int) -> tuple[IndexLike, ...]:
        """The indices of ``lanes`` channels from ``channel`` on; an axis of one element is broadcast.

        ``channel`` counts elements and is a multiple of ``lanes``; the last index counts vectors of them.
        """
        channel = index(channel) if self.channels > 1 else Index()
        lanes = lanes if self.channels > 1 else 1
        return (
            n if self.n > 1 else 0,
            channel // self.block,
            (row if self.h > 1 else 0) + index(self.top),
            (col if self.w > 1 else 0) + index(self.left),
            channel % self.block // lanes,
        )

    def lanes(self, lanes: int) -> int:
        """How many lanes to load for ``lanes`` of a result: one where a single channel is broadcast."""
        return lanes if self.channels > 1 else 1

    def place(
        self, n: IndexLike, channel: IndexLike, row: IndexLike, col: IndexLike, lanes: int
    ) -> tuple[IndexLike, ...]:
        """As ``at``, for storing: nothing is broadcast, and padding lanes past the last channel are included."""
        channel = index(channel)
        return (
            n,
            channel // self.block,
            row + index(self.top),
            col + index(self.left),
            channel % self.block // lanes,
        )


@dataclass(frozen=True)
class Box:
    """``size`` elements per dimension, from ``start``, of a buffer of extents ``shape``."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]
    dtype: DType = F32

    @classmethod
    def of(cls, type: TensorType, rank: int = 0) -> Box:
        """A tensor in its layout, as a box; a row-major one is extended to ``rank`` with leading ones."""
        shape = type.physical
        if type.layout.in_order:
            shape = (1,) * (rank - len(shape)) + shape
            return cls(shape, (0,) * len(shape), shape, type.dtype)
        dims, halos = type.dims, type.layout.halos(type.rank)
        start = (0, 0, *(before for before, _ in halos), 0)
        return cls(shape, start, (dims[0], shape[1], *dims[2:], shape[-1]), type.dtype)

    @property
    def count(self) -> int:
        return math.prod(self.size)

    def spread(self, at: tuple[IndexLike, ...]) -> tuple[IndexLike, ...]:
        """The index into the buffer for an index into the box; an axis of one element is broadcast."""
        return tuple((i if n > 1 else 0) + index(s) for i, n, s in zip(at, self.size, self.start, strict=True))


def collapse(boxes: list[Box]) -> list[Box]:
    """The same boxes with as few dimensions as possible.

    Two neighbouring dimensions are merged where every box either covers the inner one entirely (so that the two are
    contiguous) or is broadcast along both.
    """
    rank = len(boxes[0].shape)
    full = tuple(max(b.size[d] for b in boxes) for d in range(rank))
    groups: list[list[int]] = []
    for d in range(rank):
        if groups and all(_joins(b, groups[-1], d, full) for b in boxes):
            groups[-1].append(d)
        else:
            groups.append([d])
    return [_merge(b, groups) for b in boxes]


def _joins(b: Box, outer: list[int], d: int, full: tuple[int, ...]) -> bool:
    if all(full[i] == 1 and b.shape[i] == 1 for i in outer) or (full[d] == 1 and b.shape[d] == 1):
        return True
    ones = all(b.size[i] == 1 == b.shape[i] for i in (*outer, d))
    covers = b.start[d] == 0 and b.size[d] == b.shape[d] == full[d]
    return ones or (covers and all(b.size[i] == full[i] for i in outer))


def _merge(b: Box, groups: list[list[int]]) -> Box:
    shape, start, size = [], [], []
    for group in groups:
        shape.append(math.prod(b.shape[d] for d in group))
        size.append(math.prod(b.size[d] for d in group))
        offset = 0
        for d in group:
            offset = offset * b.shape[d] + b.start[d]
        start.append(offset)
    return Box(tuple(shape), tuple(start), tuple(size), b.dtype)


def load(tensor_at: Expr, lanes: int) -> Expr:
    """A loaded value as ``lanes`` lanes."""
    return broadcast(tensor_at, lanes)
