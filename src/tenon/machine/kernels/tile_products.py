"""Convolution and matrix product by a matrix unit whose tiles are in registers of the processor (``isa.amx``).

A block is ``down`` tiles of positions by ``across`` tiles of 16 output channels.  The instruction makes its sums, over
all taps and input channels, and stores them on the stack, from where they are finished as everywhere else.  The rows of
a tile are neighbouring positions of a row of the image, which a tap reads from another place.  Where rows are short,
the image is walked as one ``flat`` row with the halo between, whose sums are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.machine.isa.amx import BEGIN, END, TileBlock
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, bitcast, broadcast, op
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

CHANNELS = 16
"""Output channels of a tile, one for each lane of a vector."""
_WORDS = 16
"""Most words of a row of a tile."""


@dataclass(frozen=True)
class RegisterTiles:
    """``down`` tiles of ``rows`` positions by ``across`` tiles of channels; ``flat``: rows of the image are joined."""

    rows: int
    down: int
    across: int
    flat: int = 0


def unit_of(s: Conv, machine: Machine) -> ProductUnit | None:
    """The unit that multiplies the images and weights of a convolution in tiles of registers."""
    unit = machine.tiles(s.x.dtype)
    return unit if unit is not None and unit.weights is s.weights else None


def supported(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of whole words, into whole vectors."""
    plain = s.y_step == (1, 1) and s.positions is None and s.packed and s.groups == 1 and s.taps > 0
    single = len(s.batches) == 1 and s.batches[0][1:] == (1, 1)
    if unit_of(s, machine) is None or not (plain and single) or s.paired:
        return False
    return s.x.block * s.x.dtype.bytes % (4 * words_of(s)) == 0 and s.padded % CHANNELS == 0


