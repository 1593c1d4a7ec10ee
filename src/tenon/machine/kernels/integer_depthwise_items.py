"""Depthwise convolution of bytes for machines of many threads, requantised: as ``depthwise_items``, of words.

A work item computes the four channels of a word at a tile of positions, and stores their results as one.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from tenon.machine.kernel_ir.build import Builder, guarded
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.depthwise import DepthwiseTile, pack_blocks
from tenon.machine.kernels.depthwise_items import name_of, past_last, products, source
from tenon.machine.kernels.integer_conv import IntegerConv, IntegerEnds
from tenon.machine.kernels.integer_tiled import BYTES, by_words, byte_of, repeated, store
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: each channel of its own, bytes in blocks of four."""
    return s.depthwise and s.taps > 0 and s.x.block == 4 and s.x.dtype in BYTES and s.weights is DType.I8


def pack(weights: Array, s: IntegerConv) -> Array:
    """i32 [channels / 4][kh][kw] of bytes [channels, 1, kh, kw]."""
    return np.ascontiguousarray(pack_blocks(weights.astype(np.int8), s.conv, 4)).view(np.int32)[..., 0]


@lru_cache(maxsize=512)
def depthwise_items(s: IntegerConv, tile: DepthwiseTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), rows of factors, mask when ``conv.clear``,
    operands, y."""
    c, signed = s.conv, s.conv.x.dtype is DType.I8
    about = f"Depthwise: {described(c)}; {tile.rows} x {tile.cols} positions of four channels in an item, in integers"
    k = Builder(f"integer_{name_of(c)}", about)
    x = k.param("x", *c.x.shape[:-1], 1, dtype=I32)
    w = k.param("w", c.y.blocks, *c.kernel, dtype=I32)
    ends = IntegerEnds.params(k, s, y_words=by_words(c))
    down, across = -(-c.extent[0] // tile.rows), -(-c.extent[1] // tile.cols)
    with (
        k.loop("n", c.y.n, kind="parallel") as n,
        k.loop("b", c.y.blocks, kind="parallel") as b,
        k.loop("i", down, kind="parallel") as i,
        k.loop("j", across, kind="parallel") as j,
    ):
        top, left = i * tile.rows, j * tile.cols
        acc = k.local("a", tile.rows, tile.cols, 4, dtype=I32)
        for p, q, lane in product(range(tile.rows), range(tile.cols), range(4)):
            acc[p, q, lane] = 0

        def value(row: Index, col: Index) -> Expr:
            facts, at = source(c, tile, (n, b, Index()), (row, col))
            return guarded(facts, x[at], repeated(s.fill))

        for (p, q), (ky, kx), v in products(k, c, tile, (top, left), value):
            word = k.let("w", w[b, ky, kx])
            for lane in range(4):
                weight = byte_of(word, lane)
                weight = weight - s.weight_zero if s.weight_zero else weight
                acc[p, q, lane] = acc[p, q, lane] + byte_of(v, lane, signed=signed) * weight
        for p, q in product(range(tile.rows), range(tile.cols)):
            row, col = top + p, left + q
            with k.when(*past_last(c, tile, row, col)):
                store(ends, (n, row, col), b, [acc[p, q, lane] for lane in range(4)])
    return k.done()
