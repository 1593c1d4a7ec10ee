"""Winograd convolution of stride 1: m outputs per axis of a tile from m + taps - 1 inputs, with one multiplication per
input of a tile.

Tiles of the image are transformed (``cook_toom``), multiplied with transformed weights, one matrix product for each
element of a tile, and transformed back with bias and epilogue.  A block of tiles, which may be of several images, goes
through all three steps at once, so that intermediate results stay in cache; blocks are distributed over threads, or,
where there is only one, the work within each step.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2015).  Tiles of 2 and 4 need 2.25 and 4
times fewer multiplications for 3x3 taps, and 1.75 and 2.8 times for 7 taps in a row; the error that this adds is
``algorithms.winograd.ERROR``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Expr, Kernel, bitcast
from tenon.machine.kernels.ahead import Ahead, unrolled
from tenon.machine.kernels.conv import Conv, GroupRun, described, multiply_add, pack, runs
from tenon.machine.kernels.cook_toom import Short
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.storage_types import NARROW, loaded, stored
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType

_LONGEST_ROUNDED = 4
"""The longest side of a tile whose weights, and inputs, may be rounded to 16 bits: the transforms of longer ones
multiply the error of that by 30 and more (tiles of 4 of 3x3 taps in pairs of bf16: 2.9e-1 of the RMS, directly
1.0e-2)."""


@dataclass(frozen=True)
class WinogradBlocking:
    """``m``: outputs of a tile per axis that has taps.  ``tiles``: how many go through the three steps together.  The
    products keep ``cols`` tiles times ``vecs`` vectors of output channels in registers; ``pairs`` says that transformed
    inputs and weights are rounded to bf16, and multiplied two by two."""

    m: int
    tiles: int
    cols: int
    vecs: int
    pairs: bool = False


def axes(s: Conv, m: int) -> tuple[Short, Short]:
    """The transforms of rows and columns."""
    down, across = (Short(m, taps) if taps > 1 else Short(1, 1) for taps in s.kernel)
    return down, across


def elements(s: Conv, m: int) -> int:
    """Inputs of a tile."""
    down, across = axes(s, m)
    return down.side * across.side


def grid(s: Conv, m: int) -> tuple[int, int]:
    """Rows and columns of tiles."""
    down, across = axes(s, m)
    return -(-s.y.h // down.m), -(-s.y.w // across.m)


def tiles_of(s: Conv, m: int) -> int:
    """Tiles of all images."""
    return s.y.n * math.prod(grid(s, m))


def place_of(s: Conv, m: tuple[int, int], tile: Index) -> tuple[Index, Index, Index]:
    """Image, row and column of the first output of a tile of ``m`` rows and columns."""
    rows, cols = (-(-size // each) for size, each in zip((s.y.h, s.y.w), m, strict=True))
    n = Index()
    if s.y.n > 1:
        n, tile = tile // (rows * cols), tile % (rows * cols)
    if rows == 1:  # without quotients, which keep loops over tiles from ending where less is needed
        return n, Index(), tile * m[1]
    return n, tile // cols * m[0], tile % cols * m[1]


def overhang(s: Conv, m: int) -> tuple[int, int]:
    """Rows below and columns right of the image that the tiles reach: the halo that ``x`` needs there."""
    down, across = axes(s, m)
    rows, cols = grid(s, m)
    below = rows * down.m + down.r - 1 - s.top - s.x.h
    return max(0, below), max(0, cols * across.m + across.r - 1 - s.left - s.x.w)


def between(s: Conv, machine: Machine, b: WinogradBlocking) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the transformed inputs [elements][vectors in][tiles][lanes, or words] and of the products."""
    lanes = machine.lanes
    tiles = min(b.tiles, tiles_of(s, b.m))
    wide = lanes // 2 if b.pairs else lanes
    inputs, outputs = s.x.blocks * s.x.block // lanes, s.padded // lanes
    count = elements(s, b.m)
    # A stride of a large power of two would map the elements of a tile to few sets of a cache.
    room = tiles + (tiles % 2 == 0)
    return (count, inputs, room, wide), (count, outputs, room, lanes)


def roundable(s: Conv, m: int) -> bool:
    """Whether transformed weights may be rounded to 16 bits."""
    return max(axis.side for axis in axes(s, m)) <= _LONGEST_ROUNDED


