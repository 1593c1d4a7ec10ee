"""Convolution of bytes by Winograd's inner products: half as many multiplications, of sums of 16 bits.

``(a + v) * (b + w) = a * w + b * v + a * b + v * w`` has two of the products that are wanted.  Those of inputs with
each other are summed once for every pixel, and those of weights once for every output channel, and both are subtracted.
Additions find units that do not multiply.  Sums are modulo 2**32 at every step, so that results equal those of
``kernels.integer_conv``.  Channels of two neighbouring blocks are multiplied with each other; where the number of
blocks is odd, the last one is as in ``kernels.integer_widened``, which also makes the numbers of 16 bits.

Winograd, "A New Algorithm for Inner Product" (1968).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, broadcast, cast, op, reduce_lanes
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels import integer_widened
from tenon.machine.kernels.conv import Conv, GroupRun, OutputTile, described, runs
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds, read_at
from tenon.machine.kernels.integer_widened import WidenedContext, weights_type
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal, enough
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

_UNROLL = 4
_WORTH = 48
"""Positions that pay for widening the weights of a group of output channels."""
_LINE = 64
"""Bytes of a cache line."""
_PIXELS = 4
"""Pixels whose products are summed together: those of a line of the cache."""


def applies(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel: of more than one block, and of one group, because a pixel has one sum for all output
    channels."""
    return s.groups == 1 and s.x.blocks > 1 and integer_widened.applies(s, machine)


def gathered(s: Conv) -> Conv:
    """The convolution of the pixels that are read: of a kernel of one tap with a stride, these side by side."""
    if not _skips(s):
        return s.flattened()
    x = Image(s.x.n, s.x.channels, *s.extent, s.x.block, dtype=s.x.dtype)
    return replace(s, x=x, stride=(1, 1)).flattened()


def _skips(s: Conv) -> bool:
    """Whether pixels between those that are read are skipped."""
    return s.kernel == (1, 1) != s.stride and not (s.top or s.left) and s.positions is None


@lru_cache(maxsize=512)
def widened(s: Conv, machine: Machine) -> Kernel:
    """Parameters: x, the image of ``gathered`` in i16, its halo included."""
    x, n, blocks, block, (rows, cols) = s.x, s.x.n, s.x.blocks, s.x.block, s.extent
    if not _skips(s):
        return integer_widened.widened(x, machine)
    k = Builder(f"widened_{x.shown}_s{s.stride[0]}", f"every {s.stride[0]}th row of {x.shown} bytes in 16 bits")
    source = k.param("x", *x.shape, dtype=x.dtype)
    target = k.param("y", n, blocks, rows, cols, block, dtype=DType.I16, out=True)
    (images, outer, inner), _ = deal(n, blocks, rows, threads=machine.threads)
    with (
        k.loop("n", n, kind=images) as image,
        k.loop("c", blocks, kind=outer) as c,
        k.loop("i", rows, kind=inner) as i,
        k.loop("j", cols) as j,
    ):
        row, col = i * s.stride[0] + x.top, j * s.stride[1] + x.left
        target.vec(block)[image, c, i, j, 0] = cast(source.vec(block)[image, c, row, col, 0], DType.I16)
    return k.done()


def pack(weights: Array, s: IntegerConv, machine: Machine, vecs: int) -> list[Array]:
    """One array per run, [iterations][elements], with the elements of a panel in order: [pairs of blocks][kh][kw]
    [block / 2][2][vecs][lanes][2], the weights of the second block of a pair first, since they are added to inputs of
    the first one; then, where the number of blocks is odd, the last one as ``integer_widened.pack`` has it."""
    packed = []
    for whole in integer_widened.pack(weights, s, machine, vecs):
        pairs = whole.shape[1] // 2
        twos = whole[:, : 2 * pairs].reshape(len(whole), pairs, 2, *whole.shape[2:])[:, :, ::-1]
        parts = np.moveaxis(twos, 2, -2), whole[:, 2 * pairs :]
        packed.append(np.concatenate([part.reshape(len(whole), -1) for part in parts], axis=1))
    return packed


def panel(s: Conv, machine: Machine, vecs: int) -> int:
    """The most weights that the tiles of a group of output channels share."""
    return max(_elements(s, r) for r in runs(s, machine, vecs))


