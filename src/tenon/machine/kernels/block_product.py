"""Products of activations in bytes by weights in blocks (``kernels.block_formats``), which stay of a few bits.

The arithmetic is named "blocks" (docs/design/block-weights.md).  Activations are quantised for every 32 elements of a
row: their scale is the largest magnitude over 127.  The products of a group are summed in integers; then, in f32 and
rounded after every operation, ``term = scale * sum`` (and ``+ shift * (sum of the group)`` where the format has
shifts) and ``y = y + term * activation scale``, in the order of the groups.  So every processor computes the same
bits.

A tile of rows by panels of outputs is summed in registers; the words of weights are unpacked once for all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast, op
from tenon.machine.kernels.block_formats import FORMATS, GROUP, BlockFormat
from tenon.machine.kernels.block_packing import WORDS, BlockPacking, unpacked_pair
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

LINE = 64
"""Bytes of a line of the cache."""

HALF = GROUP // 2
"""Elements whose sums activations come with."""


@dataclass(frozen=True)
class BlockProduct:
    """[rows, columns] by weights [outputs, columns] of a format."""

    format: str
    rows: int
    columns: int
    outputs: int

    @property
    def weights(self) -> BlockFormat:
        return FORMATS[self.format]

    @property
    def groups(self) -> int:
        return self.columns // GROUP


def packing(format: str, machine: Machine) -> BlockPacking:
    """How a machine wants weights to lie."""
    return BlockPacking(FORMATS[format], machine.lanes, product_unit(machine) != "dot4")


def product_unit(machine: Machine) -> str:
    """The operation for four products of bytes: its first factor has no sign where the machine prefers that."""
    for dtype in (DType.U8, DType.I8):
        unit = machine.fours.get(dtype)
        if unit is not None and not unit.narrow:
            return unit.operation
    return "dot4_narrow"


def tile_of(s: BlockProduct, machine: Machine) -> tuple[int, int]:
    """Rows and panels of a tile."""
    panels = packing(s.format, machine).panels(s.outputs)
    wide = machine.registers >= 32
    rows, vectors = (1, 2) if s.rows == 1 else (4, 2) if wide else (2, 2)
    return min(rows, s.rows), min(vectors, panels)


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The parameters of a kernel that hold weights; those that the format does not have are None."""

    packing: BlockPacking
    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    shift: Tensor | None
    fine: Tensor | None
    fine_shift: Tensor | None

    @classmethod
    def declared(cls, k: Builder, s: BlockProduct, p: BlockPacking) -> BlockWeights:
        """In the order of ``BlockPacking.pack``."""
        f, panels = s.weights, p.panels(s.outputs)
        blocks, parts = s.columns // f.span, s.columns // (f.fine or 1)
        fine_type = DType.I8 if f.signed_fine else DType.U8
        return cls(
            p,
            k.param("w", panels, s.groups, p.stored_words, p.lanes, dtype=DType.Q8),
            k.param("d", panels, blocks, p.lanes, dtype=F32 if f.wide else DType.F16),
            k.param("z", panels, blocks, p.lanes, dtype=p.zero_type) if f.zeros else None,
            k.param("m", panels, blocks, p.lanes, dtype=DType.F16) if f.shifts else None,
            k.param("f", panels, parts, p.lanes, dtype=fine_type) if f.fine else None,
            k.param("n", panels, parts, p.lanes, dtype=fine_type) if f.fine_shifts else None,
        )

    def scales(self, k: Builder, panel: Index, block: Index, group: Index) -> list[Expr]:
        """The scales of a group of a panel, and its shifts.

        Fine scales of groups are multiplied in here: f16 times 6 bits is exact, so that the result is that of integers
        which are multiplied by the fine scale first.
        """
        lanes, result = self.packing.lanes, []
        fine = (self.fine, self.fine_shift) if self.packing.format.fine == GROUP else (None, None)
        for tensor, part in zip((self.scale, self.shift), fine, strict=True):
            if tensor is not None:
                value = cast(tensor.vec(lanes)[panel, block, 0], F32)
                if part is not None:
                    value = value * cast(cast(part.vec(lanes)[panel, group, 0], I32), F32)
                result.append(k.let("d", value))
        return result

    def term(self, total: Expr, scales: Sequence[Expr], whole: Expr | None) -> Expr:
        """What a group adds to results: ``total`` is the sum of its products, and ``whole`` that of its activations,
        both in f32; ``whole`` is for formats that have shifts."""
        term = op("mul_rounded", total, scales[0])
        if len(scales) == 1:
            return term
        assert whole is not None
        added = op("mul_rounded", whole, scales[1])
        return term + added if self.fine_shift is None else term - added


