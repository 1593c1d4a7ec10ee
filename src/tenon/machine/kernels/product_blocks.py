"""Convolution and matrix product by products of blocks: two positions by two channels, of eight bytes of inputs each.

Arm has instructions for it: SMMLA and USMMLA (I8MM) add 32 products of bytes, and BFMMLA (BF16) 16 of bf16, where the
dot product adds half as many.  A register holds eight bytes of two positions.  Where these are neighbours, in blocks of
eight bytes, one load fetches both; else a load for each does, of which half is kept.  Of a matrix, sixteen bytes of two
rows are loaded and their halves exchanged.  Weights are packed so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, op, vector4
from tenon.machine.kernels.conv import Conv, OutputTile, described, tiles
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.rows import LONGEST_PRODUCT
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

LANES = 4
"""Sums of a register: of two positions by two channels, or of one position by four."""
BYTES = 8
"""Bytes of inputs of a position that one instruction multiplies."""
_UNROLL = 4
"""Most steps that are written out."""
SUMS = 20
"""Registers of sums of the largest tile, of 32: with 24 compilers that load inputs of the next step early spill."""

Store = Callable[[Index, Index, Index, Index, Expr], None]
"""Finishes and stores a vector of sums, with their bias, at (image, channel, row, column)."""


def unit_of(c: Conv, machine: Machine) -> ProductUnit | None:
    """The unit that multiplies the images and weights of a convolution in blocks."""
    unit = machine.blocks(c.x.dtype)
    return unit if unit is not None and unit.weights is c.weights else None


def is_matrix(c: Conv) -> bool:
    """Whether the input is a matrix, whose rows are positions."""
    plain = c.kernel == c.stride == (1, 1) and c.x.h == c.x.blocks == 1 and c.x.dense and not (c.top or c.left)
    return plain and c.x.block == c.x.channels


def supported(c: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of an image in blocks of eight bytes, or of a matrix with rows of
    whole blocks, into whole vectors."""
    plain = c.y_step == (1, 1) and c.positions is None and c.packed and c.groups == 1 and c.taps > 0
    single = len(c.batches) == 1 and c.batches[0][1:] == (1, 1)
    if unit_of(c, machine) is None or not (plain and single) or c.paired or c.depthwise:
        return False
    position = c.x.block * c.x.dtype.bytes
    whole = position % BYTES == 0 and position > BYTES if is_matrix(c) else position == BYTES
    short = c.x.dtype is not DType.BF16 or c.x.channels * c.taps <= LONGEST_PRODUCT
    return whole and short and machine.lanes == LANES and c.y.block % LANES == 0


