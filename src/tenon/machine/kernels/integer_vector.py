"""Products of a vector and a matrix of bytes in work groups, requantised: as ``vector_product``, of words."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, op
from tenon.machine.kernels import vector_product as float_product
from tenon.machine.kernels.conv import described
from tenon.machine.kernels.group_tiles import in_words, past_quads
from tenon.machine.kernels.integer_conv import ONES, IntegerConv, IntegerEnds
from tenon.machine.kernels.integer_tiled import as_words, by_words, store
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.vector_product import VectorBlock, combine, depth, source
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32


def pack(weights: Array, s: IntegerConv, block: VectorBlock) -> Array:
    """i32 [blocks][words][outs] from bytes [channels out, channels in, 1, 1], zeros past the last channel out."""
    return float_product.pack(as_words(weights, s), in_words(s.conv), block)


@lru_cache(maxsize=512)
def vector_product(s: IntegerConv, block: VectorBlock, machine: Machine) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), rows of factors, mask when ``conv.clear``,
    operands, y.  ``s.conv`` is of one row of positions, at which one tap is multiplied."""
    c = in_words(s.conv)
    deep, blocks = depth(c), -(-c.padded // block.outs)
    k = Builder(
        f"integer_vector_product_{4 * deep}x{c.y.channels}",
        f"{described(s.conv)}; {block.outs} results of a block, each by {block.slices} threads, in integers",
    )
    x = k.param("x", *c.x.shape, dtype=I32)
    w = k.param("w", blocks, deep, block.outs, dtype=I32)
    ends = IntegerEnds.params(k, s, y_words=by_words(s.conv))
    product = machine.fours[s.conv.x.dtype].operation
    with (
        k.loop("n", c.y.n, kind="block") as n,
        k.loop("p", c.extent[1], kind="block") as p,
        k.loop("b", blocks, kind="block") as b,
    ):
        cells = k.local("cells", block.slices, block.outs, dtype=I32, space="shared")
        with k.loop("slice", block.slices, kind="thread") as part, k.loop("out", block.outs, kind="thread") as out:
            acc = k.local("a", 2, dtype=I32)
            acc[0] = 0
            acc[1] = 0

            def add(word: Index) -> None:
                value = k.let("v", x[source(c, n, p, word)])
                acc[0] = op(product, acc[0], value, w[b, word, out])
                if s.weight_zero:
                    acc[1] = op(product, acc[1], value, Const(ONES, Type(I32)))

            each, rest = divmod(deep, block.slices)
            with k.loop("r", each) as r:
                add(part + r * block.slices)
            with k.when(*([rest - 1 - part] if rest else [Index((), -1)])):
                add(part + each * block.slices)
            if s.weight_zero:
                acc[0] = acc[0] - acc[1] * s.weight_zero
            combine(k, cells, acc, block, part, out)
            quad = b * (block.outs // 4) + out
            with k.when(-part, block.outs // 4 - 1 - out, *past_quads(c, quad, block.outs)):
                store(ends, (n, Index(), p), quad, [cells[0, out * 4 + lane] for lane in range(4)])
    return k.done()
