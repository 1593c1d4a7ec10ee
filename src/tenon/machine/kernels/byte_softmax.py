"""Softmax of rows of 8-bit integers to 8 bits by tables: see ``ops.byte_softmax`` for the arithmetic.

A row has 256 possible results at most, one for each distance from its greatest element.  They are computed once, and
each element looks its own up; exponentials are added up as integers, so in any order.  Machines that look up many bytes
at once (``Machine.table``) and multiply bytes four at a time add up exponentials as bytes of seven bits each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir import loops
from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, bitcast, broadcast, cast, op, reduce_lanes
from tenon.machine.kernels.group_rows import GroupRow, by_groups, threads_of
from tenon.machine.kernels.integer_conv import ONES
from tenon.machine.kernels.lookup import CODES, NARROWEST, lowest, table_parts
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.kernels.rows import total
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

PLANES, PLANE_BITS = 3, 7
"""In how many bytes exponentials are added up, and the bits of each, so that they are bytes with and without a sign."""


@dataclass(frozen=True)
class ByteSoftmax:
    """Over the last axis of [rows, n], of elements of ``dtype``.

    ``stage`` rounds exponentials times ``steps`` / their sum; those from entry ``reach`` of the table on give the zero
    point whatever the sum.
    """

    rows: int
    n: int
    dtype: DType
    stage: Requantize
    steps: float
    reach: int

    def factor(self, sum: Expr) -> Expr:
        """The factor of the exponentials of a row: ``steps`` over their ``sum``."""
        return op("div", Const(self.steps, Type(F32)), cast(sum, F32))


def in_planes(machine: Machine) -> bool:
    """Whether exponentials are looked up and added up many at once, as bytes."""
    return machine.table is not None and bool(machine.fours)


def planes(table: Array) -> Array:
    """u8 [PLANES, 256]: exponentials in bytes of seven bits, the lowest first."""
    return np.stack([(table >> (PLANE_BITS * i)) & ((1 << PLANE_BITS) - 1) for i in range(PLANES)]).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class SoftmaxTables:
    """The tables of a kernel: exponentials in i32, and in bytes where those are added up."""

    k: Builder
    s: ByteSoftmax
    machine: Machine
    exponentials: Tensor
    planes: Tensor | None

    @classmethod
    def of(cls, k: Builder, s: ByteSoftmax, machine: Machine) -> SoftmaxTables:
        """Declares the parameters."""
        t = k.param("t", CODES, dtype=I32)
        return cls(k, s, machine, t, k.param("p", PLANES, CODES, dtype=DType.U8) if in_planes(machine) else None)

    @property
    def entries(self) -> int:
        """Bytes that are looked up at once; 0 for one after the other."""
        return self.machine.table.entries if self.planes is not None and self.machine.table is not None else 0

    def pieces(self, n: int) -> Sequence[tuple[int, int, int]]:
        """``n`` elements in vectors, and the rest one by one: (start, iterations, lanes)."""
        if not self.entries:
            return [(0, n, 1)]
        wide = [piece for piece in lane_segments(n, self.entries) if piece[2] >= NARROWEST]
        done = sum(count * lanes for _, count, lanes in wide)
        return [*wide, *([(done, n - done, 1)] if done < n else [])]

    def greatest(self, x: Tensor, row: tuple[Index, ...], n: int) -> Expr:
        """The greatest of the first ``n`` elements of a row, in i32."""

        def part(at: Index, lanes: int) -> Expr:
            return Load(x.buffer, (*row, at), Type(self.s.dtype, lanes))

        if not self.entries:
            return total(self.k, "max", n, 1, I32, lambda at, _: cast(part(at, 1), I32))
        return cast(total(self.k, "max", n, self.entries, self.s.dtype, part), I32)

    def filling(self, most: Expr, floor: int, count: int) -> Expr:
        """The exponentials of so many elements ``floor`` in all."""
        part = self.k.local("o", 1, dtype=I32)
        with self.k.bind("d", op("and", most - floor, CODES - 1), CODES) as d:
            part[0] = self.exponentials[d] * count
        return part[0]

    def sum(self, x: Tensor, row: tuple[Index, ...], n: int, most: Expr) -> Expr:
        """The sum of the exponentials of a row, in i32."""
        k, parts = self.k, list[Expr]()
        unit = next(iter(self.machine.fours.values())) if self.planes is not None else None
        ones = Const(ONES, Type(I32))
        for start, count, lanes in self.pieces(n):
            if lanes == 1:
                acc = k.local("s", 1, dtype=I32)
                acc[0] = 0
                with k.loop("j", count) as j, k.bind("d", self.distance(x, row, j + start, most), CODES) as d:
                    acc[0] = acc[0] + self.exponentials[d]
                parts.append(acc[0])
                continue
            assert self.planes is not None
            assert unit is not None
            sums = k.local("s", PLANES, dtype=I32, lanes=lanes // 4)
            with k.unroll("c", PLANES) as c:
                sums[c] = 0
            wide = k.let("most", broadcast(cast(most, DType.U8), lanes))
            each = PLANES if 4 * PLANES * CODES // self.entries <= 2 * self.machine.registers else 1
            for first in range(0, PLANES, each):
                tables = {plane: self.vectors(self.planes, plane) for plane in range(first, first + each)}
                with k.loop("j", count) as j:
                    own = k.let("d", self.distances(x, row, j * lanes + start, wide))
                    for plane, vectors in tables.items():
                        word = bitcast(loops.lookup(own, vectors), DType.Q8)
                        sums[plane] = op(unit.operation, sums[plane], word, broadcast(ones, lanes // 4))
            joined = sums[0]
            for plane in range(1, PLANES):
                joined = joined + (sums[plane] << (PLANE_BITS * plane))
            parts.append(reduce_lanes("add", joined))
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return k.let("sum", whole)

    def vectors(self, table: Tensor, row: int | None = None) -> list[Expr]:
        """A table of bytes in vectors."""
        entries, outer = self.entries, () if row is None else (row,)
        return [self.k.let("part", table.vec(entries)[(*outer, i)]) for i in range(CODES // entries)]

    def distance(self, x: Tensor, row: tuple[Index, ...], at: Index, most: Expr) -> Expr:
        """How far an element is below the greatest, in i32."""
        own = cast(Load(x.buffer, (*row, at), Type(self.s.dtype)), I32)
        return op("and", most - own, CODES - 1)  # which compilers see the range of

    def distances(self, x: Tensor, row: tuple[Index, ...], at: Index, most: Expr) -> Expr:
        """The same of a vector, in u8."""
        own = Load(x.buffer, (*row, at), Type(self.s.dtype, most.type.lanes))
        return most - (own if self.s.dtype is DType.U8 else bitcast(own, DType.U8))

    def results(self, table: Tensor, at: tuple[Index, ...], factor: Expr) -> None:
        """A row's results by distance, u8 [..., 256]."""
        lanes, k = self.machine.lanes, self.k
        reached = -(-self.s.reach // lanes) * lanes
        wide = k.let("f", broadcast(factor, lanes))
        with k.loop("c", reached // lanes) as c:
            value = self.s.stage(self.exponentials.vec(lanes)[c], [wide])
            k.store(table.buffer, (*at, c * lanes), bitcast(value, DType.U8))
        with k.loop("c", (CODES - reached) // lanes) as c:
            zeros = broadcast(Const(self.s.stage.zero & 255, Type(DType.U8)), lanes)
            k.store(table.buffer, (*at, c * lanes + reached), zeros)

    def look_up(
        self, x: Tensor, row: tuple[Index, ...], n: int, most: Expr, table: Tensor, at: tuple[Index, ...], y: Tensor
    ) -> None:
        """Store the results of a row, whose table is ``table[at]``, in the same row of ``y``."""
        k, to = self.k, y.buffer.type.dtype
        for start, count, lanes in self.pieces(n):
            if lanes == 1:
                with k.loop("j", count) as j, k.bind("d", self.distance(x, row, j + start, most), CODES) as d:
                    k.store(y.buffer, (*row, j + start), _bits(table[(*at, d)], to))
                continue
            wide = k.let("most", broadcast(cast(most, DType.U8), lanes))
            entries = self.entries
            vectors = [
                k.let("part", Load(table.buffer, (*at, Index((), i * entries)), Type(DType.U8, entries)))
                for i in range(CODES // entries)
            ]
            with k.loop("j", count) as j:
                result = loops.lookup(self.distances(x, row, j * lanes + start, wide), vectors)
                k.store(y.buffer, (*row, j * lanes + start), _bits(result, to))

    def recode(self, x: Tensor, row: tuple[Index, ...], n: int, codes: Tensor) -> None:
        """Replace the elements of a row by their entries in a table, which is in the order of these numbers."""
        k, least, dtype = self.k, lowest(self.s.dtype), self.s.dtype
        for start, count, lanes in self.pieces(n):
            parts = table_parts(k, codes, self.entries, least) if lanes > 1 else []
            with k.loop("j", count) as j:
                at = (*row, j * lanes + start)
                own = Load(x.buffer, at, Type(dtype, lanes))
                if lanes > 1:
                    k.store(x.buffer, at, loops.lookup(own, parts))
                else:
                    with k.bind("code", cast(own, I32) - least, CODES) as code:
                        k.store(x.buffer, at, codes[code])


def _bits(value: Expr, dtype: DType) -> Expr:
    """Bytes as those of ``dtype``."""
    return value if value.type.dtype is dtype else bitcast(value, dtype)


@lru_cache(maxsize=256)
def byte_softmax(s: ByteSoftmax, machine: Machine) -> Kernel:
    """Parameters: x [rows, n], the table i32 [256] of exp by the distance from the greatest element of a row, where the
    machine adds them up as bytes ``planes`` of it, y [rows, n]."""
    about = f"Softmax of {s.rows} rows of {s.n} bytes to bytes, by a table of exp"
    k = Builder(f"byte_softmax_{s.rows}x{s.n}", about)
    x = k.param("x", s.rows, s.n, dtype=s.dtype)
    tables = SoftmaxTables.of(k, s, machine)
    y = k.param("y", s.rows, s.n, dtype=s.stage.dtype, out=True)
    if by_groups(machine, s.rows, s.n):
        _groups(tables, x, y)
        return k.done()
    (kind,), _ = deal(s.rows)
    with k.loop("i", s.rows, kind=kind) as i:
        most = tables.greatest(x, (i,), s.n)
        factor = k.let("factor", s.factor(tables.sum(x, (i,), s.n, most)))
        if machine.launch is not None or (tables.planes is None and s.n * machine.lanes < s.reach):
            with k.loop("j", s.n) as j, k.bind("d", tables.distance(x, (i,), j, most), CODES) as d:
                y[i, j] = s.stage(tables.exponentials[d], [factor])
        else:
            table = k.local("results", CODES, dtype=DType.U8, space="stack")
            tables.results(table, (), factor)
            tables.look_up(x, (i,), s.n, most, table, (), y)
    return k.done()


def _groups(t: SoftmaxTables, x: Tensor, y: Tensor) -> None:
    """A block for each row."""
    k, s = t.k, t.s
    row = GroupRow(k, s.n, threads_of(t.machine, s.n))
    with k.loop("o", s.rows, kind="block") as o:
        tops, sums = row.cells(I32), row.cells(I32)
        with row.running():
            most = row.total(tops, "max", I32, lambda at, _: cast(x[o, at], I32))

            term = k.local("e", 1, dtype=I32)

            def exponential(at: Index, _: Index) -> Expr:
                with k.bind("d", t.distance(x, (o,), at, most), CODES) as d:
                    term[0] = t.exponentials[d]
                return term[0]

            factor = k.let("factor", s.factor(row.total(sums, "add", I32, exponential)))

            def finish(at: Index, _: Index) -> None:
                with k.bind("d", t.distance(x, (o,), at, most), CODES) as d:
                    y[o, at] = s.stage(t.exponentials[d], [factor])

            row.elements(finish)
