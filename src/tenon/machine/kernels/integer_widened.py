"""Convolution of bytes by products of pairs of 16 bits, for machines that multiply these two at a time in vectors.

Widening both factors for every product of bytes takes longer than the product.  So activations are widened once, into
scratch memory, and weights as they are loaded, for all positions of a tile.  Sums are exact in i32, and equal those of
``kernels.integer_conv``, whose tiles and epilogue these are.

Pairs are of neighbouring channels.  Where an image has an odd number of them, as first layers have, its pixels are laid
side by side without padding, and pairs are of what the taps of a row of the kernel read: seven taps of three channels
are 11 pairs in place of 14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Type, bitcast, broadcast, cast, op
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


def in_rows(s: Conv) -> bool:
    """Whether pairs are of what the taps of a row of the kernel read, because there are fewer of them than of
    channels."""
    plain = s.groups == s.x.blocks == s.dilation[1] == 1 and s.x.channels < s.x.block
    return plain and _row_words(s) < s.kernel[1] * -(-s.x.channels // 2)


def pairs(s: Conv) -> int:
    """How many pairs are multiplied for each sum."""
    channels = -(-s.x.channels // s.groups)
    return s.kernel[0] * (_row_words(s) if in_rows(s) else s.kernel[1] * -(-channels // 2))


def _row_words(s: Conv) -> int:
    return -(-s.kernel[1] * s.x.channels // 2)


def _as_column(s: Conv) -> Conv:
    """The convolution whose channels are all that the taps of a row read, and whose kernel is a column."""
    wide = 2 * _row_words(s)
    return replace(s, x=replace(s.x, channels=wide, block=wide), kernel=(s.kernel[0], 1))


def widened_shape(s: Conv) -> tuple[int, ...]:
    """The shape of widened activations: that of x, or [n][rows][pixels side by side, and lanes past the last one]."""
    n, _, rows, cols, block = s.x.shape
    return (n, rows, cols * s.x.channels + block - s.x.channels) if in_rows(s) else s.x.shape


def weights_type(s: IntegerConv) -> DType:
    """The type of packed weights: bytes, but of 16 bits where a zero point is subtracted from them."""
    return DType.I16 if s.weight_zero else DType.I8


def pack(weights: Array, s: IntegerConv, machine: Machine, vecs: int) -> list[Array]:
    """One array per run, [iterations][input blocks][kh][kw][block / 2][vecs][lanes][2]: two neighbouring input channels
    of each output channel side by side; of rows (``in_rows``) [iterations][1][kh][1][pairs in a row][vecs][lanes][2].
    """
    if in_rows(s.conv):
        out, channels, kh, kw = weights.shape
        column = np.full((out, 2 * _row_words(s.conv), kh, 1), s.weight_zero, np.int16)
        column[:, : kw * channels, :, 0] = np.moveaxis(weights, 3, 1).reshape(out, kw * channels, kh)
        weights, s = column, replace(s, conv=_as_column(s.conv))
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


@lru_cache(maxsize=512)
def widened_rows(s: Conv, machine: Machine) -> Kernel:
    """Parameters: x, its pixels in i16 (``widened_shape``), halo included.  The lanes of a block past its last channel
    are overwritten by the next pixel of the row."""
    x = s.x
    k = Builder(f"widened_rows_{x.shown}", f"{x.shown} bytes as numbers of 16 bits, pixels side by side")
    n, _, rows, cols, block = x.shape
    source = k.param("x", *x.shape, dtype=x.dtype)
    target = k.param("y", *widened_shape(s), dtype=DType.I16, out=True)
    (images, lines), _ = deal(n, rows, threads=machine.threads)
    with k.loop("n", n, kind=images) as image, k.loop("i", rows, kind=lines) as i, k.loop("j", cols) as j:
        value = cast(source.vec(block)[image, 0, i, j, 0], DType.I16)
        k.store(target.buffer, (image, i, j * x.channels), value)
    return k.done()


@dataclass(frozen=True, eq=False)
class WidenedContext(IntegerEnds):
    """The parameters that all tiles of a kernel share."""

    x: Tensor
    unroll: int

    def weight(self, stored: Expr) -> Expr:
        """A vector of pairs of weights."""
        return self.k.let("w", bitcast(cast(stored, DType.I16), I32))

    def pair(self, at: tuple[Index, Index, Index, Index], word: Index) -> Expr:
        """A pair of activations: of (image, block, row, column) with the number ``word``."""
        if not in_rows(self.s.conv):
            return self.x[(*at, word)]
        n, _, row, col = at
        two = Load(self.x.buffer, (n, row, col * self.s.conv.x.channels + 2 * word), Type(DType.I16, 2))
        return bitcast(two, I32)


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x in words of two channels (``widened``) or in rows (``widened_rows``), the packed weights of each
    run (``pack``), bias in i32 (padded), rows of factors, mask when ``conv.clear``, operands, y."""
    c = s.conv
    k = Builder(f"integer_widened_{dense._name(c)}", f"{described(c)}, in integers, by pairs of 16 bits")
    *outer, block = c.x.shape
    rows = in_rows(c)
    x = k.param("x", *widened_shape(c), dtype=DType.I16) if rows else k.param("x", *outer, block // 2, dtype=I32)
    cut = runs(c, machine, tile.vecs)
    deep = (*_as_column(c).kernel, _row_words(c)) if rows else (*c.kernel, block // 2)
    ws = [k.param("w", r.iterations, r.blocks, *deep, 2 * r.width, dtype=weights_type(s)) for r in cut]
    ends = IntegerEnds.params(k, s)
    # Compilers would keep in memory what steps of rows in one piece read in common.
    parts = WidenedContext(k, s, ends.b, ends.rows, ends.mask, ends.operands, ends.y, x, 1 if rows else _UNROLL)
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
    c = _as_column(s) if in_rows(s) else s
    for start, blocks, channels in dense._depths(c, r):
        deep = -(-channels // 2)
        unroll = next(u for u in range(min(p.unroll, deep), 0, -1) if deep % u == 0)
        with (
            k.loop("c", blocks) as depth,
            k.loop("ky", c.kernel[0]) as ky,
            k.loop("kx", c.kernel[1]) as kx,
            k.loop("ci", deep // unroll) as ci,
            k.unroll("u", unroll) as u,
        ):
            word, block = ci * unroll + u, depth + start
            weights = [p.weight(w.vec(2 * r.lanes)[o, block, ky, kx, word, v]) for v in range(r.vecs)]
            with k.unroll("p", height) as i, k.unroll("q", width) as j:
                row, col = read_at(s, (top + i, left + j), (ky, kx))
                pair = p.pair((n, block + o * r.step + r.first, row, col), word)
                value = k.let("v", broadcast(pair, r.lanes))
                for t, weight in enumerate(weights):
                    acc[i, j, t] = op("madd_i16", acc[i, j, t], value, weight)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        p.store(n, first + v * r.lanes, top + i, left + j, r.lanes, acc[i, j, v])
