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
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Expr, Kernel, lanes_of, select, vector4
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import GroupContext, Store, group_context, in_steps, store_results
from tenon.machine.kernels.group_tiles import (
    Depth,
    GroupTile,
    about,
    name_of,
    past_quads,
    place,
    quad_in,
    quad_of,
    stored_at,
    sums_shape,
)
from tenon.machine.kernels.image import Image
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
        return x, w, FloatStore(k, s, Ends.params(k, s))
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
        if isinstance(into, FloatStore) and into.loads:
            _results(p, acc, into)
        else:
            store_results(p, acc, into)
    return k.done()


def _results(p: GroupContext, acc: Tensor, into: FloatStore) -> None:
    """Store a thread's results after all operands of them are loaded."""
    k, s, tile = p.k, p.s, p.tile
    for computes in (True, False):
        with k.unroll("i", tile.rows) as i, k.unroll("j", tile.cols // 4) as j:
            (_, at, within), quad = p.at(i), p.quad(j)
            with k.when(*within, *past_quads(s, quad, tile.n)):
                sums = [acc[i, j * 4 + c] for c in range(4)]
                if computes:
                    for c, value in enumerate(into.results(stored_at(s, at), quad, sums)):
                        acc[i, j * 4 + c] = value
                else:
                    into.put(stored_at(s, at), quad, sums)


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
Place = tuple[Index, Index, Index]
"""Image, row and column of a result."""


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

    def result(self, s: Conv, at: Place, channel: Index, value: Expr) -> Expr:
        """The result of a sum, for a channel at (image, row, column) of the output."""
        if self.bias is not None:
            value = value + self.bias[channel]
        extra = [
            loaded(t[i.at(at[0], channel, at[1], at[2], 1)]) for i, t in zip(s.operands, self.operands, strict=True)
        ]
        value = s.epilogue(value, *extra)
        return value if self.mask is None else select(self.mask[channel], value, 0.0)

    def four(self, k: Builder, s: Conv, at: Place, quad: Index, sums: Sequence[Expr]) -> list[Expr]:
        """The same of four channels, whose operands are loaded together."""
        extra = [
            lanes_of(k.let("four", loaded(t.vec(4)[quad_in(i, at, quad)])))
            if in_quads(i)
            else [loaded(t[i.at(at[0], quad * 4 + c, at[1], at[2], 1)]) for c in range(4)]
            for i, t in zip(s.operands, self.operands, strict=True)
        ]
        bias = [] if self.bias is None else lanes_of(k.let("bias", self.bias.vec(4)[quad]))
        results = []
        for c, value in enumerate(sums):
            value = value + bias[c] if bias else value
            value = s.epilogue(value, *(each[c] for each in extra))
            results.append(value if self.mask is None else select(self.mask[quad * 4 + c], value, 0.0))
        return results


@dataclass(frozen=True, eq=False)
class FloatStore:
    """Stores the results of a layer of floats, or computes them first: loads of operands that are images wait for each
    other's stores where they may lie in the same memory."""

    k: Builder
    s: Conv
    ends: Ends

    @property
    def loads(self) -> bool:
        """Whether there are operands that are images, loaded four channels at a time."""
        return self.s.padded % 4 == 0 and any(in_quads(i) and i.h * i.w > 1 for i in self.s.operands)

    def __call__(self, at: Place, quad: Index, sums: Sequence[Expr]) -> None:
        store(self.k, self.s, self.ends, at, quad, sums)

    def results(self, at: Place, quad: Index, sums: Sequence[Expr]) -> list[Expr]:
        return self.ends.four(self.k, self.s, at, quad, sums)

    def put(self, at: Place, quad: Index, results: Sequence[Expr]) -> None:
        """Store results of four channels of a position."""
        values = [stored(value, self.s.y.dtype) for value in results]
        self.k.store(self.ends.y.buffer, quad_of(self.s, at, quad), vector4(*values))


def in_quads(image: Image) -> bool:
    """Whether four neighbouring channels of an image, with a channel for each of the result, lie side by side."""
    return image.channels > 1 and (image.block == 4 or (image.blocks == 1 and image.block % 4 == 0))


def store(k: Builder, s: Conv, ends: Ends, at: Place, quad: Index, sums: Sequence[Expr]) -> None:
    """Four channels of a position; single ones where the last four are not all there."""
    where = quad_of(s, at, quad)
    if s.padded % 4 == 0:
        float_store = FloatStore(k, s, ends)
        float_store.put(at, quad, float_store.results(at, quad, sums))
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
