"""Products of many rows by weights in blocks as numbers in bf16, by a matrix unit whose tiles are in registers
(``isa.amx``): an arithmetic that is asked for, as it differs from that of ``kernels.block_product``.

Activations, and weights (codes times the scales of their block, less shifts), are rounded to bf16, weights with halves
away from zero, and the unit sums products of groups in f32.  Sums of some groups are added to the results.  Sums of
``kernels.block_tiles`` leave the registers for each group, to be scaled, which takes most of its time.

Weights are unpacked in memory of the thread, some groups at a time of two panels, and multiplied by all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.amx import BEGIN, END, TileBlock
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, broadcast, cast
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_packing import WORDS, BlockPacking, signed, unpacked_pair
from tenon.machine.kernels.block_sums import HALF, BlockProduct, BlockWeights, packing
from tenon.machine.kernels.block_tiles import LANES, ROWS, row_tiles
from tenon.machine.kernels.integer_tiled import byte_of
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_blocks import TileRows, paired, tile_sums
from tenon.network.graph.types import F32, I32, DType

PAIRS = GROUP // 2
"""Words of a row of a tile: pairs of elements of a group."""

_GROUPS = 96
"""Most groups that are unpacked at a time: 192 KB of two panels, beside the rows in the second cache.  Fewer would not
leave the first cache, but sums of each part are added to results in memory, which takes longer."""

_ACROSS = _DOWN = 2
"""Panels and tiles of rows of a block of sums in registers."""

_UNPACKING = 3.0
"""Time to unpack two panels, in that of their product by a tile of rows."""

_READING = 2.0
"""Time to read a tile of rows, which another processor has written, in that of its product by two panels."""

_MOST = 3 << 19
"""Most bytes of rows that weights are unpacked for at a time: they stay in the second cache."""


def supported(s: BlockProduct, machine: Machine) -> bool:
    """Whether there is a kernel."""
    return (
        machine.tiles(DType.BF16) is not None and machine.lanes == LANES and packing(s.format, machine).lanes == LANES
    )


def rounded_shape(rows: int, columns: int) -> tuple[int, int, int, int]:
    """The extents of activations as ``rounded_rows`` writes them."""
    return -(-rows // ROWS), columns // GROUP, ROWS, GROUP


@lru_cache(maxsize=128)
def rounded_rows(rows: int, columns: int) -> Kernel:
    """Parameters: x f32 [rows, columns], and the same in bf16 [tiles of rows][groups][rows][32], zeros beyond the
    rows."""
    k = Builder(f"rounded_rows_{rows}x{columns}", f"[{rows}, {columns}] in bf16, {ROWS} rows side by side")
    x = k.param("x", rows, columns)
    y = k.param("y", *rounded_shape(rows, columns), dtype=DType.BF16, out=True)
    for start, count, present in segments(rows, ROWS):
        with k.loop("i", count, kind="parallel") as i, k.loop("g", columns // GROUP, kind="parallel") as group:
            tile = i + start // ROWS
            with k.loop("r", present) as r:
                for half in range(GROUP // LANES):
                    value = x.vec(LANES)[tile * ROWS + r, group * (GROUP // LANES) + half]
                    y.vec(LANES)[tile, group, r, half] = cast(value, DType.BF16)
            with k.loop("z", ROWS - present) as beyond, k.loop("h", GROUP // LANES) as part:
                zero = cast(broadcast(Const(0.0, Type(F32)), LANES), DType.BF16)
                y.vec(LANES)[tile, group, beyond + present, part] = zero
    return k.done()


@lru_cache(maxsize=128)
def block_tiles_bf16(s: BlockProduct, machine: Machine, *, added: bool = False) -> Kernel:
    """Parameters: the pairs of ``rounded_rows``, the arrays of ``BlockPacking.pack``, where ``added`` what products are
    added to and y, f32 [rows, outputs]."""
    p = packing(s.format, machine)
    k = Builder(
        f"block_tiles_bf16_{s.format}_{s.rows}x{s.columns}x{s.outputs}{'_added' * added}",
        f"[{s.rows}, {s.columns}] times {s.outputs} rows of weights in blocks ({s.format}), in bf16 and tiles",
    )
    x = k.param("x", row_tiles(s), s.groups, ROWS, PAIRS, dtype=DType.B2)
    weights = BlockWeights.declared(k, s, p)
    before = k.param("b", s.rows, s.outputs) if added else None
    y = k.param("y", s.rows, s.outputs, out=True)
    product = _Product(k, s, p, x, weights, before, y, machine)
    whole, rest = divmod(s.outputs, LANES)
    cut = [(first, count, across, LANES) for first, count, across in segments(whole, _ACROSS)]
    most = rows_of(s, machine.threads)
    for first, count, across, stored in [*cut, *([(whole, 1, 1, rest)] if rest else [])]:
        for start, times, rows in segments(s.rows, most):
            shared = "parallel" if s.rows % most == 0 and times > 1 else "serial"
            with k.loop("q", times, kind=shared) as turn, k.loop("j", count, kind="parallel") as j:
                product.part(j * across + first, (across, stored), turn * rows + start, rows)
    return k.done()


def rows_of(s: BlockProduct, threads: int) -> int:
    """Rows that a thread multiplies by some panels, which others multiply by other rows: of equal parts of the rows
    those whose panels are unpacked, multiplied, and whose rows are read in the least time."""
    most = max(ROWS, _MOST // (groups_of(s) * GROUP * 2) // ROWS * ROWS)
    parts = [n for n in range(1, s.rows // ROWS + 1) if s.rows % (n * ROWS) == 0 and s.rows // n <= most]
    panels = -(-s.outputs // (_ACROSS * LANES))

    def time(n: int) -> float:
        items, tiles = -(-n * panels // threads), s.rows / n / ROWS
        parted = -(-items // panels) + (items % panels > 0 and panels % items > 0)
        return items * (tiles + _UNPACKING) + (_READING * tiles * parted if threads > 1 else 0)

    return s.rows // min(parts, key=time) if parts else most


def groups_of(s: BlockProduct) -> int:
    """Groups that are unpacked at a time: whole blocks, equally many each time."""
    each = s.weights.span // GROUP
    return next(n for n in range(max(_GROUPS, each), 0, -1) if n % each == 0 and s.groups % n == 0)


@dataclass(frozen=True, eq=False)
class _Panels:
    """``across`` panels from ``first`` on, of the last of which so many outputs are ``stored``; their groups from
    ``group`` on are unpacked in ``pairs`` [1][groups][panels][pairs][16]."""

    first: Index
    across: int
    stored: int
    group: Index
    pairs: Tensor


@dataclass(frozen=True, eq=False)
class _Product:
    k: Builder
    s: BlockProduct
    p: BlockPacking
    x: Tensor
    weights: BlockWeights
    before: Tensor | None
    y: Tensor
    machine: Machine

    def part(self, panel: Index, width: tuple[int, int], top: Index, rows: int) -> None:
        """The results of some panels for so many rows from ``top`` on: those of the first groups, to which those of
        others are added."""
        k, s, n = self.k, self.s, groups_of(self.s)
        pairs = k.local("c", 1, n, width[0], PAIRS, LANES, dtype=I32, space="stack")
        for first, count in ((0, 1), (1, s.groups // n - 1)):
            if count:
                with k.loop("u", count) as part:
                    own = _Panels(panel, *width, (part + first) * n, pairs)
                    self._unpack(own)
                    self._rows(own, top, rows, added=first > 0)
        with k.instruction(END, ()):
            pass

    def _rows(self, at: _Panels, top: Index, rows: int, *, added: bool) -> None:
        """The sums of all rows, by blocks of two tiles of rows, and of the tile that is in part beyond them."""
        whole, rest = divmod(rows, ROWS)
        cut = [(first, count, down, ROWS) for first, count, down in segments(whole, _DOWN)]
        for first, count, down, height in [*cut, *([(whole, 1, 1, rest)] if rest else [])]:
            block = TileBlock(ROWS, down, at.across, PAIRS, 4 * PAIRS, loops=((groups_of(self.s), 4 * PAIRS * ROWS),))
            with self.k.instruction(BEGIN, (), *block.shape):
                pass
            with self.k.loop("i", count) as i:
                self._block(at, block, top + (i * down + first) * ROWS, height, added=added)

    def _block(self, at: _Panels, block: TileBlock, row: Index, height: int, *, added: bool) -> None:
        """The sums of a block, of whose last tile so many rows are stored."""
        k, unit = self.k, self.machine.tiles(DType.BF16)
        assert unit is not None
        sums = k.local("s", block.down, ROWS, at.across * LANES, space="stack")
        places = [(row // ROWS + i, Index()) for i in range(block.down)]
        left = TileRows(
            PAIRS,
            block.apart,
            block.loops,
            lambda tile, _: (self.x, (tile, at.group, 0, 0)),
            lambda tile, r, turns, q: self.x[tile, at.group + turns[0], r, q],
        )
        operands = (at.pairs, (0, 0, 0, 0, 0)), *(left.first(*place) for place in places), (sums, (0, 0, 0))
        with k.instruction(unit.operation, operands, *block.numbers):
            tile_sums(k, unit, block, (left, at.pairs, Index()), places, (sums, ()))
        for i in range(block.down):
            with k.loop("r", height if i == block.down - 1 else ROWS) as r:
                self._store(at, sums, (i, r), row + i * ROWS + r, added=added)

    def _store(self, at: _Panels, sums: Tensor, of: tuple[int, Index], row: Index, *, added: bool) -> None:
        y, lanes, before = self.y.vec(LANES), sums.vec(LANES), self.y if added else self.before
        if at.stored == LANES:
            for v in range(at.across):
                value, place = lanes[*of, v], (row, at.first + v)
                y[place] = value if before is None else before.vec(LANES)[place] + value
            return
        with self.k.loop("e", at.stored) as lane:
            single, place = sums[*of, lane], (row, at.first * LANES + lane)
            self.y[place] = single if before is None else before[place] + single

    def _unpack(self, at: _Panels) -> None:
        """Some groups of the panels as pairs of bf16."""
        k, f = self.k, self.s.weights
        each = f.span // GROUP
        with k.loop("b", groups_of(self.s) // each) as block, k.loop("g", each) as part:
            own = block * each + part
            for v in range(at.across):
                panel, group, in_file = at.first + v, at.group + own, at.group // each + block
                scales = self.weights.scales(k, panel, in_file, group)
                for pair in range(WORDS // 2):
                    words = unpacked_pair(self.p, self.weights.words(panel, group), pair)
                    for i, word in enumerate(words):
                        number = 2 * pair + i
                        codes = k.let("c", bitcast(signed(word, self.p.offset), I32))
                        values = [
                            self._value(byte_of(codes, b), (panel, group, in_file), scales, number) for b in range(4)
                        ]
                        for half in (0, 1):
                            line = at.pairs.vec(LANES)
                            line[0, own, v, 2 * number + half, 0] = paired(*values[2 * half : 2 * half + 2])

    def _value(self, code: Expr, of: tuple[Index, Index, Index], scales: list[Expr], word: int) -> Expr:
        """Weights by their codes, from a word of a group."""
        panel, group, block = of
        half = word // (WORDS // 2)
        if self.weights.zero is not None:
            code = code - cast(self.weights.part(self.weights.zero, panel, block), I32)
        value, whole = cast(code, F32), None
        if self.weights.fine is not None and self.s.weights.fine == HALF:
            fine = self.weights.part(self.weights.fine, panel, group * 2 + half)
            value = value * cast(cast(fine, I32), F32)
        if self.s.weights.shifts:
            one = broadcast(Const(1.0, Type(F32)), LANES)
            whole = one if len(scales) == 2 else cast(scales[2 + half], F32)
        return self.weights.term(value, scales, whole)
