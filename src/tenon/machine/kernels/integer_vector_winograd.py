"""Winograd's F(2x2, 3x3) in integers by products of pairs of 16 bits in vectors: 16 products where there were 36.

Tiles of 2x2 outputs (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015).  The transform of the
filters is doubled along both axes, so that it is of integers; transformed sums are exactly four times those of the
convolution, modulo 2**32 at every step, so that results equal those of ``kernels.integer_conv``.  Products are those of
``kernels.integer_inner_products``.  A block of tiles goes through all three steps at once, so that intermediate results
stay in cache; threads share out blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, bitcast, broadcast, cast, op, reduce_lanes
from tenon.machine.kernels import integer_widened
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.integer_inner_products import plus_inner_products, prefetch_share
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.winograd import WinogradBlocking, place_of, tiles_of
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

ELEMENTS = 16
"""Elements of a transformed tile."""
MOST_CHANNELS = 900
"""Most input channels: four times a sum of products of 255 fits 32 bits."""
_FILTER = np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.int32)
"""Twice Winograd's transform of a filter of three taps."""
_UNROLL = 4


def applies(s: Conv, machine: Machine) -> bool:
    """Whether there is a kernel for a convolution: 3x3 of stride 1, in blocks of one vector."""
    plain = s.kernel == (3, 3) and s.stride == s.dilation == s.y_step == (1, 1) and s.groups == 1
    whole = s.x.block == s.y.block == machine.lanes
    several = machine.lanes < s.x.channels <= MOST_CHANNELS and s.positions is None
    return plain and whole and several and integer_widened.applies(s, machine)


