"""Convolution of 8-bit and 16-bit integers with requantisation in the epilogue.

Structure as in ``kernels.conv`` and ``kernels.depthwise``: a tile of positions by vectors of output channels is summed
in registers, in i32.  Where the machine multiplies bytes four at a time, four neighbouring channels are one word of
32 bits, of activations and of weights.  The halo of ``x`` holds its zero point, so that the zero point is one number
per channel, part of the bias (Jacob et al. 2018, 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, broadcast, cast, op, reduce_lanes, select
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels import word_products
from tenon.machine.kernels.conv import Conv, GroupRun, OutputTile, described, runs
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.lane_products import by_lanes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.requantize import Added, Requantize
from tenon.machine.kernels.storage_types import loaded
from tenon.machine.kernels.tiles_of_runs import tiles_of_runs
from tenon.machine.kernels.widened_results import WidenedResult
from tenon.machine.kernels.word_products import CHANNELS, POSITIONS, WORDS
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

FLIP = -0x7F7F7F80
"""0x80808080: what adds 128 to each byte, or subtracts it."""
ONES = 0x01010101
"""Four weights of one."""


def flips(machine: Machine) -> Array:
    """A vector of words that turn bytes into those of the other sign.  Kernels read it from memory: of a vector that
    compilers know to be one number they make a scalar, and turn each activation before it is broadcast, in two more
    instructions."""
    return np.full(machine.lanes, FLIP, np.int32)


def in_fours(s: Conv, machine: Machine) -> bool:
    """Whether bytes can be multiplied four channels at a time, of a depthwise convolution four neighbouring taps, if
    the weights allow it."""
    bytes = s.x.dtype in (DType.I8, DType.U8) and s.weights is DType.I8
    if not machine.fours or not bytes:
        return False
    if not by_taps(s, machine):
        return s.x.block % 4 == 0
    wide = s.x.left + s.x.w + s.x.right - (s.x.left - s.left)
    return taps_in_fours(s.dilation[1], machine) and columns(s.kernel[1], s.stride[1], s.extent[1]) <= wide


def by_taps(s: Conv, machine: Machine) -> bool:
    """Whether a depthwise convolution multiplies vectors of channels tap by tap; a product of one column does not."""
    return s.groups == s.x.channels == s.y.channels and s.x.block == machine.block


def taps_in_fours(dilation: int, machine: Machine) -> bool:
    """Whether a depthwise convolution may multiply four taps of a row at a time: those of neighbouring columns."""
    return bool(machine.fours) and dilation == 1 and machine.lanes == machine.block >= 4


def shared(kernel: int, stride: int) -> int:
    """How many neighbouring outputs read the same four columns, of a row of at most four taps."""
    return (4 - kernel) // stride + 1 if kernel <= 4 else 1


def columns(kernel: int, stride: int, outs: int) -> int:
    """How many columns of the input a row of ``outs`` outputs reads four by four, padding included."""
    first = (outs - 1) // shared(kernel, stride) * shared(kernel, stride)
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
    return [words(p) for p in packed]


def words(weights: Array) -> Array:
    """[..., count, n] of i8 as [..., count / 4, n] words of four neighbours."""
    *outer, count, n = weights.shape
    fours = np.swapaxes(weights.reshape(*outer, count // 4, 4, n), -1, -2)
    return np.ascontiguousarray(fours).view(np.int32)[..., 0]


@dataclass(frozen=True)
class IntegerConv:
    """The convolution to compute: ``conv``, of integer images and weights of one byte, or i16; its epilogue applies to
    requantised results.  With ``added``, the first operand of ``conv`` is added to the sums, by factors that are the
    last of the rows, and is none of the epilogue.

    ``weight_zero`` is subtracted from every weight: where bytes are multiplied four at a time, as so many times the
    sum of the inputs of a window (Jacob et al. 2018, 2.3), but for a depthwise convolution.  With ``halved``, of that
    one only, a weight is the sum of two bytes (``integer_depthwise.halves``).  ``single`` says which rows of factors
    hold one number for all channels; ``row_types`` are their element types.  With ``nibbles`` a byte holds the weights,
    of 4 bits, of two neighbouring input channels, the first one lowest; blocks of x have an even number of channels
    then.  ``narrow`` says that no byte of the weights is -128.  ``fill`` is the zero point of x, which lies beside the
    image.
    """

    conv: Conv
    requantize: Requantize
    row_types: tuple[DType, ...]
    single: tuple[bool, ...]
    weight_zero: int = 0
    nibbles: bool = False
    narrow: bool = False
    halved: bool = False
    added: Added | None = None
    fill: int = 0

    def fours(self, machine: Machine) -> bool:
        """Whether four channels are multiplied at a time (``Machine.fours``)."""
        if machine.narrow_fours and (self.weight_zero or not self.narrow):
            return False  # its products of four bytes are too slow to pay for sums of inputs, too
        summed = not self.weight_zero or not by_taps(self.conv, machine)
        return summed and not self.nibbles and in_fours(self.conv, machine)

    def multiplied(self, machine: Machine) -> DType:
        """The type of activations as ``Machine.fours`` takes them."""
        own = self.conv.x.dtype
        return own if not self.fours(machine) or own in machine.fours else next(iter(machine.fours))

    def words_of(self, machine: Machine) -> str:
        """Whether products take words of vectors of positions or of channels (``word_products``); "" if they do not."""
        if not self.fours(machine) or by_taps(self.conv, machine):
            return ""
        words = word_products.words_of(self.conv, machine)
        # Vectors of positions reach past those that are wanted; sums of inputs are of single words.
        return "" if words == POSITIONS and (self.weight_zero or machine.cut_short) else words

    def shifted(self, machine: Machine) -> int:
        """The offset added to activations before they are multiplied, so that they are of that type."""
        own, wanted = self.conv.x.dtype, self.multiplied(machine)
        return 0 if own is wanted else 128 if own is DType.I8 else -128


@dataclass(frozen=True, eq=False)
class IntegerEnds:
    """The parameters that turn sums into results."""

    k: Builder
    s: IntegerConv
    b: Tensor
    rows: list[Tensor]
    mask: Tensor | None
    operands: list[Tensor]
    y: Tensor

    @classmethod
    def params(cls, k: Builder, s: IntegerConv, *, b: Tensor | None = None, y_words: bool = False) -> IntegerEnds:
        """Parameters: bias unless it is given, rows of factors, mask where channels do not fill blocks, operands of the
        epilogue, y; with ``y_words`` four channels are one word, of y and of operands of bytes that lie like it."""
        c = s.conv
        b = b or k.param("b", c.padded, dtype=I32)
        kinds = zip(s.single, s.row_types, strict=True)
        rows = [k.param("q", 1 if one else c.padded, dtype=dtype) for one, dtype in kinds]
        m = k.param("m", c.padded, dtype=I32) if c.clear else None

        def images(name: str, image: Image, out: bool = False) -> Tensor:
            *outer, block = image.shape
            alike = y_words and image.dtype.bytes == 1 and image.shape == c.y.shape
            shape, dtype = ((*outer, block // 4), I32) if alike else (image.shape, image.dtype)
            return k.param(name, *shape, dtype=dtype, out=out)

        operands = [images("r", image) for image in c.operands]
        return cls(k, s, b, rows, m, operands, images("y", c.y, out=True))

    def extra(self, n: Index, channel: Index, row: Index, col: Index, lanes: int) -> list[Expr]:
        """``lanes`` elements of each operand of the epilogue."""
        return [
            broadcast(tensor.vec(image.lanes(lanes))[image.at(n, channel, row, col, lanes)], lanes)
            for image, tensor in zip(self.s.conv.operands, self.operands, strict=True)
        ]

    def result(self, channel: Index, lanes: int, total: Expr, extra: list[Expr]) -> Expr:
        """Requantise ``lanes`` sums and apply the epilogue to them and the elements of its operands; zeros in lanes
        past the last channel."""
        conv, at = self.s.conv, channel // lanes
        factors = [
            broadcast(r[0], lanes) if one else r.vec(lanes)[at] for r, one in zip(self.rows, self.s.single, strict=True)
        ]
        if self.s.added is not None:
            total = self.k.let("t", self.s.added(total, extra.pop(0), factors.pop()))
        # An epilogue takes the rounded number in f32, too, which is there before it becomes an integer.
        value = replace(self.s.requantize, near=self.s.requantize.near and not extra)(total, factors)
        wide = WidenedResult.of(self.k, value, self.s.requantize.zero) if extra else None
        if extra and wide is None:
            value = self.k.let("r", value)
        value = conv.epilogue(value, *extra) if wide is None else wide.through(conv.epilogue, *extra)
        if self.mask is not None and value.type.dtype.is_float:
            value = select(self.mask.vec(lanes)[at], value, 0.0)
        elif self.mask is not None:
            value = cast(select(self.mask.vec(lanes)[at], cast(value, I32), 0), value.type.dtype)
        return value

    def store(self, n: Index, channel: Index, row: Index, col: Index, lanes: int, total: Expr) -> None:
        """Store the results of ``lanes`` sums."""
        value = self.result(channel, lanes, total, self.extra(n, channel, row, col, lanes))
        self.y.vec(lanes)[self.s.conv.y.place(n, channel, row, col, lanes)] = value


@dataclass(frozen=True, eq=False)
class IntegerConvContext(IntegerEnds):
    """The parameters and sizes that all tiles of a kernel share."""

    machine: Machine
    x: Tensor
    flips: Tensor | None

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
        """The operand that turns bytes into those of the other sign, less or plus 128; None where they are right."""
        return None if self.flips is None else self.k.let("flip", self.flips.vec(lanes)[0])

    def value(self, x: Expr, lanes: int, flip: Expr | None) -> Expr:
        """An activation, or four of them, in every lane."""
        if not self.fours:
            return broadcast(cast(x, I32), lanes)
        return broadcast(x, lanes) if flip is None else op("xor", broadcast(x, lanes), flip)

    def multiply_add(self, acc: Expr, x: Expr, w: Expr) -> Expr:
        if not self.fours:
            return acc + x * w
        return op(self.machine.fours[self.s.multiplied(self.machine)].operation, acc, x, w)


def begin(
    k: Builder, s: IntegerConv, shapes: Sequence[tuple[int, ...]], machine: Machine, *, in_rows: bool = False
) -> tuple[IntegerConvContext, list[Tensor]]:
    """Parameters: x, weights of these shapes, bias, ``flips`` where activations are shifted, and the rest of
    ``IntegerEnds``.  ``in_rows``: the columns of x, a word each, are one axis with its words."""
    c, fours = s.conv, s.fours(machine)
    *outer, block = c.x.shape
    if fours and by_taps(c, machine):  # four columns are one vector
        x = k.param("x", *outer[:-1], outer[-1] * block, dtype=c.x.dtype)
    elif in_rows:
        x = k.param("x", *outer[:-1], outer[-1] * block // 4, dtype=DType.Q8)
    else:
        x = k.param("x", *outer, block // 4 if fours else block, dtype=DType.Q8 if fours else c.x.dtype)
    ws = [k.param("w", *shape, dtype=I32 if fours else c.weights) for shape in shapes]
    b = k.param("b", c.padded, dtype=I32)
    flips = k.param("f", machine.lanes, dtype=DType.Q8) if s.shifted(machine) else None
    ends = IntegerEnds.params(k, s, b=b)
    return IntegerConvContext(k, s, b, ends.rows, ends.mask, ends.operands, ends.y, machine, x, flips), ws


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x, the packed weights of each run (``kernels.conv.pack``), bias in i32 (padded),
    ``flips`` where activations are shifted, rows of factors, mask when ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_{dense._name(c)}", f"{described(c)}, in integers")
    cut = runs(c, machine, tile.vecs)
    deep = c.x.block // (4 if s.fours(machine) else 2 if s.nibbles else 1)
    shapes = [(r.iterations, r.blocks, *c.kernel, deep, r.width) for r in cut]
    parts, ws = begin(k, s, shapes, machine, in_rows=s.words_of(machine) == POSITIONS)
    for r, w, at, size in tiles_of_runs(k, c, machine, tile, ws):
        _tile(parts, r, w, at, size)
    return k.done()


def _tile(
    p: IntegerConvContext, r: GroupRun, w: Tensor, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> None:
    k, s, (n, o, top, left), (height, width) = p.k, p.s.conv, at, size
    first = o * r.width + r.start
    acc = k.local("a", height, width, r.vecs, dtype=I32, lanes=r.lanes)
    sums = _window_sums(p, r, at, size) if p.fours and p.s.weight_zero else None
    with k.unroll("p", height) as i, k.unroll("q", width) as j:
        zero = None if sums is None else k.let("z", broadcast(sums[i, j] * -p.s.weight_zero, r.lanes))
        with k.unroll("t", r.vecs) as v:
            bias = p.b.vec(r.lanes)[first // r.lanes + v]
            acc[i, j, v] = bias if zero is None else bias + zero
    flip, words = p.flip(r.lanes) if p.fours else None, p.s.words_of(p.machine)
    for start, blocks, channels in dense._depths(s, r):
        channels = -(-channels // 4) if p.fours else channels
        halves = 2 if p.s.nibbles else 1
        deep = -(-channels // halves)
        together = words == CHANNELS and r.lanes == WORDS and deep % WORDS == 0
        most = WORDS if together else p.machine.unroll
        unroll = next(u for u in range(min(most, deep), 0, -1) if deep % u == 0)
        # Steps of one word are too short for a loop.
        each = 4 if words == POSITIONS and s.taps == 1 else 1
        for begin, rounds, several in segments(blocks, each):
            with (
                k.loop("c", rounds) as c,
                k.unroll("b", several) as next_block,
                k.loop("ky", s.kernel[0]) as ky,
                k.loop("kx", s.kernel[1]) as kx,
                k.loop("ci", deep // unroll) as ci,
                k.unroll("u", 1 if together else unroll) as u,
            ):
                row, block = ci * unroll + u, c * several + next_block + (begin + start)
                if together:
                    _by_channels(p, acc, w, (n, o, block, ky, kx), (top, left, ci), r, flip)
                    continue
                stored = [w.vec(r.lanes)[o, block, ky, kx, row, v] for v in range(r.vecs)]
                for half in range(halves):
                    weights = [k.let(f"w{v}", p.weight(byte, half)) for v, byte in enumerate(stored)]
                    place = (n, block + o * r.step + r.first, top, left, row * halves + half)
                    _multiply_add(p, acc, weights, place, (ky, kx), (height, width), flip)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        p.store(n, first + v * r.lanes, top + i, left + j, r.lanes, acc[i, j, v])


def _window_sums(
    p: IntegerConvContext, r: GroupRun, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> Tensor:
    """The sum of all inputs that are multiplied for a position, one number for all output channels: i32 [rows][columns]
    of the tile.  Words of a block, of a matrix product those of a row, are summed side by side."""
    k, s, (n, o, top, left), (height, width) = p.k, p.s.conv, at, size
    sums = k.local("s", height, width, dtype=I32)
    with k.unroll("p", height) as i, k.unroll("q", width) as j:
        sums[i, j] = 0
    for start, blocks, channels in dense._depths(s, r):
        for first, count, lanes in word_segments(-(-channels // 4), p.machine.lanes):
            ones, flip = Const(ONES, Type(I32)), p.flip(lanes)
            acc = k.local("a", height, width, dtype=I32, lanes=lanes)
            with k.unroll("p", height) as i, k.unroll("q", width) as j:
                acc[i, j] = 0
            with (
                k.loop("c", blocks) as c,
                k.loop("ky", s.kernel[0]) as ky,
                k.loop("kx", s.kernel[1]) as kx,
                k.loop("ci", count) as ci,
                k.unroll("p", height) as i,
                k.unroll("q", width) as j,
            ):
                row, col = read_at(s, (top + i, left + j), (ky, kx))
                read = p.x.vec(lanes)[n, c + start + o * r.step + r.first, row, col, ci + first // lanes]
                value = k.let("v", read if flip is None else op("xor", read, flip))
                acc[i, j] = p.multiply_add(acc[i, j], value, ones)
            with k.unroll("p", height) as i, k.unroll("q", width) as j:
                sums[i, j] = sums[i, j] + reduce_lanes("add", acc[i, j])
    return sums


def word_segments(words: int, lanes: int) -> list[tuple[int, int, int]]:
    """``lane_segments`` of words, but for vectors of two, of which no machine has products."""
    return [(a, n * 2, 1) if each == 2 else (a, n, each) for a, n, each in lane_segments(words, lanes)]


def read_at(s: Conv, at: tuple[Index, Index], tap: tuple[Index, Index]) -> tuple[Index, Index]:
    """Row and column of the input, halo included, that a tap of an output position reads."""
    row = at[0] * s.stride[0] + tap[0] * s.dilation[0] + (s.x.top - s.top)
    col = at[1] * s.stride[1] + tap[1] * s.dilation[1] + (s.x.left - s.left)
    return row, col


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
    if p.s.words_of(p.machine) == POSITIONS:
        _multiply_words(p, acc, weights, place, tap, size, flip)
        return
    with k.unroll("p", size[0]) as i, k.unroll("q", size[1]) as j:
        row, col = read_at(s, (top + i, left + j), tap)
        value = k.let("v", p.value(p.x[n, block, row, col, channel], lanes, flip))
        for t, weight in enumerate(weights):
            acc[i, j, t] = p.multiply_add(acc[i, j, t], value, weight)


def _by_channels(
    p: IntegerConvContext,
    acc: Tensor,
    w: Tensor,
    at: tuple[Index, Index, Index, Index, Index],
    place: tuple[Index, Index, Index],
    r: GroupRun,
    flip: Expr | None,
) -> None:
    """Sixteen channels through one tap into the whole tile; ``at`` is (image, group of output channels, block, row and
    column of the tap), ``place`` the first row and column of results, and the number of the channels' vector."""
    k, s, (n, o, block, ky, kx), (top, left, four) = p.k, p.s.conv, at, place

    def value(i: Index, j: Index) -> Expr:
        row, col = read_at(s, (top + i, left + j), (ky, kx))
        own = p.x.vec(WORDS)[n, block + o * r.step + r.first, row, col, four]
        return own if flip is None else op("xor", own, flip)

    def weights(row: Index) -> list[Expr]:
        return [k.let(f"w{v}", w.vec(r.lanes)[o, block, ky, kx, row, v]) for v in range(r.vecs)]

    size = (acc.buffer.shape[0].const, acc.buffer.shape[1].const)
    by_lanes("dot4", k, acc, size, [partial(weights, four * WORDS + u) for u in range(WORDS)], value)


