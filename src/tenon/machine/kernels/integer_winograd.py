"""Winograd's F(2x2, 3x3) in integers by products of pairs of 16 bits: a 3x3 convolution of i8 by 16 products for 36.

Tiles of 2x2 outputs (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015).  The transform of the
filters is doubled along both axes, so that it is of integers (12 bits and a sign); transformed inputs take 10 bits and
a sign, and the transformed sums are exactly four times those of the convolution.  So results are bit-identical to
those of ``kernels.integer_pairs``.

A *panel* holds the transformed inputs of up to four tiles of a row, from which every output channel is summed, two
channels at a time, for one of the 16 elements of a tile after the other.  No halo is asked for or read.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, op
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.integer_pairs import POSITIONS, PairContext, PairConv, begin, pair_of, row_of
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32

TILES = 4
"""Tiles of a panel."""
CHANNELS = 2
"""Output channels that are summed together."""
ELEMENTS = 16
"""Elements of a transformed tile."""
MOST_CHANNELS = 2048
"""Most input channels: four times a sum fits 32 bits."""
_UNROLL = 8
_FILTER = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.int32)
"""Twice Winograd's transform of a filter of three taps."""


def applies(c: Conv) -> bool:
    """Whether there is a kernel for a convolution: 3x3 of stride 1, to an even number of rows, columns and channels."""
    plain = c.kernel == (3, 3) and c.stride == c.dilation == (1, 1) and c.groups == 1
    even = not any(n % 2 for n in (*c.extent, c.y.channels))
    return plain and even and 1 < c.x.channels <= MOST_CHANNELS


