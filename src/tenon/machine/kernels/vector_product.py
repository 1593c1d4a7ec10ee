"""Products of a vector and a matrix in work groups: fully connected layers, and convolutions of one position.

Such a product reads every weight once, so that its time is that of the memory.  A block computes ``outs`` results, each
by ``slices`` threads that share the channels; neighbouring threads read neighbouring weights.  The threads' sums are
combined in shared memory, halves with halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.machine.kernels.tiled import Ends
from tenon.network.graph.graph import Array


@dataclass(frozen=True)
class VectorBlock:
    """``outs`` results of a block, by ``slices`` threads each: a power of two."""

    outs: int
    slices: int


def depth(s: Conv) -> int:
    """Input channels, those that fill the last block included."""
    return s.x.blocks * s.x.block


def pack(weights: Array, s: Conv, block: VectorBlock) -> Array:
    """[blocks][channels in][outs] from [channels out, channels in, 1, 1], zeros past the last of each."""
    blocks = -(-s.padded // block.outs)
    whole = np.zeros((depth(s), blocks * block.outs), weights.dtype)
    whole[: s.x.channels, : s.y.channels] = weights[:, :, 0, 0].T
    return whole.reshape(depth(s), blocks, block.outs).transpose(1, 0, 2).astype(s.weights.numpy, order="C")


@lru_cache(maxsize=512)
def vector_product(s: Conv, block: VectorBlock) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y.  ``s`` is of
    one row of positions, at which one tap is multiplied."""
    k = Builder(
        f"vector_product_{depth(s)}x{s.y.channels}",
        f"{described(s)}; {block.outs} results of a block, each by {block.slices} threads",
    )
    blocks = -(-s.padded // block.outs)
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    w = k.param("w", blocks, depth(s), block.outs, dtype=s.weights)
    ends = Ends.params(k, s)
    with (
        k.loop("n", s.y.n, kind="block") as n,
        k.loop("p", s.extent[1], kind="block") as p,
        k.loop("b", blocks, kind="block") as b,
    ):
        cells = k.local("cells", block.slices, block.outs, space="shared")
        with k.loop("slice", block.slices, kind="thread") as part, k.loop("out", block.outs, kind="thread") as out:
            acc = k.local("a", 1)
            acc[0] = 0.0
            each, rest = divmod(depth(s), block.slices)
            with k.loop("r", each) as r:
                channel = part + r * block.slices
                acc[0] = acc[0] + loaded(x[source(s, n, p, channel)]) * loaded(w[b, channel, out])
            if rest:
                channel = part + each * block.slices
                with k.when(rest - 1 - part):
                    acc[0] = acc[0] + loaded(x[source(s, n, p, channel)]) * loaded(w[b, channel, out])
            combine(k, cells, acc, block, part, out)
            result = b * block.outs + out
            past = [] if s.padded % block.outs == 0 else [s.padded - 1 - result]
            with k.when(-part, *past):
                value = ends.result(s, (n, Index(), p), result, cells[0, out])
                ends.y[s.y.place(n, result, Index(), p, 1)] = stored(value, s.y.dtype)
    return k.done()


def source(s: Conv, n: Index, p: Index, channel: Index) -> tuple[Index, Index, Index, Index, Index]:
    """Where an element of a position lies."""
    block, lane = (Index(), channel) if s.x.blocks == 1 else (channel // s.x.block, channel % s.x.block)
    return n, block, Index((), s.x.top), p + s.x.left, lane


def combine(k: Builder, cells: Tensor, acc: Tensor, block: VectorBlock, part: Index, out: Index) -> None:
    """Add the sums of all slices to that of the first."""
    cells[part, out] = acc[0]
    k.barrier()
    half = block.slices // 2
    while half:
        with k.when(half - 1 - part):
            cells[part, out] = cells[part, out] + cells[part + half, out]
        k.barrier()
        half //= 2
