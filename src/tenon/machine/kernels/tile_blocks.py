"""Blocks of tiles in registers of the processor: their instructions, and how their sums are stored.

A block is ``down`` tiles of positions by ``across`` tiles of 16 output channels.  The instruction makes its sums, over
all taps and input channels, and stores them on the stack, from where they are finished as everywhere else.  The rows of
a tile are neighbouring positions of a row of the image.  Where rows are short, the image is walked as one ``flat`` row
with the halo between, whose sums are not stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tenon.machine.isa.amx import BEGIN, END, TileBlock
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Const, Expr, Type, bitcast, broadcast, cast, op
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.storage_types import NARROW
from tenon.machine.kernels.storage_types import stored as narrowed
from tenon.network.graph.types import F32, I32, DType

CHANNELS = 16
"""Output channels of a tile, one for each lane of a vector."""

_AHEAD = 8192
"""Bytes by which weights are prefetched that no other block reads."""
_FETCHED = 6
"""Most lines that a step prefetches of the next channels' weights."""

Store = Callable[[Index, Index, Index, Index, Expr], None]
"""Finishes and stores a vector of sums at (image, channel, row, column), of as many channels as it has lanes."""


Clear = Callable[[Index, Index, Index, Index], None]
"""Stores a vector of zeros at (image, channel, row, column)."""


def paired(first: Expr, second: Expr) -> Expr:
    """Two vectors of f32 rounded to bf16, halves away from zero, as words of 32 bits: the first in their lower half."""
    half = 1 << 15
    low, high = (bitcast(each, I32) + half for each in (first, second))
    return op("or", bitcast(bitcast(low, DType.U32) >> 16, I32), op("and", high, -65536))


def nothing(n: Index, channel: Index, row: Index, col: Index) -> None:
    """Stores nothing: every tile has products."""


@dataclass(frozen=True)
class RegisterTiles:
    """``down`` tiles of ``rows`` positions by ``across`` tiles of channels; ``flat``: rows of the image are joined."""

    rows: int
    down: int
    across: int
    flat: int = 0


@dataclass(frozen=True)
class TileRun:
    """``count`` groups of ``across`` tiles of output channels, from tile ``first`` on.  ``stored`` channels of the last
    tile of a group are stored, and ``empty`` tiles of zeros behind it."""

    first: int
    count: int
    across: int
    stored: int = CHANNELS
    empty: int = 0


