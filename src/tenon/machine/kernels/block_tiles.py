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

from tenon.machine.isa.amx import APIECE, BEGIN, END, TileBlock
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

_GROUPS = 48
"""Most groups that are unpacked at a time: 24 KB, which stay in the first cache while all rows are multiplied."""

_MOST = 256
"""Most rows whose results are summed at a time."""

_UNPACKING = 0.5
"""Time to unpack a panel, in that of a tile of rows."""


def supported(s: BlockProduct, machine: Machine) -> bool:
    """Whether there is a kernel: for formats without zero points, from which codes could differ by more than a byte."""
    return machine.tiles(DType.I8) is not None and machine.lanes == LANES and not s.weights.zeros


def row_tiles(s: BlockProduct) -> int:
    """Tiles of rows; the last one may be in part beyond them."""
    return -(-s.rows // ROWS)


def part_of(s: BlockProduct, threads: int) -> int:
    """Rows whose results are summed at a time by a panel: the most, or so many of equal parts that the thread that has
    most of these takes the least time."""
    equal = [n * ROWS for n in range(_MOST // ROWS, 0, -1) if s.rows % (n * ROWS) == 0]
    if threads == 1 or not equal:
        return _MOST

    def slowest(rows: int) -> float:
        items = -(-s.outputs // LANES) * (s.rows // rows)
        return -(-items // threads) * (rows / ROWS + _UNPACKING)

    return min(equal, key=slowest)


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
    y = k.param("y", s.rows, s.outputs, out=True)
    tiles = _Tiles(k, s, p, x, scales, totals, weights, y, machine.threads, machine.prefetch)
    whole, rest = divmod(s.outputs, LANES)
    for first, count, stored in ((0, whole, LANES), (whole, min(rest, 1), rest)):
        if count:
            with k.loop("j", count, kind="parallel") as j:
                tiles.panel(j + first, stored)
    return k.done()


@dataclass(frozen=True, eq=False)
class _Panel:
    """Groups of a panel from ``group`` on, unpacked: codes, and the scales of ``BlockWeights.scales`` and of parts, as
    floats."""

    number: Index
    group: Index
    codes: Tensor
    scales: Sequence[Tensor]
    fine: Tensor | None


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
    threads: int
    ahead: bool

    @property
    def parts(self) -> int:
        """Parts of a group that have scales of their own."""
        return GROUP // HALF if self.s.weights.fine == HALF else 1

    @property
    def groups(self) -> int:
        """Groups that are unpacked at a time: whole blocks, equally many each time."""
        each = self.s.weights.span // GROUP
        return next(n for n in range(max(_GROUPS, each), 0, -1) if n % each == 0 and self.s.groups % n == 0)

    @property
    def each(self) -> int:
        """Groups whose products are made at a time, each with sums of its own."""
        return next(n for n in range(APIECE // self.parts, 0, -1) if self.groups % n == 0)

    @property
    def block(self) -> TileBlock:
        """The numbers of the instruction."""
        loops = (self.each, 4 * ROWS * WORDS), (self.parts, 4 * WORDS // self.parts)
        return TileBlock(ROWS, 1, 1, WORDS // self.parts, 4 * WORDS, loops=loops, apiece=True)

    def panel(self, panel: Index, stored: int) -> None:
        """All results of a panel, of which so many outputs are ``stored``."""
        k, s = self.k, self.s
        most = part_of(s, self.threads)
        for start, times, rows in segments(s.rows, most):
            with k.loop("q", times, kind="parallel" if s.rows % most == 0 and times > 1 else "serial") as turn:
                self._part(panel, stored, turn * rows + start, rows)

    def _part(self, panel: Index, stored: int, top: Index, rows: int) -> None:
        """The results of a panel for so many rows from ``top`` on."""
        k, s = self.k, self.s
        codes = k.local("c", self.groups, WORDS, LANES, dtype=DType.Q8, space="stack")
        count = (2 if s.weights.shifts else 1) + (2 if s.weights.shifts and self.parts > 1 else 0)
        scales = [k.local("d", self.groups, LANES, space="stack") for _ in range(count)]
        fine = k.local("f", self.groups, self.parts, LANES, space="stack") if self.parts > 1 else None
        with k.instruction(BEGIN, (), *self.block.shape):
            pass
        direct = self.groups == s.groups and stored == LANES
        line = self.y if direct else k.local("l", rows, LANES, space="stack")
        if not direct:
            with k.loop("r", rows) as r:
                line.vec(LANES)[r, 0] = 0.0
        with k.loop("u", s.groups // self.groups) as part:
            own = _Panel(panel, part * self.groups, codes, scales, fine)
            self._unpack(own)
            for first, count, height in segments(rows, ROWS):
                self._row_tiles(own, (top, first, count, height), line)
        if not direct:
            self._store(line, top, rows, panel, stored)
        with k.instruction(END, ()):
            pass

    def _unpack(self, at: _Panel) -> None:
        """Some groups of a panel as bytes with a sign, and their scales as floats."""
        k, f = self.k, self.s.weights
        with k.loop("b", self.groups * GROUP // f.span) as block, k.loop("g", f.span // GROUP) as part:
            own = block * (f.span // GROUP) + part
            for pair in range(WORDS // 2):
                words = unpacked_pair(self.p, self.weights.words(at.number, at.group + own), pair)
                for i, word in enumerate(words):
                    at.codes.vec(LANES)[own, 2 * pair + i, 0] = signed(word, self.p.offset)
            scales = self.weights.scales(k, at.number, at.group // (f.span // GROUP) + block, at.group + own)
            for tensor, scale in zip(at.scales, scales, strict=True):
                tensor.vec(LANES)[own, 0] = scale if scale.type.dtype is F32 else cast(scale, F32)
            if at.fine is not None:
                assert self.weights.fine is not None
                for half in range(self.parts):
                    number = self.weights.fine.vec(LANES)[at.number, (at.group + own) * self.parts + half, 0]
                    at.fine.vec(LANES)[own, half, 0] = cast(cast(number, I32), F32)

    def _row_tiles(self, at: _Panel, rows: tuple[Index, int, int, int], into: Tensor) -> None:
        """``count`` tiles of ``height`` rows from ``top`` + ``first`` on, added to what is in ``into``, unless that is
        the result, in which nothing is yet.

        Products run ahead of the sums that are scaled, as it takes long until these are in memory.
        """
        k, (top, first, count, height), each = self.k, rows, self.each
        lines = into.vec(LANES)
        with k.loop("i", count) as i:
            row = top + i * ROWS + first
            place = (row, at.number) if into is self.y else (i * ROWS + first, Index())
            shape = each, self.parts, ROWS, LANES
            even, odd = (k.local("s", *shape, dtype=I32, space="stack") for _ in range(2))
            acc = k.local("y", height, lanes=LANES)
            self._products(at, even, row // ROWS, Index())
            with k.unroll("r", height) as r:
                acc[r] = 0.0 if into is self.y else lines[place[0] + r, place[1]]
            last = self.groups // each - 1
            with k.loop("n", last // 2) as n:
                for sums, other, now in ((even, odd, 2 * n), (odd, even, 2 * n + 1)):
                    if first == 0:
                        with k.when(-i):
                            self._prefetch(at, now)
                    self._products(at, other, row // ROWS, now + 1)
                    self._scale(at, sums, acc, (row, now))
            if last % 2:
                self._products(at, odd, row // ROWS, Index((), last))
                self._scale(at, even, acc, (row, Index((), last - 1)))
            self._scale(at, odd if last % 2 else even, acc, (row, Index((), last)))
            with k.unroll("r", height) as r:
                lines[place[0] + r, place[1]] = acc[r]

    def _prefetch(self, at: _Panel, n: Index) -> None:
        """Fetch some groups of the next panel, as they are stored: ``n`` times as many come before."""
        if not self.ahead:
            return
        for g in range(self.each):
            group = at.group + n * self.each + g
            for word in range(self.p.stored_words):
                self.k.prefetch(self.weights.codes, at.number + 1, group, word, 0)

    def _scale(self, at: _Panel, sums: Tensor, acc: Tensor, place: tuple[Index, Index]) -> None:
        """Add the sums of some groups, times their scales, to the results of the rows of a tile: of which the first
        row is given, and how often as many groups come before."""
        k, (row, n) = self.k, place
        with k.loop("g", self.each) as g:
            own = n * self.each + g
            fine = [k.let("f", at.fine.vec(LANES)[own, half, 0]) for half in range(self.parts)] if at.fine else []
            scales = [k.let("d", tensor.vec(LANES)[own, 0]) for tensor in at.scales]
            with k.unroll("r", acc.buffer.shape[0].const) as r:
                totals = [cast(sums.vec(LANES)[g, half, r, 0], F32) for half in range(self.parts)]
                whole = self._whole(row + r, at.group + own, scales)
                term = self.weights.term(_total(totals, fine), scales, whole)
                acc[r] = acc[r] + op("mul_rounded", term, broadcast(self.x_scale[row + r, at.group + own], LANES))

    def _whole(self, row: Index, group: Index, scales: Sequence[Expr]) -> Expr | None:
        """The sum of a group of activations, of halves times their shifts (integers that f32 has exactly)."""
        if self.x_total is None:
            return None
        if self.parts == 1:
            return broadcast(self.x_total[row, group], LANES)
        halves = [broadcast(self.x_total[row, group * 2 + i], LANES) * scales[2 + i] for i in (0, 1)]
        return halves[0] + halves[1]

    def _products(self, at: _Panel, sums: Tensor, tile: Index, n: Index) -> None:
        """The products of some groups by a tile of rows: ``n`` times as many come before."""
        k, each, words = self.k, self.each, WORDS // self.parts
        first, lines = n * each, sums.vec(LANES)
        operands = (
            (at.codes, (first, 0, 0)),
            (self.x, (tile, at.group + first, 0, 0)),
            (sums, (0, 0, 0, 0)),
        )
        with (
            k.instruction("tile_i8", operands, *self.block.numbers),
            k.loop("g", each) as g,
            k.loop("h", self.parts) as half,
            k.loop("r", ROWS) as r,
        ):
            lines[g, half, r, 0] = 0
            with k.loop("q", words) as q:
                value = broadcast(self.x[tile, at.group + first + g, r, half * words + q], LANES)
                word = at.codes.vec(LANES)[first + g, half * words + q, 0]
                lines[g, half, r, 0] = op("dot4_signed", lines[g, half, r, 0], value, word)

    def _store(self, line: Tensor, top: Index, rows: int, panel: Index, stored: int) -> None:
        """Copy results of a panel from the stack."""
        with self.k.loop("r", rows) as r:
            if stored == LANES:
                self.y.vec(LANES)[top + r, panel] = line.vec(LANES)[r, 0]
            else:
                with self.k.loop("e", stored) as lane:
                    self.y[top + r, panel * LANES + lane] = line[r, lane]


def _total(totals: Sequence[Expr], fine: Sequence[Expr]) -> Expr:
    """The sum of a group, times the scales of its parts: integers of less than 24 bits, which f32 has exactly."""
    return totals[0] * fine[0] + totals[1] * fine[1] if fine else totals[0]
