"""Depthwise convolution of 8-bit and 16-bit integers with requantisation in the epilogue: see ``integer_conv``.

A tile is a row of positions by one vector of channels.  Where the machine multiplies bytes four at a time, four
neighbouring taps of a row are one word of 32 bits.  Weights less their zero point that exceed one byte are the sum of
two, of which each has products of its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Kernel, Load, Type, cast, interleave4, op
from tenon.machine.kernels import depthwise as depthwise_by_lanes
from tenon.machine.kernels.conv import described
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerConvContext, begin, read_at, shared, words
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32

UNROLLED = 128
"""Most products that a tile of a depthwise convolution is unrolled to."""


def halves(weights: Array) -> tuple[Array, Array] | None:
    """Two arrays of i8 whose sum ``weights`` are; None if there are none."""
    first = weights >> 1
    pair = first, weights - first
    fit = all(half.min(initial=0) >= -128 and half.max(initial=0) <= 127 for half in pair)
    return (pair[0].astype(np.int8), pair[1].astype(np.int8)) if fit else None


def pack(weights: Array, s: IntegerConv, machine: Machine) -> Array:
    """[1][channels / lanes][kh][kw][lanes]; four taps of a row as one word where they are multiplied so,
    [1][channels / lanes][kh][kw / 4, rounded up][lanes], or [2] of both ``halves``."""
    both = halves(weights) if s.halved else None
    return np.stack([_packed(each, s, machine) for each in both or (weights,)])


def _packed(weights: Array, s: IntegerConv, machine: Machine) -> Array:
    packed = depthwise_by_lanes.pack(weights, s.conv, machine)
    if not s.fours(machine):
        return packed
    spare = -s.conv.kernel[1] % 4
    return words(np.pad(packed, ((0, 0), (0, 0), (0, spare), (0, 0))))


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine) -> Kernel:
    """Parameters: those of ``integer_conv.conv``, weights as ``pack`` has them.  Blocks are whole vectors."""
    c, lanes, fours = s.conv, machine.lanes, s.fours(machine)
    k = Builder(f"integer_depthwise{'x'.join(map(str, c.kernel))}_{c.y.shown}", f"{described(c)}, in integers")
    row = -(-c.kernel[1] // 4) if fours else c.kernel[1]
    parts, (w,) = begin(k, s, [(1 + s.halved, c.padded // lanes, c.kernel[0], row, lanes)], machine)
    cols = max(1, min(c.extent[1], 8, machine.registers // 2 - 2))
    if fours:
        share, tiles = shared(c.kernel[1], c.stride[1]), -(-c.extent[1] // min(12, machine.registers // 2))
        cols = -(-c.extent[1] // tiles // share) * share
    (vectors, rows), inside = deal(c.padded // lanes, c.extent[0], threads=machine.threads)
    tile = _by_fours if fours else _by_taps
    with ExitStack() as stack:
        n = stack.enter_context(k.loop("n", c.y.n))
        v = stack.enter_context(k.loop("v", c.padded // lanes, kind=vectors))
        i = stack.enter_context(k.loop("i", c.extent[0], kind=rows))
        for left, across, width in segments(c.extent[1], cols):
            about = f"a tile of 1 x {width} positions by {lanes} channels"
            with k.loop("j", across, kind=inside) as j, k.outline(f"1x{width}v{lanes}", about):
                tile(parts, w, (n, v, i, j * width + left), width)
    return k.done()


def _by_fours(p: IntegerConvContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int) -> None:
    """Four columns, interleaved, are read once for all outputs that see them; for the next output the weights move on
    by a byte, or by several."""
    k, s, lanes, (n, vector, row, left) = p.k, p.s.conv, p.machine.lanes, at
    channel, flip = vector * lanes, p.flip(lanes)
    share = shared(s.kernel[1], s.stride[1])
    acc = k.local("a", width, dtype=I32, lanes=lanes)
    with k.unroll("q", width) as j:
        acc[j] = p.b.vec(lanes)[vector]
    count = -(-s.kernel[1] // 4)
    kind = "unroll" if width * s.kernel[0] * count * (1 + p.s.halved) <= UNROLLED else "serial"
    with k.loop("ky", s.kernel[0], kind=kind) as ky, k.loop("kx", count, kind=kind) as kx:
        moved = []
        for half in range(1 + p.s.halved):
            weight = k.let("w", w.vec(lanes)[half, vector, ky, kx, 0])
            moved.append([weight] + [k.let("w", weight << 8 * m * s.stride[1]) for m in range(1, share)])
        for start in range(0, width, share):
            y, x = read_at(s, (row, left + start), (ky, kx * 4))
            at_bytes = tuple(map(index, (n, channel // s.x.block, y, x * s.x.block)))
            value = interleave4(Load(p.x.buffer, at_bytes, Type(s.x.dtype, 4 * lanes)))
            value = k.let("v", value if flip is None else op("xor", value, flip))
            for m in range(min(share, width - start)):
                for weights in moved:
                    acc[start + m] = p.multiply_add(acc[start + m], value, weights[m])
    with k.unroll("q", width) as j:
        p.store(n, channel, row, left + j, lanes, acc[j])


def _by_taps(p: IntegerConvContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int) -> None:
    k, s, lanes, (n, vector, row, left) = p.k, p.s.conv, p.machine.lanes, at
    channel = vector * lanes
    acc = k.local("a", width, dtype=I32, lanes=lanes)
    with k.unroll("q", width) as j:
        acc[j] = p.b.vec(lanes)[vector]
    kind = "unroll" if width * s.taps <= UNROLLED else "serial"
    with k.loop("ky", s.kernel[0], kind=kind) as ky, k.loop("kx", s.kernel[1], kind=kind) as kx:
        weight = k.let("w", p.weight(w.vec(lanes)[0, vector, ky, kx, 0]))
        with k.unroll("q", width) as j:
            y, x = read_at(s, (row, left + j), (ky, kx))
            value = p.x.vec(lanes)[n, channel // s.x.block, y, x, channel % s.x.block // lanes]
            acc[j] = acc[j] + cast(value, I32) * weight
    with k.unroll("q", width) as j:
        p.store(n, channel, row, left + j, lanes, acc[j])
