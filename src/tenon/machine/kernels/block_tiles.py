"""Products of many rows by weights in blocks, by a matrix unit whose tiles are in registers (``isa.amx``).

A tile is 16 rows of activations by 16 outputs, and a product of tiles has one group of 32 elements (two where parts of
16 have scales of their own), because groups are summed in f32: the sums of a group leave the registers, are scaled and
added to the results, which stay in vectors meanwhile.  The order and the rounding are those of
``kernels.block_product``.

Weights are unpacked to bytes with a sign in memory of the thread, some groups at a time, and multiplied by all rows.
Activations are copied so that the rows of a tile lie side by side: those of matrices of some widths would share few
sets of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.amx import BEGIN, END, TileBlock
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast, op
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_packing import WORDS, BlockPacking, signed, unpacked_pair
from tenon.machine.kernels.block_sums import HALF, BlockProduct, BlockWeights, packing
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

ROWS = LANES = 16
"""Rows and outputs of a tile."""

_GROUPS = 256
"""Most groups that are unpacked at a time: 128 KB, which the second cache holds."""

_MOST = 256
"""Most rows whose results are summed at a time."""


def supported(s: BlockProduct, machine: Machine) -> bool:
    """Whether there is a kernel: for formats without zero points, from which codes could differ by more than a byte."""
    return machine.tiles(DType.I8) is not None and machine.lanes == LANES and not s.weights.zeros


def row_tiles(s: BlockProduct) -> int:
    """Tiles of rows; the last one may be in part beyond them."""
    return -(-s.rows // ROWS)


def left_words(s: BlockProduct) -> int:
    """Words of activations as ``block_left`` writes them."""
    return row_tiles(s) * s.groups * ROWS * WORDS


@lru_cache(maxsize=128)
def block_left(s: BlockProduct) -> Kernel:
    """Parameters: x in words [rows, columns / 4], and the same as [tiles of rows][groups][rows][words], zeros beyond
    the rows."""
    k = Builder(f"block_left_{s.rows}x{s.columns}", f"[{s.rows}, {s.columns}] in bytes, {ROWS} rows side by side")
    x = k.param("x", s.rows, s.columns // 4, dtype=I32)
    y = k.param("y", row_tiles(s), s.groups, ROWS, WORDS, dtype=I32, out=True)
    for start, count, rows in segments(s.rows, ROWS):
        with k.loop("i", count, kind="parallel") as i, k.loop("g", s.groups) as group:
            tile = i + start // ROWS
            with k.loop("r", rows) as r:
                y.vec(WORDS)[tile, group, r, 0] = x.vec(WORDS)[tile * ROWS + r, group]
            with k.loop("z", ROWS - rows) as beyond:
                y.vec(WORDS)[tile, group, beyond + rows, 0] = broadcast(Const(0, Type(I32)), WORDS)
    return k.done()


@lru_cache(maxsize=128)
def block_totals(s: BlockProduct) -> Kernel:
    """Parameters: the sums of 16 activations, i32 [rows, 2 groups], and the sums of parts in f32 [rows, parts]."""
    width = s.columns // total_parts(s)
    k = Builder(f"block_totals_{s.rows}x{s.columns}_{width}", f"Sums of {width} of [{s.rows}, {s.columns}] as floats")
    sums = k.param("sx", s.rows, 2 * s.groups, dtype=I32)
    y = k.param("y", s.rows, total_parts(s), out=True)
    with k.loop("r", s.rows, kind="parallel") as row, k.loop("g", total_parts(s)) as part:
        whole = sums[row, part] if width == HALF else sums[row, part * 2] + sums[row, part * 2 + 1]
        y[row, part] = cast(whole, F32)
    return k.done()


def total_parts(s: BlockProduct) -> int:
    """Parts of a row of activations whose sums are multiplied by shifts: groups, or halves of them."""
    return s.groups * (2 if s.weights.fine == HALF else 1)


@lru_cache(maxsize=128)
def block_tiles(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: the words of ``block_left``, the scales of activations f32 [rows, groups], what ``block_totals``
    writes if the format has shifts, the arrays of ``BlockPacking.pack``, y f32 [rows, outputs]."""
    p = packing(s.format, machine)
    k = Builder(
        f"block_tiles_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format}), in tiles",
    )
    x = k.param("x", row_tiles(s), s.groups, ROWS, WORDS, dtype=DType.Q8)
    scales = k.param("dx", s.rows, s.groups)
    totals = k.param("t", s.rows, total_parts(s)) if s.weights.shifts else None
    weights = BlockWeights.declared(k, s, p)
    tiles = _Tiles(k, s, p, x, scales, totals, weights, k.param("y", s.rows, s.outputs, out=True))
    whole, rest = divmod(s.outputs, LANES)
    for first, count, stored in ((0, whole, LANES), (whole, min(rest, 1), rest)):
        if count:
            with k.loop("j", count, kind="parallel") as j:
                tiles.panel(j + first, stored)
    return k.done()


