"""Convolution by outer products of positions and channels, in tiles of a matrix unit (``isa.sme``).

A tile has sixteen neighbouring positions of a row of the image by sixteen output channels.  Blocks of the image have
one, two or four words of 32 bits, so that one instruction loads a vector for each word.  A block of up to four tiles
gets its sums over all taps and channels by one instruction.  The same instruction makes and stores results that are
clamped only, or bytes by factors in f32; all others are finished as everywhere else, from sums on the stack.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.isa.base import ProductUnit
from tenon.machine.isa.sme_blocks import SIDE, OuterBlock, OuterEnds
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Op, Ref, Type, broadcast, op
from tenon.machine.kernels.conv import Conv, OutputTile, described, tiles
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.image import identity
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.kernels.rows import LONGEST_PRODUCT
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

LANES = 4
"""Channels that are finished at once."""

Store = Callable[[Index, Index, Index, Index, Expr], None]
"""Finishes and stores a vector of sums at (image, channel, row, column)."""
_INFINITY = float("inf")


@dataclass(frozen=True)
class OuterTiles:
    """``down`` tiles of positions by ``across`` of channels."""

    down: int
    across: int


def unit_of(c: Conv, machine: Machine) -> ProductUnit | None:
    """The unit that multiplies the images and weights of a convolution in outer products."""
    unit = machine.outer(c.x.dtype)
    return unit if unit is not None and unit.weights is c.weights else None


def words_of(c: Conv) -> int:
    """Words of a block of a position."""
    return c.x.block * c.x.dtype.bytes // 4


def supported(c: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of blocks of one, two or four words, of which a step of columns is
    no longer than four, into whole vectors.  Behind the last column that it reads there must be as many more as a step
    skips."""
    plain = c.y_step == (1, 1) and c.positions is None and c.packed and c.groups == 1 and c.taps > 0
    single = len(c.batches) == 1 and c.batches[0][1:] == (1, 1)
    if unit_of(c, machine) is None or not (plain and single) or c.paired or c.depthwise:
        return False
    if c.x.dtype in (F32, DType.BF16) and c.x.channels * c.taps > LONGEST_PRODUCT:
        return False
    whole = c.x.block * c.x.dtype.bytes == 4 * words_of(c) and words_of(c) * c.stride[1] in (1, 2, 4)
    return whole and machine.lanes == LANES and c.y.block % LANES == 0


def steps_of(c: Conv) -> int:
    """Steps of a block: taps, and blocks of the input channels."""
    return c.taps * c.x.blocks


def cuts(c: Conv, tile: OuterTiles) -> list[tuple[int, int, int]]:
    """(first tile of output channels, groups of tiles, tiles of one); one that is not full is alone."""
    whole = c.padded // SIDE
    return [*segments(whole, tile.across), *([(whole, 1, 1)] if c.padded % SIDE else [])]