def stored_as(s: Conv, b: WinogradBlocking) -> DType:
    """The type of transformed weights: as that of the weights, but that 16 bits are too coarse for larger tiles."""
    return s.weights if s.weights not in NARROW or roundable(s, b.m) else F32


def transform(weights: Array, s: Conv, machine: Machine, b: WinogradBlocking) -> list[Array]:
    """G g G^T of [out, in, kh, kw], packed for the products.

    Per run: [elements][iterations][blocks][block][vecs * lanes].
    """
    u = transformed(weights, s, b).astype(np.float32)
    u = u.reshape(-1, *weights.shape[:2], 1, 1)
    packed = [pack(each, product_of(s, b), machine, b.vecs) for each in u]
    return [np.stack(parts)[:, :, :, 0, 0] for parts in zip(*packed, strict=True)]


def product_of(s: Conv, b: WinogradBlocking) -> Conv:
    """The product of one element of all tiles, as a convolution: of what is stored between the steps."""
    x = s.x if b.pairs else replace(s.x, dtype=F32)
    return replace(s, x=x, weights=stored_as(s, b), kernel=(1, 1), top=0, left=0)


def transformed(weights: Array, s: Conv, b: WinogradBlocking) -> Array:
    """G g G^T, f64 [rows, cols, out, in]."""
    down, across = axes(s, b.m)
    # einsum(optimize=True) would call BLAS, whose sums depend on the processor: a bundle's bytes must not.
    u: Array = np.einsum("ai,ocij,bj->aboc", down.taps(), weights.astype(np.float64), across.taps())
    return u