def panel(s: PairConv) -> tuple[int, int, int]:
    """Words of the panel: elements of a tile, pairs of channels and the sums of two channels, and tiles."""
    return ELEMENTS, 2 * s.fours + CHANNELS, min(TILES, s.conv.extent[1] // 2)


def pack(weights: Array, s: PairConv) -> Array:
    """Words of i32 [channels / 2][16][pairs][2] of weights [out, in, 3, 3] in i8: transformed, as pairs of 16 bits."""
    out, channels, _, _ = weights.shape
    whole = np.zeros((out, 4 * s.fours, 3, 3), np.int32)
    whole[:, :channels] = weights
    wide = np.einsum("fr,ocrs,gs->ocfg", _FILTER, whole, _FILTER).reshape(out // 2, 2, s.fours, 2, 2, ELEMENTS)
    # Pairs are channels 0 and 2, then 1 and 3 of each word: (out, two, four, second of a pair, pair, element).
    ordered = wide.transpose(0, 5, 2, 4, 1, 3).astype(np.int16)
    return np.ascontiguousarray(ordered).view(np.int32).reshape(out // 2, ELEMENTS, 2 * s.fours, CHANNELS)


@lru_cache(maxsize=512)
def conv(s: PairConv) -> Kernel:
    """Parameters: x, words of weights (``pack``), bias in i32, ``integer_pairs.factors``, a panel (i32 of ``panel``),
    y."""
    c = s.conv
    k = Builder(
        f"integer_winograd_{c.x.channels}_{c.y.shown}", f"{described(c)}, by Winograd's F(2x2, 3x3) in integers"
    )
    p = begin(k, s, (c.y.channels // CHANNELS, ELEMENTS, 2 * s.fours, CHANNELS), panel(s))
    with k.loop("n", c.y.n) as n, k.loop("i", c.extent[0] // 2) as row:
        for start, count, width, inside in groups(c):
            with k.loop("j", count) as j:
                tile = j * width + start
                with k.outline(f"columns{width}", f"the inputs of {width} tiles, transformed along rows"):
                    _columns(p, (n, row, tile), width, inside=inside)
                with k.outline(f"rows{width}", "the same, transformed along columns"):
                    _rows(p, width)
                with k.outline(f"tiles{width}", f"{width} tiles by {CHANNELS} channels at a time"):
                    _tiles(p, (n, row, tile), width)
    return k.done()


def groups(c: Conv) -> list[tuple[int, int, int, bool]]:
    """(first tile, groups, tiles of one, whether no column lies beside the image); groups alike are neighbours."""
    runs: list[tuple[int, int, int, bool]] = []
    for start, iterations, width in segments(c.extent[1] // 2, TILES):
        for j in range(iterations):
            first = (start + j * width) * 2 - c.left
            inside = first >= 0 and first + 2 * width + 1 < c.x.w
            if runs and inside and runs[-1][2:] == (width, True):
                runs[-1] = (*runs[-1][:1], runs[-1][1] + 1, width, True)
            else:
                runs.append((start + j * width, 1, width, inside))
    return runs


def _columns(p: PairContext, at: tuple[Index, Index, Index], width: int, *, inside: bool) -> None:
    """Every row of the inputs, transformed along it, as elements 4 r to 4 r + 3 of the panel."""
    k, s, c, (n, row, tile) = p.k, p.s, p.s.conv, at
    with k.loop("r", 4) as r:
        y, inner = row_of(c, row * 2, r)
        with k.when(*inner):
            _row(p, (n, y, tile), r, width, inside=inside)
        for fact in inner:
            with k.when(-fact - 1), k.loop("d", 2 * s.fours) as d, k.unroll("t", width) as i:
                for element, value in enumerate((0, 2 * s.fill, 0, 0)):
                    p.scratch[r * 4 + element, d, i] = pair_of(value)


def _row(p: PairContext, at: tuple[Index, Index, Index], r: Index, width: int, *, inside: bool) -> None:
    k, s, c, (n, y, tile) = p.k, p.s, p.s.conv, at
    first = tile * 2 - c.left
    four = (s.fill & 0xFF) * 0x01010101
    filled = four - ((four >> 31) << 32)

    def word(block: Index, x: Index) -> Expr:
        load = bitcast(p.x.vec(4)[s.four(n, block, y, x)], I32)
        return load if inside else guarded((x, c.x.w - 1 - x), load, filled)

    with k.loop("c", s.fours) as block:
        given = [k.let("v", word(block, first + j)) for j in range(2)]
        for i in range(width):
            given += [k.let("v", word(block, first + (2 * i + j))) for j in (2, 3)]
            for half, name in enumerate(("even_bytes", "odd_bytes")):
                d = [k.let("d", op(name, each)) for each in given[2 * i : 2 * i + 4]]
                for element, value in enumerate(_input_transform(d)):
                    p.scratch[r * 4 + element, block * 2 + half, i] = value


def _input_transform(d: list[Expr]) -> list[Expr]:
    """Four pairs of inputs of a tile, transformed."""
    return [
        op("sub_i16x2", d[0], d[2]),
        op("add_i16x2", d[1], d[2]),
        op("sub_i16x2", d[2], d[1]),
        op("sub_i16x2", d[1], d[3]),
    ]


def _rows(p: PairContext, width: int) -> None:
    """The panel, transformed along columns in place."""
    k = p.k
    with k.loop("c", 4) as c, k.loop("d", 2 * p.s.fours) as pair, k.unroll("t", width) as i:
        d = [k.let("d", p.scratch[c + 4 * r, pair, i]) for r in range(4)]
        for r, value in enumerate(_input_transform(d)):
            p.scratch[c + 4 * r, pair, i] = value


def _tiles(p: PairContext, at: tuple[Index, Index, Index], width: int) -> None:
    k, (n, row, tile), depth = p.k, at, 2 * p.s.fours
    unroll = next(u for u in range(min(_UNROLL, depth), 0, -1) if depth % u == 0)
    with k.loop("o", p.s.conv.y.channels // CHANNELS) as o:
        numbers, room = (depth // unroll, unroll), width == p.scratch.buffer.shape[-1].const == POSITIONS
        whole = room and unroll > 1
        with (
            k.instruction("pairs_elements", [(p.w, (o, 0, 0, 0)), (p.scratch, (0, 0, 0))], *numbers, ELEMENTS)
            if whole
            else nullcontext(),
            k.loop("f", ELEMENTS) as element,
        ):
            acc = k.local("a", CHANNELS, width, dtype=I32)
            for v in range(CHANNELS):
                for i in range(width):
                    acc[v, i] = Const(0, Type(I32))
            sums = [(acc, (v, i)) for i in range(width) for v in range(CHANNELS)]
            operands = [(p.w, (o, element, 0, 0)), (p.scratch, (element, 0, 0)), *sums]
            with (
                k.instruction("pairs_wide", operands, *numbers) if room and unroll > 1 else nullcontext(),
                k.loop("d", depth // unroll) as outer,
                k.unroll("u", unroll) as inner,
            ):
                d = outer * unroll + inner
                weights = [k.let("w", p.w[o, element, d, v]) for v in range(CHANNELS)]
                for i in range(width):
                    x = k.let("x", p.scratch[element, d, i])
                    for v in range(CHANNELS):
                        acc[v, i] = op("dot2_i16", acc[v, i], x, weights[v])
            for v in range(CHANNELS):
                for i in range(width):
                    p.scratch[element, depth + v, i] = acc[v, i]
        for v in range(CHANNELS):
            channel = o * CHANNELS + v
            bias, factors = k.let("b", p.b[channel]), p.factors(channel)
            with k.loop("t", width) as turn:
                results = _output_transform(k, p.scratch, depth + v, turn)
                for below, line in enumerate(results):
                    for right, total in enumerate(line):
                        place = (n, channel, row * 2 + below, tile * 2 + (turn * 2 + right))
                        p.put(place, k.let("s", bias + (total >> 2)), factors)


def _output_transform(k: Builder, scratch: Tensor, at: int, tile: Index) -> list[list[Expr]]:
    """Four times the sums of a tile, [rows][columns]."""

    def halved(m: list[Expr]) -> tuple[Expr, Expr]:
        return m[0] + m[1] + m[2], m[1] - m[2] - m[3]

    columns = [halved([k.let("m", scratch[4 * r + c, at, tile]) for r in range(4)]) for c in range(4)]
    named = [[k.let("c", pair[y]) for pair in columns] for y in range(2)]
    return [list(halved(line)) for line in named]
