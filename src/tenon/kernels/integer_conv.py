"""Convolution of 8-bit and 16-bit integers with requantisation in the epilogue.

Structure as in ``kernels.conv`` and ``kernels.depthwise``: a tile of positions by vectors of output channels is summed
in registers, in i32.  Where the machine multiplies bytes four at a time, four neighbouring channels are one word of
32 bits, of activations and of weights.  The halo of ``x`` holds its zero point, so that the zero point is one number
per channel, part of the bias (Jacob et al. 2018, 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.ir.build import Builder, Tensor, segments
from tenon.ir.graph import Array
from tenon.ir.index import Index, index
from tenon.ir.loops import Expr, Kernel, Load, Type, broadcast, cast, interleave4, op, select
from tenon.ir.types import I32, DType
from tenon.kernels import conv as dense
from tenon.kernels import depthwise as depthwise_by_lanes
from tenon.kernels.conv import Conv, Run, Tile, described, runs, tiles
from tenon.kernels.machine import Machine
from tenon.kernels.parallel import deal
from tenon.kernels.requantize import Requantize
from tenon.kernels.storage_types import loaded

_FLIP = -0x7F7F7F80
"""0x80808080: what adds 128 to each byte, or subtracts it."""
UNROLLED = 128
"""Most products that a tile of a depthwise convolution is unrolled to."""


def flips(machine: Machine) -> Array:
    """A vector of words that turn bytes into those of the other sign.  Kernels read it from memory: of a vector that
    compilers know to be one number they make a scalar, and turn each activation before it is broadcast, in two more
    instructions."""
    return np.full(machine.lanes, _FLIP, np.int32)


def in_fours(s: Conv, machine: Machine) -> bool:
    """Whether bytes can be multiplied four channels at a time, of a depthwise convolution four neighbouring taps, if
    the weights allow it."""
    bytes = s.x.dtype in (DType.I8, DType.U8) and s.weights is DType.I8
    if not machine.dot4 or not bytes:
        return False
    if not s.depthwise or s.x.block != machine.block:  # a product of one column is no convolution by taps
        return s.x.block % 4 == 0
    wide = s.x.left + s.x.w + s.x.right - (s.x.left - s.left)
    return taps_in_fours(s.dilation[1], machine) and columns(s.kernel[1], s.stride[1], s.extent[1]) <= wide


def taps_in_fours(dilation: int, machine: Machine) -> bool:
    """Whether a depthwise convolution may multiply four taps of a row at a time: those of neighbouring columns."""
    return bool(machine.dot4) and dilation == 1 and machine.lanes == machine.block >= 4


def _shared(kernel: int, stride: int) -> int:
    """How many neighbouring outputs read the same four columns, of a row of at most four taps."""
    return (4 - kernel) // stride + 1 if kernel <= 4 else 1


def columns(kernel: int, stride: int, outs: int) -> int:
    """How many columns of the input a row of ``outs`` outputs reads four by four, padding included."""
    first = (outs - 1) // _shared(kernel, stride) * _shared(kernel, stride)
    return first * stride + -(-kernel // 4) * 4


def pack(weights: Array, s: IntegerConv, machine: Machine, vecs: int) -> list[Array]:
    """``kernels.conv.pack``, four channels of i8 as one word where they are multiplied so: [iterations][input blocks]
    [kh][kw][block / 4][vecs * lanes], two of 4 bits as one byte with ``nibbles``."""
    # Channels of other groups share vectors with those of a group: their weights are nothing, which is the zero point.
    packed = dense.pack(weights.astype(np.int16) - s.weight_zero, s.conv, machine, vecs)
    packed = [(p + s.weight_zero).astype(weights.dtype) for p in packed]
    if s.nibbles:
        return [np.bitwise_or(p[..., ::2, :] & 15, p[..., 1::2, :] << 4).astype(np.int8) for p in packed]
    if not s.fours(machine):
        return packed
    return [_words(p) for p in packed]


def _words(weights: Array) -> Array:
    """[..., count, n] of i8 as [..., count / 4, n] words of four neighbours."""
    *outer, count, n = weights.shape
    fours = np.swapaxes(weights.reshape(*outer, count // 4, 4, n), -1, -2)
    return np.ascontiguousarray(fours).view(np.int32)[..., 0]


@dataclass(frozen=True)
class IntegerConv:
    """What to compute: ``conv``, its images of integers and its weights of one byte, or i16; its epilogue is applied to
    requantised results.

    ``weight_zero`` is subtracted from every weight.  ``single`` says which rows of factors hold one number for all
    channels; ``row_types`` are their element types.  With ``nibbles`` a byte holds the weights, of 4 bits, of two
    neighbouring input channels, the first one lowest; blocks of x have an even number of channels then.  ``narrow``
    says that no weight is -128.
    """

    conv: Conv
    requantize: Requantize
    row_types: tuple[DType, ...]
    single: tuple[bool, ...]
    weight_zero: int = 0
    nibbles: bool = False
    narrow: bool = False

    def fours(self, machine: Machine) -> bool:
        """Whether four channels are multiplied at a time (``loops.dot4``)."""
        allowed = self.narrow or not machine.narrow_dot4
        return allowed and not self.weight_zero and not self.nibbles and in_fours(self.conv, machine)

    def multiplied(self, machine: Machine) -> DType:
        """The type of activations as ``loops.dot4`` takes them."""
        own = self.conv.x.dtype
        return own if not self.fours(machine) or own in machine.dot4 else machine.dot4[0]

    def shifted(self, machine: Machine) -> int:
        """What is added to activations before they are multiplied, so that they are of that type."""
        own, wanted = self.conv.x.dtype, self.multiplied(machine)
        return 0 if own is wanted else 128 if own is DType.I8 else -128


@dataclass(frozen=True, eq=False)
class IntegerConvContext:
    """What every tile of a kernel shares."""

    k: Builder
    s: IntegerConv
    machine: Machine
    x: Tensor
    b: Tensor
    flips: Tensor | None
    rows: list[Tensor]
    mask: Tensor | None
    operands: list[Tensor]
    y: Tensor

    @property
    def fours(self) -> bool:
        return self.s.fours(self.machine)

    def weight(self, w: Expr, half: int = 0) -> Expr:
        """A vector of weights as ``multiply_add`` takes it; of bytes of two weights, the lower or the upper ones."""
        if self.fours:
            return w
        wide = cast(loaded(w), I32)
        if self.s.nibbles:
            return wide >> 4 if half else wide << 28 >> 28
        return wide - self.s.weight_zero if self.s.weight_zero else wide

    def flip(self, lanes: int) -> Expr | None:
        """What turns bytes into those of the other sign, less or plus 128; None where they are right."""
        return None if self.flips is None else self.k.let("flip", self.flips.vec(lanes)[0])

    def value(self, x: Expr, lanes: int, flip: Expr | None) -> Expr:
        """An activation, or four of them, in every lane."""
        if not self.fours:
            return broadcast(cast(x, I32), lanes)
        return broadcast(x, lanes) if flip is None else op("xor", broadcast(x, lanes), flip)

    def multiply_add(self, acc: Expr, x: Expr, w: Expr) -> Expr:
        if not self.fours:
            return acc + x * w
        if self.s.multiplied(self.machine) is DType.U8:
            return op("dot4", acc, x, w)
        return op("dot4_narrow" if self.machine.narrow_dot4 else "dot4_signed", acc, x, w)

    def store(self, n: Index, channel: Index, row: Index, col: Index, lanes: int, total: Expr) -> None:
        """Requantise ``lanes`` sums, apply the epilogue and store them; zeros in lanes past the last channel."""
        conv, at = self.s.conv, channel // lanes
        factors = [
            broadcast(r[0], lanes) if one else r.vec(lanes)[at] for r, one in zip(self.rows, self.s.single, strict=True)
        ]
        value = self.s.requantize(total, factors)
        if conv.operands:
            value = self.k.let("r", value)
        loads = zip(conv.operands, self.operands, strict=True)
        extra = [tensor.vec(lanes)[image.at(n, channel, row, col, lanes)] for image, tensor in loads]
        value = conv.epilogue(value, *extra)
        if self.mask is not None:
            value = cast(select(self.mask.vec(lanes)[at], cast(value, I32), 0), value.type.dtype)
        self.y.vec(lanes)[conv.y.place(n, channel, row, col, lanes)] = value


def begin(
    k: Builder, s: IntegerConv, shapes: Sequence[tuple[int, ...]], machine: Machine, *, in_rows: bool = False
) -> tuple[IntegerConvContext, list[Tensor]]:
    """Parameters: x, weights of these shapes, bias, ``flips`` where activations are shifted, rows of factors, mask
    where channels do not fill blocks, operands of the epilogue, y.  ``in_rows``: the columns of x, a word each, are one
    axis with its words."""
    c, fours = s.conv, s.fours(machine)
    *outer, block = c.x.shape
    if fours and c.depthwise:  # four columns are one vector
        x = k.param("x", *outer[:-1], outer[-1] * block, dtype=c.x.dtype)
    elif in_rows:
        x = k.param("x", *outer[:-1], outer[-1] * block // 4, dtype=DType.Q8)
    else:
        x = k.param("x", *outer, block // 4 if fours else block, dtype=DType.Q8 if fours else c.x.dtype)
    ws = [k.param("w", *shape, dtype=I32 if fours else c.weights) for shape in shapes]
    b = k.param("b", c.padded, dtype=I32)
    flips = k.param("f", machine.lanes, dtype=DType.Q8) if s.shifted(machine) else None
    rows = [k.param("q", 1 if one else c.padded, dtype=dtype) for one, dtype in zip(s.single, s.row_types, strict=True)]
    m = k.param("m", c.padded, dtype=I32) if c.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in c.operands]
    y = k.param("y", *c.y.shape, dtype=c.y.dtype, out=True)
    return IntegerConvContext(k, s, machine, x, b, flips, rows, m, operands, y), ws


# ------------------------------------------------------------------------------------------------ dense
@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, tile: Tile) -> Kernel:
    """Parameters: x, the packed weights of each run (``kernels.conv.pack``), bias in i32 (padded),
    ``flips`` where activations are shifted, rows of factors, mask when ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_{dense._name(c)}", f"{described(c)}, in integers")
    cut = runs(c, machine, tile.vecs)
    deep = c.x.block // (4 if s.fours(machine) else 2 if s.nibbles else 1)
    shapes = [(r.iterations, r.blocks, *c.kernel, deep, r.width) for r in cut]
    parts, ws = begin(k, s, shapes, machine)
    with k.loop("n", c.y.n) as n:
        for r, w in zip(cut, ws, strict=True):
            for o, top, left, height, width in tiles(k, r.iterations, c.extent, tile, machine.threads):
                with k.outline(f"{height}x{width}x{r.vecs}v{r.lanes}", dense._tile(height, width, r)):
                    _tile(parts, r, w, (n, o, top, left), (height, width))
    return k.done()


