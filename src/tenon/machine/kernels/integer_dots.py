"""Convolution of 8-bit integers by sums of sixteen products of bytes, for cores that add those to a scalar.

Arm's Helium has an instruction for it, VMLADAVA.  Dense: the inputs of two positions are copied into a *panel* in
scratch memory, in whole vectors, from which every output channel is summed; a tile of 2 positions x 4 channels takes 8
scalars.  Depthwise: four channels with their border are copied into scratch memory, so that it may be computed in
place, and are the lanes of a vector.  Results are requantised for four channels at once.  ``kernels.integer_pairs`` is
the same for cores without vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Op,
    Type,
    bitcast,
    broadcast,
    cast,
    maximum,
    minimum,
    op,
    sqrdmulh,
    vector4,
)
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.integer_pairs import Operands, PairConv, Rounding, columns, row_of
from tenon.machine.kernels.requantize import fixed_slope
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

POSITIONS, CHANNELS = 2, 4
"""Positions and channels of a tile."""
_UNROLL = 9
_LINE = 4
"""Vectors of results of a depthwise convolution that are summed together."""


def dot16(acc: Expr, a: Expr, b: Expr) -> Expr:
    """``acc``, one i32, plus all products of the bytes, with their signs, of two vectors of four i32."""
    return Op("dot16", (acc, a, b), acc.type)


def row_words(s: PairConv) -> int:
    """Words of four inputs in a row of the kernel."""
    c = s.conv
    return s.fours * c.kernel[1] if s.words else -(-c.kernel[1] // 4)


def steps(s: PairConv) -> int:
    """Vectors of sixteen inputs of a position."""
    return -(-s.conv.kernel[0] * row_words(s) // 4)


def panel(s: PairConv) -> tuple[int, int]:
    """Positions of the panel, and words of each."""
    return min(POSITIONS, s.conv.extent[1]), 4 * steps(s)


def plane(s: PairConv) -> tuple[int, int, int]:
    """Rows, columns and channels of an image with its border."""
    c = s.conv
    rows, columns = ((c.extent[i] - 1) * c.stride[i] + (c.kernel[i] - 1) * c.dilation[i] + 1 for i in (0, 1))
    return rows, columns, 4


def pack(weights: Array, s: PairConv) -> Array:
    """Words of i32 [channels / 4][steps][4][4] of weights [out, in, kh, kw] in i8: sixteen inputs of each channel."""
    out, channels, kh, kw = weights.shape
    if s.words:
        whole = np.zeros((out, 4 * s.fours, kh, kw), np.int8)
        whole[:, :channels] = weights
        inputs = whole.reshape(out, s.fours, 4, kh, kw).transpose(0, 3, 1, 4, 2).reshape(out, -1)
    else:
        inputs = np.pad(weights[:, 0], ((0, 0), (0, 0), (0, -kw % 4))).reshape(out, -1)
    inputs = np.pad(inputs, ((0, 0), (0, -inputs.shape[1] % 16)))
    ordered = np.ascontiguousarray(inputs.reshape(-1, CHANNELS, steps(s), 16).transpose(0, 2, 1, 3))
    return ordered.view(np.int32)


def pack_depthwise(weights: Array) -> Array:
    """i8 [channels / 4][kh][kw][4] of weights [channels, 1, kh, kw]."""
    out, _, kh, kw = weights.shape
    return np.ascontiguousarray(weights.reshape(out // 4, 4, kh, kw).transpose(0, 2, 3, 1))


def factors(pairs: Array) -> Array:
    """i32 [3, channels], multipliers, what is added and shifts, of the factors of ``kernels.integer_pairs``."""
    rows = pairs.T.copy()
    rows[0] = ((pairs[:, 0].astype(np.int64) + (1 << 32)) >> 1).astype(np.int32)
    return rows


def mixed(pairs: Array, fitted: Array, by_floats: Array) -> Array:
    """i32 [4, channels] of the factors of "even" rounding and of those that are fitted: the latter, but in blocks of
    four of which a channel is one of ``by_floats``; the last row is 1 there, else 0."""
    chosen = np.repeat(by_floats.reshape(-1, CHANNELS).any(axis=1), CHANNELS)
    return np.concatenate([np.where(chosen, factors(pairs), factors(fitted)), chosen[None].astype(np.int32)])


@dataclass(frozen=True, eq=False)
class _DotContext:
    k: Builder
    s: PairConv
    x: Tensor
    w: Tensor
    b: Tensor
    q: Tensor
    scratch: Tensor
    y: Tensor
    operands: Operands

    def factors(self, block: Index) -> list[Expr]:
        """Requantisation constants of four channels."""
        own = self.operands.factor(self.k, block * 4, 4)
        return [*(self.k.let(name, self.q.vec(4)[i, block]) for i, name in enumerate("mhr")), *own]

    def finish(self, block: Index, places: Sequence[tuple[Index, Index, Index, Index]], totals: Sequence[Expr]) -> None:
        """Requantise vectors of sums of the same four channels and store them; places are (image, channel, row,
        column)."""
        s, factors = self.s, self.factors(block)
        if s.fitted_left is None:
            self._store(places, totals, factors, s.rounding, s.left)
            return
        with self.k.bind("e", self.q[3, block * 4], 2) as even:
            with self.k.when(-even):
                self._store(places, totals, factors, "double", s.fitted_left)
            with self.k.when(even - 1):
                self._store(places, totals, factors, s.rounding, s.left)

    def _store(
        self,
        places: Sequence[tuple[Index, Index, Index, Index]],
        totals: Sequence[Expr],
        factors: list[Expr],
        rounding: Rounding,
        left: int,
    ) -> None:
        for at, total in zip(places, totals, strict=True):
            value = cast(self._requantised(at, total, factors, rounding, left), DType.I8)
            result = cast(self.operands.finished(self.k, value, at, 4), DType.I8)
            self.y.vec(4)[self.s.conv.y.place(*at, 4)] = result

    def _requantised(
        self, at: tuple[Index, Index, Index, Index], total: Expr, factors: list[Expr], rounding: Rounding, left: int
    ) -> Expr:
        s, (multiplier, added, right, *own) = self.s, factors
        if own:
            total = self.k.let("t", self.operands.add(at, 4, total, own[0]))
        if s.slope != 1:
            total = self.k.let("t", maximum(total, sqrdmulh(total, fixed_slope(s.slope))))
        if left:
            total = self.k.let("t", total << left)
        high = self.k.let("p", sqrdmulh(total, multiplier))
        if s.signed and rounding == "double":
            high = high + (high >> 31)
        high = high + added
        value = high >> right if rounding == "double" else op("shift_even", high, total, multiplier, added, right)
        return minimum(maximum(value, s.low), s.high)


def _begin(
    k: Builder, s: PairConv, w: tuple[DType, tuple[int, ...]], scratch: tuple[DType, tuple[int, ...]]
) -> _DotContext:
    """Parameters: x, weights, bias, factors, ``Operands``, scratch, y."""
    c = s.conv
    x = k.param("x", *c.x.shape, dtype=DType.I8)
    weights, b = k.param("w", *w[1], dtype=w[0]), k.param("b", c.y.channels, dtype=I32)
    rows = 3 if s.fitted_left is None else 4
    q, operands = k.param("q", rows, c.y.channels, dtype=I32), Operands.begin(k, s)
    t = k.param("t", *scratch[1], dtype=scratch[0], scratch=True)
    return _DotContext(k, s, x, weights, b, q, t, k.param("y", *c.y.shape, dtype=DType.I8, out=True), operands)


# ------------------------------------------------------------------------------------------------ dense
@lru_cache(maxsize=512)
def conv(s: PairConv) -> Kernel:
    """Parameters: x, words of weights (``pack``), bias in i32, ``factors`` (or ``mixed``), a panel (i32
    of ``panel``), y."""
    c = s.conv
    k = Builder(f"integer_dots{'x'.join(map(str, c.kernel))}_{c.x.channels}_{c.y.shown}", f"{described(c)}, by vectors")
    iterations = c.y.channels // CHANNELS
    p = _begin(k, s, (I32, (iterations, steps(s), CHANNELS, 4)), (I32, panel(s)))
    for word in range(c.kernel[0] * row_words(s), 4 * steps(s)):
        for i in range(panel(s)[0]):
            p.scratch[i, word] = Const(0, Type(I32))
    with k.loop("n", c.y.n) as n, k.loop("i", c.extent[0]) as row:
        for start, count, width, inside in columns(c, POSITIONS):
            with k.loop("j", count) as j:
                col = j * width + start
                with k.outline(f"panel{width}", f"the inputs of {width} positions"):
                    _panel(p, n, row, col, width, inside=inside)
                with k.outline(f"{width}x{CHANNELS}", f"{width} positions by {CHANNELS} channels at a time"):
                    _tile(p, (n, row, col), width, iterations)
    return k.done()


def _panel(p: _DotContext, n: Index, row: Index, col: Index, width: int, *, inside: bool) -> None:
    """The inputs of ``width`` positions from ``col`` on."""
    k, s, c = p.k, p.s, p.s.conv
    with k.loop("ky", c.kernel[0]) as ky:
        (y, inner), base = row_of(c, row, ky), ky * row_words(s)
        with k.when(*inner):
            _panel_row(p, (n, y, col), base, width, inside=inside)
        for fact in inner:
            with k.when(-fact - 1), k.unroll("p", width) as i, k.loop("d", row_words(s)) as d:
                p.scratch[i, base + d] = Const(_four(s.fill), Type(I32))


def _panel_row(p: _DotContext, at: tuple[Index, Index, Index], base: Index, width: int, *, inside: bool) -> None:
    k, s, c, (n, y, col) = p.k, p.s, p.s.conv, at

    def value(load: Expr, x: Index, fill: int) -> Expr:
        return k.let("v", load if inside else guarded((x, c.x.w - 1 - x), load, fill))

    def column(i: int, tap: int) -> int:
        return i * c.stride[1] + tap * c.dilation[1]

    across, first = c.kernel[1], col * c.stride[1] - c.left
    seen = sorted({column(i, tap) for i in range(width) for tap in range(across)})
    if not s.words:
        bytes = {
            at: value(cast(p.x[n, 0, y + c.x.top, first + at + c.x.left, 0], I32), first + at, s.fill) for at in seen
        }
        for i in range(width):
            for word in range(row_words(s)):
                taps = range(4 * word, min(4 * word + 4, across))
                parts = [op("and", bytes[column(i, tap)], 255) << 8 * (tap - 4 * word) for tap in taps]
                p.scratch[i, base + word] = reduce(lambda a, b: op("or", a, b), parts)
        return
    unroll = next(u for u in (4, 3, 2, 1) if s.fours % u == 0) if across == 1 else 1
    with k.loop("c", s.fours // unroll) as outer, k.unroll("u", unroll) as inner:
        block = outer * unroll + inner
        words = {at: bitcast(p.x.vec(4)[s.four(n, block, y, first + at)], I32) for at in seen}
        words = {at: value(load, first + at, _four(s.fill)) for at, load in words.items()}
        for i in range(width):
            for tap in range(across):
                p.scratch[i, base + block * across + tap] = words[column(i, tap)]


def _four(value: int) -> int:
    """A word of four equal bytes."""
    word = (value & 0xFF) * 0x01010101
    return word - ((word >> 31) << 32)


def _tile(p: _DotContext, at: tuple[Index, Index, Index], width: int, iterations: int) -> None:
    k, s, (n, row, col) = p.k, p.s, at
    depth = steps(s)
    unroll = next(u for u in range(min(_UNROLL, depth), 0, -1) if depth % u == 0)
    with k.loop("o", iterations) as o:
        acc = k.local("a", CHANNELS, width, dtype=I32)
        for v in range(CHANNELS):
            bias = k.let("b", p.b[o * CHANNELS + v])
            for i in range(width):
                acc[v, i] = bias
        sums = [(acc, (v, i)) for v in range(CHANNELS) for i in range(width)]
        operands = [(p.w.vec(4), (o, 0, 0, 0)), (p.scratch.vec(4), (0, 0)), *sums]
        numbers = depth // unroll, unroll, width, 4 * depth * (width - 1)
        with (
            k.instruction("dot16_tile", operands, *numbers) if unroll > 1 else nullcontext(),
            k.loop("d", depth // unroll) as outer,
            k.unroll("u", unroll) as inner,
        ):
            d = outer * unroll + inner
            inputs = [k.let("x", p.scratch.vec(4)[i, d]) for i in range(width)]
            for v in range(CHANNELS):
                weights = k.let("w", p.w.vec(4)[o, d, v, 0])
                for i, x in enumerate(inputs):
                    acc[v, i] = dot16(acc[v, i], x, weights)
        totals = [vector4(*(acc[v, i] for v in range(CHANNELS))) for i in range(width)]
        p.finish(o, [(n, o * CHANNELS, row, col + i) for i in range(width)], totals)


# -------------------------------------------------------------------------------------------- depthwise
@lru_cache(maxsize=512)
def depthwise(s: PairConv) -> Kernel:
    """Parameters: x, weights (``pack_depthwise``), bias, ``factors`` (or ``mixed``), an image of four channels (i8
    of ``plane``), y.

    x and y may be the same memory where they have the same shape.
    """
    c = s.conv
    k = Builder(f"integer_dots_depthwise{'x'.join(map(str, c.kernel))}_{c.y.shown}", f"{described(c)}, by vectors")
    rows, width, _ = plane(s)
    p = _begin(k, s, (DType.I8, (c.y.channels // 4, *c.kernel, 4)), (DType.I8, plane(s)))
    high, wide = min(rows - c.top, c.x.h), min(width - c.left, c.x.w)  # what is read of x
    border = broadcast(Const(s.fill, Type(DType.I8)), 4)
    for top, left, height, across in (
        (0, 0, c.top, width),
        (c.top + high, 0, rows - c.top - high, width),
        (c.top, 0, high, c.left),
        (c.top, c.left + wide, high, width - c.left - wide),
    ):
        if height > 0 and across > 0:
            with k.loop("i", height) as i, k.loop("j", across) as j:
                p.scratch.vec(4)[i + top, j + left, 0] = border
    with k.loop("n", c.y.n) as n, k.loop("c", c.y.channels // 4) as block:
        with k.outline("plane", "four channels and their border"), k.loop("i", high) as i:
            for start, iterations, count in segments(wide, 8):
                with k.loop("j", iterations) as lot, k.unroll("u", count) as u:
                    at = lot * count + u + start
                    p.scratch.vec(4)[i + c.top, at + c.left, 0] = p.x.vec(4)[c.x.at(n, block * 4, i, at, 4)]
        with k.outline("rows", "the results of four channels"), k.loop("i", c.extent[0]) as i:
            for start, iterations, count in segments(c.extent[1], _LINE):
                with k.loop("j", iterations) as j:
                    _results(p, (n, block, i, j * count + start), count)
    return k.done()


def _results(p: _DotContext, at: tuple[Index, Index, Index, Index], count: int) -> None:
    k, c, (n, block, row, col) = p.k, p.s.conv, at
    acc = k.local("a", count, dtype=I32, lanes=4)
    bias = k.let("b", p.b.vec(4)[block])
    for i in range(count):
        acc[i] = bias
    kind = "unroll" if c.taps <= 9 else "serial"
    with k.loop("ky", c.kernel[0], kind=kind) as ky, k.loop("kx", c.kernel[1], kind=kind) as kx:
        weight = k.let("w", cast(p.w.vec(4)[block, ky, kx, 0], I32))
        for i in range(count):
            y, x = row * c.stride[0] + ky * c.dilation[0], (col + i) * c.stride[1] + kx * c.dilation[1]
            acc[i] = acc[i] + cast(p.scratch.vec(4)[y, x, 0], I32) * weight
    p.finish(block, [(n, block * 4, row, col + i) for i in range(count)], [acc[i] for i in range(count)])


def fits(c: Conv) -> bool:
    """Whether there are kernels for such images, of those that ``kernels.integer_pairs`` has kernels for."""
    return c.y.channels % 4 == 0
