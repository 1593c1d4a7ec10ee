"""Winograd convolution: 3x3, stride 1, with m x m outputs from (m + 2) x (m + 2) inputs by (m + 2)^2 multiplies.

Tiles of the image are transformed, multiplied with transformed weights as (m + 2)^2 matrix products, and
transformed back with bias and epilogue.  A block of tiles goes through all three steps at once, so that what lies
between them stays in cache; threads share out blocks.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015), gives the transforms.  F(2, 3) saves
2.25 and F(4, 3) 4 of every multiplies; the largest error over the RMS of the output, against exact arithmetic on
random data, is about 3e-6 and 4.4e-5 (direct: 9e-6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.ir.build import Builder, Tensor, segments
from tenon.ir.graph import Array
from tenon.ir.index import Index, IndexLike
from tenon.ir.loops import Expr, Kernel, Value, bitcast, broadcast, select
from tenon.ir.types import F32, I32, DType
from tenon.kernels.conv import Ahead, Conv, Run, fits, multiply_add, overlapped, pack, runs, step_time, unrolled
from tenon.kernels.machine import Machine
from tenon.kernels.narrow import loaded, stored

_G = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1),
    ),
}  # fmt: skip


ERROR = {2: 3e-6, 4: 4.4e-5}
"""The largest error over the RMS of the output, by m: measured against float64 on random data.  Tiles of 2 in pairs of
bf16: 1.7e-2, where the direct algorithm has 1.0e-2; larger ones would have 2.9e-1, so they are multiplied in f32."""

_CACHE = 600_000
"""Bytes of transformed inputs and products that stay near the processor."""


@dataclass(frozen=True)
class Blocking:
    """``m``: outputs of a tile per axis.  ``tiles``: how many go through the three steps together.  The products
    keep ``cols`` tiles times ``vecs`` vectors of output channels in registers; ``pairs`` says that transformed inputs
    and weights are rounded to bf16, and multiplied two by two."""

    m: int
    tiles: int
    cols: int
    vecs: int
    pairs: bool = False

    @property
    def side(self) -> int:
        return self.m + 2


def applies(s: Conv, machine: Machine) -> bool:
    """Whether a convolution can be computed so."""
    plain = s.kernel == (3, 3) and s.stride == s.dilation == s.y_step == (1, 1) and s.positions is None
    whole = s.x.block % machine.lanes == 0 and s.y.block % machine.lanes == 0
    return plain and whole and s.groups == 1 and s.packed and not s.batch


def grid(s: Conv, m: int) -> tuple[int, int]:
    """Rows and columns of tiles."""
    return -(-s.y.h // m), -(-s.y.w // m)


def overhang(s: Conv, m: int) -> tuple[int, int]:
    """Rows below and columns right of the image that the tiles reach: the halo that ``x`` needs there."""
    down, across = grid(s, m)
    return max(0, down * m + 2 - s.top - s.x.h), max(0, across * m + 2 - s.left - s.x.w)


def scratch(s: Conv, machine: Machine, b: Blocking) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the transformed inputs [side^2][vectors in][tiles][lanes, or words] and of the products."""
    lanes = machine.lanes
    tiles = min(b.tiles, int(np.prod(grid(s, b.m))))
    inputs = s.x.blocks * s.x.block // lanes
    wide = lanes // 2 if b.pairs else lanes
    return (b.side**2, inputs, tiles, wide), (b.side**2, s.padded // lanes, tiles, lanes)


def stored_as(s: Conv, b: Blocking) -> DType:
    """The type of transformed weights: as that of the weights, but that bf16 is too coarse for larger tiles."""
    return F32 if s.weights is DType.BF16 and b.m > 2 else s.weights


def largest(s: Conv, most: int) -> int:
    """The largest tile: weights in bf16 that were asked for to save memory shall not be kept as f32."""
    return min(most, 2) if s.weights is DType.BF16 and s.x.dtype is F32 else most


def transform(weights: Array, s: Conv, machine: Machine, b: Blocking) -> list[Array]:
    """G g G^T of [out, in, 3, 3], packed for the products: per run [side^2][trips][blocks][block][vecs * lanes]."""
    g = np.array(_G[b.m])
    u = np.einsum("ai,ocij,bj->aboc", g, weights.astype(np.float64), g).astype(np.float32)
    s = replace(s, weights=stored_as(s, b))
    u = u.reshape(b.side**2, *weights.shape[:2], 1, 1)
    product = replace(s, kernel=(1, 1), top=0, left=0)
    packed = [pack(each, product, machine, b.vecs) for each in u]
    return [np.stack(parts)[:, :, :, 0, 0] for parts in zip(*packed, strict=True)]


def best_blockings(s: Conv, machine: Machine, count: int, most: int = 4) -> list[Blocking]:
    """The ``count`` blockings with the least estimated time, best first, with m at most ``most``."""
    vectors = s.padded // machine.lanes
    found = []
    for m in (m for m in _G if m <= largest(s, most)):
        total, pairs = math.prod(grid(s, m)), m == 2 and machine.lanes > 1 and s.pairs(machine) == "channels"
        for tiles in {min(t, total) for t in (7, 8, 14, 16, 28, 49, 56)}:
            for vecs in (v for v in (1, 2, 3, 4) if v <= vectors):
                for cols in range(1, tiles + 1):
                    if fits(cols, vecs, machine) and (tiles % cols == 0 or cols > 4):
                        found.append(Blocking(m, tiles, cols, vecs, pairs))
    return sorted(found, key=lambda b: estimate(s, machine, b))[:count]


def estimate(s: Conv, machine: Machine, b: Blocking) -> float:
    """Time of the convolution, the unit being one multiply-add of a vector."""
    total, inputs, outputs = math.prod(grid(s, b.m)), s.x.blocks * s.x.block, s.padded // machine.lanes
    steps = inputs // 2 if b.pairs else inputs
    transforms = total * (inputs // machine.lanes + outputs) * (2.4 if b.m == 2 else 3.6) * b.side**2
    products = 0.0
    for vecs, trips in ((b.vecs, outputs // b.vecs), (outputs % b.vecs, 1)):
        for _, n, cols in segments(min(b.tiles, total), b.cols):
            if vecs:
                products += n * trips * (steps * step_time(cols, vecs, machine) + 2.0 * cols * vecs + 20)
    products *= b.side**2 * -(-total // b.tiles)
    weights = stored_as(s, b).bytes * b.side**2 * s.x.channels * s.padded
    kept = 4.0 * b.side**2 * (steps + s.padded) * min(b.tiles, total)
    passes = -(-total // b.tiles)
    memory = weights / machine.stream + (passes - 1) * weights / (10 * machine.stream)
    spill = passes * kept / (8 * machine.stream) if kept > _CACHE else 0.0
    return s.y.n * (transforms + spill) + overlapped(s.y.n * products, memory)


# ------------------------------------------------------------------------------------- transforms
def _forward(k: Builder, m: int, d: list[Expr]) -> list[Expr]:
    """B^T d along one axis, with its common subexpressions."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    p, q = k.let("p", d[4] - 4.0 * d[2]), k.let("q", d[3] - 4.0 * d[1])
    s, t = k.let("s", d[4] - d[2]), k.let("t", 2.0 * (d[3] - d[1]))
    return [4.0 * d[0] - 5.0 * d[2] + d[4], p + q, p - q, s + t, s - t, 4.0 * d[1] - 5.0 * d[3] + d[5]]


def _backward(k: Builder, m: int, d: list[Expr]) -> list[Expr]:
    """A^T d along one axis."""
    if m == 2:
        return [d[0] + d[1] + d[2], d[1] - d[2] - d[3]]
    p, q = k.let("p", d[1] + d[2]), k.let("q", d[1] - d[2])
    s, t = k.let("s", d[3] + d[4]), k.let("t", d[3] - d[4])
    return [d[0] + p + s, q + 2.0 * t, p + 4.0 * s, q + 8.0 * t + d[5]]


# ----------------------------------------------------------------------------------------- kernel
@dataclass(frozen=True, eq=False)
class _Parts:
    """What the three steps share."""

    k: Builder
    s: Conv
    machine: Machine
    b: Blocking
    x: Tensor
    bias: Tensor | None
    mask: Tensor | None
    operands: list[Tensor]
    inputs: Tensor  # transformed
    products: Tensor
    y: Tensor
    n: Index

    def position(self, tile: Index) -> tuple[Index, Index]:
        """Row and column of a tile's first output."""
        across = grid(self.s, self.b.m)[1]
        return tile // across * self.b.m, tile % across * self.b.m


@lru_cache(maxsize=512)
def winograd(s: Conv, machine: Machine, b: Blocking) -> Kernel:
    """Parameters: x, transformed weights of each run, bias (padded), mask when ``clear``, operands, scratch for
    inputs and products, y.  The halo of ``x`` must cover ``overhang``."""
    k = Builder(f"winograd{b.m}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}")
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    cut = runs(s, machine, b.vecs)
    deep, dtype = (s.x.block // 2, DType.B2) if b.pairs else (s.x.block, stored_as(s, b))
    ws = [k.param("u", b.side**2, r.trips, r.blocks, deep, r.width, dtype=dtype) for r in cut]
    bias = k.param("b", s.padded) if s.bias else None
    mask = k.param("m", s.padded, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    kept, products = scratch(s, machine, b)
    v = k.param("v", *kept, dtype=DType.B2 if b.pairs else F32, scratch=True)
    t = k.param("t", *products, scratch=True)
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    total = int(np.prod(grid(s, b.m)))
    with k.loop("n", s.y.n) as n:
        parts = _Parts(k, s, machine, b, x, bias, mask, operands, v, t, y, n)
        tiles = min(b.tiles, total)
        with k.loop("block", -(-total // tiles), kind="parallel") as block:
            start = block * tiles
            # The last block multiplies whatever its missing tiles hold, and stores nothing of it.
            there = (tiles, total - start) if total % tiles else (tiles,)
            _transform_inputs(parts, start, there)
            for r, w in zip(cut, ws, strict=True):
                _multiply(parts, r, w, tiles)
            _transform_products(parts, start, there)
    return k.done()


def _transform_inputs(p: _Parts, start: Index, there: tuple[IndexLike, ...]) -> None:
    k, s, side, lanes = p.k, p.s, p.b.side, p.machine.lanes
    with k.loop("c", p.s.x.blocks * s.x.block // lanes) as c, k.loop("t", *there) as t:
        top, left = p.position(start + t)
        with k.outline("in"):
            half = k.local("h", side, side, lanes=lanes)
            for j in range(side):
                column = [
                    k.let("d", loaded(p.x.vec(lanes)[_at(p, c, top + i, left + j)])) for i in range(side)
                ]  # fmt: skip
                for i, e in enumerate(_forward(k, p.b.m, column)):
                    half[i, j] = e
            for i in range(side):
                for j, e in enumerate(_forward(k, p.b.m, [half[i, j] for j in range(side)])):
                    if p.b.pairs:
                        p.inputs.vec(lanes // 2)[i * side + j, c, t, 0] = bitcast(stored(e, DType.BF16), DType.B2)
                    else:
                        p.inputs.vec(lanes)[i * side + j, c, t, 0] = e


def _at(p: _Parts, c: Index, row: Index, col: Index) -> tuple[Index, ...]:
    """Where the padded input (row, col) of vector ``c`` lies."""
    s, lanes = p.s, p.machine.lanes
    channel = c * lanes
    at = row + (s.x.top - s.top), col + (s.x.left - s.left)
    return p.n, channel // s.x.block, *at, channel % s.x.block // lanes


def _multiply(p: _Parts, r: Run, w: Tensor, tiles: int) -> None:
    k, s, lanes = p.k, p.s, p.machine.lanes
    deep, row = (s.x.block // 2, lanes // 2) if p.b.pairs else (s.x.block, lanes)
    unroll = next(u for u in range(min(p.machine.unroll, deep), 0, -1) if deep % u == 0)
    turns, rounds = -(-tiles // p.b.cols), deep // unroll
    with k.loop("e", p.b.side**2) as e, k.loop("o", r.trips) as o:
        for first, count, width in segments(tiles, p.b.cols):
            with k.loop("j", count) as j, k.outline(f"mul{width}x{r.vecs}"):
                left = j * width + first
                acc = k.local("a", 1, width, r.vecs, lanes=lanes)
                with k.unroll("q", width) as q, k.unroll("z", r.vecs) as z:
                    acc[0, q, z] = 0.0
                turn = j + first // p.b.cols
                ahead = Ahead(w, (e, o + 1, 0, 0), turn, turns, r.blocks * rounds) if p.machine.prefetch else None
                with (
                    k.loop("c", r.blocks) as c,
                    k.loop("ci", rounds) as ci,
                    unrolled(k, unroll, c * rounds + ci, r.width, ahead if tiles >= 6 else None) as u,
                ):
                    ch = ci * unroll + u
                    weights = [k.let(f"w{z}", loaded(w.vec(lanes)[e, o, c, ch, z])) for z in range(r.vecs)]
                    at = c * (deep // row) + ch // row, ch % row

                    def value(_: Index, q: Index, at: tuple[Index, Index] = at, left: Index = left) -> Expr:
                        return p.inputs[e, at[0], left + q, at[1]]

                    multiply_add(k, acc, (1, width), lanes, weights, value)
                with k.unroll("q", width) as q, k.unroll("z", r.vecs) as z:
                    out = o * r.vecs + r.start // lanes + z
                    p.products.vec(lanes)[e, out, left + q, 0] = acc[0, q, z]


def _transform_products(p: _Parts, start: Index, there: tuple[IndexLike, ...]) -> None:
    k, s, side, m, lanes = p.k, p.s, p.b.side, p.b.m, p.machine.lanes
    with k.loop("c", s.padded // lanes) as c, k.loop("t", *there) as t:
        top, left = p.position(start + t)
        with k.outline("out"):
            half = k.local("h", m, side, lanes=lanes)
            for j in range(side):
                column = [k.let("d", p.products.vec(lanes)[i * side + j, c, t, 0]) for i in range(side)]
                for i, e in enumerate(_backward(k, m, column)):
                    half[i, j] = e
            for i in range(m):
                with k.when(*([top + i < s.y.h] if s.y.h % m else [])):
                    for j, e in enumerate(_backward(k, m, [half[i, j] for j in range(side)])):
                        with k.when(*([left + j < s.y.w] if s.y.w % m else [])):
                            _finish(p, c, top + i, left + j, e)


def _finish(p: _Parts, c: Index, row: Index, col: Index, value: Value) -> None:
    s, lanes = p.s, p.machine.lanes
    channel = c * lanes
    result = value if p.bias is None else value + p.bias.vec(lanes)[c]
    extra = [
        broadcast(loaded(tensor.vec(image.lanes(lanes))[image.at(p.n, channel, row, col, lanes)]), lanes)
        for image, tensor in zip(s.operands, p.operands, strict=True)
    ]
    assert isinstance(result, Expr)
    result = s.epilogue(result, *extra)
    if p.mask is not None:
        result = select(p.mask.vec(lanes)[c], result, 0.0)
    p.y.vec(lanes)[s.y.place(p.n, channel, row, col, lanes)] = stored(result, s.y.dtype)