def pack(weights: Array, c: Conv, tile: OuterTiles) -> list[Array]:
    """Words of i32 (of f32, these) [groups][steps][tiles of channels][words][16] for every one of ``cuts``, of weights
    [out, in, kh, kw]."""
    out, channels, kh, kw = weights.shape
    count, each = -(-c.padded // SIDE), 4 // c.weights.bytes
    whole = np.zeros((count * SIDE, c.x.blocks * c.x.block, kh, kw), c.weights.numpy)
    whole[:out, :channels] = weights
    split = whole.reshape(count, SIDE, c.x.blocks, words_of(c), each, kh, kw).transpose(0, 2, 5, 6, 3, 1, 4)
    words = np.ascontiguousarray(split).view(np.float32 if c.weights is F32 else np.int32)
    words = words.reshape(count, steps_of(c), words_of(c), SIDE)
    packed = []
    for first, groups, across in cuts(c, tile):
        part = words[first : first + groups * across].reshape(groups, across, *words.shape[1:])
        packed.append(np.ascontiguousarray(part.swapaxes(1, 2)))
    return packed


@dataclass(frozen=True, eq=False)
class OuterContext:
    """Parts that all blocks of a kernel share; ``bias`` is None where there is none.  Where the unit can make results
    of the sums, ``ends`` say how, into ``y``, by the ``factors`` of bytes."""

    k: Builder
    c: Conv
    unit: ProductUnit
    x: Tensor
    bias: Tensor | None
    store: Store
    y: Tensor
    ends: OuterEnds | None = None
    factors: Tensor | None = None
    place: Callable[[Index, Index], tuple[Index, ...]] | None = None  # of results, from their first tile and row
    pitch: int = 0  # bytes between rows of weights that a run computes, [matrices, inputs, channels]


@lru_cache(maxsize=512)
def outer_products(c: Conv, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: x, the packed weights of each cut, bias (padded), mask when ``clear``, operands, y."""
    k = Builder(f"outer_{_name(c)}", f"{described(c)}; {about(tile)}")
    x, ws = _factors(k, c, tile)
    return _blocks(float_context(k, c, machine, x), ws, machine, tile)


def float_context(k: Builder, c: Conv, machine: Machine, x: Tensor) -> OuterContext:
    """Parameters: bias (padded), mask when ``clear``, operands, y."""
    b = k.param("b", c.padded) if c.bias else None
    m = k.param("m", c.padded, dtype=I32) if c.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in c.operands]
    y = k.param("y", *c.y.shape, dtype=c.y.dtype, out=True)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        mask = None if m is None else m.vec(LANES)[channel // LANES]
        finish(c, y, operands, (n, channel, row, col), LANES, total, mask)

    unit = unit_of(c, machine)
    assert unit is not None
    return OuterContext(k, c, unit, x, b, store, y, _float_ends(c))


@lru_cache(maxsize=512)
def integer_outer_products(s: IntegerConv, machine: Machine, tile: OuterTiles) -> Kernel:
    """Parameters: x, the packed weights of each cut, bias in i32 (padded), rows of factors, mask when
    ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_outer_{_name(c)}", f"{described(c)}, in integers; {about(tile)}")
    x, ws = _factors(k, c, tile)
    return _blocks(integer_context(k, s, machine, x), ws, machine, tile)


def integer_context(k: Builder, s: IntegerConv, machine: Machine, x: Tensor) -> OuterContext:
    """Parameters: bias in i32 (padded), rows of factors, mask when ``conv.clear``, operands, y."""
    c, ends = s.conv, IntegerEnds.params(k, s)

    def store(n: Index, channel: Index, row: Index, col: Index, total: Expr) -> None:
        ends.store(n, channel, row, col, LANES, total)

    unit, factors = unit_of(c, machine), ends.rows[0] if ends.rows else None
    assert unit is not None
    return OuterContext(k, c, unit, x, ends.b, store, ends.y, _integer_ends(s), factors)


def _ends(
    c: Conv, bounds: tuple[float, float], *, single: int = False, zero: int = 0, factor: float = 1.0
) -> OuterEnds | None:
    """Ends of a convolution without operands; None where a block of results is no store of the unit."""
    fours, words = c.y.block // 4, c.y.dtype.bytes
    in_rows = fours * words not in (1, 2, 4)
    if c.operands or c.clear or (in_rows and c.y.blocks > 1):
        return None
    low, high, scale = np.array([*bounds, factor], np.float32).view(np.uint32).tolist()
    plane = (1 if in_rows else c.y.shape[2] * c.y.shape[3]) * c.y.block * words
    return OuterEnds(words, low, high, single, zero, fours, plane, in_rows, scale)


def _float_ends(c: Conv) -> OuterEnds | None:
    """The ends of a convolution of floats; None where its epilogue does more than to multiply by a number and then to
    clamp."""
    if c.operands or c.y.dtype not in (F32, DType.BF16):
        return None
    value, low, high = c.epilogue(Ref("t", Type(F32, LANES))), -_INFINITY, _INFINITY
    while isinstance(value, Op) and value.name in ("max", "min"):
        parts = _with_a_number(value)
        if parts is None:
            return None
        low, high = (max(low, parts[0]), high) if value.name == "max" else (low, min(high, parts[0]))
        value = parts[1]
    scaled = _with_a_number(value) if isinstance(value, Op) and value.name == "mul" else None
    factor, value = scaled or (1.0, value)
    return _ends(c, (low, high), factor=factor) if isinstance(value, Ref) and low <= high else None


def _with_a_number(value: Op) -> tuple[float, Expr] | None:
    """The operands of an operation of a number and something else."""
    numbers = [each for each in map(_number, value.args) if each is not None]
    rest = [each for each in value.args if _number(each) is None]
    return (numbers[0], rest[0]) if len(numbers) == len(rest) == 1 else None


def _number(value: Expr) -> float | None:
    """A constant, spread or not."""
    if isinstance(value, Op) and value.name == "broadcast":
        value = value.args[0]
    return float(value.value) if isinstance(value, Const) else None


def _integer_ends(s: IntegerConv) -> OuterEnds | None:
    """The ends of a convolution of integers that is requantised in f32; None elsewhere."""
    if s.requantize.rounding != "float" or s.added is not None or s.conv.epilogue is not identity:
        return None
    return byte_ends(s.conv, s.requantize, s.single[0])


def byte_ends(c: Conv, q: Requantize, single: int, factor: float = 1.0) -> OuterEnds | None:
    """The ends of bytes that are requantised in f32, by ``factor`` where ``single`` is ``KNOWN``; None elsewhere."""
    if q.rounding != "float" or q.slope != 1 or q.dtype.bytes > 1 or c.y.dtype is not q.dtype:
        return None
    return _ends(c, (float(q.low - q.zero), float(q.high - q.zero)), single=single, zero=q.zero, factor=factor)


def _factors(k: Builder, c: Conv, tile: OuterTiles) -> tuple[Tensor, list[Tensor]]:
    """The parameters x and weights, in words; the columns of an image are one axis with the words of their blocks."""
    *outer, columns, _ = c.x.shape
    x = k.param("x", *outer, columns * words_of(c), dtype=types_of(c)[0])
    return x, weight_params(k, c, tile)


def weight_params(k: Builder, c: Conv, tile: OuterTiles) -> list[Tensor]:
    """The packed weights of each cut, in words."""
    shapes = [(groups, steps_of(c), across, words_of(c), SIDE) for _, groups, across in cuts(c, tile)]
    return [k.param("w", *shape, dtype=types_of(c)[1]) for shape in shapes]


def types_of(c: Conv) -> tuple[DType, DType]:
    """The types of words of x and of weights."""
    return {F32: (F32, F32), DType.BF16: (DType.B2, DType.B2)}.get(c.weights, (DType.Q8, I32))


def _blocks(p: OuterContext, ws: list[Tensor], machine: Machine, tile: OuterTiles) -> Kernel:
    k, c = p.k, p.c
    with k.loop("n", c.y.n) as n:
        for (first, groups, across), w in zip(cuts(c, tile), ws, strict=True):
            cut = OutputTile(1, SIDE * tile.down, across)
            for o, _, top, left, _, width in tiles(k, groups, c.extent, cut, machine.threads):
                shown = f"{width} positions by {across * SIDE} output channels"
                vectors = min(across * SIDE, c.padded - first * SIDE) // LANES
                with k.outline(f"{width}x{vectors}", shown):
                    block_of_results(p, w, (n, o, top, left), (width, first + o * across, vectors))
    return k.done()


def block_of_results(
    p: OuterContext,
    w: Tensor,
    at: tuple[Index, Index, Index, Index],
    size: tuple[int, Index, int],
    source: tuple[Index, Index, Index] | None = None,
) -> None:
    """The sums of one block, and what is stored of them; ``size`` has the positions, the first tile of channels and how
    many vectors of results these have.  ``source`` is (image, row, column) of its first position in x where that is
    another one than ``at`` says.  ``o`` is the group of weights, or their matrix where these are not packed."""
    k, c, (n, o, top, left), (width, first, count) = p.k, p.c, at, size
    down, across, words = -(-width // SIDE), -(-count * LANES // SIDE), words_of(c)
    begun = p.bias is not None and count * LANES == across * SIDE
    whole = count * LANES == across * SIDE or (p.pitch > 0 and p.ends is not None and p.ends.in_rows)
    ends = p.ends if whole and (begun or p.bias is None) else None
    shape = down, width - SIDE * (down - 1), across, words, words * c.stride[1]
    block = OuterBlock(
        *shape, begun, ends, _loops(c), p.pitch, count * LANES - SIDE * (across - 1) if p.pitch else SIDE
    )
    sums = k.local("s", down, across * SIDE // LANES, SIDE, LANES, dtype=p.unit.sums, space="stack")
    image, row, col = source or (n, top, left)
    x = (image, 0, row * c.stride[0] + (c.x.top - c.top), (col * c.stride[1] + (c.x.left - c.left)) * words_of(c))
    weights = (o, 0, first * SIDE) if p.pitch else (o, 0, 0, 0, 0)
    operands: list[Operand] = [(w, weights), (p.x, x), (sums, (0, 0, 0, 0))]
    if p.bias is not None and block.bias:
        operands.append((p.bias, (first * SIDE,)))
    if ends is not None:
        if p.factors is not None and ends.words == 1:
            operands.append((p.factors, (0 if ends.single else first * SIDE,)))
        place = c.y.place(n, first * SIDE, top, left, 1) if p.place is None else p.place(first, left)
        operands.append((p.y, place))
    with k.instruction(p.unit.operation, operands, *block.numbers):
        _sums(p, block, (w, o), x, (sums, first), count)
        if ends is not None:
            _finish(p, block, sums, (n, first, top, left), count)
    if ends is None:
        _finish(p, block, sums, (n, first, top, left), count)


def _finish(
    p: OuterContext, block: OuterBlock, sums: Tensor, at: tuple[Index, Index, Index, Index], count: int
) -> None:
    """The results of a block; ``at`` is (image, first tile of channels, row, column)."""
    k, (n, first, top, left) = p.k, at
    for i in range(block.down):
        with k.loop("r", block.last if i == block.down - 1 else SIDE) as r, k.unroll("v", count) as v:
            channel, total = first * SIDE + v * LANES, sums.vec(LANES)[i, v, r, 0]
            if p.bias is not None and not block.bias:
                total = total + p.bias.vec(LANES)[channel // LANES]
            p.store(n, channel, top, left + SIDE * i + r, k.let("t", total))


def _loops(c: Conv) -> tuple[tuple[int, int], ...]:
    """Iterations over blocks of input channels, rows and columns of the kernel, and the bytes between two."""
    position = 4 * words_of(c)
    row = c.x.shape[3] * position
    return (
        (c.x.blocks, c.x.shape[2] * row),
        (c.kernel[0], c.dilation[0] * row),
        (c.kernel[1], c.dilation[1] * position),
    )


Place = tuple[Index, int, Index, Index]
"""The first word that a block reads."""


def _sums(
    p: OuterContext,
    block: OuterBlock,
    weights: tuple[Tensor, Index],
    at: Place,
    into: tuple[Tensor, Index],
    wanted: int,
) -> None:
    """The meaning of the instruction."""
    k, c, (w, o), (sums, first) = p.k, p.c, weights, into
    vectors, count = sums.vec(LANES), wanted if p.pitch else block.across * SIDE // LANES
    for i in range(block.down):
        with k.loop("r", block.last if i == block.down - 1 else SIDE) as r, k.unroll("v", count) as v:
            begun = p.bias.vec(LANES)[first * (SIDE // LANES) + v] if p.bias is not None and block.bias else 0
            vectors[i, v, r, 0] = begun
    with ExitStack() as stack:
        c_, ky, kx = (stack.enter_context(k.loop(name, n)) for name, (n, _) in zip("cyx", block.loops, strict=True))
        step = (c_ * c.kernel[0] + ky) * c.kernel[1] + kx
        row, col = at[2] + ky * c.dilation[0], at[3] + kx * (c.dilation[1] * block.words)
        for i in range(block.down):
            with k.loop("r", block.last if i == block.down - 1 else SIDE) as r, k.loop("q", block.words) as q:
                value = k.let("x", p.x[at[0], c_, row, col + (r + SIDE * i) * block.spread + q])
                with k.unroll("v", count) as v:
                    place = o, step, v // (SIDE // LANES), q, v % (SIDE // LANES)
                    weight = w.vec(LANES)[(o, step, first * (SIDE // LANES) + v) if p.pitch else place]
                    vectors[i, v, r, 0] = _product(p.unit, vectors[i, v, r, 0], broadcast(value, LANES), weight)


def _product(unit: ProductUnit, total: Expr, x: Expr, weight: Expr) -> Expr:
    if unit.x is F32:
        return total + x * weight
    name = {DType.BF16: "dot2_odd", DType.U8: "dot4"}.get(unit.x, "dot4_signed")
    return op(name, total, x, weight)


def _name(c: Conv) -> str:
    return f"{'x'.join(map(str, c.kernel))}_{c.x.channels}_{c.y.shown}"


def about(tile: OuterTiles) -> str:
    return f"blocks of {tile.down} x {tile.across} tiles of {SIDE} positions by {SIDE} channels"