@dataclass(frozen=True, eq=False)
class _Tiles:
    k: Builder
    s: BlockProduct
    p: BlockPacking
    x: Tensor
    x_scale: Tensor
    x_total: Tensor | None
    weights: BlockWeights
    y: Tensor

    @property
    def parts(self) -> int:
        """Parts of a group that have scales of their own."""
        return GROUP // HALF if self.s.weights.fine == HALF else 1

    @property
    def block(self) -> TileBlock:
        return TileBlock(ROWS, 1, 1, WORDS // self.parts, apart=4 * WORDS)

    @property
    def groups(self) -> int:
        """Groups that are unpacked at a time: whole blocks, equally many each time."""
        each = self.s.weights.span // GROUP
        return next(n for n in range(_GROUPS, 0, -1) if n % each == 0 and self.s.groups % n == 0)

    def panel(self, panel: Index, stored: int) -> None:
        """All results of a panel, of which so many outputs are ``stored``."""
        k, s = self.k, self.s
        with k.instruction(BEGIN, (), *self.block.shape):
            pass
        codes = k.local("c", self.groups, WORDS, LANES, dtype=DType.Q8, space="stack")
        for start, times, rows in segments(s.rows, _MOST):
            with k.loop("q", times) as turn:
                top = turn * rows + start
                direct = self.groups == s.groups and stored == LANES
                line = self.y if direct else k.local("l", rows, LANES, space="stack")
                if not direct:
                    with k.loop("r", rows) as r:
                        line.vec(LANES)[r, 0] = 0.0
                with k.loop("u", s.groups // self.groups) as part:
                    self._unpack(codes, panel, part * self.groups)
                    for first, count, height in segments(rows, ROWS):
                        with k.loop("i", count) as i:
                            row = i * ROWS + first
                            kept = (self.y, top + row, panel) if direct else (line, row, Index())
                            self._tile((panel, part * self.groups), (top + row, height), codes, kept)
                if not direct:
                    self._store(line, top, rows, panel, stored)
        with k.instruction(END, ()):
            pass

    def _unpack(self, codes: Tensor, panel: Index, group: Index) -> None:
        """Some groups of a panel as bytes with a sign."""
        k, f = self.k, self.s.weights
        with k.loop("b", self.groups * GROUP // f.span) as block, k.loop("g", f.span // GROUP) as part:
            own = block * (f.span // GROUP) + part
            for pair in range(WORDS // 2):
                words = unpacked_pair(f, self.weights.codes.vec(LANES), (panel, group + own), pair, Index())
                for i, word in enumerate(words):
                    codes.vec(LANES)[own, 2 * pair + i, 0] = signed(word, self.p.offset)

    def _tile(
        self,
        at: tuple[Index, Index],
        rows: tuple[Index, int],
        codes: Tensor,
        kept: tuple[Tensor, Index, Index],
    ) -> None:
        """Some groups of a tile of rows, from the panel and group ``at``, added to what is ``kept`` at a row and
        vector, unless that is the result, in which nothing is yet."""
        k, f, (panel, group), (row, height) = self.k, self.s.weights, at, rows
        (into, line, vector) = kept
        sums = k.local("s", self.parts, ROWS, LANES, dtype=I32, space="stack")
        acc = k.local("y", height, lanes=LANES)
        lines = into.vec(LANES)
        with k.unroll("r", height) as r:
            acc[r] = 0.0 if into is self.y else lines[line + r, vector]
        with k.loop("b", self.groups * GROUP // f.span) as block, k.loop("g", f.span // GROUP) as part:
            own = block * (f.span // GROUP) + part
            for half in range(self.parts):
                self._product((row // ROWS, group + own), (codes, own), sums, half)
            fine = [self._fine(panel, (group + own) * self.parts + half) for half in range(self.parts)]
            scales = self.weights.scales(k, panel, group // (f.span // GROUP) + block, group + own)
            with k.unroll("r", height) as r:
                total = self._total(sums, r, fine)
                term = self.weights.term(total, scales, self._whole(row + r, group + own, scales))
                scale = broadcast(self.x_scale[row + r, group + own], LANES)
                acc[r] = acc[r] + op("mul_rounded", term, scale)
        with k.unroll("r", height) as r:
            lines[line + r, vector] = acc[r]

    def _fine(self, panel: Index, part: Index) -> Expr:
        """The scale of a part, in f32, where sums are multiplied by it."""
        if self.parts == 1:
            return Const(1.0, Type(F32))
        assert self.weights.fine is not None
        return self.k.let("f", cast(cast(self.weights.fine.vec(LANES)[panel, part, 0], I32), F32))

    def _total(self, sums: Tensor, r: Index, fine: list[Expr]) -> Expr:
        """The sum of a group, times the scales of its parts: integers of less than 24 bits, which f32 has exactly."""
        totals = [cast(sums.vec(LANES)[half, r, 0], F32) for half in range(self.parts)]
        if self.parts == 1:
            return totals[0]
        return totals[0] * fine[0] + totals[1] * fine[1]

    def _whole(self, row: Index, group: Index, scales: Sequence[Expr]) -> Expr | None:
        """The sum of a group of activations, of halves times their shifts (integers that f32 has exactly)."""
        if self.x_total is None:
            return None
        if self.parts == 1:
            return broadcast(self.x_total[row, group], LANES)
        halves = [broadcast(self.x_total[row, group * 2 + i], LANES) * cast(scales[2 + i], F32) for i in (0, 1)]
        return halves[0] + halves[1]

    def _product(self, left: tuple[Index, Index], weights: tuple[Tensor, Index], sums: Tensor, half: int) -> None:
        """The products of a group by a tile of rows, or of a part of one."""
        k, (tile, group), (codes, own), words = self.k, left, weights, WORDS // self.parts
        first = half * words
        operands = ((codes, (own, first, 0)), (self.x, (tile, group, 0, first)), (sums, (half, 0, 0)))
        lines = sums.vec(LANES)
        with k.instruction("tile_i8", operands, *self.block.numbers):
            with k.loop("r", ROWS) as r:
                lines[half, r, 0] = 0
            with k.loop("r", ROWS) as r, k.loop("q", words) as q:
                value = broadcast(self.x[tile, group, r, first + q], LANES)
                word = codes.vec(LANES)[own, first + q, 0]
                lines[half, r, 0] = op("dot4_signed", lines[half, r, 0], value, word)

    def _store(self, line: Tensor, top: Index, rows: int, panel: Index, stored: int) -> None:
        """Copy results of a panel from the stack."""
        with self.k.loop("r", rows) as r:
            if stored == LANES:
                self.y.vec(LANES)[top + r, panel] = line.vec(LANES)[r, 0]
            else:
                with self.k.loop("e", stored) as lane:
                    self.y[top + r, panel * LANES + lane] = line[r, lane]
