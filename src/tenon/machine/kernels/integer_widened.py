"""Convolution of bytes by products of pairs of 16 bits, for machines that multiply these two at a time in vectors.

Widening both factors for every product of bytes takes longer than the product.  So activations are widened once, into
scratch memory, and weights as they are loaded, for all positions of a tile.  Sums are exact in i32, and equal those of
``kernels.integer_conv``, whose tiles and epilogue these are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, bitcast, broadcast, cast, op
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.conv import Conv, GroupRun, OutputTile, described, runs
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds, read_at
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.tiles_of_runs import tiles_of_runs
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

_UNROLL = 4
_RUN = 64
"""Vectors of activations that are widened in one work item."""


def applies(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel: of blocks of an even number of bytes."""
    bytes = s.x.dtype in (DType.I8, DType.U8) and s.weights is DType.I8
    return machine.has("madd_i16") and bytes and s.x.block % 2 == 0 and s.packed and not s.batch


def weights_type(s: IntegerConv) -> DType:
    """The type of packed weights: bytes, but of 16 bits where a zero point is subtracted from them."""
    return DType.I16 if s.weight_zero else DType.I8


def pack(weights: Array, s: IntegerConv, machine: Machine, vecs: int) -> list[Array]:
    """One array per run, [iterations][input blocks][kh][kw][block / 2][vecs][lanes][2]: two neighbouring input channels
    of each output channel side by side."""
    # Channels of other groups share vectors with those of a group: their weights are nothing, which is zero.
    whole = dense.pack(weights.astype(np.int16) - s.weight_zero, _of_words(s), machine, vecs)
    packed = []
    for r, p in zip(runs(s.conv, machine, vecs), whole, strict=True):
        *outer, block, width = p.shape
        pairs = p.reshape(*outer, block // 2, 2, width // r.lanes, r.lanes)
        ordered = np.moveaxis(pairs, -3, -1).reshape(*outer, block // 2, 2 * width)
        packed.append(np.ascontiguousarray(ordered.astype(weights_type(s).numpy)))
    return packed


def _of_words(s: IntegerConv) -> Conv:
    """The convolution with weights of 16 bits."""
    c = s.conv
    return Conv(c.x, c.y, c.kernel, groups=c.groups, weights=DType.I16)


@lru_cache(maxsize=512)
def widened(x: Image, machine: Machine) -> Kernel:
    """Parameters: x, the same image in i16, its halo included."""
    k = Builder(f"widened_{x.shown}", f"{x.shown} bytes as numbers of 16 bits")
    total = math.prod(x.shape)
    lanes = next(n for n in (2 * machine.lanes, machine.lanes, 4, 2, 1) if n <= 2 * machine.lanes and total % n == 0)
    source = k.param("x", total, dtype=x.dtype)
    target = k.param("y", total, dtype=DType.I16, out=True)
    for start, count, each in segments(total // lanes, _RUN):
        (kind,), inside = deal(count, threads=machine.threads)
        with k.loop("i", count, kind=kind) as i, k.loop("j", each, kind=inside) as j:
            at = i * each + j + start
            target.vec(lanes)[at] = cast(source.vec(lanes)[at], DType.I16)
    return k.done()


@dataclass(frozen=True, eq=False)
class WidenedContext(IntegerEnds):
    """The parameters that all tiles of a kernel share."""

    x: Tensor
    unroll: int

    def weight(self, stored: Expr) -> Expr:
        """A vector of pairs of weights."""
        return self.k.let("w", bitcast(cast(stored, DType.I16), I32))


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x in words of two channels (``widened``), the packed weights of each run (``pack``), bias in i32
    (padded), rows of factors, mask when ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_widened_{dense._name(c)}", f"{described(c)}, in integers, by pairs of 16 bits")
    *outer, block = c.x.shape
    x = k.param("x", *outer, block // 2, dtype=I32)
    cut = runs(c, machine, tile.vecs)
    ws = [k.param("w", r.iterations, r.blocks, *c.kernel, block // 2, 2 * r.width, dtype=weights_type(s)) for r in cut]
    ends = IntegerEnds.params(k, s)
    parts = WidenedContext(k, s, ends.b, ends.rows, ends.mask, ends.operands, ends.y, x, _UNROLL)
    for r, w, at, size in tiles_of_runs(k, c, machine, tile, ws):
        _tile(parts, r, w, at, size)
    return k.done()


def _tile(
    p: WidenedContext, r: GroupRun, w: Tensor, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> None:
    k, s, (n, o, top, left), (height, width) = p.k, p.s.conv, at, size
    first = o * r.width + r.start
    acc = k.local("a", height, width, r.vecs, dtype=I32, lanes=r.lanes)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        acc[i, j, v] = p.b.vec(r.lanes)[first // r.lanes + v]
    for start, blocks, channels in dense._depths(s, r):
        deep = -(-channels // 2)
        unroll = next(u for u in range(min(p.unroll, deep), 0, -1) if deep % u == 0)
        with (
            k.loop("c", blocks) as c,
            k.loop("ky", s.kernel[0]) as ky,
            k.loop("kx", s.kernel[1]) as kx,
            k.loop("ci", deep // unroll) as ci,
            k.unroll("u", unroll) as u,
        ):
            word, block = ci * unroll + u, c + start
            weights = [p.weight(w.vec(2 * r.lanes)[o, block, ky, kx, word, v]) for v in range(r.vecs)]
            with k.unroll("p", height) as i, k.unroll("q", width) as j:
                row, col = read_at(s, (top + i, left + j), (ky, kx))
                value = k.let("v", broadcast(p.x[n, block + o * r.step + r.first, row, col, word], r.lanes))
                for t, weight in enumerate(weights):
                    acc[i, j, t] = op("madd_i16", acc[i, j, t], value, weight)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        p.store(n, first + v * r.lanes, top + i, left + j, r.lanes, acc[i, j, v])