def steps_of(c: Conv) -> int:
    """Blocks of inputs that are multiplied for a position."""
    return c.taps * -(-c.x.blocks * c.x.block * c.x.dtype.bytes // BYTES)


def cuts(c: Conv, tile: OutputTile) -> list[tuple[int, int, int]]:
    """(first vector of output channels, tiles, vectors of one)."""
    return segments(c.padded // LANES, tile.vecs)


def pack(weights: Array, c: Conv, tile: OutputTile) -> list[Array]:
    """Words of i32 [tiles][steps][vectors * 2][4] for every one of ``cuts``, of weights [out, in, kh, kw]: eight bytes
    of inputs of each of two channels in four words."""
    out, channels, kh, kw = weights.shape
    each = BYTES // c.weights.bytes
    inputs = steps_of(c) // c.taps
    whole = np.zeros((c.padded, inputs * each, kh, kw), c.weights.numpy)
    whole[:out, :channels] = weights
    pairs = whole.reshape(c.padded // 2, 2, inputs, each, kh, kw).transpose(0, 2, 4, 5, 1, 3)
    words = np.ascontiguousarray(pairs).view(np.int32).reshape(c.padded // 2, -1, LANES)
    packed = []
    for first, count, vecs in cuts(c, tile):
        part = words[2 * first : 2 * (first + count * vecs)].reshape(count, 2 * vecs, -1, LANES)
        packed.append(np.ascontiguousarray(part.swapaxes(1, 2)))
    return packed


@dataclass(frozen=True, eq=False)
class _BlockContext:
    """The parts that all tiles of a kernel share; ``bias`` gives a vector of it, None where there is none."""

    k: Builder
    c: Conv
    unit: ProductUnit
    x: Tensor
    bias: Callable[[Index], Expr | None]
    store: Store


@lru_cache(maxsize=512)
def product_blocks(c: Conv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x, the packed weights of each cut, bias (padded), mask when ``clear``, operands, y."""
    k = Builder(f"blocks_{_name(c)}", f"{described(c)}; {_about(tile)}")
    x, ws = _factors(k, c, tile)
    b = k.param("b", c.padded) if c.bias else None
    m = k.param("m", c.padded, dtype=I32) if c.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in c.operands]
    y = k.param("y", *c.y.shape, dtype=c.y.dtype, out=True)

    def bias(at: Index) -> Expr | None:
        return None if b is None else b.vec(LANES)[at]

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        mask = None if m is None else m.vec(LANES)[channel // LANES]
        finish(c, y, operands, (n, channel, row, col), LANES, total, mask)

    return _tiles(_context(k, c, machine, x, bias, store), ws, machine, tile)


@lru_cache(maxsize=512)
def integer_product_blocks(s: IntegerConv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x, the packed weights of each cut, bias in i32 (padded), rows of factors, mask when
    ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_blocks_{_name(c)}", f"{described(c)}, in integers; {_about(tile)}")
    x, ws = _factors(k, c, tile)
    ends = IntegerEnds.params(k, s)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        ends.store(n, channel, row, col, LANES, total)

    return _tiles(_context(k, c, machine, x, lambda at: ends.b.vec(LANES)[at], store), ws, machine, tile)


def _context(
    k: Builder, c: Conv, machine: Machine, x: Tensor, bias: Callable[[Index], Expr | None], store: Store
) -> _BlockContext:
    unit = unit_of(c, machine)
    assert unit is not None
    return _BlockContext(k, c, unit, x, bias, store)


def _factors(k: Builder, c: Conv, tile: OutputTile) -> tuple[Tensor, list[Tensor]]:
    """The parameters x and weights, in words; the columns of an image are one axis with the words of their blocks."""
    dtypes = (DType.B2, DType.B2) if c.weights is DType.BF16 else (DType.Q8, I32)
    *outer, columns, block = c.x.shape
    x = k.param("x", *outer, columns * block * c.x.dtype.bytes // 4, dtype=dtypes[0])
    shapes = [(count, steps_of(c), 2 * vecs, LANES) for _, count, vecs in cuts(c, tile)]
    return x, [k.param("w", *shape, dtype=dtypes[1]) for shape in shapes]


def _tiles(p: _BlockContext, ws: list[Tensor], machine: Machine, tile: OutputTile) -> Kernel:
    k, c = p.k, p.c
    with k.loop("n", c.y.n) as n:
        for (first, count, vecs), w in zip(cuts(c, tile), ws, strict=True):
            cut = OutputTile(1, tile.cols, vecs)
            for o, _, top, left, _, width in tiles(k, count, c.extent, cut, machine.threads):
                about = f"{width} positions by {vecs * LANES} channels at a time"
                with k.outline(f"{width}x{vecs * LANES}", about):
                    _tile(p, w, (n, o, top, left), width, (first, vecs))
    return k.done()


def _tile(p: _BlockContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int, run: tuple[int, int]) -> None:
    k, (n, o, top, left), (start, vecs) = p.k, at, run
    first = o * vecs + start
    acc = k.local("a", -(-width // 2), 2 * vecs, dtype=p.unit.sums, lanes=LANES)
    for v in range(vecs):
        bias = p.bias(first + v)
        for half, name in enumerate(("low_halves", "high_halves")):
            twice = 0.0 if bias is None else k.let("b", op(name, bias, bias))
            for i in range(-(-width // 2)):
                acc[i, 2 * v + half] = twice
    reads = _rows(p, (n, left), width) if is_matrix(p.c) else _window(p, (n, top, left), width)
    for step, inputs in reads:
        for v in range(2 * vecs):
            weight = k.let("w", w.vec(LANES)[o, step, v, 0])
            for i, pair in enumerate(inputs):
                acc[i, v] = op(p.unit.operation, acc[i, v], pair, weight)
    for i in range(width):
        for v in range(vecs):
            a, b = acc[i // 2, 2 * v], acc[i // 2, 2 * v + 1]
            second = i % 2 or i == width - 1 > 0
            total = k.let("s", op("high_halves" if second else "low_halves", a, b))
            p.store(n, (first + v) * LANES, top, left + i, total)


Reads = Iterator[tuple[Index, list[Expr]]]
"""The steps, and for every pair of positions their inputs: eight bytes each."""


def _window(p: _BlockContext, at: tuple[Index, Index, Index], width: int) -> Reads:
    """The blocks of an image that ``width`` positions from ``at`` on read."""
    k, c, (n, top, left) = p.k, p.c, at
    deep = _unrolled(c.x.blocks) if c.kernel[1] == 1 else 1
    across = "unroll" if c.kernel[1] <= _UNROLL else "serial"
    with (
        k.loop("c", c.x.blocks // deep) as outer,
        k.loop("ky", c.kernel[0]) as ky,
        k.loop("kx", c.kernel[1], kind=across) as kx,
        k.unroll("u", deep) as inner,
    ):
        block = outer * deep + inner
        row = top * c.stride[0] + ky * c.dilation[0] + (c.x.top - c.top)
        col = left * c.stride[1] + kx * c.dilation[1] + (c.x.left - c.left)
        inputs = [k.let("x", _pair(p, (n, block, row, col), i, width)) for i in range(0, width, 2)]
        yield (block * c.kernel[0] + ky) * c.kernel[1] + kx, inputs


def _pair(p: _BlockContext, at: tuple[Index, Index, Index, Index], i: int, width: int) -> Expr:
    """The blocks of position ``i`` and the one after it.  The last of an odd number comes second, after what lies
    before it."""
    (n, block, row, left), stride = at, p.c.stride[1]

    def words(col: int, lanes: int = LANES) -> Expr:
        return _words(p.x, (n, block, row, (left + col) * 2), lanes)

    if width == 1:
        one = [p.x[n, block, row, left * 2 + word] for word in (0, 1)]
        return vector4(*one, *one)
    if i == width - 1:
        return words(i * stride - 1)
    if stride == 1:
        return words(i)
    return op("outer_halves", words(i * stride), words((i + 1) * stride - 1))


def _rows(p: _BlockContext, at: tuple[Index, Index], width: int) -> Reads:
    """The blocks of ``width`` rows of a matrix; of an odd number the last one is its own neighbour."""
    k, c, (n, left) = p.k, p.c, at
    words = c.x.channels * c.x.dtype.bytes // 4

    def pairs(turn: Index) -> list[tuple[Expr, Expr]]:
        rows = [k.let("r", _words(p.x, (n, 0, 0, (left + i) * words + turn), LANES)) for i in range(width)]
        return [(rows[i], rows[min(i + 1, width - 1)]) for i in range(0, width, 2)]

    deep = _unrolled(words // 4)
    with k.loop("c", words // 4 // deep) as outer, k.unroll("u", deep) as inner:
        turn = outer * deep + inner
        read = pairs(turn * 4)
        for half, name in enumerate(("low_halves", "high_halves")):
            yield turn * 2 + half, [k.let("x", op(name, *pair)) for pair in read]
    if words % 4:
        yield index(words // 2 - 1), [k.let("x", op("high_halves", *pair)) for pair in pairs(index(words - 4))]


def _unrolled(steps: int) -> int:
    """How many of so many equal steps are written out."""
    return next(u for u in range(_UNROLL, 0, -1) if steps % u == 0)


def _words(x: Tensor, at: tuple[Index | int, ...], lanes: int) -> Expr:
    return Load(x.buffer, tuple(map(index, at)), Type(x.buffer.type.dtype, lanes))


def _name(c: Conv) -> str:
    return f"{'x'.join(map(str, c.kernel))}_{c.x.channels}_{c.y.shown}"


def _about(tile: OutputTile) -> str:
    return f"products of blocks, {tile.cols} positions by {tile.vecs * LANES} channels at a time"
