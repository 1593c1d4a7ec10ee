"""Activations as bytes with a scale for every 32 elements of a row, and the sums of every 16 bytes.

Machines with vectors take as many groups at a time as a vector has lanes: the largest magnitudes of all are one vector,
as are their scales, for the sake of the two divisions, and the sums of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Type,
    broadcast,
    cast,
    less,
    maximum,
    of_pairs,
    op,
    select,
)
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_sums import HALF
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

LEAST = 2.0**-126
"""The least scale: groups of smaller numbers become zeros."""


@lru_cache(maxsize=256)
def block_quantize(rows: int, columns: int, machine: Machine) -> Kernel:
    """Parameters: x f32 [rows, columns], y i8 [rows, columns], scales f32 [rows, groups], sums i32 [rows, 2 groups]."""
    groups, lanes = columns // GROUP, min(machine.lanes, HALF)
    k = Builder(f"block_quantize_{rows}x{columns}", f"[{rows}, {columns}] to bytes with a scale for {GROUP} of them")
    x = k.param("x", rows, columns)
    y = k.param("y", rows, columns, dtype=DType.I8, out=True)
    scales = k.param("d", rows, groups, out=True)
    sums = k.param("s", rows, 2 * groups, dtype=I32, out=True)
    with k.loop("r", rows, kind="parallel") as r:
        for first, count, together in segments(groups, _together(groups, lanes)):
            with k.loop("g", count) as turn:
                _Turn(k, x, y, scales, sums, r, turn * together + first, together, lanes).quantize()
    return k.done()


def _together(groups: int, lanes: int) -> int:
    """Groups at a time: as many as lanes, or some fewer of which there is a whole number of times."""
    return next((n for n in range(lanes, lanes // 2, -1) if groups % n == 0), lanes)


@dataclass(frozen=True, eq=False)
class _Turn:
    """Some groups of a row, from ``group`` on."""

    k: Builder
    x: Tensor
    y: Tensor
    scales: Tensor
    sums: Tensor
    row: Index
    group: Index
    groups: int
    lanes: int

    def quantize(self) -> None:
        k = self.k
        tops = [self._top(g) for g in range(self.groups)]
        scale = k.let("d", op("div", _reduced(maximum, tops)[0], Const(127.0, Type(F32))))
        small = k.let("z", less(scale, LEAST))
        scale = k.let("d", select(small, 0.0, scale))
        inverse = k.let("q", select(small, 0.0, op("div", Const(1.0, Type(F32)), select(small, 1.0, scale))))
        self._store(self.scales, self.group, self.groups, [scale])
        each = k.local("q", self.lanes, space="stack" if self.lanes > 1 else "register")
        each.vec(self.lanes)[0] = inverse
        totals = [self._half(each[half // 2], half) for half in range(2 * self.groups)]
        self._store(self.sums, self.group * 2, 2 * self.groups, _reduced(lambda a, b: a + b, totals))

    def _vector(self, at: int | Index) -> tuple[Index, Index]:
        """The place of a vector of the groups."""
        return self.row, self.group * (GROUP // self.lanes) + at

    def _top(self, group: int) -> Expr:
        """The largest magnitudes of every lane of a group."""
        k, vectors, x = self.k, GROUP // self.lanes, self.x.vec(self.lanes)
        top = k.local("a", 1, lanes=self.lanes)
        top[0] = op("abs", x[self._vector(group * vectors)])
        with k.loop("i", vectors - 1) as i:
            top[0] = maximum(top[0], op("abs", x[self._vector(i + group * vectors + 1)]))
        return top[0]

    def _half(self, inverse: Expr, half: int) -> Expr:
        """Store 16 elements as bytes; the sums of every lane."""
        k, vectors, lanes = self.k, HALF // self.lanes, self.lanes
        total = k.local("t", 1, dtype=I32, lanes=lanes)
        total[0] = 0
        factor = broadcast(inverse, lanes)
        with k.loop("i", vectors) as i:
            at = self._vector(i + half * vectors)
            number = op("mul_rounded", self.x.vec(lanes)[at], factor)
            whole = k.let("w", op("nearest", number) if lanes > 1 else cast(op("round", number), I32))
            total[0] = total[0] + whole
            self.y.vec(lanes)[at] = cast(whole, DType.I8)
        return total[0]

    def _store(self, into: Tensor, first: Index, count: int, vectors: Sequence[Expr]) -> None:
        """The lanes of vectors, ``count`` of them, to a row from ``first`` on."""
        k, lanes = self.k, self.lanes
        whole, rest = divmod(count, lanes)
        dtype = into.buffer.type.dtype
        for number, vector in enumerate(vectors[: whole + (rest > 0)]):
            if number < whole:
                k.store(into.buffer, (self.row, first + number * lanes), vector)
                continue
            part = k.local("p", lanes, dtype=dtype, space="stack")
            part.vec(lanes)[0] = vector
            with k.loop("e", rest) as lane:
                into[self.row, first + number * lanes + lane] = part[lane]


def _reduced(function: Callable[[Expr, Expr], Expr], vectors: Sequence[Expr]) -> list[Expr]:
    """The result of ``function`` for all lanes of each vector, as lanes of vectors, of which the last may have more."""
    lanes, level = vectors[0].type.lanes, list(vectors)
    while lanes > 1:
        level = [of_pairs(function, *(level[i : i + 2] * 2)[:2]) for i in range(0, len(level), 2)]
        lanes //= 2
    return level
