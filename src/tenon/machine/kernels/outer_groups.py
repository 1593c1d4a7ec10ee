"""Products of many rows by weights in blocks, by outer products in tiles of a matrix unit (``isa.sme_groups``).

A tile is 16 rows of activations by 16 outputs, or by 32 where the unit has room for it (SME2).  One instruction sums
each group of 32 elements, scales the sums and adds them to results that stay in vectors, or in tiles, over all groups.
The order and the rounding are those of ``kernels.block_product``.

The plainest formats (``BlockPacking.plain``), which lie in panels of sixteen outputs, are unpacked by that instruction.
Others are unpacked to bytes with a sign in memory of the thread, some groups at a time, and multiplied by all rows;
their scales lie beside them in f32.  Words, scales and sums of activations are copied ahead so that those of the rows
of a tile lie side by side.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import lru_cache

from tenon.machine.isa.sme import OUTER_I8, TURN, OuterTurn
from tenon.machine.isa.sme2_groups import MULTI_GROUPS
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.isa.sme_groups import GROUPS, OuterGroups
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, broadcast, cast, op
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_packing import WORDS, BlockPacking, signed, unpacked_pair
from tenon.machine.kernels.block_sums import HALF, STREAMED, BlockProduct, BlockWeights, layer_packing
from tenon.machine.kernels.block_tiles import total_parts
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

LANES = 4
"""Outputs of a panel of packed weights, and of a vector outside of the unit."""

_GROUPS = 256
"""Most groups that are unpacked at a time: 128 KB, which the second cache holds."""


def supported(s: BlockProduct, machine: Machine) -> bool:
    """Whether there is a kernel: for formats without zero points, from which codes could differ by more than a byte."""
    return machine.outer(DType.I8) is not None and machine.lanes == LANES and not s.weights.zeros


def instruction_of(machine: Machine) -> str:
    """The instruction of the machine's unit."""
    unit = machine.outer(DType.I8)
    assert unit is not None
    return GROUPS if unit is OUTER_I8 else MULTI_GROUPS


