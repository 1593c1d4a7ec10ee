"""Products of many rows by weights in blocks as numbers in bf16, by a matrix unit whose tiles are in registers
(``isa.amx``): an arithmetic that is asked for, as it differs from that of ``kernels.block_product``.

Activations, and weights (codes times the scales of their block, less shifts), are rounded to bf16, weights with halves
away from zero, and the unit sums products of groups in f32.  Sums of some groups are added to the results.  Sums of
``kernels.block_tiles`` leave the registers for each group, to be scaled, which takes most of its time.

Weights are unpacked in memory of the thread, some groups at a time of two panels, and multiplied by all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from tenon.machine.kernels.image import Epilogue
from tenon.machine.kernels.integer_tiled import byte_of
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.placed_codes import PlacedCodes, least_place
from tenon.machine.kernels.rounded_rows import rounded_shape
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
    product = _Product(k, s, p, x, before, y, machine)
    whole, rest = divmod(s.outputs, LANES)
    cut = [(first, count, across, LANES) for first, count, across in segments(whole, _ACROSS)]
    most = rows_of(s, machine.threads)
    for first, count, across, stored in [*cut, *([(whole, 1, 1, rest)] if rest else [])]:
        for start, times, rows, shared in _parts(s, most):
            with k.loop("q", times, kind=shared) as turn, k.loop("j", count, kind="parallel") as j:
                sources = tuple((weights, j * across + first + v) for v in range(across))
                product.part(sources, stored, turn * rows + start, rows)
    return k.done()


def _parts(s: BlockProduct, most: int) -> list[tuple[int, int, int, str]]:
    """(first row, parts, rows of a part, whether threads share the parts) of all rows, by at most so many."""
    equal = s.rows % most == 0
    return [(*each, "parallel" if equal and each[1] > 1 else "serial") for each in segments(s.rows, most)]


def gates(s: BlockProduct) -> bool:
    """Whether there is a kernel of two products and a function of both: for whole tiles of results."""
    return s.rows % ROWS == 0 and s.outputs % GROUP == 0


@lru_cache(maxsize=128)
def gated_tiles_bf16(s: BlockProduct, machine: Machine, function: Epilogue) -> Kernel:
    """A function of two products of the same rows, element by element.  Parameters: the pairs of ``rounded_rows``, the
    arrays of ``BlockPacking.pack`` of both weights, ``gated_scratch``, and results as ``rounded_rows`` writes them.
    """
    p = packing(s.format, machine)
    k = Builder(
        f"gated_tiles_bf16_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] times twice {s.outputs} rows of weights in blocks ({s.format}), in bf16 and tiles",
    )
    x = k.param("x", row_tiles(s), s.groups, ROWS, PAIRS, dtype=DType.B2)
    both = [BlockWeights.declared(k, s, p) for _ in range(2)]
    scratch = [k.param("t", *shape, scratch=True) for shape in gated_scratch(s, machine)]
    y = k.param("y", *rounded_shape(s.rows, s.outputs), dtype=DType.BF16, out=True)
    for start, times, count, shared in _parts(s, rows_of(s, machine.threads, halves=GROUP // LANES)):
        with (
            k.loop("q", times, kind=shared) as turn,
            k.loop("j", s.outputs // GROUP, kind="parallel") as j,
            k.loop("h", GROUP // LANES) as half,
        ):
            product = _Gated(k, s, p, x, None, y, machine, (j, half), scratch, function)
            sources = tuple((weights, j * (GROUP // LANES) + half) for weights in both)
            product.part(sources, LANES, turn * count + start, count)
    return k.done()


def gated_scratch(s: BlockProduct, machine: Machine) -> list[tuple[int, int]]:
    """Memory of a thread for sums of some groups of both products: rows of 32 numbers."""
    several = s.groups > groups_of(s)
    return [(min(s.rows, rows_of(s, machine.threads, halves=GROUP // LANES)), 2 * LANES)] if several else []


def rows_of(s: BlockProduct, threads: int, halves: int = 1) -> int:
    """Rows that a thread multiplies by some panels, ``halves`` times two, which others multiply by other rows: of equal
    parts of the rows those whose panels are unpacked, multiplied, and whose rows are read in the least time."""
    most = max(ROWS, _MOST // (groups_of(s) * GROUP * 2) // ROWS * ROWS)
    parts = [n for n in range(1, s.rows // ROWS + 1) if s.rows % (n * ROWS) == 0 and s.rows // n <= most]
    panels = -(-s.outputs // (_ACROSS * LANES))

    def time(n: int) -> float:
        items, tiles = -(-n * panels // threads), s.rows / n / ROWS
        parted = -(-items // panels) + (items % panels > 0 and panels % items > 0)
        return halves * items * (tiles + _UNPACKING) + (_READING * tiles * parted if threads > 1 else 0)

    return s.rows // min(parts, key=time) if parts else most


def groups_of(s: BlockProduct) -> int:
    """Groups that are unpacked at a time: whole blocks, equally many each time."""
    each = s.weights.span // GROUP
    return next(n for n in range(max(_GROUPS, each), 0, -1) if n % each == 0 and s.groups % n == 0)


@dataclass(frozen=True, eq=False)
class _Panels:
    """Panels, each of some weights, of the last of which so many outputs are ``stored``; their groups from ``group`` on
    are unpacked in ``pairs`` [1][groups][panels][pairs][16].  ``first`` and ``last``: whether these are the
    first groups and the last."""

    sources: tuple[tuple[BlockWeights, Index], ...]
    stored: int
    group: Index
    pairs: Tensor
    first: bool
    last: bool

    @property
    def across(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class _Product:
    k: Builder
    s: BlockProduct
    p: BlockPacking
    x: Tensor
    before: Tensor | None
    y: Tensor
    machine: Machine

    def part(self, sources: tuple[tuple[BlockWeights, Index], ...], stored: int, top: Index, rows: int) -> None:
        """The results of some panels for so many rows from ``top`` on: those of the first groups, to which those of
        others are added."""
        k, n = self.k, groups_of(self.s)
        pairs = k.local("c", 1, n, len(sources), PAIRS, LANES, dtype=I32, space="stack")
        turns = self.s.groups // n
        for first, end in self.cut(turns):
            if end > first:
                with k.loop("u", end - first) as part:
                    own = _Panels(sources, stored, (part + first) * n, pairs, first == 0, end == turns)
                    self._unpack(own)
                    self._rows(own, top, rows)
        with k.instruction(END, ()):
            pass

    def cut(self, turns: int) -> list[tuple[int, int]]:
        """The turns that differ in what becomes of sums: the first of several, and the others."""
        return [(0, 1), (1, turns)]

    def _rows(self, at: _Panels, top: Index, rows: int) -> None:
        """The sums of all rows, by blocks of two tiles of rows, and of the tile that is in part beyond them."""
        whole, rest = divmod(rows, ROWS)
        cut = [(first, count, down, ROWS) for first, count, down in segments(whole, _DOWN)]
        for first, count, down, height in [*cut, *([(whole, 1, 1, rest)] if rest else [])]:
            loops = ((groups_of(self.s), 4 * PAIRS * ROWS),)
            block = TileBlock(ROWS, down, at.across, PAIRS, 4 * PAIRS, loops=loops, passing=True)
            with self.k.instruction(BEGIN, (), *block.shape):
                pass
            with self.k.loop("i", count) as i:
                self._block(at, block, (top, (i * down + first) * ROWS), height)

    def _block(self, at: _Panels, block: TileBlock, rows: tuple[Index, Index], height: int) -> None:
        """The sums of a block, of whose last tile so many rows are stored."""
        k, unit, row = self.k, self.machine.tiles(DType.BF16), rows[0] + rows[1]
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
                self.store(at, sums, (i, r), (rows[0], rows[1] + i * ROWS))

    def store(self, at: _Panels, sums: Tensor, of: tuple[int, Index], rows: tuple[Index, Index]) -> None:
        """Store the sums of a row of tile ``of``, whose first row is that many behind the part's first."""
        y, lanes, before = self.y.vec(LANES), sums.vec(LANES), self.before if at.first else self.y
        row = rows[0] + rows[1] + of[1]
        if at.stored == LANES:
            for v, (_, panel) in enumerate(at.sources):
                value, place = lanes[*of, v], (row, panel)
                y[place] = value if before is None else before.vec(LANES)[place] + value
            return
        with self.k.loop("e", at.stored) as lane:
            single, place = sums[*of, lane], (row, at.sources[0][1] * LANES + lane)
            self.y[place] = single if before is None else before[place] + single

    def _unpack(self, at: _Panels) -> None:
        """Some groups of the panels as pairs of bf16."""
        k, f = self.k, self.s.weights
        each = f.span // GROUP
        with k.loop("b", groups_of(self.s) // each) as block, k.loop("g", each) as part:
            own = block * each + part
            for v, (weights, panel) in enumerate(at.sources):
                group, in_file = at.group + own, at.group // each + block
                scales, words = weights.scales(k, panel, in_file, group), weights.words(panel, group)
                line, place = at.pairs.vec(LANES), (panel, group, in_file)
                placed = PlacedCodes.of(k, self.p, scales[0]) if least_place(self.p) else None
                for pair in range(WORDS // 2):
                    if placed is None:
                        codes = self._codes(words, pair)
                        values = [self._value(weights, code, place, scales, number) for number, code in codes]
                    else:
                        values = [weights.shifted(value, scales) for value in placed.values(words, pair)]
                    for i in range(0, 8, 2):
                        line[0, own, v, 4 * pair + i // 2, 0] = paired(*values[i : i + 2])

    def _codes(self, stored: Callable[[int], Expr], pair: int) -> Iterator[tuple[int, Expr]]:
        """The codes of two words of a group, each with the number of its word."""
        for i, word in enumerate(unpacked_pair(self.p, stored, pair)):
            codes = self.k.let("c", bitcast(signed(word, self.p.offset), I32))
            for byte in range(4):
                yield 2 * pair + i, byte_of(codes, byte)

    def _value(
        self, weights: BlockWeights, code: Expr, of: tuple[Index, Index, Index], scales: list[Expr], word: int
    ) -> Expr:
        """Weights by their codes, from a word of a group."""
        panel, group, block = of
        half = word // (WORDS // 2)
        if weights.zero is not None:
            code = code - cast(weights.part(weights.zero, panel, block), I32)
        value, whole = cast(code, F32), None
        if weights.fine is not None and self.s.weights.fine == HALF:
            fine = weights.part(weights.fine, panel, group * 2 + half)
            value = value * cast(cast(fine, I32), F32)
        if self.s.weights.shifts:
            one = broadcast(Const(1.0, Type(F32)), LANES)
            whole = one if len(scales) == 2 else cast(scales[2 + half], F32)
        return weights.term(value, scales, whole)


@dataclass(frozen=True, eq=False)
class _Gated(_Product):
    """Two products of the same outputs, half a group of them.  Sums of some groups are added up in ``scratch``, [rows
    of the part][32], before the ``function`` of both is stored at ``place``, (group, half)."""

    place: tuple[Index, Index]
    scratch: Sequence[Tensor]
    function: Epilogue

    def cut(self, turns: int) -> list[tuple[int, int]]:
        return [(0, 1)] if turns == 1 else [(0, 1), (1, turns - 1), (turns - 1, turns)]

    def store(self, at: _Panels, sums: Tensor, of: tuple[int, Index], rows: tuple[Index, Index]) -> None:
        lanes, waiting = sums.vec(LANES), [each.vec(LANES) for each in self.scratch]
        values = [lanes[*of, v] for v in range(at.across)]
        if not at.first:
            values = [waiting[0][rows[1] + of[1], v] + value for v, value in enumerate(values)]
        if at.last:
            group, half = self.place
            result = self.function(*(self.k.let("v", value) for value in values))
            self.y.vec(LANES)[(rows[0] + rows[1]) // ROWS, group, of[1], half] = cast(result, DType.BF16)
            return
        for v, value in enumerate(values):
            waiting[0][rows[1] + of[1], v] = value
