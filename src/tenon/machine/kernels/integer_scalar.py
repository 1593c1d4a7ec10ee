"""Convolution of 8-bit integers by single products, for cores that have neither DSP instructions nor vectors.

The inputs of up to four positions are widened to words once, into a *panel* in scratch memory, from which every output
channel is summed; weights stay bytes.  A tile is 4 positions x 2 channels where the sums fit registers, 4 x 1 in eight.
A product with one vector needs no panel.  No halo is asked for or read: borders are written into panels.

``kernels.integer_pairs`` is the same for cores with DSP instructions; results are requantised as there.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast
from tenon.machine.kernels.conv import described
from tenon.machine.kernels.integer_pairs import (
    PairContext,
    PairConv,
    begin,
    columns,
    contiguous,
    row_of,
    sum_tile,
)
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

POSITIONS = 4
"""Most positions of a panel."""
SMALL_PANEL = 1024
"""Bytes of a panel that is never cut."""
SHARE = 8
"""A larger panel of a plane takes at most this part of the bytes of input and output: it is the first layer that reads
a plane, where images, and with them the memory of a network, are largest."""
_STEP = 4
"""Inputs that are summed without a test for the end, or twice as many: depths are multiples of it."""
_REGISTERS = 12
"""Registers that a tile of two channels takes."""
_LINE, _SHORT_LINE = 6, 3
"""Most results of a depthwise convolution that are summed together, and with fewer registers."""
_UNROLLED = 9
_COPIED = 4


def channels(s: PairConv, machine: Machine) -> int:
    """Output channels of a tile."""
    if s.vector:
        return 4
    return 2 if machine.registers >= _REGISTERS else 1


def _taps(s: PairConv) -> int:
    """Inputs in a row of the kernel."""
    return s.conv.kernel[1] * (4 * s.fours if s.words else 1)


def depth(s: PairConv) -> int:
    """Inputs of a position, rounded up."""
    return -(-s.conv.kernel[0] * _taps(s) // _STEP) * _STEP


def panel(s: PairConv) -> tuple[int, int]:
    """Words of the panel: inputs, and positions."""
    return (1, 1) if s.vector else (depth(s), _positions(s))


def pack(weights: Array, s: PairConv, machine: Machine) -> Array:
    """i8 [channels / tile][depth][tile] of weights [out, in, kh, kw]."""
    out, given, kh, kw = weights.shape
    tile = channels(s, machine)
    inputs = weights[:, 0]
    if s.words:
        whole = np.zeros((out, 4 * s.fours, kh, kw), np.int8)
        whole[:, :given] = weights
        inputs = whole.reshape(out, s.fours, 4, kh, kw).transpose(0, 3, 1, 4, 2)
    inputs = inputs.reshape(out, -1)
    inputs = np.pad(inputs, ((0, -out % tile), (0, depth(s) - inputs.shape[1])))
    return np.ascontiguousarray(inputs.reshape(-1, tile, depth(s)).transpose(0, 2, 1))


def _positions(s: PairConv) -> int:
    """Positions of a tile: those of a row, cut into tiles that are as equal as can be."""
    c, most = s.conv, POSITIONS
    room = max(SMALL_PANEL, (math.prod(c.x.shape) + math.prod(c.y.shape)) // SHARE)
    while not s.words and most > 1 and I32.bytes * depth(s) * most > room:
        most //= 2
    return -(-c.extent[1] // -(-c.extent[1] // most))


@lru_cache(maxsize=512)
def conv(s: PairConv, machine: Machine) -> Kernel:
    """Parameters: x, weights (``pack``), bias in i32, ``integer_pairs.factors``, a panel (i32 of ``panel``), y."""
    c, tile, deep = s.conv, channels(s, machine), depth(s)
    shown = "x".join(map(str, c.kernel))
    k = Builder(f"integer_scalar{shown}_{c.x.channels}_{c.y.shown}", f"{described(c)}, in integers")
    p = begin(k, s, (-(-c.y.channels // tile), deep, tile), panel(s), DType.I8)
    spare = deep - c.kernel[0] * _taps(s)
    if spare and not s.vector:
        with k.loop("d", spare) as d, k.unroll("p", panel(s)[1]) as i:
            p.scratch[d + (deep - spare), i] = 0
    with k.loop("n", c.y.n) as n, k.loop("i", c.extent[0]) as row:
        for start, count, width, inside in columns(c, _positions(s)):
            with k.loop("j", count) as j:
                col = j * width + start
                if not s.vector:
                    with k.outline(f"panel{width}", f"the inputs of {width} positions as words"):
                        _panel(p, n, row, col, width, inside=inside)
                for first, times, each in segments(c.y.channels, tile):
                    with k.outline(f"{width}x{each}", f"{width} positions by {each} channels at a time"):
                        _tile(p, (n, row, col), width, (first // tile, times, each), tile)
    return k.done()


def _panel(p: PairContext, n: Index, row: Index, col: Index, width: int, *, inside: bool) -> None:
    """The inputs of ``width`` positions from ``col`` on."""
    k, c, taps = p.k, p.s.conv, _taps(p.s)
    with k.loop("ky", c.kernel[0]) as ky:
        y, inner = row_of(c, row, ky)
        with k.when(*inner):
            _panel_row(p, (n, y, col), ky * taps, width, inside=inside)
        for fact in inner:
            with k.when(-fact - 1), k.loop("d", taps) as d, k.unroll("p", width) as i:
                p.scratch[ky * taps + d, i] = p.s.fill


def _panel_row(p: PairContext, at: tuple[Index, Index, Index], base: Index, width: int, *, inside: bool) -> None:
    k, s, c, (n, y, col) = p.k, p.s, p.s.conv, at
    kind, lanes = "serial" if inside else "unroll", 4 if s.words else 1
    with (
        k.loop("c", s.fours if s.words else 1) as block,
        k.loop("kx", c.kernel[1], kind=kind) as kx,
        k.unroll("p", width) as i,
        k.unroll("u", lanes) as u,
    ):
        x = (col + i) * c.stride[1] + kx * c.dilation[1] - c.left
        *outer, first = s.four(n, block, y, x) if s.words else (n, 0, y + c.x.top, x + c.x.left, 0)
        load: Expr = p.x[(*outer, first * 4 + u if s.words else first)]
        value = load if inside else guarded((x, c.x.w - 1 - x), load, s.fill)
        p.scratch[base + block * (lanes * c.kernel[1]) + kx * lanes + u, i] = cast(value, I32)


def _tile(p: PairContext, at: tuple[Index, Index, Index], width: int, run: tuple[int, int, int], tile: int) -> None:
    k, s, deep = p.k, p.s, depth(p.s)
    unroll = _STEP if s.vector or deep % (2 * _STEP) else 2 * _STEP

    def add(acc: Tensor, group: Index, outer: Index, inner: Index) -> None:
        d = outer * unroll + inner
        weights = [k.let("w", cast(p.w[group, d, v], I32)) for v in range(run[2])]
        for i in range(width):
            x = k.let("x", _of_vector(p, at[0], outer, inner) if s.vector else p.scratch[d, i])
            for v, weight in enumerate(weights):
                acc[v, i] = acc[v, i] + x * weight

    def instruction(acc: Tensor, group: Index) -> AbstractContextManager[None]:
        sums = [(acc, (v, i)) for i in range(width) for v in range(run[2])]
        weights, numbers = (p.w, (group, 0, 0)), (deep // unroll, unroll)
        if s.vector and run[2] == 4 and contiguous(p, at[0]):
            *outer, first = s.four(at[0], Index())
            operands = [weights, (p.x, (*outer, first * 4)), *sums]
            return k.instruction("bytes_vector4", operands, *numbers, 1)
        if not s.vector and run[2] == tile and width == panel(s)[1]:
            return k.instruction(f"bytes_panel{tile}", [weights, (p.scratch, (0, 0)), *sums], *numbers, width)
        return nullcontext()

    sum_tile(p, at, width, run, tile, (deep // unroll, unroll), add, instruction)


def _of_vector(p: PairContext, n: Index, word: Index, byte: Index) -> Expr:
    *outer, first = p.s.four(n, word)
    return cast(p.x[(*outer, first * 4 + byte)], I32)


# -------------------------------------------------------------------------------------------- depthwise
def plane(s: PairConv) -> tuple[int, int]:
    """Rows and columns of a channel with its border."""
    c = s.conv
    rows, cols = ((c.extent[i] - 1) * c.stride[i] + (c.kernel[i] - 1) * c.dilation[i] + 1 for i in (0, 1))
    return rows, cols


@lru_cache(maxsize=512)
def depthwise(s: PairConv, machine: Machine) -> Kernel:
    """Parameters: x, weights (``integer_pairs.pack_depthwise``), bias, ``integer_pairs.factors``, a plane (i8 of
    ``plane``), y.

    x and y may be the same memory where they have the same shape.
    """
    c = s.conv
    k = Builder(f"integer_scalar_depthwise{'x'.join(map(str, c.kernel))}_{c.y.shown}", f"{described(c)}, in integers")
    rows, cols = plane(s)
    p = begin(k, s, (c.y.channels, *c.kernel), (rows, cols), DType.I8, DType.I8)
    height, width = min(rows - c.top, c.x.h), min(cols - c.left, c.x.w)  # of x that is read
    for top, left, box in (
        (0, 0, (c.top, cols)),
        (c.top + height, 0, (rows - c.top - height, cols)),
        (c.top, 0, (height, c.left)),
        (c.top, c.left + width, (height, cols - c.left - width)),
    ):
        with k.loop("i", box[0]) as i, k.loop("j", box[1]) as j:
            p.scratch[i + top, j + left] = s.fill
    with k.loop("n", c.y.n) as n, k.loop("c", c.y.channels) as channel:
        with k.outline("plane", "a channel"), k.loop("i", height) as i:
            for start, iterations, count in segments(width, _COPIED):
                with k.loop("j", iterations) as j, k.unroll("u", count) as u:
                    col = j * count + u + start
                    p.scratch[i + c.top, col + c.left] = p.x[c.x.at(n, channel, i, col, 1)]
        with k.outline("rows", "the results of a channel"), k.loop("i", c.extent[0]) as i:
            most = _LINE if machine.registers >= _REGISTERS else _SHORT_LINE
            for start, iterations, count in segments(c.extent[1], -(-c.extent[1] // -(-c.extent[1] // most))):
                with k.loop("j", iterations) as j:
                    _line(p, (n, channel, i, j * count + start), count)
    return k.done()


def _line(p: PairContext, at: tuple[Index, Index, Index, Index], count: int) -> None:
    """``count`` results next to each other."""
    k, c, (n, channel, row, col) = p.k, p.s.conv, at
    acc = k.local("a", count, dtype=I32)
    bias = k.let("b", p.b[channel])
    for i in range(count):
        acc[i] = bias
    with k.loop("ky", c.kernel[0], kind="unroll" if math.prod(c.kernel) <= _UNROLLED else "serial") as ky:
        weights = [k.let("w", cast(p.w[channel, ky, tap], I32)) for tap in range(c.kernel[1])]
        y = row * c.stride[0] + ky * c.dilation[0]
        for place in range((count - 1) * c.stride[1] + (c.kernel[1] - 1) * c.dilation[1] + 1):
            uses = [
                (i, tap)
                for i in range(count)
                for tap in range(c.kernel[1])
                if i * c.stride[1] + tap * c.dilation[1] == place
            ]
            if uses:
                x = k.let("x", cast(p.scratch[y, col * c.stride[1] + place], I32))
            for i, tap in uses:
                acc[i] = acc[i] + x * weights[tap]
    p.store(n, channel, row, [col + i for i in range(count)], [acc[i] for i in range(count)])
