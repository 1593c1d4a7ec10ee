"""Convolution of 8-bit integers by products of blocks: two positions by two channels, of eight inputs each.

Arm's I8MM has an instruction for it, SMMLA or USMMLA, which sums 32 products where the dot product sums 16.  A register
holds eight input channels of two neighbouring positions, which are two words of 32 bits in each of two blocks of four
channels: four positions of both blocks are loaded and interleaved.  Weights are packed so.  Everything else is as in
``kernels.integer_conv``.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, op, vector4
from tenon.machine.kernels import integer_conv
from tenon.machine.kernels.conv import Conv, OutputTile, described, tiles
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerConvContext
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

LANES = 4
"""Words of a register."""
POSITIONS, VECTORS = 8, 2
"""Positions and vectors of output channels of a tile: 16 sums of the 32 registers of AArch64."""


def applies(c: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: of bytes in blocks of four channels, neighbours in a row."""
    bytes = c.x.dtype in machine.fours and c.weights is DType.I8
    plain = c.groups == 1 and c.stride[1] == 1 and not c.depthwise and c.packed and not c.batch
    return machine.has("mmla") and bytes and plain and c.x.block == c.y.block == machine.lanes == LANES


def cuts(c: Conv) -> list[tuple[int, int, int]]:
    """(first vector of output channels, tiles, vectors of one)."""
    return segments(c.padded // LANES, VECTORS)


def pack(weights: Array, s: IntegerConv) -> list[Array]:
    """Words of i32 [tiles][input blocks / 2, rounded up][kh][kw][vectors * 2][4] for every one of ``cuts``, of weights
    [out, in, kh, kw] in i8: eight inputs of each of two channels in four words."""
    c = s.conv
    out, channels, kh, kw = weights.shape
    steps = -(-c.x.blocks // 2)
    whole = np.zeros((c.padded, steps * 8, kh, kw), np.int8)
    whole[:out, :channels] = weights
    pairs = whole.reshape(c.padded // 2, 2, steps, 8, kh, kw).transpose(0, 2, 4, 5, 1, 3)
    words = np.ascontiguousarray(pairs).view(np.int32).reshape(c.padded // 2, steps, kh, kw, LANES)
    packed = []
    for first, count, vecs in cuts(c):
        part = words[2 * first : 2 * (first + count * vecs)].reshape(count, 2 * vecs, *words.shape[1:])
        packed.append(np.ascontiguousarray(np.moveaxis(part, 1, 4)))
    return packed


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine) -> Kernel:
    """Parameters: x, the packed weights of each cut (``pack``), bias in i32 (padded), rows of factors, mask when
    ``conv.clear``, operands, y."""
    c = s.conv
    shown = "x".join(map(str, c.kernel))
    k = Builder(f"integer_blocks{shown}_{c.x.channels}_{c.y.shown}", f"{described(c)}, by products of blocks")
    steps = -(-c.x.blocks // 2)
    shapes = [(count, steps, *c.kernel, 2 * vecs, LANES) for _, count, vecs in cuts(c)]
    p, ws = integer_conv.begin(k, s, shapes, machine, in_rows=True)
    with k.loop("n", c.y.n) as n:
        for (first, count, vecs), w in zip(cuts(c), ws, strict=True):
            for o, top, left, _, width in tiles(k, count, c.extent, OutputTile(1, POSITIONS, vecs), machine.threads):
                about = f"{width} positions by {vecs * LANES} channels at a time"
                with k.outline(f"{width}x{vecs * LANES}", about):
                    _tile(p, w, (n, o, top, left), width, (first, vecs))
    return k.done()


def _tile(
    p: IntegerConvContext, w: Tensor, at: tuple[Index, Index, Index, Index], width: int, run: tuple[int, int]
) -> None:
    k, c, (n, o, top, left), (start, vecs) = p.k, p.s.conv, at, run
    first = o * vecs + start
    acc = k.local("a", -(-width // 2), 2 * vecs, dtype=I32, lanes=LANES)
    for v in range(vecs):
        bias = k.let("b", p.b.vec(LANES)[first + v])
        for half, name in enumerate(("low_halves", "high_halves")):
            twice = k.let("b", op(name, bias, bias))
            for i in range(-(-width // 2)):
                acc[i, 2 * v + half] = twice
    for step, count, blocks in segments(c.x.blocks, 2):
        with (
            k.loop("c", count) as turn,
            k.loop("ky", c.kernel[0]) as ky,
            k.loop("kx", c.kernel[1]) as kx,
        ):
            block = turn * blocks + step
            weights = [k.let("w", w.vec(LANES)[o, turn + step // 2, ky, kx, v, 0]) for v in range(2 * vecs)]
            row = top * c.stride[0] + ky * c.dilation[0] + (c.x.top - c.top)
            col = left + kx * c.dilation[1] + (c.x.left - c.left)
            places = [(n, block, row, col), (n, block + (blocks - 1), row, col)]
            for i, inputs in enumerate(_inputs(p, places, width)):
                for v, weight in enumerate(weights):
                    acc[i, v] = op("mmla" if c.x.dtype is DType.U8 else "mmla_signed", acc[i, v], inputs, weight)
    for i in range(width):
        for v in range(vecs):
            a, b = acc[i // 2, 2 * v], acc[i // 2, 2 * v + 1]
            total = k.let("s", op("high_halves" if i % 2 else "low_halves", a, b))
            p.store(n, (first + v) * LANES, top, left + i, LANES, total)


def _inputs(p: IntegerConvContext, places: list[tuple[Index, Index, Index, Index]], width: int) -> list[Expr]:
    """Eight inputs of two positions each; ``places`` are where the words of both blocks begin.  A block without a
    second one is its own, by weights that are zero."""
    k, inputs = p.k, list[Expr]()

    def words(j: int, lanes: int) -> list[Expr]:
        loads = [Load(p.x.buffer, tuple(map(index, (*at[:3], at[3] + j))), Type(DType.Q8, lanes)) for at in places]
        return [k.let("v", load) for load in loads]

    for j in range(0, width - width % 4, 4):
        low, high = words(j, LANES)
        inputs += [k.let("x", op(name, low, high)) for name in ("low_words", "high_words")]
    for j in range(width - width % 4, width, 2):
        pair = [words(i, 1) for i in (j, min(j + 1, width - 1))]
        inputs.append(k.let("x", vector4(*pair[0], *pair[1])))
    return inputs
