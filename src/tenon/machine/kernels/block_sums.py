"""Sums of products of activations in bytes by weights in blocks, a group at a time: what all kernels of such products
share (``kernels.block_product``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Type, bitcast, broadcast, cast, lanes_of, op, vector4
from tenon.machine.kernels.block_formats import FORMATS, GROUP, BlockFormat
from tenon.machine.kernels.block_packing import WORDS, BlockPacking, nibbles, unpacked_pair
from tenon.machine.kernels.integer_dots import dot16
from tenon.machine.kernels.integer_tiled import byte_of
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

HALF = GROUP // 2
"""Elements whose sums activations come with."""


SIDE = 32
"""Rows of a panel on devices that run work groups."""

STREAMED = 16
"""Rows of a panel of long vectors."""


TileRows = Index | Sequence[Index]
"""The rows of a tile: the first of consecutive ones, or each of them."""


def each_row(k: Builder, row: TileRows, rows: int) -> Iterator[tuple[IndexLike, Index]]:
    """The number of each row in a tile, and the row itself, for statements about it: a loop that is unrolled when it is
    printed where rows are consecutive."""
    if isinstance(row, Index):
        with k.unroll("r", rows) as r:
            yield r, row + r
    else:
        yield from enumerate(row)


def row_at(row: TileRows, number: int) -> Index:
    """A row of a tile."""
    return row + number if isinstance(row, Index) else row[number]


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
    """How a machine wants weights to lie: on devices, neighbouring threads read the rows of a panel."""
    f, lanes = FORMATS[format], machine.lanes if machine.launch is None else SIDE
    if by_pairs(machine):
        lanes = 1
    signed = product_unit(machine) != "dot4" and (f.bits == 8 or not by_pairs(machine))
    return BlockPacking(f, lanes, signed)


def layer_packing(format: str, machine: Machine) -> BlockPacking:
    """How a machine wants the weights of layers to lie: in panels of a long vector where it multiplies these in its
    streaming mode (``kernels.stream_rows``, ``kernels.outer_groups``)."""
    return replace(packing(format, machine), lanes=STREAMED) if streams(format, machine) else packing(format, machine)


def streams(format: str, machine: Machine) -> bool:
    """Whether a machine multiplies weights of a format by long vectors of a streaming mode."""
    return machine.lanes == 4 and machine.outer(DType.I8) is not None and packing(format, machine).plain


def product_unit(machine: Machine) -> str:
    """The operation for four products of bytes: its first factor has no sign where the machine prefers that, which it
    does not if it multiplies blocks of bytes with signs."""
    if machine.has("mmla_signed"):
        return "dot4_signed"
    for dtype in (DType.U8, DType.I8):
        unit = machine.fours.get(dtype)
        if unit is not None and not unit.narrow:
            return unit.operation
    return "dot4_narrow"


TWO_WORDS, PAIRS, SIXTEEN = "dot8_small", "dot2_i16", "dot16"
"""The operations for two words of codes of few bits, for two products of halves of words, and for those of 16 bytes."""

SINGLE = "mul"
"""The operation for products of single bytes, widened to words."""


def by_pairs(machine: Machine) -> bool:
    """Whether bytes are widened to halves of words, two of which are multiplied and added up at a time."""
    return machine.has(PAIRS)


def sum_unit(s: BlockProduct, machine: Machine) -> str:
    """The operation that sums the products of a kernel."""
    if machine.lanes > 4 and machine.launch is None and not (machine.fours or by_pairs(machine)):
        return SINGLE
    if by_pairs(machine):
        return SIXTEEN if s.weights.bits == 8 and machine.has(SIXTEEN) else PAIRS
    return TWO_WORDS if s.weights.bits <= 6 and machine.has(TWO_WORDS) else product_unit(machine)


def by_blocks(machine: Machine) -> bool:
    """Whether the machine has products of blocks of two rows by two outputs, in vectors of four words."""
    return machine.lanes == 4 and machine.has("mmla_signed")


def holds_rows(machine: Machine) -> bool:
    """Whether a group of some rows of activations stays in registers, whose words multiply the weights of one panel
    after the other: where a product takes one of the words of a vector."""
    return machine.lanes == 4 and machine.registers >= 32 and product_unit(machine) == "dot4_signed"


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The parameters of a kernel that hold weights; those that the format does not have are None.

    A kernel reads ``lanes`` rows of a panel at once, from number ``lane`` times as many on.  Unpacked, bytes are
    ``times`` as large as codes.
    """

    format: BlockFormat
    lanes: int
    lane: Index
    times: int
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
            f,
            p.lanes,
            Index(),
            p.times,
            k.param("w", panels, s.groups, p.stored_words, *((p.lanes,) if p.lanes > 1 else ()), dtype=DType.Q8),
            k.param("d", panels, blocks, p.lanes, dtype=F32 if f.wide else DType.F16),
            k.param("z", panels, blocks, p.lanes, dtype=p.zero_type) if f.zeros else None,
            k.param("m", panels, blocks, p.lanes, dtype=DType.F16) if f.shifts else None,
            k.param("f", panels, parts, p.lanes, dtype=fine_type) if f.fine else None,
            k.param("n", panels, parts, p.lanes, dtype=fine_type) if f.fine_shifts else None,
        )

    def of_lane(self, lane: Index) -> BlockWeights:
        """The same parameters, of which one row of each panel is read."""
        return replace(self, lanes=1, lane=lane)

    def part(self, tensor: Tensor, *at: Index) -> Expr:
        """The elements of a panel's rows at a place of an array."""
        return tensor.vec(self.lanes)[(*at, self.lane)]

    def words(self, panel: Index, group: Index) -> Callable[[int], Expr]:
        """The words of a group of a panel in memory, by their numbers."""
        if len(self.codes.buffer.shape) == 3:
            return lambda number: self.codes[panel, group, number]
        return lambda number: self.part(self.codes, panel, group, Index((), number))

    def scales(self, k: Builder, panel: Index, block: Index, group: Index) -> list[Expr]:
        """The scales of a group of a panel and its shifts, and where halves of groups have shifts of their own, these
        two, in i32.

        Fine scales of groups are multiplied in here: f16 times 6 bits is exact, so that the result is that of integers
        which are multiplied by the fine scale first.
        """
        result = []
        fine = (self.fine, self.fine_shift) if self.format.fine == GROUP else (None, None)
        for tensor, part in zip((self.scale, self.shift), fine, strict=True):
            if tensor is not None:
                value = cast(self.part(tensor, panel, block), F32)
                if tensor is self.scale and self.times > 1:
                    value = value * (1 / self.times)
                if part is not None:
                    value = value * cast(cast(self.part(part, panel, group), I32), F32)
                result.append(k.let("d", value))
        if self.fine_shift is not None and self.format.fine == HALF:
            for half in (0, 1):
                result.append(k.let("n", cast(self.part(self.fine_shift, panel, group * 2 + half), I32)))
        return result

    def term(self, total: Expr, scales: Sequence[Expr], whole: Expr | None) -> Expr:
        """The terms that a group adds to results: ``total`` is the sum of its products, and ``whole`` that of its
        activations, times the shifts of halves where they have such, both in f32; ``whole`` is for formats that have
        shifts."""
        term = op("mul_rounded", total, scales[0])
        if len(scales) == 1:
            return term
        assert whole is not None
        return self._with(term, op("mul_rounded", whole, scales[1]))

    def shifted(self, product: Expr, scales: Sequence[Expr]) -> Expr:
        """A weight, of a format without shifts of halves of groups, by the product of its code and its scale."""
        return product if len(scales) == 1 else self._with(product, scales[1])

    def _with(self, term: Expr, shift: Expr) -> Expr:
        return term + shift if self.fine_shift is None else term - shift