def _multiply_words(
    p: IntegerConvContext,
    acc: Tensor,
    weights: Sequence[Expr],
    place: tuple[Index, Index, Index, Index, Index],
    tap: tuple[Index, Index],
    size: tuple[int, int],
    flip: Expr | None,
) -> None:
    """The same by words of vectors of four columns; positions that are left are loaded one by one."""
    k, s, (n, block, top, left, _) = p.k, p.s.conv, place
    lanes, each = weights[0].type.lanes, WORDS // s.stride[1]
    with k.unroll("p", size[0]) as i:
        for first in range(0, size[1], each):
            row, col = read_at(s, (top + i, left + first), tap)
            if size[1] - first >= each:
                words = Load(p.x.buffer, (n, block, row, col), Type(DType.Q8, 4))
                four = k.let("v", words if flip is None else op("xor", words, flip))
                for j in range(each):
                    for t, weight in enumerate(weights):
                        lane = f"dot4_lane{j * s.stride[1]}"
                        acc[i, first + j, t] = op(lane, acc[i, first + j, t], weight, four)
                continue
            for j in range(first, size[1]):
                value = k.let("v", p.value(p.x[n, block, row, col + (j - first) * s.stride[1]], lanes, flip))
                for t, weight in enumerate(weights):
                    acc[i, j, t] = p.multiply_add(acc[i, j, t], value, weight)