def words_of(s: Conv) -> int:
    """Words of a position that a step multiplies."""
    return max(1, min(_WORDS, s.x.block * s.x.dtype.bytes // 4))


def steps_of(s: Conv) -> int:
    """Steps of a block: taps, and parts of the input channels."""
    return s.taps * s.x.blocks * (s.x.block * s.x.dtype.bytes // (4 * words_of(s)))


def block_of(s: Conv) -> int:
    """The channels of a block of the input that makes rows of tiles as long as they can be: a line of 64 bytes, or
    half of one or a fourth if there are no more channels.  Rows of matrices and first layers stay as they are."""
    if s.x.block in (1, 4, s.x.channels) or s.x.blocks == 1 == s.x.h == s.x.w:
        return s.x.block
    each, most = 4 * _WORDS // s.x.dtype.bytes, max(s.x.block, CHANNELS)
    while most < each and most < s.x.channels:
        most *= 2
    return max(s.x.block, most)


def reblocked(s: Conv) -> Conv:
    """The convolution of an image in the layout that it wants."""
    return replace(s, x=replace(s.x, block=block_of(s)))


def pitch(s: Conv) -> int:
    """Positions from one row of the input to the next."""
    return s.x.left + s.x.w + s.x.right


def parts(s: Conv, tile: RegisterTiles) -> list[tuple[int, int, int, int]]:
    """(first position of a row, tiles of a row, rows of a tile, tiles in all)."""
    height, width = s.extent
    if tile.flat:
        height, width = 1, (height - 1) * pitch(s) + width
    return [(first, count, rows, count * height) for first, count, rows in segments(width, tile.rows)]


def pack(weights: Array, s: Conv, tile: RegisterTiles) -> list[Array]:
    """Words of i32 [blocks][steps][tiles of channels][words][16] for every run of ``runs``, from weights [channels out,
    channels in, kh, kw]."""
    out, channels, kh, kw = weights.shape
    whole = np.zeros((s.padded, s.x.blocks * s.x.block, kh, kw), s.weights.numpy)
    whole[:out, :channels] = weights
    words, each = words_of(s), 4 // s.weights.bytes
    split = whole.reshape(s.padded // CHANNELS, CHANNELS, -1, words, each, kh, kw).transpose(0, 2, 5, 6, 3, 1, 4)
    lying = np.ascontiguousarray(split).view(np.int32).reshape(s.padded // CHANNELS, -1, words, CHANNELS)
    packed = []
    for first, count, across in segments(s.padded // CHANNELS, tile.across):
        run = lying[first : first + count * across].reshape(count, across, *lying.shape[1:])
        packed.append(np.ascontiguousarray(run.swapaxes(1, 2)))
    return packed


@dataclass(frozen=True, eq=False)
class _TileContext:
    """What all blocks of a kernel share; ``store`` finishes and stores a vector of sums at (image, channel, row,
    column)."""

    k: Builder
    s: Conv
    tile: RegisterTiles
    unit: ProductUnit
    x: Tensor
    store: Callable[[Index, Index, Index, Index, Expr], None]


@lru_cache(maxsize=512)
def tile_products(s: Conv, machine: Machine, tile: RegisterTiles) -> Kernel:
    """Parameters: x, the packed weights of each run, bias (padded), mask when ``clear``, operands, y."""
    k = Builder(f"tiles_{_name(s)}", f"{described(s)}; {_about(tile)}")
    x, ws = _factors(k, s, tile, DType.B2)
    b = k.param("b", s.padded) if s.bias else None
    m = k.param("m", s.padded, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        value = total if b is None else total + b.vec(CHANNELS)[channel // CHANNELS]
        mask = None if m is None else m.vec(CHANNELS)[channel // CHANNELS]
        finish(s, y, operands, (n, channel, row, col), CHANNELS, value, mask)

    return _blocks(k, s, machine, tile, x, ws, store)


@lru_cache(maxsize=512)
def integer_tile_products(s: IntegerConv, machine: Machine, tile: RegisterTiles) -> Kernel:
    """Parameters: x, the packed weights of each run, bias in i32 (padded), rows of factors, mask when ``conv.clear``,
    operands, y."""
    c = s.conv
    k = Builder(f"integer_tiles_{_name(c)}", f"{described(c)}, in integers; {_about(tile)}")
    x, ws = _factors(k, c, tile, DType.Q8)
    ends = IntegerEnds.params(k, s)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        ends.store(n, channel, row, col, CHANNELS, total + ends.b.vec(CHANNELS)[channel // CHANNELS])

    return _blocks(k, c, machine, tile, x, ws, store)


def _factors(k: Builder, s: Conv, tile: RegisterTiles, dtype: DType) -> tuple[Tensor, list[Tensor]]:
    """The parameters x, whose rows and columns are one axis, and weights, both in words."""
    words = s.x.block * s.x.dtype.bytes // 4
    x = k.param("x", s.x.n, s.x.blocks, s.x.shape[2] * s.x.shape[3], words, dtype=dtype)
    runs = segments(s.padded // CHANNELS, tile.across)
    of_words = DType.B2 if dtype is DType.B2 else I32
    shapes = [(count, steps_of(s), across, words_of(s), CHANNELS) for _, count, across in runs]
    return x, [k.param("w", *shape, dtype=of_words) for shape in shapes]


def _blocks(
    k: Builder,
    s: Conv,
    machine: Machine,
    tile: RegisterTiles,
    x: Tensor,
    ws: list[Tensor],
    store: Callable[[Index, Index, Index, Index, Expr], None],
) -> Kernel:
    unit = unit_of(s, machine)
    assert unit is not None
    p = _TileContext(k, s, tile, unit, x, store)
    with k.loop("n", s.y.n) as n:
        for (first, count, across), w in zip(segments(s.padded // CHANNELS, tile.across), ws, strict=True):
            inside = _inside(s, across)
            (outer, inner), _ = deal(count // inside, inside, threads=machine.threads)
            with k.loop("o", count // inside, kind=outer) as block_of:
                with k.loop("u", inside, kind=inner) as part:
                    group = block_of * inside + part
                    _group(p, (w, group), (n, (group * across + first) * CHANNELS), across)
                with k.instruction(END, ()):
                    pass
    return k.done()


def _group(p: _TileContext, weights: tuple[Tensor, Index], at: tuple[Index, Index], across: int) -> None:
    """All positions by ``across`` tiles of channels; ``at`` is (image, first channel)."""
    for block, places in _runs(p, across):
        about = f"{block.down} x {block.rows} positions by {across * CHANNELS} output channels"
        with p.k.outline(f"{block.down}x{block.rows}x{across}", about):
            _block(p, block, weights, at, places)


def _inside(s: Conv, across: int) -> int:
    """How many groups of ``across`` tiles of channels a block of the output has."""
    each = across * CHANNELS
    return s.y.block // each if s.y.blocks > 1 and s.y.block % each == 0 else 1


Places = list[tuple[Index, Index]]
"""Row and column of the first position of each tile of a block."""


def _runs(p: _TileContext, across: int) -> Iterator[tuple[TileBlock, Places]]:
    """The blocks of positions, equal ones in one loop."""
    apart = p.s.stride[1] * p.s.x.block * p.s.x.dtype.bytes
    for left, per_row, rows, count in parts(p.s, p.tile):
        for start, number, down in segments(count, p.tile.down):
            block = TileBlock(rows, down, across, words_of(p.s), apart, _loops(p.s))
            with p.k.instruction(BEGIN, (), *block.numbers[:4]):
                pass
            with p.k.loop("j", number) as j:
                turns = [j * down + (start + i) for i in range(down)]
                rest = [turn if count == per_row else turn % per_row for turn in turns]
                places = [(Index() if count == per_row else turn // per_row) for turn in turns]
                yield block, [(row, col * rows + left) for row, col in zip(places, rest, strict=True)]


def _loops(s: Conv) -> tuple[tuple[int, int], ...]:
    """The loops of a block over the input: iterations, and bytes from one to the next."""
    position = s.x.block * s.x.dtype.bytes
    inner, row = 4 * words_of(s), pitch(s) * position
    return (
        (s.x.blocks, s.x.shape[2] * row),
        (position // inner, inner),
        (s.kernel[0], s.dilation[0] * row),
        (s.kernel[1], s.dilation[1] * position),
    )


def _block(
    p: _TileContext, block: TileBlock, weights: tuple[Tensor, Index], at: tuple[Index, Index], places: Places
) -> None:
    """Sums of one block, and what is stored of them; ``at`` is (image, first channel)."""
    k, s, (n, channel) = p.k, p.s, at
    dtype = F32 if p.unit.sums is DType.F32 else I32
    sums = k.local("s", block.down, block.rows, block.across * CHANNELS, dtype=dtype, space="stack")
    first = [_input(s, row, col) for row, col in places]
    (w, o), xs = weights, [(p.x, (n, 0, place, 0)) for place in first]
    with k.instruction(p.unit.operation, ((w, (o, 0, 0, 0, 0)), *xs, (sums, (0, 0, 0))), *block.numbers):
        _sums(p, block, weights, (n, first), sums)
    for i, (row, col) in enumerate(places):
        with k.loop("r", block.rows) as r:
            _store(p, sums, (i, r, block.across), (n, channel, row, col + r))


def _input(s: Conv, row: Index, col: Index) -> Index:
    """The position of the input that the first tap of an output reads, among all of an image."""
    down, right = s.x.top - s.top, s.x.left - s.left
    return (row * s.stride[0] + down) * pitch(s) + col * s.stride[1] + right


def _store(p: _TileContext, sums: Tensor, of: tuple[int, Index, int], at: tuple[Index, Index, Index, Index]) -> None:
    """Results of one position, unless it lies between rows."""
    k, s, (i, r, across), (n, channel, row, col) = p.k, p.s, of, at
    facts = list[Index]()
    if p.tile.flat:
        row, col = col // pitch(s), col % pitch(s)
        facts = [s.extent[1] - 1 - col] if s.extent[1] < pitch(s) else []
    with k.when(*facts), k.unroll("v", across) as v:
        p.store(n, channel + v * CHANNELS, row, col, sums.vec(CHANNELS)[i, r, v])


def _sums(
    p: _TileContext, block: TileBlock, weights: tuple[Tensor, Index], at: tuple[Index, list[Index]], sums: Tensor
) -> None:
    """The meaning of the instruction."""
    k, s, (w, o), (n, first), lanes = p.k, p.s, weights, at, CHANNELS
    vectors = sums.vec(lanes)
    with k.loop("i", block.down * block.rows) as i, k.unroll("v", block.across) as v:
        vectors[i // block.rows, i % block.rows, v] = 0
    (blocks, _), (inner, _), (kh, _), (kw, _) = block.loops
    with k.loop("c", blocks) as c, k.loop("d", inner) as d, k.loop("ky", kh) as ky, k.loop("kx", kw) as kx:
        step = ((c * inner + d) * kh + ky) * kw + kx
        tap = ky * (s.dilation[0] * pitch(s)) + kx * s.dilation[1]
        for tile, place in enumerate(first):
            with k.loop("r", block.rows) as r:
                words = (n, c, place + tap + r * s.stride[1], d * block.words)
                _row(p, block, words, (w.vec(lanes), o, step), (vectors, tile, r))


def _row(
    p: _TileContext,
    block: TileBlock,
    words: tuple[Index, Index, Index, Index],
    weights: tuple[Tensor, Index, Index],
    sums: tuple[Tensor, int, Index],
) -> None:
    """A step of one position."""
    k, (w, o, step), (into, i, r) = p.k, weights, sums
    *outer, word = words
    if p.unit.sums is not DType.F32:
        product = "dot4" if p.unit.x is DType.U8 else "dot4_signed"
        with k.loop("q", block.words) as q, k.unroll("v", block.across) as v:
            value = broadcast(p.x[(*outer, word + q)], CHANNELS)
            into[i, r, v] = op(product, into[i, r, v], value, w[o, step, v, q, 0])
        return
    acc = k.local("a", block.across, 2, lanes=CHANNELS)
    with k.unroll("v", block.across) as v, k.unroll("h", 2) as half:
        acc[v, half] = 0
    with k.loop("q", block.words) as q:
        value = k.let("x", bitcast(p.x[(*outer, word + q)], I32))
        halves = [k.let("h", each) for each in _halves(value)]
        with k.unroll("v", block.across) as v:
            pair = _halves(k.let("w", bitcast(w[o, step, v, q, 0], I32)))
            for h, (a, weight) in enumerate(zip(halves, pair, strict=True)):
                acc[v, h] = acc[v, h] + broadcast(a, CHANNELS) * weight
    with k.unroll("v", block.across) as v:
        into[i, r, v] = into[i, r, v] + (acc[v, 0] + acc[v, 1])


def _halves(word: Expr) -> tuple[Expr, Expr]:
    """The two bf16 of words of i32, the even one first, in f32."""
    return bitcast(word << 16, F32), bitcast(op("and", word, -65536), F32)


def _name(s: Conv) -> str:
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"{size}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"


def _about(tile: RegisterTiles) -> str:
    return f"blocks of {tile.down} x {tile.across} tiles of {tile.rows} positions by {CHANNELS} channels"