def _elements(s: Conv, r: GroupRun) -> int:
    return r.blocks * s.taps * s.x.block * r.width


def own_products(weights: Array, s: IntegerConv) -> Array:
    """The products of weights with each other, negated: i32, one sum for each output channel, padded."""
    c = s.conv
    out, channels, *kernel = weights.shape
    block, pairs = c.x.block, c.x.blocks // 2
    whole = np.zeros((c.padded, c.x.blocks * block, *kernel), np.int64)
    whole[:out, :channels] = weights.astype(np.int64) - s.weight_zero
    twos = whole[:, : 2 * pairs * block].reshape(c.padded, pairs, 2, -1)
    result: Array = -(twos[:, :, 0] * twos[:, :, 1]).sum((1, 2)).astype(np.int32)
    return result


@lru_cache(maxsize=512)
def pixel_products(x: Image, machine: Machine) -> Kernel:
    """Parameters: x in words of two channels, y: i32 [n][rows][columns], halo included: the products of the channels of
    two neighbouring blocks, summed over all pairs of blocks."""
    k = Builder(f"pixel_products_{x.shown}", f"{x.shown} channels multiplied with those of the next block")
    n, blocks, rows, cols, block = x.shape
    words = block // 2
    source = k.param("x", n, blocks, rows, cols, words, dtype=I32)
    target = k.param("y", n, rows, cols, dtype=I32, out=True)
    # Rows of one pixel are a column.
    (images, lines), inside = deal(n, rows, threads=machine.threads)
    with k.loop("n", n, kind=images) as image, k.loop("i", rows, kind=lines) as i:
        for first, count, pixels in segments(cols, _PIXELS):
            with k.loop("j", count, kind=inside) as j:
                left = j * pixels + first
                acc = k.local("a", pixels, dtype=I32, lanes=words)
                with k.unroll("q", pixels) as q:
                    acc[q] = broadcast(Const(0, Type(I32)), words)
                with k.loop("c", blocks // 2) as c, k.unroll("q", pixels) as q:
                    a, b = (source.vec(words)[image, 2 * c + side, i, left + q, 0] for side in (0, 1))
                    acc[q] = op("madd_i16", acc[q], a, b)
                with k.unroll("q", pixels) as q:
                    target[image, i, left + q] = reduce_lanes("add", acc[q])
    return k.done()


def plus_inner_products(total: Expr, values: Sequence[Expr], weights: Sequence[Expr]) -> Expr:
    """The sums in i32 plus the products of two vectors of pairs of i16 and their weights, those of the vectors with
    each other and those of the weights."""
    sums = [bitcast(value + weight, I32) for value, weight in zip(values, weights, strict=True)]
    return op("madd_i16", total, *sums)


@dataclass(frozen=True, eq=False)
class _InnerContext(WidenedContext):
    """The parameters that all tiles of a kernel share."""

    machine: Machine
    pixels: Tensor
    own: Tensor
    panel: Tensor


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, tile: OutputTile) -> Kernel:
    """Parameters: x in words of two channels (``integer_widened.widened``), ``pixel_products``, the packed weights of
    each run (``pack``), ``own_products``, bias in i32 (padded), rows of factors, mask when ``conv.clear``, operands, y,
    then scratch for a ``panel`` of weights in i16."""
    c = s.conv
    k = Builder(f"integer_inner_{dense._name(c)}", f"{described(c)}, in integers, by Winograd's inner products")
    *outer, block = c.x.shape
    x = k.param("x", *outer, block // 2, dtype=I32)
    pixels = k.param("q", outer[0], *outer[2:], dtype=I32)
    cut, dtype = runs(c, machine, tile.vecs), weights_type(s)
    ws = [k.param("w", r.iterations, _elements(c, r), dtype=dtype) for r in cut]
    own = k.param("v", c.padded, dtype=I32)
    e = IntegerEnds.params(k, s)
    kept = k.param("p", panel(c, machine, tile.vecs), dtype=DType.I16, scratch=True)
    p = _InnerContext(k, s, e.b, e.rows, e.mask, e.operands, e.y, x, _UNROLL, machine, pixels, own, kept)
    with k.loop("n", c.y.n // dense.images_inside(c)) as n:
        for r, w in zip(cut, ws, strict=True):
            _run(p, r, w, n, tile)
    return k.done()


def _run(p: _InnerContext, r: GroupRun, w: Tensor, first: Index, tile: OutputTile) -> None:
    """All positions of a run, of the ``first`` image and those that are computed with it.  Threads share out groups of
    output channels, and where there are few, positions too: each part widens the weights of its group for itself."""
    k, extent, step = p.k, p.s.conv.extent, (tile.rows, tile.cols)
    images, axis = dense.images_inside(p.s.conv), 0 if extent[0] > 1 else 1
    length = _part(r.iterations, extent, axis, step[axis], p.machine)
    sides = segments(extent[axis], length)
    (outer, inner), _ = deal(r.iterations, sum(count for _, count, _ in sides), threads=p.machine.threads)
    with k.loop("o", r.iterations, kind=outer) as o:
        for start, parts, side in sides:
            with k.loop("part", parts, kind=inner) as part:
                _widen(p, r, w, o)
                corner = part * side + start
                at, size = (
                    ((corner, Index()), (side, extent[1])) if axis == 0 else ((Index(), corner), (extent[0], side))
                )
                with k.loop("n", images) as n:
                    _part_tiles(p, r, w, (first * images + n, o, *at), size, tile)


def _part_tiles(
    p: _InnerContext,
    r: GroupRun,
    w: Tensor,
    at: tuple[Index, Index, Index, Index],
    size: tuple[int, int],
    tile: OutputTile,
) -> None:
    """The tiles of a part, which prefetch the weights of the next group of output channels."""
    k, (n, o, top, left) = p.k, at
    count = math.prod(-(-extent // step) for extent, step in zip(size, (tile.rows, tile.cols), strict=True))
    for turn, down, across, height, width in _tiles(k, size, tile):
        if p.machine.prefetch:
            prefetch_share(w, (o + 1,), _elements(p.s.conv, r), turn, count)
        with k.outline(f"{height}x{width}x{r.vecs}v{r.lanes}", dense.shown_tile(height, width, r)):
            _tile(p, r, (n, o, top + down, left + across), (height, width))


def _part(iterations: int, extent: tuple[int, int], axis: int, step: int, machine: Machine) -> int:
    """Rows or columns of a part: enough parts for the threads, each with enough positions to be worth its panel."""
    wanted = -(-enough(machine.threads) // iterations)
    most = max(1, extent[0] * extent[1] // _WORTH)
    length = -(-extent[axis] // min(wanted, most))
    return min(extent[axis], -(-length // step) * step)


def _tiles(k: Builder, extent: tuple[int, int], tile: OutputTile) -> Iterator[tuple[Index, Index, Index, int, int]]:
    """Loops over a tiling: (number of the tile, top, left, height, width)."""
    columns = -(-extent[1] // tile.cols)
    for top, count, height in segments(extent[0], tile.rows):
        with k.loop("i", count) as i:
            for left, across, width in segments(extent[1], tile.cols):
                with k.loop("j", across) as j:
                    turn = (i + top // tile.rows) * columns + (j + left // tile.cols)
                    yield turn, i * height + top, j * width + left, height, width


def prefetch_share(w: Tensor, start: tuple[IndexLike, ...], elements: int, turn: Index, turns: int) -> None:
    """Prefetch the share of tile number ``turn`` of ``turns`` in the ``elements`` weights from ``start`` on, which
    lacks the last index: those of the next group of output channels."""
    line = _LINE // w.buffer.type.bytes
    lines = -(-elements // line)
    if lines < turns:
        w.build.prefetch(w, *start, turn * lines // turns * line)
        return
    share = -(-lines // turns)
    with w.build.loop("l", share) as i:
        w.build.prefetch(w, *start, (turn * share + i) * line)


def _widen(p: _InnerContext, r: GroupRun, w: Tensor, o: Index) -> None:
    """Fill the panel with the weights of a group of output channels."""
    lanes = 2 * r.lanes
    with p.k.loop("e", _elements(p.s.conv, r) // lanes) as e:
        p.panel.vec(lanes)[e] = cast(w.vec(lanes)[o, e], DType.I16)


def _tile(p: _InnerContext, r: GroupRun, at: tuple[Index, Index, Index, Index], size: tuple[int, int]) -> None:
    k, (n, o, top, left), (height, width) = p.k, at, size
    first = o * r.width + r.start
    acc = k.local("a", height, width, r.vecs, dtype=I32, lanes=r.lanes)
    with k.unroll("p", height) as i, k.unroll("q", width) as j:
        less = k.let("s", broadcast(_window(p, n, (top + i, left + j)), r.lanes))
        with k.unroll("t", r.vecs) as v:
            channel = first // r.lanes + v
            acc[i, j, v] = p.b.vec(r.lanes)[channel] + p.own.vec(r.lanes)[channel] - less
    _add_inner_products(p, r, acc, at, size)
    if r.blocks % 2:
        _add_last_block(p, r, acc, at, size)
    with k.unroll("p", height) as i, k.unroll("q", width) as j, k.unroll("t", r.vecs) as v:
        p.store(n, first + v * r.lanes, top + i, left + j, r.lanes, acc[i, j, v])


def _window(p: _InnerContext, n: Index, at: tuple[Index, Index]) -> Expr:
    """The products of the pixels that a position reads."""
    k, s = p.k, p.s.conv
    if s.kernel == (1, 1):
        return p.pixels[(n, *read_at(s, at, (Index(), Index())))]
    total = k.local("s", 1, dtype=I32)
    total[0] = 0
    with k.loop("ky", s.kernel[0]) as ky, k.loop("kx", s.kernel[1]) as kx:
        total[0] = total[0] + p.pixels[(n, *read_at(s, at, (ky, kx)))]
    return total[0]


def _add_inner_products(
    p: _InnerContext, r: GroupRun, acc: Tensor, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> None:
    """Add the products of all pairs of blocks to the sums of a tile."""
    k, s, (n, _, top, left), (height, width) = p.k, p.s.conv, at, size
    words = s.x.block // 2
    unroll = next(u for u in range(min(p.unroll, words), 0, -1) if words % u == 0)
    with (
        k.loop("c", r.blocks // 2) as c,
        k.loop("ky", s.kernel[0]) as ky,
        k.loop("kx", s.kernel[1]) as kx,
        k.loop("ci", words // unroll) as ci,
        k.unroll("u", unroll) as u,
    ):
        word = ci * unroll + u
        first = ((c * s.kernel[0] + ky) * s.kernel[1] + kx) * words + word
        kept = p.panel.vec(2 * r.lanes)
        weights = [[k.let("w", kept[(2 * first + side) * r.vecs + v]) for side in (0, 1)] for v in range(r.vecs)]
        with k.unroll("p", height) as i, k.unroll("q", width) as j:
            row, col = read_at(s, (top + i, left + j), (ky, kx))
            two = [p.x[n, 2 * c + side, row, col, word] for side in (0, 1)]
            values = [k.let("v", bitcast(broadcast(each, r.lanes), DType.I16)) for each in two]
            for t, each in enumerate(weights):
                acc[i, j, t] = plus_inner_products(acc[i, j, t], values, each)


def _add_last_block(
    p: _InnerContext, r: GroupRun, acc: Tensor, at: tuple[Index, Index, Index, Index], size: tuple[int, int]
) -> None:
    """Add the products of the block that has no other."""
    k, s, (n, _, top, left), (height, width) = p.k, p.s.conv, at, size
    words, block = s.x.block // 2, r.blocks - 1
    with (
        k.loop("ky", s.kernel[0]) as ky,
        k.loop("kx", s.kernel[1]) as kx,
        k.loop("word", words) as word,
    ):
        first = ((block * s.kernel[0] + ky) * s.kernel[1] + kx) * words + word
        weights = [k.let("w", bitcast(p.panel.vec(2 * r.lanes)[first * r.vecs + v], I32)) for v in range(r.vecs)]
        with k.unroll("p", height) as i, k.unroll("q", width) as j:
            row, col = read_at(s, (top + i, left + j), (ky, kx))
            value = k.let("v", broadcast(p.x[n, block, row, col, word], r.lanes))
            for t, weight in enumerate(weights):
                acc[i, j, t] = op("madd_i16", acc[i, j, t], value, weight)