def tile_runs(channels: int, across: int, padded: int = 0) -> list[TileRun]:
    """The runs that cover so many channels, by groups of ``across`` tiles at most; a last tile may be in part beyond
    them.  Up to ``padded`` channels are stored, those in tiles of their own as zeros."""
    empty = max(0, padded // CHANNELS - -(-channels // CHANNELS))
    whole, rest = divmod(padded - empty * CHANNELS if padded else channels, CHANNELS)
    runs = [TileRun(*each) for each in segments(whole, across)]
    if rest:
        return [*runs, TileRun(whole, 1, 1, rest)]
    if empty and runs:
        last = runs.pop()
        runs += [replace(last, count=last.count - 1)] if last.count > 1 else []
        runs.append(replace(last, first=last.first + (last.count - 1) * last.across, count=1, empty=empty))
    return runs


def runs_of(s: Conv, across: int) -> list[TileRun]:
    """The runs of a convolution: whole blocks are stored, of floats without products for what only fills the last."""
    if s.y.block % CHANNELS or s.x.dtype not in NARROW:
        return tile_runs(s.padded, across)
    return tile_runs(s.y.channels, across, s.padded)


@dataclass(frozen=True, eq=False)
class TileRows:
    """Where the rows of the left tiles lie: ``words`` words of a position in a step, those of the next position
    ``apart`` bytes further on; ``loops`` are those of ``isa.amx.TileBlock``.  ``first`` gives the place of an output's
    first step, from its row and column, and ``word`` one of its words, besides these from the numbers of the loops and
    that of the word."""

    words: int
    apart: int
    loops: tuple[tuple[int, int], ...]
    first: Callable[[Index, Index], Operand]
    word: Callable[[Index, Index, list[Index], Index], Expr]


@dataclass(frozen=True, eq=False)
class TileContext:
    """The parameters that all blocks of a kernel share: ``extent`` are the positions of the rows that are made, and
    ``pitch`` those from one row of the input to the next.  ``ahead``: weights are prefetched."""

    k: Builder
    tile: RegisterTiles
    unit: ProductUnit
    extent: tuple[int, int]
    pitch: int
    store: Store
    ahead: bool = True
    clear: Clear = nothing


def pitch(s: Conv) -> int:
    """Positions from one row of the input to the next."""
    return s.x.left + s.x.w + s.x.right


def parts(tile: RegisterTiles, extent: tuple[int, int], pitch: int) -> list[tuple[int, int, int, int]]:
    """(first position of a row, tiles of a row, rows of a tile, tiles in all)."""
    height, width = extent
    if tile.flat:
        height, width = 1, (height - 1) * pitch + width
    return [(first, count, rows, count * height) for first, count, rows in segments(width, tile.rows)]


def word_type(dtype: DType) -> DType:
    """The type of words of elements of ``dtype``, as weights and images of floats are read."""
    return DType.B2 if dtype is DType.BF16 else I32


def float_ends(k: Builder, s: Conv) -> tuple[Store, Clear]:
    """Functions to finish sums and to store zeros.  Parameters: bias (padded), mask when ``clear``, operands, y."""
    b = k.param("b", s.padded) if s.bias else None
    m = k.param("m", s.padded, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        lanes = total.type.lanes
        value = total if b is None else total + b.vec(lanes)[channel // lanes]
        mask = None if m is None else m.vec(lanes)[channel // lanes]
        finish(s, y, operands, (n, channel, row, col), lanes, value, mask)

    def clear(n: Index, channel: Index, row: Index, col: Index) -> None:
        zero = broadcast(Const(0.0, Type(F32)), CHANNELS)
        y.vec(CHANNELS)[s.y.place(n, channel, row, col, CHANNELS)] = narrowed(zero, s.y.dtype)

    return store, clear


def integer_ends(k: Builder, s: IntegerConv) -> tuple[Store, Clear]:
    """As ``float_ends``.  Parameters: bias in i32 (padded), rows of factors, mask when ``conv.clear``, operands, y."""
    ends = IntegerEnds.params(k, s)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        lanes = total.type.lanes
        ends.store(n, channel, row, col, lanes, total + ends.b.vec(lanes)[channel // lanes])

    return store, nothing


def weight_params(k: Builder, s: Conv, tile: RegisterTiles, steps: int, words: int) -> list[Tensor]:
    """The packed weights of each run, in words."""
    dtype = word_type(s.weights)
    runs = runs_of(s, tile.across)
    return [k.param("w", run.count, steps, run.across, words, CHANNELS, dtype=dtype) for run in runs]


def inside(s: Conv, run: TileRun) -> int:
    """How many groups of a run a block of the output has."""
    each = run.across * CHANNELS
    groups = s.y.block // each if s.y.blocks > 1 and s.y.block % each == 0 else 1
    return groups if run.count % groups == 0 and run.first * CHANNELS % s.y.block == 0 else 1


def end(k: Builder) -> None:
    """Give up the registers."""
    with k.instruction(END, ()):
        pass


def group(
    p: TileContext,
    left: TileRows,
    weights: tuple[Tensor, Index],
    at: tuple[Index, Index, Index],
    run: TileRun,
    kind: str = "serial",
) -> None:
    """All positions by the tiles of channels of a group of a run; ``at`` is (image, first channel, first row of the
    output), and ``kind`` that of the loops over blocks."""
    for block, turn, places in _runs(p, left, run.across, kind):
        channels = (run.across - 1) * CHANNELS + run.stored
        about = f"{block.down} x {block.rows} positions by {channels} output channels"
        with p.k.outline(f"{block.down}x{block.rows}x{channels}", about):
            _block(p, block, (left, *weights), at, (turn, places), run)


Places = list[tuple[Index, Index]]
"""Row and column of the first position of each tile of a block."""


def _runs(p: TileContext, left: TileRows, across: int, kind: str) -> Iterator[tuple[TileBlock, Index, Places]]:
    """The blocks of positions, equal ones in one loop, and which part of the weights each prefetches."""
    cut, turn = parts(p.tile, p.extent, p.pitch), 0
    of = sum(-(-count // p.tile.down) for *_, count in cut)
    steps = math.prod(count for count, _ in left.loops)
    ahead = _AHEAD if p.ahead and of == 1 else 0  # weights are read once
    fetched = min(_FETCHED, -(-across * left.words // of)) if p.ahead and of > 1 else 0
    for start, per_row, rows, count in cut:
        for before, number, down in segments(count, p.tile.down):
            block = TileBlock(rows, down, across, left.words, left.apart, ahead, fetched, left.loops)
            with p.k.instruction(BEGIN, (), *block.shape):
                pass
            with p.k.loop("j", number, kind=kind) as j:
                turns = [j * down + (before + i) for i in range(down)]
                rest = [each if count == per_row else each % per_row for each in turns]
                places = [(Index() if count == per_row else each // per_row) for each in turns]
                yield (
                    block,
                    (j + turn) * steps // of,
                    [(row, col * rows + start) for row, col in zip(places, rest, strict=True)],
                )
            turn += number


Factors = tuple[TileRows, Tensor, Index]
"""Rows of the left tiles; the weights, and which group of them."""


def _block(
    p: TileContext,
    block: TileBlock,
    of: Factors,
    at: tuple[Index, Index, Index],
    turn: tuple[Index, Places],
    run: TileRun,
) -> None:
    """Sums of one block, and what is stored of them; ``turn`` has the step whose weights, of the next channels,
    it prefetches first."""
    k, (left, w, o), (part, places) = p.k, of, turn
    dtype = F32 if p.unit.sums is DType.F32 else I32
    sums = k.local("s", block.down, block.rows, block.across * CHANNELS, dtype=dtype, space="stack")
    xs = [left.first(row, col) for row, col in places]
    ahead: list[Operand] = [(w, (o, part, 0, 0, 0))] if block.fetched else []
    with k.instruction(p.unit.operation, ((w, (o, 0, 0, 0, 0)), *xs, (sums, (0, 0, 0)), *ahead), *block.numbers):
        tile_sums(k, p.unit, block, of, places, (sums, ()))
    for i, (row, col) in enumerate(places):
        with k.loop("r", block.rows) as r:
            _store(p, sums, (i, r, run), at, (row, col + r))


def _store(
    p: TileContext,
    sums: Tensor,
    of: tuple[int, Index, TileRun],
    at: tuple[Index, Index, Index],
    place: tuple[Index, Index],
) -> None:
    """Results of one position, unless it lies between rows."""
    k, (i, r, run), (n, channel, top), (row, col) = p.k, of, at, place
    facts = list[Index]()
    if p.tile.flat:
        row, col = col // p.pitch, col % p.pitch
        facts = [p.extent[1] - 1 - col] if p.extent[1] < p.pitch else []
    with k.when(*facts):
        for start, count, lanes in lane_segments((run.across - 1) * CHANNELS + run.stored, CHANNELS):
            with k.unroll("v", count) as v:
                p.store(n, channel + start + v * lanes, top + row, col, sums.vec(lanes)[i, r, v + start // lanes])
        for empty in range(run.across, run.across + run.empty):
            p.clear(n, channel + empty * CHANNELS, top + row, col)


def tile_sums(
    k: Builder,
    unit: ProductUnit,
    block: TileBlock,
    of: Factors,
    places: Places,
    into: tuple[Tensor, tuple[Index, ...]],
    first: Index | int = 0,
) -> None:
    """The meaning of the instruction: sums at [tile][row][channel] behind the first indices of ``into``, of the steps
    of the weights from ``first`` on."""
    (left, w, o), sums, at = of, into[0].vec(CHANNELS), into[1]
    with k.loop("i", block.down * block.rows) as i, k.unroll("v", block.across) as v:
        sums[(*at, i // block.rows, i % block.rows, v)] = 0
    with ExitStack() as stack:
        turns = [stack.enter_context(k.loop("c", count)) for count, _ in block.loops]
        step = Index()
        for turn, (count, _) in zip(turns, block.loops, strict=True):
            step = step * count + turn
        for tile, (row, col) in enumerate(places):
            with k.loop("r", block.rows) as r:
                places_of_sums = (*at, index(tile), r)
                _row(
                    k,
                    unit,
                    block,
                    (left, row, col + r, turns),
                    (w.vec(CHANNELS), o, first + step),
                    (sums, places_of_sums),
                )


def _row(
    k: Builder,
    unit: ProductUnit,
    block: TileBlock,
    position: tuple[TileRows, Index, Index, list[Index]],
    weights: tuple[Tensor, Index, Index],
    sums: tuple[Tensor, tuple[Index, ...]],
) -> None:
    """A step of one position."""
    (left, row, col, turns), (w, o, step), (into, at) = position, weights, sums
    if unit.sums is not DType.F32:
        product = "dot4" if unit.x is DType.U8 else "dot4_signed"
        with k.loop("q", block.words) as q, k.unroll("v", block.across) as v:
            value = broadcast(left.word(row, col, turns, q), CHANNELS)
            into[(*at, v)] = op(product, into[(*at, v)], value, w[o, step, v, q, 0])
        return
    acc = k.local("a", block.across, 2, lanes=CHANNELS)
    with k.unroll("v", block.across) as v, k.unroll("h", 2) as half:
        acc[v, half] = 0
    with k.loop("q", block.words) as q:
        value = k.let("x", _bits(left.word(row, col, turns, q)))
        halves = [k.let("h", each) for each in _halves(value, unit.x)]
        with k.unroll("v", block.across) as v:
            pair = _halves(k.let("w", _bits(w[o, step, v, q, 0])), unit.x)
            for h, (a, weight) in enumerate(zip(halves, pair, strict=True)):
                acc[v, h] = acc[v, h] + broadcast(a, CHANNELS) * weight
    with k.unroll("v", block.across) as v:
        into[(*at, v)] = into[(*at, v)] + (acc[v, 0] + acc[v, 1])


def _bits(word: Expr) -> Expr:
    return word if word.type.dtype is I32 else bitcast(word, I32)


def _halves(word: Expr, dtype: DType) -> tuple[Expr, Expr]:
    """The two floats of 16 bits of words of i32, the even one first, in f32."""
    if dtype is DType.BF16:
        return bitcast(word << 16, F32), bitcast(op("and", word, -65536), F32)
    even, odd = (cast(op("and", each, 65535), DType.U16) for each in (word, word >> 16))
    return cast(bitcast(even, DType.F16), F32), cast(bitcast(odd, DType.F16), F32)
