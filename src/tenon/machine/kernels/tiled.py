"""Convolution and matrix product in work groups: sums of a tile of positions by output channels.

A block computes ``tile.m`` positions of the output by ``tile.n`` channels, each thread ``tile.rows x tile.cols`` of
them in registers.  In steps of ``tile.k`` products the block copies what it multiplies to shared memory
(``group_copies``).

With ``tile.splits`` the products of a result are shared out to several blocks, whose sums lie in scratch memory until a
second kernel adds them in a fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Expr, Kernel, select, vector4
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import GroupContext, Store, group_context, in_steps, store_results
from tenon.machine.kernels.group_tiles import (
    Depth,
    GroupTile,
    about,
    name_of,
    place,
    quad_of,
    stored_at,
    sums_shape,
)
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.network.graph.types import F32, I32


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: one group, floats; weights that are operands are matrices."""
    floats = {s.x.dtype, s.y.dtype, s.weights, *(i.dtype for i in s.operands)} <= {F32, *NARROW}
    whole = s.y.block % 4 == 0 or s.y.blocks == 1
    return floats and whole and s.groups == 1 and (s.taps > 0 if s.packed else s.taps == 1)


def parameters(k: Builder, s: Conv, tile: GroupTile, *, whole: bool) -> tuple[Tensor, Tensor, Store | Tensor]:
    """x, weights, and what takes the sums: the end of the layer where they are ``whole``, else sums of parts."""
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    own = (s.matrices, s.x.channels, s.y.channels)
    packed = (-(-s.padded // tile.n), Depth.of(s, tile.k).steps, tile.k * tile.n)
    w = k.param("w", *(packed if s.packed else own), dtype=s.weights)
    if whole:
        return x, w, partial(store, k, s, Ends.params(k, s))
    return x, w, k.param("sums", *sums_shape(s, tile), out=True)


@lru_cache(maxsize=512)
def tiled(s: Conv, tile: GroupTile) -> Kernel:
    """Parameters: x, weights as ``group_tiles.pack`` returns them, bias (padded), mask when ``clear``, operands, y;
    with splits only x, weights and the sums [splits, channels / 4, positions, 4]."""
    k = Builder(name_of(s), about(s, tile))
    x, w, into = parameters(k, s, tile, whole=tile.splits == 1)
    with group_context(k, s, tile, x, w) as p:
        acc = k.local("a", tile.rows, tile.cols)
        with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols) as j:
            acc[i, j] = 0.0
        in_steps(p, lambda stage: multiply(p, acc, stage))
        store_results(p, acc, into)
    return k.done()


def multiply(p: GroupContext, acc: Tensor, stage: Index) -> None:
    """Add the products of one step."""
    k, tile, wide = p.k, p.tile, p.depth.wide
    apart = tile.m // tile.rows  # neighbouring threads have neighbouring positions
    with k.loop("g", p.depth.groups) as g, k.unroll("c", wide) as c:
        weights = [k.let("w", p.ws[stage, p.weight(g * wide + c, j)]) for j in range(tile.cols)]
        for i in range(tile.rows):
            value = k.let("v", p.xs[stage, g, p.tx + apart * i, c])
            for j, weight in enumerate(weights):
                acc[i, j] = acc[i, j] + value * weight


# ------------------------------------------------------------------------------------------------- results
@dataclass(frozen=True, eq=False)
class Ends:
    """The parameters that turn sums into results."""

    bias: Tensor | None
    mask: Tensor | None
    operands: Sequence[Tensor]
    y: Tensor

    @classmethod
    def params(cls, k: Builder, s: Conv) -> Ends:
        bias = k.param("b", s.padded) if s.bias else None
        mask = k.param("m", s.padded, dtype=I32) if s.clear else None
        operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
        return cls(bias, mask, operands, k.param("y", *s.y.shape, dtype=s.y.dtype, out=True))

    def result(self, s: Conv, at: tuple[Index, Index, Index], channel: Index, value: Expr) -> Expr:
        """The result of a sum, for a channel at (image, row, column) of the output."""
        if self.bias is not None:
            value = value + self.bias[channel]
        extra = [
            loaded(t[i.at(at[0], channel, at[1], at[2], 1)]) for i, t in zip(s.operands, self.operands, strict=True)
        ]
        value = s.epilogue(value, *extra)
        return value if self.mask is None else select(self.mask[channel], value, 0.0)


def store(k: Builder, s: Conv, ends: Ends, at: tuple[Index, Index, Index], quad: Index, sums: Sequence[Expr]) -> None:
    """Four channels of a position; single ones where the last four are not all there."""
    where = quad_of(s, at, quad)
    if s.padded % 4 == 0:
        values = [stored(ends.result(s, at, quad * 4 + c, v), s.y.dtype) for c, v in enumerate(sums)]
        k.store(ends.y.buffer, where, vector4(*values))
        return
    for c, value in enumerate(sums):
        channel = quad * 4 + c
        with k.when(s.padded - 1 - channel):
            ends.y[*where[:-1], where[-1] + c] = stored(ends.result(s, at, channel, value), s.y.dtype)


@lru_cache(maxsize=512)
def joined_parts(s: Conv, tile: GroupTile) -> Kernel:
    """The results of sums in parts, added in the order of the parts.  Parameters: the sums, bias (padded), mask when
    ``clear``, operands, y."""
    k = Builder(f"{name_of(s)}_sum", f"Sums of {tile.splits} parts each, and what follows the convolution")
    splits, quads, count, _ = sums_shape(s, tile)
    sums = k.param("sums", splits, quads, count, 4)
    ends = Ends.params(k, s)

    def total(quad: Index, at: Index, c: IndexLike) -> Expr:
        value = sums[0, quad, at, c]
        for part in range(1, splits):
            value = value + sums[part, quad, at, c]
        return value

    if s.y.dtype in NARROW:  # whole words are stored
        with k.loop("q", quads, kind="parallel") as q, k.loop("p", count, kind="parallel") as at:
            image, row, col, _ = place(s, at, 1)
            store(k, s, ends, stored_at(s, (image, row, col)), q, [total(q, at, c) for c in range(4)])
        return k.done()
    with (
        k.loop("q", quads, kind="parallel") as q,
        k.loop("p", count, kind="parallel") as at,
        k.loop("c", 4, kind="parallel") as c,
    ):
        channel = q * 4 + c
        with k.when(*([] if s.padded % 4 == 0 else [s.padded - 1 - channel])):
            image, row, col, _ = place(s, at, 1)
            where = stored_at(s, (image, row, col))
            *outer, lane = quad_of(s, where, q)
            ends.y[*outer, lane + c] = ends.result(s, where, channel, total(q, at, c))
    return k.done()