@dataclass(frozen=True, eq=False)
class BlockOperands:
    """The parameters of a kernel."""

    x: Tensor
    x_scale: Tensor
    x_sums: Tensor
    weights: BlockWeights
    y: Tensor

    @classmethod
    def declared(cls, k: Builder, s: BlockProduct, p: BlockPacking) -> BlockOperands:
        return cls(
            k.param("x", s.rows, s.columns // 4, dtype=DType.Q8),
            k.param("dx", s.rows, s.groups),
            k.param("sx", s.rows, 2 * s.groups, dtype=I32),
            BlockWeights.declared(k, s, p),
            k.param("y", s.rows, s.outputs, out=True),
        )


@dataclass(frozen=True, eq=False)
class BlockSums:
    """The sums of a kernel being built, by the operation ``unit``."""

    k: Builder
    s: BlockProduct
    p: BlockPacking
    unit: str
    at: BlockOperands
    blocks: bool = False  # products of two rows by two outputs, where there are two rows
    held: bool = False  # ``lines`` of activations are in registers

    @property
    def lanes(self) -> int:
        """Results of a vector."""
        return self.at.weights.lanes

    def in_blocks(self, rows: int) -> bool:
        """Whether so many rows are multiplied by blocks of two rows by two outputs."""
        return self.blocks and rows % 2 == 0

    def lines(self, row: TileRows, rows: int, group: Index) -> list[list[Expr]]:
        """A group of rows of activations in registers: the vectors of each row, or for blocks those of two rows, every
        second word of four of each."""
        x, each = self.at.x.vec(4), WORDS // 4
        lines = [[self.k.let("x", x[row_at(row, r), group * each + i]) for i in range(each)] for r in range(rows)]
        if not self.in_blocks(rows):
            return lines
        halves = ("even_words", "odd_words")
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return [
            [self.k.let("l", op(half, first[i], second[i])) for i in range(each) for half in halves]
            for first, second in pairs
        ]

    def sums(
        self,
        row: TileRows,
        rows: int,
        panel: Index,
        vectors: int,
        group: Index,
        block: Index,
        lines: Sequence[Sequence[Expr]] = (),
    ) -> Tensor:
        """The sums of products of a group, less what codes are too large by, times the scales of its parts."""
        k, f, lanes = self.k, self.s.weights, self.lanes
        sums = k.local("s", rows, vectors, dtype=I32, lanes=lanes)
        halves = 2 if f.fine == HALF else 1
        for half in range(halves):
            dots = sums if halves == 1 else k.local("h", rows, vectors, dtype=I32, lanes=lanes)
            pairs = range(half * 2, half * 2 + 4 // halves)
            if self.in_blocks(rows):
                self._block_dots(dots, row, rows, panel, vectors, group, pairs, block, lines)
            else:
                for r, at in each_row(k, row, rows):
                    start = self._start(at, group, half if halves > 1 else None)
                    with k.unroll("v", vectors) as v:
                        dots[r, v] = self._less_zero(start, at, panel + v, group, block)
                self._dots(dots, row, rows, panel, vectors, group, pairs, lines)
            if halves > 1:
                self._finer(sums, dots, (row, rows), panel, vectors, group * halves + half, first=half == 0)
        return sums

    def _start(self, row: Index, group: Index, half: int | None) -> Expr:
        """The initial value of the sum of a group of a row, or of half of one."""
        offset = self.p.offset
        if not offset:
            return broadcast(Const(0, Type(I32)), self.lanes)
        return self.k.let("o", broadcast(self.group_sum(row, group, half) * -offset, self.lanes))

    def _less_zero(self, start: Expr, row: Index, panel: Index, group: Index, block: Index) -> Expr:
        """The initial value of a sum, less the zero point times the sum of the group."""
        if self.at.weights.zero is None:
            return start
        zero = cast(self.at.weights.part(self.at.weights.zero, panel, block), I32)
        return start - zero * broadcast(self.group_sum(row, group), self.lanes)

    def group_sum(self, row: Index, group: Index, half: int | None = None) -> Expr:
        """The sum of a group of activations, or of half of one."""
        if half is not None:
            return self.at.x_sums[row, group * 2 + half]
        return self.at.x_sums[row, group * 2] + self.at.x_sums[row, group * 2 + 1]

    def _dots(
        self,
        dots: Tensor,
        row: TileRows,
        rows: int,
        panel: Index,
        vectors: int,
        group: Index,
        pairs: Sequence[int],
        lines: Sequence[Sequence[Expr]],
    ) -> None:
        """Add the products of some pairs of words."""
        k, lanes, weights = self.k, self.lanes, self.at.weights
        others = {SIXTEEN: self._sixteens, PAIRS: self._pairs_of_halves, SINGLE: self._single_bytes}
        if self.unit in others:
            add = others[self.unit]
            add(dots, [row_at(row, r) for r in range(rows)], panel, vectors, group, pairs)
            return
        for pair in pairs:
            with k.unroll("v", vectors) as v:
                words = unpacked_pair(self.p, weights.words(panel + v, group), pair)
                words = [k.let("w", word) for word in words]
                for own, line in enumerate(lines):
                    for i, word in enumerate(words):
                        vector, lane = divmod(2 * pair + i, 4)
                        dots[own, v] = op(f"dot4_lane{lane}", dots[own, v], word, line[vector])
                if lines:
                    continue
                for r, at in each_row(k, row, rows):
                    first = group * WORDS + 2 * pair
                    xs = [broadcast(self.at.x[at, first + i], lanes) for i in (0, 1)]
                    dots[r, v] = self._product(dots[r, v], words, xs)

    def _sixteens(
        self, dots: Tensor, rows: Sequence[Index], panel: Index, vectors: int, group: Index, pairs: Sequence[int]
    ) -> None:
        """Add the products of some pairs of words, of weights in bytes, 16 at a time."""
        k, each = self.k, WORDS // 4
        for i in dict.fromkeys(pair // 2 for pair in pairs):
            activations = [k.let("x", self.at.x.vec(4)[at, group * each + i]) for at in rows]
            for v in range(vectors):
                own = k.let("w", self.at.weights.codes.vec(4)[panel + v, group, i])
                for r, x in enumerate(activations):
                    dots[r, v] = dot16(dots[r, v], x, own)

    def _pairs_of_halves(
        self, dots: Tensor, rows: Sequence[Index], panel: Index, vectors: int, group: Index, pairs: Sequence[int]
    ) -> None:
        """Add the products of some pairs of words, of bytes that are widened to halves of words: of each row once for
        all panels, and of each panel once for all rows."""
        for pair in pairs:
            words = [group * WORDS + 2 * pair + i for i in (0, 1)]
            own = [[bitcast(self.at.x[at, word], I32) for word in words] for at in rows]
            activations = [[half for word in each for half in self._widened(word)] for each in own]
            for v in range(vectors):
                for i, half in enumerate(self._halves(self.at.weights.words(panel + v, group), pair)):
                    for r, halves in enumerate(activations):
                        dots[r, v] = op(PAIRS, dots[r, v], halves[i], half)

    def _single_bytes(
        self, dots: Tensor, rows: Sequence[Index], panel: Index, vectors: int, group: Index, pairs: Sequence[int]
    ) -> None:
        """Add the products of some pairs of words, byte by byte: those of activations are scalars, which are widened
        for all panels, and those of weights vectors, which are widened for all rows."""
        k, lanes = self.k, self.lanes
        for pair in pairs:
            own = [
                [k.let("x", bitcast(self.at.x[at, group * WORDS + 2 * pair + i], I32)) for i in (0, 1)] for at in rows
            ]
            activations = [[k.let("x", byte) for word in each for byte in _bytes_of(word)] for each in own]
            for v in range(vectors):
                words = unpacked_pair(self.p, self.at.weights.words(panel + v, group), pair)
                widened = [byte for word in words for byte in _bytes_of(k.let("w", bitcast(word, I32)))]
                for i, byte in enumerate(widened):
                    weight = k.let("b", byte)
                    for r, each in enumerate(activations):
                        dots[r, v] = dots[r, v] + weight * broadcast(each[i], lanes)

    def _halves(self, stored: Callable[[int], Expr], pair: int) -> list[Expr]:
        """The elements of two words of weights, two by two: those at even and at odd places of each word."""
        k = self.k
        if self.s.weights.bits == 4:
            both = k.let("w", bitcast(stored(pair), I32))
            return [k.let("h", op("and", both >> shift, 0x000F000F)) for shift in (0, 8, 4, 12)]
        return [half for word in unpacked_pair(self.p, stored, pair) for half in self._widened(bitcast(word, I32))]

    def _widened(self, word: Expr) -> list[Expr]:
        """The bytes of a word as halves of words: those at even places, and those at odd ones."""
        word = self.k.let("w", word)
        return [self.k.let("h", op(name, word)) for name in ("even_bytes", "odd_bytes")]

    def _block_dots(
        self,
        dots: Tensor,
        row: TileRows,
        rows: int,
        panel: Index,
        vectors: int,
        group: Index,
        pairs: Sequence[int],
        block: Index,
        lines: Sequence[Sequence[Expr]],
    ) -> None:
        """The sums of the products of some pairs of words, two words of two rows by two words of two outputs."""
        k, weights = self.k, self.at.weights
        acc = k.local("m", rows // 2, vectors, 2, dtype=I32, lanes=4)
        half = pairs[0] // 2 if len(pairs) < WORDS // 2 else None
        for two in range(rows // 2):
            start = self._start_of_two([row_at(row, 2 * two + i) for i in (0, 1)], group, half)
            with k.unroll("v", vectors) as v, k.unroll("h", 2) as h:
                acc[two, v, h] = start
        for pair in pairs[::2]:
            with k.unroll("v", vectors) as v:
                for outputs, right in enumerate(self._weights_of_two(weights.words(panel + v, group), pair)):
                    for i, own in enumerate(right):
                        for two, line in enumerate(lines):
                            acc[two, v, outputs] = op("mmla_signed", acc[two, v, outputs], own, line[pair + i])
        for two in range(rows // 2):
            with k.unroll("v", vectors) as v:
                for i, name in enumerate(("even_words", "odd_words")):
                    total = op(name, acc[two, v, 0], acc[two, v, 1])
                    number = two * 2 + i
                    dots[number, v] = self._less_zero(total, row_at(row, number), panel + v, group, block)

    def _weights_of_two(self, stored: Callable[[int], Expr], pair: int) -> list[list[Expr]]:
        """The four words of two pairs, of the first two outputs of a panel and of the last two: words 0 and 2 of each
        output, and words 1 and 3.  Codes of 4 bits are brought side by side before they are unpacked."""
        k, names = self.k, ("low_words", "high_words")
        if self.s.weights.bits == 4:
            both = [k.let("w", stored(pair + i)) for i in (0, 1)]
            return [[k.let("b", word) for word in nibbles(self.p, bitcast(op(name, *both), I32))] for name in names]
        words = [k.let("w", word) for i in (0, 1) for word in unpacked_pair(self.p, stored, pair + i)]
        return [[k.let("b", op(name, words[i], words[i + 2])) for i in (0, 1)] for name in names]

    def _start_of_two(self, rows: Sequence[Index], group: Index, half: int | None) -> Expr:
        """The initial value of the sums of two rows and two outputs."""
        if not self.p.offset:
            return broadcast(Const(0, Type(I32)), 4)
        first, second = (self.k.let("o", self.group_sum(row, group, half) * -self.p.offset) for row in rows)
        return self.k.let("o", vector4(first, second, first, second))

    def _product(self, total: Expr, words: Sequence[Expr], xs: Sequence[Expr]) -> Expr:
        """A sum plus the products of two words."""
        if self.unit == TWO_WORDS:
            return op(self.unit, total, words[0], xs[0], words[1], xs[1])
        for word, x in zip(words, xs, strict=True):
            total = op(self.unit, total, word, x)
        return total

    def _finer(
        self,
        sums: Tensor,
        dots: Tensor,
        rows: tuple[TileRows, int],
        panel: Index,
        vectors: int,
        part: Index,
        *,
        first: bool,
    ) -> None:
        """Multiply sums by the scales of a part, and add them up."""
        k, weights = self.k, self.at.weights
        assert weights.fine is not None
        with k.unroll("v", vectors) as v:
            scale = k.let("f", cast(weights.part(weights.fine, panel + v, part), I32))
            for r, _ in each_row(k, *rows):
                scaled = dots[r, v] * scale
                sums[r, v] = scaled if first else sums[r, v] + scaled

    def scales_of_rows(self, row: TileRows, rows: int, group: Index) -> list[Expr]:
        """The scales of a group of up to four rows, as the elements of one vector."""
        each = [self.at.x_scale[row_at(row, r), group] for r in range(rows)]
        if rows == 1:
            return each
        return lanes_of(self.k.let("e", vector4(*each, *each[-1:] * (4 - rows))))[:rows]

    def added(
        self, total: Expr, row: Index, group: Index, scales: Sequence[Expr], row_scale: Expr | None = None
    ) -> Expr:
        """The term that the sum of a group adds to a result, by the scales of the group and that of the row."""
        lanes = self.lanes
        whole = None
        if len(scales) > 2:
            halves = [broadcast(self.group_sum(row, group, half), lanes) * scales[2 + half] for half in (0, 1)]
            whole = cast(halves[0] + halves[1], F32)
        elif len(scales) > 1:
            whole = broadcast(cast(self.group_sum(row, group), F32), lanes)
        term = self.at.weights.term(cast(total, F32), scales, whole)
        if row_scale is None:
            row_scale = self.at.x_scale[row, group]
        return op("mul_rounded", term, broadcast(row_scale, lanes))


def _bytes_of(word: Expr) -> list[Expr]:
    """The bytes of words of i32 as numbers, the first one first."""
    return [byte_of(word, lane) for lane in range(4)]
