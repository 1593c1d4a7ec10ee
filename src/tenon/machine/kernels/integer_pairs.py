"""Convolution of 8-bit integers by products of pairs of 16 bits, for cores with DSP instructions but no vectors.

Dense: the inputs of up to four positions are widened to pairs once, into a *panel* in scratch memory, from which every
output channel is summed; weights stay bytes, two channels by two inputs in a word.  A tile of 4 positions x 2 channels
takes all registers of an Arm core.  Depthwise: a plane, one channel with its border, is widened into scratch memory; so
it may be computed in place.  No halo is asked for or read: borders are written into panels and planes.

Results are requantised as by ``kernels.requantize``, in fewer instructions (``Rounding``): with a multiplier m of at
least 2**30, ``mulh_add(sum, 2 * m, sum)``, where 2 * m wraps around, is the rounding doubling high product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, cast, maximum, minimum, op, sqrdmulh
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.requantize import Added, fixed_slope
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

POSITIONS, CHANNELS = 4, 2
"""Positions of a panel."""
_UNROLL = 8
_LINE = 6
"""Most results of a depthwise convolution that are summed together."""


Rounding = Literal["double", "float", "even"]
"""As of ``kernels.requantize``."""


@dataclass(frozen=True)
class PairConv:
    """The convolution ``conv`` of i8, whose results are clamped between ``low`` and ``high`` before its epilogue.

    The border of x is ``fill``, and ``zero`` the zero point of the results.  ``signed``: results may lie below it, so
    that halves must be rounded away from zero there too; elsewhere ``low`` hides the difference.  ``slope`` is that of
    ``kernels.requantize``; with ``added``, the first operand of ``conv`` is added to the sums, which are then shifted
    to the ``left``.  With ``fitted_left``, of "even" rounding and for kernels by vectors only, the factors of most
    blocks of four channels give the same results by "double" rounding, of sums that are shifted by that
    (``integer_dots.mixed``).
    """

    conv: Conv
    fill: int
    signed: bool
    low: int
    high: int
    slope: float = 1.0
    added: Added | None = None
    zero: int = 0
    rounding: Rounding = "double"
    left: int = 0
    fitted_left: int | None = None

    @property
    def words(self) -> bool:
        """Whether four neighbouring channels are read at once; else x has one channel, and neighbouring taps are."""
        return self.conv.x.channels > 1

    @property
    def row(self) -> int:
        """Pairs in a row of the kernel."""
        c = self.conv
        return 2 * self.fours * c.kernel[1] if self.words else -(-c.kernel[1] // 2)

    @property
    def fours(self) -> int:
        """Words of four channels."""
        return -(-self.conv.x.channels // 4)

    @property
    def channels(self) -> int:
        """Output channels of a tile."""
        return 4 if math.prod(self.conv.extent) == 1 else 2

    @property
    def vector(self) -> bool:
        """Whether it is a product with one vector, which needs no panel: its numbers are widened as they are used."""
        return self.words and self.conv.taps == 1 and math.prod(self.conv.extent) == 1

    def four(self, n: Index, block: Index, row: IndexLike = 0, col: IndexLike = 0) -> tuple[IndexLike, ...]:
        """Where four neighbouring channels lie."""
        x = self.conv.x
        row, col = row + index(x.top), col + index(x.left)
        return (n, 0, row, col, block) if x.blocks == 1 else (n, block, row, col, 0)


def panel_bytes(s: PairConv) -> int:
    """Scratch memory of ``conv``."""
    if s.vector:
        return 4
    return s.conv.kernel[0] * s.row * _width(s) * 4


def _width(s: PairConv) -> int:
    return min(POSITIONS, s.conv.extent[1])


# ---------------------------------------------------------------------------------------------- packing
def pack(weights: Array, s: PairConv) -> Array:
    """Words of i32 [channels / tile][pairs][tile / 2] of weights [out, in, kh, kw] in i8: the bytes of a word are
    channel 0, input 0; channel 1, input 0; channel 0, input 1; channel 1, input 1."""
    out, channels, kh, kw = weights.shape
    tile = s.channels
    if s.words:  # pairs are channels 0 and 2, then 1 and 3 of each word
        whole = np.zeros((-(-out // tile) * tile, 4 * s.fours, kh, kw), np.int8)
        whole[:out, :channels] = weights
        split = whole.reshape(-1, s.fours, 2, 2, kh, kw)  # out, four, second of a pair, pair, kh, kw
        inputs = split.transpose(0, 4, 1, 5, 3, 2)  # out, kh, four, kw, pair, second
    else:
        whole = np.zeros((-(-out // tile) * tile, 1, kh, 2 * s.row), np.int8)
        whole[:out, :, :, :kw] = weights
        inputs = whole
    pairs = inputs.reshape(-1, tile // 2, 2, kh * s.row, 2)  # iteration, two channels, channel, pair, second
    ordered = np.ascontiguousarray(pairs.transpose(0, 3, 1, 4, 2))
    return ordered.reshape(-1).view(np.int32).reshape(len(whole) // tile, kh * s.row, tile // 2)


def pack_depthwise(weights: Array) -> Array:
    """i8 [channels][kh][kw] of weights [channels, 1, kh, kw]."""
    return np.ascontiguousarray(weights[:, 0])


def factors(multipliers: Array, right: Array, zero: int, largest: Array, *, signed: bool) -> Array | None:
    """i32 [channels, 3]: twice the multiplier, what is added before the shift, the shift; None where that cannot be.

    ``largest`` are the largest magnitudes of the sums.
    """
    shown = right.astype(np.int64)
    if (shown < 0).any() or (shown > 30).any():
        return None
    twice, added = multipliers.astype(np.int64) * 2, ((np.int64(1) << shown) >> 1) + (np.int64(zero) << shown)
    fits = (twice >= 1 << 31) & (np.abs(added) + largest < 1 << 31)
    if not fits.all() or (signed and not shown.all()):
        return None
    wrapped = (twice - (1 << 32)).astype(np.int32)
    return np.ascontiguousarray(np.stack([wrapped, added.astype(np.int32), shown.astype(np.int32)], 1))


def wrapped(rows: Array) -> Array:
    """i32 [channels, 3] as of ``factors``, from rows of multipliers, of what is added and of shifts."""
    twice = 2 * rows[0].astype(np.int64) - (1 << 32)
    return np.stack([twice.astype(np.int32), rows[1], rows[2]], 1)


# -------------------------------------------------------------------------------------------- shared parts
@dataclass(frozen=True, eq=False)
class Operands:
    """Operands that are added to the sums (``PairConv.added``), if any: factors in i32 of each channel, and an image;
    and the images that the epilogue reads."""

    s: PairConv
    tensors: tuple[Tensor, ...]
    read: tuple[Tensor, ...]

    @classmethod
    def begin(cls, k: Builder, s: PairConv) -> Operands:
        """The parameters of the operands."""
        first = () if s.added is None else (k.param("g", s.conv.y.channels, dtype=I32),)
        images = tuple(k.param("a", *image.shape, dtype=image.dtype) for image in s.conv.operands)
        own = len(first)
        return cls(s, (*first, *images[:own]), images[own:])

    def finished(self, k: Builder, value: Expr, at: tuple[Index, Index, Index, Index], lanes: int) -> Expr:
        """The epilogue of a result; ``at`` is (image, channel, row, column)."""
        images = self.s.conv.operands[len(self.tensors) // 2 :]
        extra = [t.vec(lanes)[image.at(*at, lanes)] for image, t in zip(images, self.read, strict=True)]
        return self.s.conv.epilogue(k.let("r", value) if extra else value, *extra)

    def factor(self, k: Builder, channel: Index, lanes: int) -> list[Expr]:
        """The requantisation factor of a channel, or the factors of ``lanes`` neighbouring channels."""
        return [k.let("g", self.tensors[0].vec(lanes)[channel // lanes])] if self.tensors else []

    def add(self, at: tuple[Index, Index, Index, Index], lanes: int, total: Expr, factor: Expr) -> Expr:
        """``total`` with the operand in it; ``at`` is (image, channel, row, column)."""
        assert self.s.added is not None
        image = self.s.conv.operands[0]
        return self.s.added(total, self.tensors[1].vec(lanes)[image.at(*at, lanes)], factor)


@dataclass(frozen=True, eq=False)
class PairContext:
    """Data that all tiles of a kernel share."""

    k: Builder
    s: PairConv
    x: Tensor
    w: Tensor
    b: Tensor
    q: Tensor
    scratch: Tensor
    y: Tensor
    operands: Operands

    def store(self, n: Index, channel: Index, row: Index, cols: Sequence[Index], sums: Sequence[Expr]) -> None:
        """Requantise the sums of one channel and store them."""
        factors = self.factors(channel)
        for col, total in zip(cols, sums, strict=True):
            self.put((n, channel, row, col), total, factors)

    def factors(self, channel: Index) -> list[Expr]:
        """Requantisation constants of a channel: twice its multiplier, the rounding offset and the shift, or one factor
        in f32; then those of the added operand, if there is one."""
        k, q = self.k, self.q
        if self.s.rounding == "float":
            return [k.let("m", q[channel, 0]), *self.operands.factor(k, channel, 1)]
        return [
            k.let("m", q[channel, 0]),
            k.let("h", q[channel, 1]),
            k.let("r", q[channel, 2]),
            *self.operands.factor(k, channel, 1),
        ]

    def put(self, at: tuple[Index, Index, Index, Index], total: Expr, factors: list[Expr]) -> None:
        """Requantise one sum and store it; ``at`` is (image, channel, row, column)."""
        s, own = self.s, factors[_PARTS[self.s.rounding] :]
        if own:
            total = self.k.let("t", self.operands.add(at, 1, total, own[0]))
        value = self.scaled(total, factors)
        full = (s.low, s.high) == (-128, 127)
        value = op("saturate_i8", value) if full else minimum(maximum(value, s.low), s.high)
        value = self.operands.finished(self.k, cast(value, DType.I8), at, 1)
        self.y[s.conv.y.place(*at, 1)] = cast(value, DType.I8)

    def scaled(self, total: Expr, factors: list[Expr]) -> Expr:
        """A sum times a factor, rounded, plus the zero point."""
        s = self.s
        if s.rounding == "float":
            real = self.k.let("p", op("mul", cast(total, F32), factors[0]))
            real = real if s.slope == 1 else maximum(real, op("mul", real, s.slope))
            return op("nearest_add", real, Const(s.zero, Type(I32)))
        twice, added, right = factors[:3]
        if s.left:
            total = self.k.let("t", total << s.left)
        if s.rounding == "even":
            high = self.k.let("p", op("mulh_add", total, twice, total) + added)
            return op("shift_even", high, total, op("and", twice >> 1, (1 << 31) - 1), added, right)
        if s.slope != 1:
            total = self.k.let("t", maximum(total, sqrdmulh(total, fixed_slope(s.slope))))
        high = self.k.let("p", op("mulh_add", total, twice, total))
        if s.signed:
            high = high + (high >> 31)
        return (high + added) >> right


_PARTS = {"double": 3, "float": 1, "even": 3}
"""Numbers of a channel that requantise its sums."""


def pair_of(value: int) -> Expr:
    """A pair of equal numbers."""
    bits = (value & 0xFFFF) | (value & 0xFFFF) << 16
    return Const(bits - (1 << 32) if bits >> 31 else bits, Type(I32))


def begin(
    k: Builder, s: PairConv, weights: tuple[int, ...], scratch: tuple[int, ...], stored: DType = I32, kept: DType = I32
) -> PairContext:
    """Parameters: x, weights of ``stored``, bias, factors, ``Operands``, scratch of ``kept``, y."""
    c = s.conv
    x = k.param("x", *c.x.shape, dtype=DType.I8)
    w, b = k.param("w", *weights, dtype=stored), k.param("b", c.y.channels, dtype=I32)
    q = k.param("q", c.y.channels, _PARTS[s.rounding], dtype=F32 if s.rounding == "float" else I32)
    operands = Operands.begin(k, s)
    t = k.param("t", *scratch, dtype=kept, scratch=True)
    return PairContext(k, s, x, w, b, q, t, k.param("y", *c.y.shape, dtype=DType.I8, out=True), operands)


# ------------------------------------------------------------------------------------------------ dense
@lru_cache(maxsize=512)
def conv(s: PairConv) -> Kernel:
    """Parameters: x, words of weights (``pack``), bias in i32, ``factors``, a panel (``panel_bytes``), y."""
    c = s.conv
    depth = c.kernel[0] * s.row
    k = Builder(f"integer_pairs{'x'.join(map(str, c.kernel))}_{c.x.channels}_{c.y.shown}", f"{described(c)}, in pairs")
    iterations = -(-c.y.channels // s.channels)
    p = begin(k, s, (iterations, depth, s.channels // 2), (1, 1) if s.vector else (depth, _width(s)))
    with k.loop("n", c.y.n) as n, k.loop("i", c.extent[0]) as row:
        for start, count, width, inside in columns(c, POSITIONS):
            with k.loop("j", count) as j:
                col = j * width + start
                if not s.vector:
                    with k.outline(f"panel{width}", f"the inputs of {width} positions as pairs"):
                        _panel(p, n, row, col, width, inside=inside)
                for first, times, channels in segments(c.y.channels, s.channels):
                    with k.outline(f"{width}x{channels}", f"{width} positions by {channels} channels at a time"):
                        _tile(p, (n, row, col), width, (first // s.channels, times, channels))
    return k.done()


def columns(c: Conv, positions: int) -> list[tuple[int, int, int, bool]]:
    """(first column, tiles, width of one, whether no tap lies beside the image); tiles alike are neighbours."""
    tiles: list[tuple[int, int, int, bool]] = []
    for start, iterations, width in segments(c.extent[1], positions):
        for j in range(iterations):
            first = (start + j * width) * c.stride[1] - c.left
            last = first + (width - 1) * c.stride[1] + (c.kernel[1] - 1) * c.dilation[1]
            inside = first >= 0 and last < c.x.w
            if tiles and inside and tiles[-1][2:] == (width, True):
                tiles[-1] = (*tiles[-1][:1], tiles[-1][1] + 1, width, True)
            else:
                tiles.append((start + j * width, 1, width, inside))
    return tiles


def row_of(c: Conv, row: Index, ky: Index) -> tuple[Index, list[Index]]:
    """The row of the image that tap ``ky`` reads for a row of results, and what is negative where it lies beside it."""
    last = (c.extent[0] - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] - c.top
    y = row * c.stride[0] + ky * c.dilation[0] - c.top
    return y, [y] * (c.top > 0) + [c.x.h - 1 - y] * (last >= c.x.h)


def _panel(p: PairContext, n: Index, row: Index, col: Index, width: int, *, inside: bool) -> None:
    """The inputs of ``width`` positions from ``col`` on."""
    k, s, c = p.k, p.s, p.s.conv
    with k.loop("ky", c.kernel[0]) as ky:
        y, inner = row_of(c, row, ky)
        with k.when(*inner):
            _panel_row(p, (n, y, col), ky * s.row, width, inside=inside)
        for fact in inner:
            with k.when(-fact - 1), k.loop("d", s.row) as d, k.unroll("p", width) as i:
                p.scratch[ky * s.row + d, i] = pair_of(s.fill)


def _panel_row(p: PairContext, at: tuple[Index, Index, Index], base: Index, width: int, *, inside: bool) -> None:
    k, s, c, (n, y, col) = p.k, p.s, p.s.conv, at
    kind = "serial" if inside else "unroll"

    def value(load: Expr, x: Index, fill: int) -> Expr:
        return load if inside else guarded((x, c.x.w - 1 - x), load, fill)

    if not s.words:
        for t in range(s.row):
            with k.unroll("p", width) as i:
                halves = []
                for tap in (2 * t, 2 * t + 1):
                    x = (col + i) * c.stride[1] + (tap * c.dilation[1] - c.left)
                    load = p.x[n, 0, y + c.x.top, x + c.x.left, 0]
                    halves.append(cast(value(load, x, s.fill), I32) if tap < c.kernel[1] else Const(0, Type(I32)))
                p.scratch[base + t, i] = op("pair_i16", *halves)
        return
    four = s.fill & 0xFF
    filled = four * 0x01010101
    filled -= (filled >> 31) << 32
    with k.loop("c", s.fours) as block, k.loop("kx", c.kernel[1], kind=kind) as kx, k.unroll("p", width) as i:
        x = (col + i) * c.stride[1] + kx * c.dilation[1] - c.left
        word = k.let("v", value(bitcast(p.x.vec(4)[p.s.four(n, block, y, x)], I32), x, filled))
        for h, name in enumerate(("even_bytes", "odd_bytes")):
            p.scratch[base + block * (2 * c.kernel[1]) + kx * 2 + h, i] = op(name, word)


def sum_tile(
    p: PairContext,
    at: tuple[Index, Index, Index],
    width: int,
    run: tuple[int, int, int],
    tile: int,
    steps: tuple[int, int],
    add: Callable[[Tensor, Index, Index, Index], None],
    instruction: Callable[[Tensor, Index], AbstractContextManager[None]],
) -> None:
    """Results of ``width`` positions by the channels of ``run``: (first group of ``tile`` channels, groups, channels of
    each).  ``add`` adds the products of a step to the sums [channel, position], given the group and the indices of an
    outer and an unrolled loop of so many ``steps``; ``instruction`` is what the loop may be done by."""
    k, (n, row, col), (start, iterations, each) = p.k, at, run
    with k.loop("o", iterations) as o:
        first = (o + start) * tile
        acc = k.local("a", each, width, dtype=I32)
        for v in range(each):
            bias = k.let("b", p.b[first + v])
            for i in range(width):
                acc[v, i] = bias
        with instruction(acc, o + start), k.loop("d", steps[0]) as outer, k.unroll("u", steps[1]) as inner:
            add(acc, o + start, outer, inner)
        for v in range(each):
            p.store(n, first + v, row, [col + i for i in range(width)], [acc[v, i] for i in range(width)])


def _tile(p: PairContext, at: tuple[Index, Index, Index], width: int, run: tuple[int, int, int]) -> None:
    s = p.s
    depth = s.conv.kernel[0] * s.row // (2 if s.vector else 1)
    unroll = next(u for u in range(min(_UNROLL, depth), 0, -1) if depth % u == 0)

    def add(acc: Tensor, group: Index, outer: Index, inner: Index) -> None:
        d = outer * unroll + inner
        if not s.vector:
            _products(p, acc, [p.scratch[d, i] for i in range(width)], (group, d), run[2])
            return
        word = p.k.let("v", bitcast(p.x.vec(4)[s.four(at[0], d)], I32))
        for h, name in enumerate(("even_bytes", "odd_bytes")):
            _products(p, acc, [op(name, word)], (group, d * 2 + h), run[2])

    def instruction(acc: Tensor, group: Index) -> AbstractContextManager[None]:
        sums = [(acc, (v, i)) for i in range(width) for v in range(run[2])]
        if unroll > 1 and s.vector and run[2] == s.channels and contiguous(p, at[0]):
            operands = [(p.w, (group, 0, 0)), (p.x.vec(4), s.four(at[0], Index())), *sums]
            return p.k.instruction("pairs_vector", operands, depth // unroll, unroll)
        if unroll > 1 and not s.vector and width == _width(s) == POSITIONS and run[2] == s.channels == CHANNELS:
            operands = [(p.w, (group, 0, 0)), (p.scratch, (0, 0)), *sums]
            return p.k.instruction("pairs_panel", operands, depth // unroll, unroll)
        return nullcontext()

    sum_tile(p, at, width, run, s.channels, (depth // unroll, unroll), add, instruction)


def contiguous(p: PairContext, n: Index) -> bool:
    """Whether the words of a vector of inputs lie one behind the other."""
    first, second = (p.x.buffer.flat(p.x.vec(4).where(p.s.four(n, Index((), i)))) for i in (0, 1))
    return second == first + 4


def _products(p: PairContext, acc: Tensor, inputs: list[Expr], at: tuple[Index, Index], channels: int) -> None:
    """Add the products of a pair of inputs of every position with those of the weights."""
    k, weights = p.k, []
    for h in range(-(-channels // 2)):
        word = k.let("w", p.w[(*at, h)])
        weights += [k.let("e", op("even_bytes", word)), k.let("o", op("odd_bytes", word))]
    for i, pair in enumerate(inputs):
        x = k.let("x", pair)
        for v in range(channels):
            acc[v, i] = op("dot2_i16", acc[v, i], x, weights[v])


# -------------------------------------------------------------------------------------------- depthwise
def plane(s: PairConv) -> tuple[int, int]:
    """Rows and words of the widened plane."""
    c = s.conv
    rows = (c.extent[0] - 1) * c.stride[0] + (c.kernel[0] - 1) * c.dilation[0] + 1
    last = (c.extent[1] - 1) * c.stride[1]
    return rows, last // 2 + -(-(c.kernel[1] + last % 2) // 2)


@lru_cache(maxsize=512)
def depthwise(s: PairConv) -> Kernel:
    """Parameters: x, weights (``pack_depthwise``), bias, ``factors``, a plane (i32 of ``plane``), y.

    x and y may be the same memory where they have the same shape.
    """
    c = s.conv
    k = Builder(f"integer_pairs_depthwise{'x'.join(map(str, c.kernel))}_{c.y.shown}", f"{described(c)}, in pairs")
    rows, width = plane(s)
    p = begin(k, s, (c.y.channels, *c.kernel), (rows, width), DType.I8)
    end = min(rows - c.top, c.x.h)  # rows of x that are read
    for first, count in ((0, c.top), (c.top + end, rows - c.top - end)):
        with k.loop("i", count) as i, k.loop("j", width) as j:
            p.scratch[i + first, j] = pair_of(s.fill)
    with k.loop("n", c.y.n) as n, k.loop("c", c.y.channels) as channel:
        with k.outline("plane", "a channel and its border as pairs"), k.loop("i", end) as i:
            _plane_row(p, (n, channel, i), width)
        with k.outline("rows", "the results of a channel"):
            weights = _weight_pairs(p, channel)
            with k.loop("i", c.extent[0]) as i:
                for start, iterations, cols in segments(c.extent[1], _line(c)):
                    with k.loop("j", iterations) as j:
                        _line_of_results(p, weights, (n, channel, i), (j, start, cols))
    return k.done()


def _line(c: Conv) -> int:
    """Results that are summed together: an even number where there are several lots."""
    return c.extent[1] if c.extent[1] <= _LINE else next((n for n in (6, 4) if c.extent[1] % n == 0), _LINE)


def _plane_row(p: PairContext, at: tuple[Index, Index, Index], words: int) -> None:
    k, s, c, (n, channel, row) = p.k, p.s, p.s.conv, at

    def half(column: Index | int) -> Expr:
        return cast(p.x[c.x.at(n, channel, row, column, 1)], I32)

    def border(column: int) -> Expr:
        return half(column) if 0 <= column < c.x.w else Const(s.fill, Type(I32))

    inner = [j for j in range(words) if 2 * j - c.left >= 0 and 2 * j + 1 - c.left < c.x.w]
    for j in range(words):
        if j not in inner:
            p.scratch[row + c.top, j] = op("pair_i16", border(2 * j - c.left), border(2 * j + 1 - c.left))
    if inner:
        for start, iterations, count in segments(len(inner), 4 if len(inner) > 12 else 12):
            with k.loop("j", iterations) as lot, k.unroll("u", count) as u:
                at_word = lot * count + u + (start + inner[0])
                value = op("pair_i16", half(at_word * 2 - c.left), half(at_word * 2 + 1 - c.left))
                p.scratch[row + c.top, at_word] = value


def _weight_pairs(p: PairContext, channel: Index) -> Tensor:
    """The weights of a channel, [kh][pairs]: pairs of taps from the first on, and where windows may begin in the middle
    of a word (an odd stride) those from one before the first on."""
    k, c = p.k, p.s.conv
    starts = (0, 1) if c.stride[1] % 2 else (0,)
    pairs = k.local("z", c.kernel[0], sum(-(-(c.kernel[1] + i) // 2) for i in starts), dtype=I32, space="stack")
    with k.loop("ky", c.kernel[0]) as ky:
        zero: Expr = Const(0, Type(I32))
        row = [k.let("w", cast(p.w[channel, ky, tap], I32)) for tap in range(c.kernel[1])] + [zero, zero]
        firsts = [first for start in starts for first in range(-start, c.kernel[1], 2)]
        for at, first in enumerate(firsts):
            pairs[ky, at] = op("pair_i16", row[first], row[first + 1])
    return pairs


def _line_of_results(
    p: PairContext, weights: Tensor, at: tuple[Index, Index, Index], run: tuple[Index, int, int]
) -> None:
    k, c, (n, channel, row), (lot, start, cols) = p.k, p.s.conv, at, run
    step, whole = c.stride[1], -(-c.kernel[1] // 2)
    shifted = -(-(c.kernel[1] + 1) // 2)
    base, odd = lot * (cols * step // 2) + start * step // 2, start * step % 2
    acc = k.local("a", cols, dtype=I32)
    bias = k.let("b", p.b[channel])
    for i in range(cols):
        acc[i] = bias
    kind = "unroll" if c.kernel[0] * whole <= 9 else "serial"
    with k.loop("ky", c.kernel[0], kind=kind) as ky:
        y = row * c.stride[0] + ky * c.dilation[0]
        for parity in (0, 1) if step % 2 else (0,):
            taps = [k.let("w", weights[ky, t + parity * whole]) for t in range(shifted if parity else whole)]
            for i in range(cols):
                where = odd + i * step
                if where % 2 == parity:
                    for t, tap in enumerate(taps):
                        acc[i] = op("dot2_i16", acc[i], p.scratch[y, base + where // 2 + t], tap)
    p.store(n, channel, row, [lot * cols + start + i for i in range(cols)], [acc[i] for i in range(cols)])