def _tile(
    p: IntegerConvContext, r: Run, w: Tensor, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> None:
    k, s, (n, o, top, left), (height, width) = p.k, p.s.conv, at, size
    first = o * r.width + r.start
    acc = k.local("a", height, width, r.vecs, dtype=I32, lanes=r.lanes)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        acc[i, j, v] = p.b.vec(r.lanes)[first // r.lanes + v]
    flip = p.flip(r.lanes) if p.fours else None
    for start, blocks, channels in dense._depths(s, r):
        channels = -(-channels // 4) if p.fours else channels
        halves = 2 if p.s.nibbles else 1
        deep = -(-channels // halves)
        unroll = next(u for u in range(min(p.machine.unroll, deep), 0, -1) if deep % u == 0)
        with (
            k.loop("c", blocks) as c,
            k.loop("ky", s.kernel[0]) as ky,
            k.loop("kx", s.kernel[1]) as kx,
            k.loop("ci", deep // unroll) as ci,
            k.unroll("u", unroll) as u,
        ):
            row, block = ci * unroll + u, c + start
            stored = [w.vec(r.lanes)[o, block, ky, kx, row, v] for v in range(r.vecs)]
            for half in range(halves):
                weights = [k.let(f"w{v}", p.weight(byte, half)) for v, byte in enumerate(stored)]
                place = (n, block + o * r.step + r.first, top, left, row * halves + half)
                _multiply_add(p, acc, weights, place, (ky, kx), (height, width), flip)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        p.store(n, first + v * r.lanes, top + i, left + j, r.lanes, acc[i, j, v])


def _multiply_add(
    p: IntegerConvContext,
    acc: Tensor,
    weights: Sequence[Expr],
    place: tuple[Index, Index, Index, Index, Index],
    tap: tuple[Index, Index],
    size: tuple[int, int],
    flip: Expr | None,
) -> None:
    """One input channel through one tap into the whole tile; ``place`` is (image, block, row, column, channel)."""
    k, s, (n, block, top, left, channel) = p.k, p.s.conv, place
    lanes = weights[0].type.lanes
    with k.unroll("p", size[0]) as i, k.unroll("q", size[1]) as j:
        row = (top + i) * s.stride[0] + tap[0] * s.dilation[0] + (s.x.top - s.top)
        col = (left + j) * s.stride[1] + tap[1] * s.dilation[1] + (s.x.left - s.left)
        value = k.let("v", p.value(p.x[n, block, row, col, channel], lanes, flip))
        for t, weight in enumerate(weights):
            acc[i, j, t] = p.multiply_add(acc[i, j, t], value, weight)


# -------------------------------------------------------------------------------------------- depthwise
def pack_depthwise(weights: Array, s: IntegerConv, machine: Machine) -> Array:
    """``kernels.depthwise.pack``, [channels / lanes][kh][kw][lanes]; four taps of a row as one word where they are
    multiplied so, [channels / lanes][kh][kw / 4, rounded up][lanes]."""
    packed = depthwise_by_lanes.pack(weights, s.conv, machine)
    if not s.fours(machine):
        return packed
    spare = -s.conv.kernel[1] % 4
    return _words(np.pad(packed, ((0, 0), (0, 0), (0, spare), (0, 0))))


@lru_cache(maxsize=512)
def depthwise(s: IntegerConv, machine: Machine) -> Kernel:
    """Parameters: those of ``conv``, weights as ``pack_depthwise`` has them.  Blocks are whole vectors."""
    c, lanes, fours = s.conv, machine.lanes, s.fours(machine)
    k = Builder(f"integer_depthwise{'x'.join(map(str, c.kernel))}_{c.y.shown}", f"{described(c)}, in integers")
    row = -(-c.kernel[1] // 4) if fours else c.kernel[1]
    parts, (w,) = begin(k, s, [(c.padded // lanes, c.kernel[0], row, lanes)], machine)
    cols = max(1, min(c.extent[1], 8, machine.registers // 2 - 2))
    if fours:
        share, tiles = _shared(c.kernel[1], c.stride[1]), -(-c.extent[1] // min(12, machine.registers // 2))
        cols = -(-c.extent[1] // tiles // share) * share
    (vectors, rows), inside = deal(c.padded // lanes, c.extent[0], threads=machine.threads)
    tile = _depthwise_fours if fours else _depthwise_tile
    with ExitStack() as stack:
        n = stack.enter_context(k.loop("n", c.y.n))
        v = stack.enter_context(k.loop("v", c.padded // lanes, kind=vectors))
        i = stack.enter_context(k.loop("i", c.extent[0], kind=rows))
        for left, across, width in segments(c.extent[1], cols):
            about = f"a tile of 1 x {width} positions by {lanes} channels"
            with k.loop("j", across, kind=inside) as j, k.outline(f"1x{width}v{lanes}", about):
                tile(parts, w, (n, v, i, j * width + left), width)
    return k.done()


def _depthwise_fours(p: IntegerConvContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int) -> None:
    """Four columns, interleaved, are read once for all outputs that see them; for the next output the weights move on
    by a byte, or by several."""
    k, s, lanes, (n, vector, row, left) = p.k, p.s.conv, p.machine.lanes, at
    channel, flip = vector * lanes, p.flip(lanes)
    share = _shared(s.kernel[1], s.stride[1])
    acc = k.local("a", width, dtype=I32, lanes=lanes)
    with k.unroll("q", width) as j:
        acc[j] = p.b.vec(lanes)[vector]
    words = -(-s.kernel[1] // 4)
    kind = "unroll" if width * s.kernel[0] * words <= UNROLLED else "serial"
    with k.loop("ky", s.kernel[0], kind=kind) as ky, k.loop("kx", words, kind=kind) as kx:
        weight = k.let("w", w.vec(lanes)[vector, ky, kx, 0])
        moved = [weight] + [k.let("w", weight << 8 * m * s.stride[1]) for m in range(1, share)]
        y = row * s.stride[0] + ky * s.dilation[0] + (s.x.top - s.top)
        for start in range(0, width, share):
            x = (left + start) * s.stride[1] + kx * 4 + (s.x.left - s.left)
            at_bytes = tuple(map(index, (n, channel // s.x.block, y, x * s.x.block)))
            value = interleave4(Load(p.x.buffer, at_bytes, Type(s.x.dtype, 4 * lanes)))
            value = k.let("v", value if flip is None else op("xor", value, flip))
            for m in range(min(share, width - start)):
                acc[start + m] = p.multiply_add(acc[start + m], value, moved[m])
    with k.unroll("q", width) as j:
        p.store(n, channel, row, left + j, lanes, acc[j])


def _depthwise_tile(p: IntegerConvContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int) -> None:
    k, s, lanes, (n, vector, row, left) = p.k, p.s.conv, p.machine.lanes, at
    channel = vector * lanes
    acc = k.local("a", width, dtype=I32, lanes=lanes)
    with k.unroll("q", width) as j:
        acc[j] = p.b.vec(lanes)[vector]
    kind = "unroll" if width * s.taps <= UNROLLED else "serial"
    with k.loop("ky", s.kernel[0], kind=kind) as ky, k.loop("kx", s.kernel[1], kind=kind) as kx:
        weight = k.let("w", p.weight(w.vec(lanes)[vector, ky, kx, 0]))
        with k.unroll("q", width) as j:
            y = row * s.stride[0] + ky * s.dilation[0] + (s.x.top - s.top)
            x = (left + j) * s.stride[1] + kx * s.dilation[1] + (s.x.left - s.left)
            value = p.x.vec(lanes)[n, channel // s.x.block, y, x, channel % s.x.block // lanes]
            acc[j] = acc[j] + cast(value, I32) * weight
    with k.unroll("q", width) as j:
        p.store(n, channel, row, left + j, lanes, acc[j])