def row_tiles(s: BlockProduct) -> int:
    """Tiles of rows; the last one may be in part beyond them."""
    return -(-s.rows // SIDE)


def turned_words(words: int) -> int:
    """Vectors of the words of a tile of rows that lie side by side: whole sixteens."""
    return -(-words // SIDE) * SIDE


@lru_cache(maxsize=128)
def outer_rows(s: BlockProduct, words: int, dtype: DType) -> Kernel:
    """Parameters: words x [rows, words], and the same as [tiles of rows][whole sixteens of words][16 rows], of which
    those beyond the rows have no values."""
    k = Builder(f"outer_rows_{s.rows}x{words}_{dtype}", f"[{s.rows}, {words}] words, {SIDE} rows side by side")
    x = k.param("x", s.rows, words, dtype=dtype)
    y = k.param("y", row_tiles(s), turned_words(words), SIDE, dtype=dtype, out=True)
    for start, count, rows in segments(s.rows, SIDE):
        with k.loop("i", count, kind="parallel") as i:
            tile = i + start // SIDE
            operands = [(y, (tile, 0, 0)), (x, (tile * SIDE, 0))]
            numbers = astuple(OuterTurn(rows, words, 4 * words, 4 * SIDE))
            with k.instruction(TURN, operands, *numbers), k.loop("r", rows) as r, k.loop("q", words) as q:
                y[tile, q, r] = x[tile * SIDE + r, q]
    return k.done()


@lru_cache(maxsize=128)
def outer_groups(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: the words of activations, their scales, and what ``block_tiles.block_totals`` writes if the format
    has shifts, all as ``outer_rows`` turns them; the arrays of ``BlockPacking.pack``, y f32 [rows, outputs]."""
    p = layer_packing(s.format, machine)
    k = Builder(
        f"outer_groups_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format}), in tiles",
    )

    def turned(name: str, words: int, dtype: DType = F32) -> Tensor:
        return k.param(name, row_tiles(s), turned_words(words), SIDE, dtype=dtype)

    x, scales = turned("x", s.columns // 4, DType.Q8), turned("dx", s.groups)
    totals = turned("t", total_parts(s)) if s.weights.shifts else None
    weights = BlockWeights.declared(k, s, p)
    y = k.param("y", s.rows, s.outputs, out=True)
    tiles = _GroupTiles(k, s, p, instruction_of(machine), x, scales, totals, weights, y)
    for first, count, outputs in segments(s.outputs, tiles.width):
        with k.loop("j", count, kind="parallel") as j:
            panel = j + first // tiles.width
            if tiles.packed:
                tiles.rows(None, (panel, Index()), outputs, begun=False)
            else:
                tiles.panel(panel, outputs)
    return k.done()


@dataclass(frozen=True, eq=False)
class _Unpacked:
    """Some groups of a tile's outputs: bytes with a sign, scales, those of parts, shifts and those of parts."""

    codes: Tensor
    scale: Tensor
    fine: Tensor | None
    shift: Tensor | None


@dataclass(frozen=True, eq=False)
class _GroupTiles:
    k: Builder
    s: BlockProduct
    p: BlockPacking
    instruction: str
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
    def width(self) -> int:
        """Outputs of a tile."""
        return 2 * SIDE if self.instruction == MULTI_GROUPS and self.parts == 1 else SIDE

    @property
    def packed(self) -> bool:
        """Whether the instruction unpacks weights."""
        return self.p.lanes == STREAMED

    @property
    def groups(self) -> int:
        """Groups that are multiplied at a time: all, or as many as are unpacked, whole blocks, equally many each
        time."""
        if self.packed:
            return self.s.groups
        each = self.s.weights.span // GROUP
        return next(n for n in range(_GROUPS, 0, -1) if n % each == 0 and self.s.groups % n == 0)

    def panel(self, panel: Index, outputs: int) -> None:
        """All results of a tile's outputs, or of as many as are left."""
        k, groups, width = self.k, self.groups, -(-outputs // SIDE) * SIDE
        own = _Unpacked(
            k.local("c", groups, WORDS, width, dtype=DType.Q8, space="stack"),
            k.local("d", groups, width, space="stack"),
            k.local("f", groups, self.parts, width, dtype=I32, space="stack") if self.parts > 1 else None,
            self._shifts(width),
        )
        for start, count in ((0, 1), (1, self.s.groups // groups - 1)):
            with k.loop("u", count) as part:
                group = (part + start) * groups
                self._unpack(own, panel, group, -(-outputs // LANES))
                self.rows(own, (panel, group), outputs, begun=start > 0)

    def rows(self, own: _Unpacked | None, at: tuple[Index, Index], outputs: int, *, begun: bool) -> None:
        """Some groups of all rows, from the panel and group ``at``; ``begun``: added to what is stored."""
        for first, times, rows in segments(self.s.rows, SIDE):
            with self.k.loop("i", times) as i:
                self._tile(own, at, (i + first // SIDE, rows), outputs, begun=begun)

    def _shifts(self, width: int) -> Tensor | None:
        """Shifts of a group, and of its parts where there are two."""
        count = 1 + (self.parts if self.parts > 1 else 0)
        return self.k.local("m", self.groups, count, width, space="stack") if self.s.weights.shifts else None

    def _unpack(self, own: _Unpacked, panel: Index, first: Index, vectors: int) -> None:
        """Some groups of a panel, of which there are so many vectors of outputs."""
        k, f = self.k, self.s.weights
        with (
            k.loop("v", vectors) as v,
            k.loop("b", self.groups * GROUP // f.span) as block,
            k.loop("g", f.span // GROUP) as part,
        ):
            group, source = block * (f.span // GROUP) + part, panel * (self.width // LANES) + v
            for pair in range(WORDS // 2):
                words = unpacked_pair(self.p, self.weights.words(source, first + group), pair)
                for i, word in enumerate(words):
                    own.codes.vec(LANES)[group, 2 * pair + i, v] = signed(word, self.p.offset)
            scales = self.weights.scales(k, source, first // (f.span // GROUP) + block, first + group)
            own.scale.vec(LANES)[group, v] = scales[0]
            if own.fine is not None and self.weights.fine is not None:
                for half in range(self.parts):
                    fine = self.weights.fine.vec(LANES)[source, (first + group) * self.parts + half, 0]
                    own.fine.vec(LANES)[group, half, v] = cast(fine, I32)
            if own.shift is not None:
                negative = self.parts == 1 and self.weights.fine_shift is not None
                own.shift.vec(LANES)[group, 0, v] = -scales[1] if negative else scales[1]
                for half, fine_shift in enumerate(scales[2:]):
                    own.shift.vec(LANES)[group, 1 + half, v] = cast(fine_shift, F32)

    def _tile(
        self, own: _Unpacked | None, at: tuple[Index, Index], rows: tuple[Index, int], outputs: int, *, begun: bool
    ) -> None:
        """A tile of ``rows``."""
        k, (panel, group), (tile, height) = self.k, at, rows
        pitch, bits = 4 * self.s.outputs, self.s.weights.bits if own is None else 0
        numbers = OuterGroups(height, outputs, self.groups, self.parts, int(self.s.weights.shifts), begun, pitch, bits)
        codes, scale, first = self.weights.codes, self.weights.scale, panel * (self.width // SIDE)
        weights: list[Operand] = [(codes, (first, 0, 0, 0)), (scale, (first, 0, 0))]
        if own is not None:
            weights = [(own.codes, (0, 0, 0)), (own.scale, (0, 0))]
        operands = [weights[0], (self.x, (tile, group * WORDS, 0)), weights[1], (self.x_scale, (tile, group, 0))]
        operands += [(own.fine, (0, 0, 0))] if own is not None and own.fine is not None else []
        if own is not None and own.shift is not None and self.x_total is not None:
            operands += [(own.shift, (0, 0, 0)), (self.x_total, (tile, group * self.parts, 0))]
        operands.append((self.y, (tile * SIDE, panel * self.width)))
        with k.instruction(self.instruction, operands, *numbers.numbers), k.loop("r", height) as r:
            self._row(own, (panel, group), (tile, r), outputs, begun=begun)

    def _row(
        self, own: _Unpacked | None, at: tuple[Index, Index], row: tuple[Index, Index], outputs: int, *, begun: bool
    ) -> None:
        """The meaning of the instruction, for a row."""
        k, (panel, group), (tile, r) = self.k, at, row
        vectors, rest, line = outputs // LANES, outputs % LANES, tile * SIDE + r
        acc = k.local("y", vectors + bool(rest), lanes=LANES)
        edge = k.local("e", LANES, space="stack") if rest else None
        with k.unroll("v", vectors) as v:
            acc[v] = self.y.vec(LANES)[line, panel * (self.width // LANES) + v] if begun else 0.0
        if edge is not None:
            with k.loop("l", rest) as lane:
                edge[lane] = self.y[line, panel * self.width + vectors * LANES + lane] if begun else 0.0
            with k.loop("z", LANES - rest) as lane:
                edge[lane + rest] = 0.0
            acc[vectors] = edge.vec(LANES)[0]
        with k.loop("g", self.groups) as g:
            if own is None:
                self._add_packed(acc, g, (tile, r), panel)
            else:
                self._add_group(own, acc, g, (tile, r), group)
        with k.unroll("v", vectors) as v:
            self.y.vec(LANES)[line, panel * (self.width // LANES) + v] = acc[v]
        if edge is not None:
            edge.vec(LANES)[0] = acc[vectors]
            with k.loop("l", rest) as lane:
                self.y[line, panel * self.width + vectors * LANES + lane] = edge[lane]

    def _add_group(self, own: _Unpacked, acc: Tensor, g: Index, row: tuple[Index, Index], first: Index) -> None:
        """One group of a row, added to its results."""
        k, (tile, r), count = self.k, row, acc.buffer.shape[0].const
        dots = k.local("s", self.parts, count, dtype=I32, lanes=LANES)
        for half in range(self.parts):
            with k.unroll("v", count) as v:
                dots[half, v] = 0
            with k.loop("q", WORDS // self.parts) as q:
                word = q + half * (WORDS // self.parts)
                value = k.let("x", broadcast(self.x[tile, (first + g) * WORDS + word, r], LANES))
                with k.unroll("v", count) as v:
                    dots[half, v] = op("dot4_signed", dots[half, v], value, own.codes.vec(LANES)[g, word, v])
        scale = k.let("q", broadcast(self.x_scale[tile, first + g, r], LANES))
        whole = self._whole((tile, r), first + g)
        with k.unroll("v", count) as v:
            total = dots[0, v]
            if own.fine is not None:
                fine = own.fine.vec(LANES)
                total = dots[0, v] * fine[g, 0, v] + dots[1, v] * fine[g, 1, v]
            term = op("mul_rounded", cast(total, F32), own.scale.vec(LANES)[g, v])
            if own.shift is not None:
                shift = own.shift.vec(LANES)
                if self.parts == 1:
                    term = term + op("mul_rounded", shift[g, 0, v], whole[0])
                else:
                    added = whole[0] * shift[g, 1, v] + whole[1] * shift[g, 2, v]
                    term = term - op("mul_rounded", added, shift[g, 0, v])
            acc[v] = acc[v] + op("mul_rounded", term, scale)

    def _add_packed(self, acc: Tensor, g: Index, row: tuple[Index, Index], panel: Index) -> None:
        """The same of weights as they lie in panels."""
        k, (tile, r), count, quarters = self.k, row, acc.buffer.shape[0].const, SIDE // LANES
        dots = k.local("s", count, dtype=I32, lanes=LANES)
        with k.unroll("v", count) as v:
            dots[v] = 0
        for pair in range(WORDS // 2):
            words = [self.x[tile, g * WORDS + 2 * pair + i, r] for i in (0, 1)]
            values = [k.let("x", broadcast(word, LANES)) for word in words]
            with k.unroll("v", count) as v:
                own = replace(self.weights, lanes=LANES, lane=v % quarters)
                source = panel * (self.width // SIDE) + v // quarters
                for value, word in zip(values, unpacked_pair(self.p, own.words(source, g), pair), strict=True):
                    dots[v] = op("dot4_signed", dots[v], value, word)
        scale = k.let("q", broadcast(self.x_scale[tile, g, r], LANES))
        with k.unroll("v", count) as v:
            own = replace(self.weights, lanes=LANES, lane=v % quarters)
            (own_scale,) = own.scales(k, panel * (self.width // SIDE) + v // quarters, g, g)
            term = op("mul_rounded", cast(dots[v], F32), own_scale)
            acc[v] = acc[v] + op("mul_rounded", term, scale)

    def _whole(self, row: tuple[Index, Index], group: Index) -> list[Expr]:
        """The sums of the parts of a group of activations."""
        total, (tile, r) = self.x_total, row
        if total is None:
            return []
        places = [total[tile, group * self.parts + i, r] for i in range(self.parts)]
        return [self.k.let("t", broadcast(value, LANES)) for value in places]