# ----------------------------------------------------------------------------------------- kernels
@dataclass(frozen=True, eq=False)
class _WinogradContext:
    """Data that the three steps share: shapes, machine and blocking."""

    k: Builder
    s: Conv
    machine: Machine
    b: WinogradBlocking

    @property
    def total(self) -> int:
        return tiles_of(self.s, self.b.m)

    @property
    def elements(self) -> int:
        return elements(self.s, self.b.m)

    @property
    def tiles(self) -> int:
        """The tiles of one block."""
        return min(self.b.tiles, self.total)

    def position(self, tile: Index) -> tuple[Index, Index, Index]:
        """Image, row and column of a tile's first output."""
        down, across = axes(self.s, self.b.m)
        return place_of(self.s, (down.m, across.m), tile)

    # Parameters of the kernels, in the order in which they must be declared.
    def image(self) -> Tensor:
        return self.k.param("x", *self.s.x.shape, dtype=self.s.x.dtype)

    def weights(self) -> list[tuple[GroupRun, Tensor]]:
        deep, dtype = (self.s.x.block // 2, DType.B2) if self.b.pairs else (self.s.x.block, stored_as(self.s, self.b))
        cut = runs(product_of(self.s, self.b), self.machine, self.b.vecs)
        return [(r, self.k.param("u", self.elements, r.iterations, r.blocks, deep, r.width, dtype=dtype)) for r in cut]

    def transformed(self, *, out: bool = False, scratch: bool = False) -> Tensor:
        shape, _ = between(self.s, self.machine, self.b)
        return self.k.param("v", *shape, dtype=DType.B2 if self.b.pairs else F32, out=out, scratch=scratch)

    def products(self, *, out: bool = False, scratch: bool = False) -> Tensor:
        _, shape = between(self.s, self.machine, self.b)
        return self.k.param("t", *shape, out=out, scratch=scratch)

    def finish(self) -> _Finish:
        k, s = self.k, self.s
        bias = k.param("b", s.padded) if s.bias else None
        mask = k.param("m", s.padded, dtype=I32) if s.clear else None
        return _Finish(bias, mask, [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands])

    def output(self) -> Tensor:
        return self.k.param("y", *self.s.y.shape, dtype=self.s.y.dtype, out=True)


@dataclass(frozen=True, eq=False)
class _Finish:
    """The bias and epilogue of a result before it is stored."""

    bias: Tensor | None
    mask: Tensor | None
    operands: list[Tensor]


def in_phases(s: Conv, b: WinogradBlocking) -> bool:
    """Whether the three steps are separate kernels: where all tiles are one block, the work within each step is
    distributed over threads, which share the memory between steps."""
    return tiles_of(s, b.m) <= b.tiles


_SERIAL = ("serial", "serial")
"""Loops that are not distributed over threads."""


def _about(s: Conv, b: WinogradBlocking) -> str:
    """The kernel's comment in generated code."""
    return f"{described(s)}, by Winograd's algorithm with {b.m} outputs of a tile per axis, {b.tiles} tiles at a time"


def _name(s: Conv, b: WinogradBlocking) -> str:
    return f"winograd{b.m}" + ("" if s.kernel == (3, 3) else f"_{s.kernel[0]}x{s.kernel[1]}")


@lru_cache(maxsize=512)
def winograd(s: Conv, machine: Machine, b: WinogradBlocking) -> Kernel:
    """Parameters: x, transformed weights of each run, bias (padded), mask when ``clear``, operands, scratch for
    inputs and products, y.  The halo of ``x`` must cover ``overhang``."""
    k = Builder(f"{_name(s, b)}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}", _about(s, b))
    p = _WinogradContext(k, s, machine, b)
    x, ws, end = p.image(), p.weights(), p.finish()
    v, t, y = p.transformed(scratch=True), p.products(scratch=True), p.output()
    blocks = -(-p.total // p.tiles)
    (shares,), _ = deal(blocks, threads=machine.threads)
    with k.loop("block", blocks, kind=shares) as block:
        start = block * p.tiles
        # The last block also multiplies the uninitialised tiles past the end, whose results are not stored.
        there = (p.tiles, p.total - start) if p.total % p.tiles else (p.tiles,)
        _transform_inputs(p, x, v, start, there)
        with k.loop("e", p.elements) as e:
            for r, w in ws:
                _multiply(p, r, w, v, t, e)
        _transform_products(p, t, end, y, start, there)
    return k.done()


@lru_cache(maxsize=512)
def phases(s: Conv, machine: Machine, b: WinogradBlocking) -> tuple[Kernel, Kernel, Kernel]:
    """The steps of one block, of all images.  Parameters: x, inputs; inputs, transformed weights of each run, products;
    products, bias (padded), mask when ``clear``, operands, y."""
    name = f"{_name(s, b)}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}"
    start = Index()

    p = _WinogradContext(Builder(f"{name}_in", f"Transformed inputs: {_about(s, b)}"), s, machine, b)
    x, v = p.image(), p.transformed(out=True)
    _transform_inputs(p, x, v, start, (p.total,), _phase_kinds(s.x.blocks * s.x.block, p))
    kernels = [p.k.done()]

    p = _WinogradContext(Builder(f"{name}_mul", f"Products: {_about(s, b)}"), s, machine, b)
    v, ws, t = p.transformed(), p.weights(), p.products(out=True)
    (outer, inner), _ = deal(p.elements, max(r.iterations for r, _ in ws), threads=machine.threads)
    with p.k.loop("e", p.elements, kind=outer) as e:
        for r, w in ws:
            _multiply(p, r, w, v, t, e, inner)
    kernels.append(p.k.done())

    p = _WinogradContext(Builder(f"{name}_out", f"Transformed products: {_about(s, b)}"), s, machine, b)
    t, end, y = p.products(), p.finish(), p.output()
    _transform_products(p, t, end, y, start, (p.total,), _phase_kinds(s.padded, p))
    return kernels[0], kernels[1], p.k.done()


def _phase_kinds(channels: int, p: _WinogradContext) -> Sequence[str]:
    """The kinds of a transform's loops over vectors of channels and over tiles: which are distributed over threads."""
    return deal(channels // p.machine.lanes, p.total, threads=p.machine.threads)[0]


def _transform_inputs(
    p: _WinogradContext,
    x: Tensor,
    v: Tensor,
    start: Index,
    there: tuple[IndexLike, ...],
    kinds: Sequence[str] = _SERIAL,
) -> None:
    k, s, lanes = p.k, p.s, p.machine.lanes
    down, across = axes(s, p.b.m)
    outer, inner = kinds
    with k.loop("c", s.x.blocks * s.x.block // lanes, kind=outer) as c, k.loop("t", *there, kind=inner) as t:
        n, top, left = p.position(start + t)
        with k.outline("in", "the transform of an input tile"):
            half = k.local("h", down.side, across.side, lanes=lanes)
            for j in range(across.side):
                rows = range(down.side)
                column = [k.let("d", loaded(x.vec(lanes)[_at(p, n, c, top + i, left + j)])) for i in rows]
                for i, e in enumerate(down.forward(k, column)):
                    half[i, j] = e
            for i in range(down.side):
                for j, e in enumerate(across.forward(k, [half[i, j] for j in range(across.side)])):
                    if p.b.pairs:
                        v.vec(lanes // 2)[i * across.side + j, c, t, 0] = bitcast(stored(e, DType.BF16), DType.B2)
                    else:
                        v.vec(lanes)[i * across.side + j, c, t, 0] = e


def _at(p: _WinogradContext, n: Index, c: Index, row: Index, col: Index) -> tuple[Index, ...]:
    """The indices of the padded input (row, col) of vector ``c``."""
    s, lanes = p.s, p.machine.lanes
    channel = c * lanes
    at = row + (s.x.top - s.top), col + (s.x.left - s.left)
    return n, channel // s.x.block, *at, channel % s.x.block // lanes


def _multiply(
    p: _WinogradContext, r: GroupRun, w: Tensor, v: Tensor, t: Tensor, e: Index, kind: str = "serial"
) -> None:
    """The products of one element of the tiles with the weights of one run."""
    k, s, lanes, tiles = p.k, p.s, p.machine.lanes, p.tiles
    deep, row = (s.x.block // 2, lanes // 2) if p.b.pairs else (s.x.block, lanes)
    unroll = next(u for u in range(min(p.machine.unroll, deep), 0, -1) if deep % u == 0)
    turns, rounds = p.machine.prefetching(-(-tiles // p.b.cols)), deep // unroll
    with k.loop("o", r.iterations, kind=kind) as o:
        for first, count, width in segments(tiles, p.b.cols):
            with (
                k.loop("j", count) as j,
                k.outline(
                    f"mul{width}x{r.vecs}", f"products of {width} tiles with {r.vecs} vectors of output channels"
                ),
            ):
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
                        return v[e, at[0], left + q, at[1]]

                    multiply_add(k, p.machine, acc, (1, width), lanes, weights, value)
                with k.unroll("q", width) as q, k.unroll("z", r.vecs) as z:
                    t.vec(lanes)[e, o * r.vecs + r.start // lanes + z, left + q, 0] = acc[0, q, z]


def _transform_products(
    p: _WinogradContext,
    t: Tensor,
    end: _Finish,
    y: Tensor,
    start: Index,
    there: tuple[IndexLike, ...],
    kinds: Sequence[str] = _SERIAL,
) -> None:
    k, s, lanes = p.k, p.s, p.machine.lanes
    down, across = axes(s, p.b.m)
    outer, inner = kinds
    with k.loop("c", s.padded // lanes, kind=outer) as c, k.loop("t", *there, kind=inner) as tile:
        n, top, left = p.position(start + tile)
        with k.outline("out", "the transform of a tile of products, bias and epilogue"):
            half = k.local("h", down.m, across.side, lanes=lanes)
            for j in range(across.side):
                rows = range(down.side)
                column = [k.let("d", t.vec(lanes)[i * across.side + j, c, tile, 0]) for i in rows]
                for i, e in enumerate(down.backward(k, column)):
                    half[i, j] = e
            for i in range(down.m):
                with k.when(*([top + i < s.y.h] if s.y.h % down.m else [])):
                    for j, e in enumerate(across.backward(k, [half[i, j] for j in range(across.side)])):
                        with k.when(*([left + j < s.y.w] if s.y.w % across.m else [])):
                            _store(p, end, y, (n, c, top + i, left + j), e)


def _store(p: _WinogradContext, end: _Finish, y: Tensor, at: tuple[Index, Index, Index, Index], value: Expr) -> None:
    n, c, row, col = at
    lanes = p.machine.lanes
    mask = None if end.mask is None else end.mask.vec(lanes)[c]
    biased = value if end.bias is None else value + end.bias.vec(lanes)[c]
    finish(p.s, y, end.operands, (n, c * lanes, row, col), lanes, biased, mask)