@dataclass(frozen=True, eq=False)
class _Operands:
    """The parameters of a kernel."""

    x: Tensor
    x_scale: Tensor
    x_sums: Tensor
    weights: BlockWeights
    y: Tensor

    @classmethod
    def declared(cls, k: Builder, s: BlockProduct, p: BlockPacking) -> _Operands:
        return cls(
            k.param("x", s.rows, s.columns // 4, dtype=DType.Q8),
            k.param("dx", s.rows, s.groups),
            k.param("sx", s.rows, 2 * s.groups, dtype=I32),
            BlockWeights.declared(k, s, p),
            k.param("y", s.rows, s.outputs, out=True),
        )


@lru_cache(maxsize=256)
def block_product(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: x in words, its scales f32 [rows, groups] and sums of 16 i32 [rows, 2 groups], the arrays of
    ``BlockPacking.pack``, y f32 [rows, outputs]."""
    p = packing(s.format, machine)
    k = Builder(
        f"block_product_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format})",
    )
    operands = _Operands.declared(k, s, p)
    product = _BlockTiles(k, s, p, product_unit(machine), operands, machine.prefetch and s.rows == 1)
    height, width = tile_of(s, machine)
    for first, count, vectors in _runs(s.outputs, p.lanes, width):
        with k.loop("j", count, kind="parallel") as j:
            panel, partial = j * vectors + first, first == s.outputs // p.lanes
            for top, times, rows in _segments(s.rows, height):
                with k.loop("i", times) as i:
                    product.tile(i * rows + top, rows, panel, vectors, partial=partial)
    return k.done()


def _segments(n: int, step: int) -> list[tuple[int, int, int]]:
    """Split range(n) into whole steps and the rest: (start, iterations, step)."""
    rest = [(n - n % step, 1, n % step)] if n % step else []
    return [*([(0, n // step, step)] if n >= step else []), *rest]


def _runs(outputs: int, lanes: int, width: int) -> list[tuple[int, int, int]]:
    """Tiles along the panels: (first panel, tiles, panels of each); a panel that is not full is one of its own."""
    whole = outputs // lanes
    runs = _segments(whole, width) if whole else []
    return [*runs, *([(whole, 1, 1)] if outputs % lanes else [])]


@dataclass(frozen=True, eq=False)
class _BlockTiles:
    k: Builder
    s: BlockProduct
    p: BlockPacking
    unit: str
    at: _Operands
    ahead: bool

    def tile(self, row: Index, rows: int, panel: Index, vectors: int, *, partial: bool) -> None:
        """All groups of a tile, whose first row and panel are given; ``partial``: fewer outputs than lanes are left."""
        k, f, lanes = self.k, self.s.weights, self.p.lanes
        acc = k.local("y", rows, vectors, lanes=lanes)
        with k.unroll("r", rows) as r, k.unroll("v", vectors) as v:
            acc[r, v] = 0.0
        with k.loop("b", self.s.columns // f.span) as block, k.loop("g", f.span // GROUP) as part:
            group = block * (f.span // GROUP) + part
            if self.ahead:
                self._prefetch(panel + vectors, vectors, block, group)
            sums = self._sums(row, rows, panel, vectors, group, block)
            with k.unroll("v", vectors) as v:
                scales = self.at.weights.scales(k, panel + v, block, group)
                with k.unroll("r", rows) as r:
                    self._accumulate(acc, (r, v), sums[r, v], row + r, group, scales)
        if partial:
            self._store_part(row, rows, panel, acc)
            return
        with k.unroll("r", rows) as r, k.unroll("v", vectors) as v:
            self.at.y.vec(lanes)[row + r, panel + v] = acc[r, v]

    def _prefetch(self, panel: Index, vectors: int, block: Index, group: Index) -> None:
        """Fetch a group of the next tile: one row reads every weight once, in runs too short to be foreseen."""
        with self.k.unroll("v", vectors) as v:
            for line in range(0, self.p.stored_words * self.p.lanes, LINE // 4):
                word, lane = divmod(line, self.p.lanes)
                self.k.prefetch(self.at.weights.codes, panel + v, group, word, lane)
            self.k.prefetch(self.at.weights.scale, panel + v, block, 0)

    def _sums(self, row: Index, rows: int, panel: Index, vectors: int, group: Index, block: Index) -> Tensor:
        """The sums of products of a group, less what codes are too large by, times the scales of its parts."""
        k, f, lanes = self.k, self.s.weights, self.p.lanes
        sums = k.local("s", rows, vectors, dtype=I32, lanes=lanes)
        halves = 2 if f.fine == HALF else 1
        for half in range(halves):
            dots = sums if halves == 1 else k.local("h", rows, vectors, dtype=I32, lanes=lanes)
            with k.unroll("r", rows) as r:
                start = self._start(row + r, group, half if halves > 1 else None)
                with k.unroll("v", vectors) as v:
                    dots[r, v] = self._less_zero(start, row + r, panel + v, group, block)
            self._dots(dots, row, rows, panel, vectors, group, range(half * 2, half * 2 + 4 // halves))
            if halves > 1:
                self._finer(sums, dots, rows, panel, vectors, group * halves + half, first=half == 0)
        return sums

    def _start(self, row: Index, group: Index, half: int | None) -> Expr:
        """The initial value of the sum of a group of a row, or of half of one."""
        offset = self.p.offset
        if not offset:
            return broadcast(Const(0, Type(I32)), self.p.lanes)
        return self.k.let("o", broadcast(self._group_sum(row, group, half) * -offset, self.p.lanes))

    def _less_zero(self, start: Expr, row: Index, panel: Index, group: Index, block: Index) -> Expr:
        """The initial value of a sum, less the zero point times the sum of the group."""
        if self.at.weights.zero is None:
            return start
        zero = cast(self.at.weights.zero.vec(self.p.lanes)[panel, block, 0], I32)
        return start - zero * broadcast(self._group_sum(row, group), self.p.lanes)

    def _group_sum(self, row: Index, group: Index, half: int | None = None) -> Expr:
        """The sum of a group of activations, or of half of one."""
        if half is not None:
            return self.at.x_sums[row, group * 2 + half]
        return self.at.x_sums[row, group * 2] + self.at.x_sums[row, group * 2 + 1]

    def _dots(
        self, dots: Tensor, row: Index, rows: int, panel: Index, vectors: int, group: Index, pairs: Sequence[int]
    ) -> None:
        """Add the products of some pairs of words."""
        k, lanes = self.k, self.p.lanes
        for pair in pairs:
            with k.unroll("v", vectors) as v:
                words = unpacked_pair(self.s.weights, self.at.weights.codes.vec(lanes), (panel + v, group), pair)
                words = [k.let("w", word) for word in words]
                with k.unroll("r", rows) as r:
                    total: Expr = dots[r, v]
                    for i, word in enumerate(words):
                        x = broadcast(self.at.x[row + r, group * WORDS + 2 * pair + i], lanes)
                        total = op(self.unit, total, word, x)
                    dots[r, v] = total

    def _finer(
        self, sums: Tensor, dots: Tensor, rows: int, panel: Index, vectors: int, part: Index, *, first: bool
    ) -> None:
        """Multiply sums by the scales of a part, and add them up."""
        k, lanes = self.k, self.p.lanes
        assert self.at.weights.fine is not None
        fine = self.at.weights.fine.vec(lanes)
        with k.unroll("v", vectors) as v:
            scale = k.let("f", cast(fine[panel + v, part, 0], I32))
            with k.unroll("r", rows) as r:
                scaled = dots[r, v] * scale
                sums[r, v] = scaled if first else sums[r, v] + scaled

    def _accumulate(
        self,
        acc: Tensor,
        cell: tuple[Index, Index],
        total: Expr,
        row: Index,
        group: Index,
        scales: Sequence[Expr],
    ) -> None:
        """Add the sum of a group to the results, times its scales."""
        lanes = self.p.lanes
        whole = None
        if len(scales) > 1:
            whole = broadcast(cast(self._group_sum(row, group), F32), lanes)
        term = self.at.weights.term(cast(total, F32), scales, whole)
        acc[cell] = acc[cell] + op("mul_rounded", term, broadcast(self.at.x_scale[row, group], lanes))

    def _store_part(self, row: Index, rows: int, panel: Index, acc: Tensor) -> None:
        """Store as many lanes as there are outputs left."""
        k, lanes = self.k, self.p.lanes
        line = k.local("t", rows, lanes, space="stack")
        with k.unroll("r", rows) as r:
            line.vec(lanes)[r, 0] = acc[r, 0]
        with k.loop("r", rows) as r, k.loop("l", self.s.outputs % lanes) as lane:
            self.at.y[row + r, panel * lanes + lane] = line[r, lane]