def between(s: Conv, machine: Machine, b: WinogradBlocking) -> tuple[tuple[int, ...], ...]:
    """Shapes of the transformed inputs [elements][blocks in][tiles][words of two channels], of the products
    [elements][vectors out][tiles][lanes] and of those of inputs with each other [tiles], in words of 32 bits."""
    tiles = min(b.tiles, tiles_of(s, b.m))
    # A stride of a large power of two would map the elements of a tile to few sets of a cache.
    room = tiles + (tiles % 2 == 0)
    inputs, products = (s.x.blocks, room, s.x.block // 2), (s.padded // machine.lanes, room, machine.lanes)
    return (ELEMENTS, *inputs), (ELEMENTS, *products), (room,)


def pack(weights: Array, s: IntegerConv, machine: Machine, vecs: int) -> tuple[Array, Array]:
    """Words of i32 [16][iterations][blocks][block / 2][vecs * lanes] of weights [out, in, 3, 3]: transformed, two
    neighbouring input channels as pairs of 16 bits.  And the products of weights of neighbouring blocks with each
    other, negated: i32 [16][padded output channels]."""
    c, lanes = s.conv, machine.lanes
    out, channels, _, _ = weights.shape
    whole = np.zeros((c.padded, c.x.blocks * c.x.block, 3, 3), np.int32)
    whole[:out, :channels] = weights.astype(np.int32) - s.weight_zero
    wide = np.einsum("fr,ocrs,gs->fgoc", _FILTER, whole, _FILTER).reshape(ELEMENTS, c.padded, c.x.blocks, -1)
    vectors = wide.reshape(ELEMENTS, -1, vecs * lanes, c.x.blocks, c.x.block // 2, 2)
    ordered = vectors.transpose(0, 1, 3, 4, 2, 5).astype(np.int16)
    paired = c.x.blocks // 2 * 2
    own = -(wide[:, :, :paired:2] * wide[:, :, 1:paired:2]).sum((2, 3), dtype=np.int32)
    return np.ascontiguousarray(ordered).view(np.int32)[..., 0], own


@dataclass(frozen=True, eq=False)
class _IntegerWinogradContext(IntegerEnds):
    """The parameters and sizes that the three steps share."""

    machine: Machine
    blocking: WinogradBlocking
    x: Tensor
    w: Tensor
    own: Tensor
    inputs: Tensor
    products: Tensor
    pixels: Tensor

    @property
    def tiles(self) -> int:
        """The tiles of one block."""
        return min(self.blocking.tiles, tiles_of(self.s.conv, 2))

    def position(self, tile: Index) -> tuple[Index, Index, Index]:
        """Image, row and column of a tile's first output."""
        return place_of(self.s.conv, (2, 2), tile)


@lru_cache(maxsize=512)
def conv(s: IntegerConv, machine: Machine, b: WinogradBlocking) -> Kernel:
    """Parameters: x, words of weights and their products (``pack``), bias in i32 (padded), rows of factors, mask when
    ``conv.clear``, operands, y, then scratch for inputs, products, and products of inputs with each other
    (``between``)."""
    c = s.conv
    k = Builder(
        f"integer_winograd_{c.x.channels}_{c.y.channels}_{c.y.h}x{c.y.w}",
        f"{described(c)}, by Winograd's F(2x2, 3x3) in integers, {b.tiles} tiles at a time",
    )
    x = k.param("x", *c.x.shape, dtype=c.x.dtype)
    iterations, width = c.padded // (b.vecs * machine.lanes), b.vecs * machine.lanes
    w = k.param("w", ELEMENTS, iterations, c.x.blocks, c.x.block // 2, width, dtype=I32)
    own = k.param("u", ELEMENTS, c.padded, dtype=I32)
    e = IntegerEnds.params(k, s)
    kept = [
        k.param(name, *shape, dtype=I32, scratch=True)
        for name, shape in zip("vtq", between(c, machine, b), strict=True)
    ]
    p = _IntegerWinogradContext(k, s, e.b, e.rows, e.mask, e.operands, e.y, machine, b, x, w, own, *kept)
    total = tiles_of(c, 2)
    blocks = -(-total // p.tiles)
    (shares,), _ = deal(blocks, threads=machine.threads)
    with k.loop("block", blocks, kind=shares) as block:
        start = block * p.tiles
        # The last block also multiplies the uninitialised tiles past the end, whose results are not stored.
        there = (p.tiles, total - start) if total % p.tiles else (p.tiles,)
        _transform_inputs(p, start, there)
        with k.loop("e", ELEMENTS) as element:
            _multiply_inputs(p, element)
            _multiply(p, element)
        _transform_products(p, start, there)
    return k.done()


def _forward(k: Builder, d: list[Expr]) -> list[Expr]:
    """Four inputs of a tile, transformed."""
    return [k.let("e", each) for each in (d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3])]


def _transform_inputs(p: _IntegerWinogradContext, start: Index, there: tuple[IndexLike, ...]) -> None:
    k, s, lanes = p.k, p.s.conv, p.machine.lanes
    with k.loop("c", s.x.blocks) as c, k.loop("t", *there) as t:
        n, top, left = p.position(start + t)
        with k.outline("in", "the transform of an input tile"):
            half = []
            for i in range(4):
                row, col = top + (i + s.x.top - s.top), left + (s.x.left - s.left)
                line = [k.let("d", cast(p.x.vec(lanes)[n, c, row, col + j, 0], DType.I16)) for j in range(4)]
                half.append(_forward(k, line))
            for j in range(4):
                for i, e in enumerate(_forward(k, [line[j] for line in half])):
                    p.inputs.vec(lanes // 2)[4 * i + j, c, t, 0] = bitcast(e, I32)


def _multiply_inputs(p: _IntegerWinogradContext, e: Index) -> None:
    """The products of one element of the tiles of neighbouring blocks with each other."""
    k, words = p.k, p.s.conv.x.block // 2
    with k.loop("t", p.tiles) as t, k.outline("pixels", "products of the inputs of a tile with each other"):
        acc = k.local("a", 1, dtype=I32, lanes=words)
        acc[0] = broadcast(Const(0, Type(I32)), words)
        with k.loop("c", p.s.conv.x.blocks // 2) as c:
            acc[0] = op("madd_i16", acc[0], *(p.inputs.vec(words)[e, 2 * c + side, t, 0] for side in (0, 1)))
        p.pixels[t] = reduce_lanes("add", acc[0])


def _multiply(p: _IntegerWinogradContext, e: Index) -> None:
    """The products of one element of the tiles."""
    k, s, lanes, vecs = p.k, p.s.conv, p.machine.lanes, p.blocking.vecs
    panel, turns = s.x.blocks * s.x.block // 2 * vecs * lanes, -(-p.tiles // p.blocking.cols)
    with k.loop("o", s.padded // (vecs * lanes)) as o:
        for first, count, width in segments(p.tiles, p.blocking.cols):
            with k.loop("j", count) as j:
                if p.machine.prefetch:
                    prefetch_share(p.w, (e, o + 1, 0, 0), panel, j + first // p.blocking.cols, turns)
                _multiply_tiles(p, (e, o, j * width + first), width)


def _multiply_tiles(p: _IntegerWinogradContext, at: tuple[Index, Index, Index], width: int) -> None:
    """The products of one element of ``width`` tiles, for a group of output channels."""
    k, lanes, vecs, (e, o, left) = p.k, p.machine.lanes, p.blocking.vecs, at
    with k.outline(f"mul{width}x{vecs}", f"products of {width} tiles"):
        acc = k.local("a", width, vecs, dtype=I32, lanes=lanes)
        with k.unroll("q", width) as q:
            less = k.let("s", broadcast(p.pixels[left + q], lanes))
            with k.unroll("z", vecs) as z:
                acc[q, z] = p.own.vec(lanes)[e, o * vecs + z] - less
        _add_products(p, acc, at, width)
        with k.unroll("q", width) as q, k.unroll("z", vecs) as z:
            p.products.vec(lanes)[e, o * vecs + z, left + q, 0] = acc[q, z]


def _add_products(p: _IntegerWinogradContext, acc: Tensor, at: tuple[Index, Index, Index], width: int) -> None:
    """Add the products of all blocks to the sums of ``width`` tiles."""
    k, (e, o, left), lanes, deep = p.k, at, p.machine.lanes, p.s.conv.x.block // 2
    unroll = next(u for u in range(min(_UNROLL, deep), 0, -1) if deep % u == 0)
    pairs, rest = divmod(p.s.conv.x.blocks, 2)

    def operands(blocks: Sequence[Index], word: Index) -> tuple[list[list[Expr]], Callable[[Index], list[Expr]]]:
        """Vectors of weights of these blocks, and the inputs of a tile in every lane."""
        weights = [[k.let("w", p.w.vec(lanes)[e, o, c, word, z]) for c in blocks] for z in range(p.blocking.vecs)]
        return weights, lambda q: [k.let("v", broadcast(p.inputs[e, c, left + q, word], lanes)) for c in blocks]

    with k.loop("c", pairs) as c, k.loop("ci", deep // unroll) as ci, k.unroll("u", unroll) as u:
        weights, inputs = operands((2 * c, 2 * c + 1), ci * unroll + u)
        halves = [[bitcast(each, DType.I16) for each in reversed(two)] for two in weights]
        with k.unroll("q", width) as q:
            values = [bitcast(each, DType.I16) for each in inputs(q)]
            for z, two in enumerate(halves):
                acc[q, z] = plus_inner_products(acc[q, z], values, two)
    if rest:
        with k.loop("ci", deep // unroll) as ci, k.unroll("u", unroll) as u:
            weights, inputs = operands((Index() + 2 * pairs,), ci * unroll + u)
            with k.unroll("q", width) as q:
                (value,) = inputs(q)
                for z, (weight,) in enumerate(weights):
                    acc[q, z] = op("madd_i16", acc[q, z], value, weight)


def _backward(k: Builder, m: list[Expr]) -> list[Expr]:
    """Two outputs of four products."""
    return [k.let("o", each) for each in (m[0] + m[1] + m[2], m[1] - m[2] - m[3])]


def _transform_products(p: _IntegerWinogradContext, start: Index, there: tuple[IndexLike, ...]) -> None:
    k, s, lanes = p.k, p.s.conv, p.machine.lanes
    with k.loop("c", s.padded // lanes) as c, k.loop("t", *there) as t:
        n, top, left = p.position(start + t)
        with k.outline("out", "the transform of a tile of products, and requantisation"):
            columns = []
            for j in range(4):
                column = [k.let("m", p.products.vec(lanes)[4 * i + j, c, t, 0]) for i in range(4)]
                columns.append(_backward(k, column))
            bias = k.let("b", p.b.vec(lanes)[c])
            for i in range(2):
                with k.when(*([s.y.h - 1 - (top + i)] if s.y.h % 2 else [])):
                    for j, total in enumerate(_backward(k, [column[i] for column in columns])):
                        with k.when(*([s.y.w - 1 - (left + j)] if s.y.w % 2 else [])):
                            p.store(n, c * lanes, top + i, left + j, lanes, bias + (total >> 2))
