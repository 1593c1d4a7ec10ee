"""Strassen's algorithm on convolutions: seven products of submatrices in place of eight.

A convolution multiplies positions x input channels by input channels x output channels (at every tap).  All three
are halved; Winograd's variant then needs 7 products and 15 additions of quarters.  4 of the additions are of
weights, done when packing; the input's 4 are one pass over the input; the other 7 happen where products are
stored.  Halves can be halved again: L levels multiply (7/8)^L of the time and make weights (7/4)^L as large.
Where the upper half has one row more than the lower one, its results are those of four of the products, without sums.

A block of positions goes through all steps at once, so that intermediate results stay in cache; threads share out
blocks.  Strassen, "Gaussian elimination is not optimal" (1969); on the variant and orders of its products, Boyer,
Dumas, Pernet and Zhou, "Memory efficient scheduling of Strassen-Winograd's matrix multiplication algorithm" (2009).
The largest error over the RMS of the output, against exact arithmetic on random data: ``algorithms.strassen.ERROR``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from itertools import product as product_of

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Expr, Kernel
from tenon.machine.kernels import lane_products
from tenon.machine.kernels.ahead import Ahead, unrolled
from tenon.machine.kernels.conv import Conv, OutputTile, described, multiply_add, pack
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32


@dataclass(frozen=True)
class StrassenBlocking:
    """``levels`` of halving, of blocks of ``rows x cols`` positions and one of ``groups`` equal parts of the output
    channels; ``tile`` is the register tile of the innermost products."""

    levels: int
    rows: int
    cols: int
    groups: int
    tile: OutputTile

    def extent(self, level: int) -> tuple[int, int]:
        """Rows and columns of a block halved ``level`` times: rows while they are even, then columns."""
        rows, cols = self.rows, self.cols
        for _ in range(level):
            rows, cols = (rows // 2, cols) if rows % 2 == 0 else (rows, cols // 2)
        return rows, cols

    @property
    def divides(self) -> bool:
        rows, cols = self.extent(self.levels)
        return rows * cols << self.levels == self.rows * self.cols


def _gathers(s: Conv) -> bool:
    """Sums for a kernel of one tap hold only the elements that it reads."""
    return s.kernel == (1, 1)


def _reach(s: Conv, extent: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of input that the sums for ``extent`` positions hold."""
    if _gathers(s):
        return extent
    spans = zip(extent, s.kernel, s.stride, s.dilation, strict=True)
    rows, cols = ((n - 1) * stride + (taps - 1) * dilation + 1 for n, taps, stride, dilation in spans)
    return rows, cols


def scratch(s: Conv, b: StrassenBlocking) -> list[tuple[int, ...]]:
    """Shapes of the sums of inputs [4][blocks][rows][cols][block] and of sums of products [2]..., level by level."""
    shapes: list[tuple[int, ...]] = []
    for level in range(1, b.levels + 1):
        extent = b.extent(level)
        shapes.append((4, s.x.blocks >> level, *_reach(s, extent), s.x.block))
        shapes.append((2, s.y.blocks // b.groups >> level, *extent, s.y.block))
    return shapes


def down(s: Conv, b: StrassenBlocking) -> int:
    """How many blocks lie below each other; the last one may reach below the image."""
    return -(-s.y.h // b.rows)


def odd(s: Conv, b: StrassenBlocking) -> bool:
    """Whether the last row of the last block has no row in the lower half beside it: of products of one level, which
    then need four products of this row and seven of all others."""
    return b.levels == 1 and down(s, b) * b.rows - s.y.h == 1 and b.rows % 2 == 0 and single_taps(s)


def single_taps(s: Conv) -> bool:
    """Whether every position reads its own row and column alone."""
    return s.kernel == s.stride == (1, 1) and not s.top and not s.left


def overhang(s: Conv, b: StrassenBlocking) -> int:
    """Rows below the image that the blocks read: the halo that ``x`` needs there."""
    if odd(s, b):
        return 0
    last = (down(s, b) * b.rows - 1) * s.stride[0] + (s.kernel[0] - 1) * s.dilation[0]
    return max(0, last - s.top - s.x.h + 1) if s.y.h % b.rows else 0


def transform(weights: Array, s: Conv, machine: Machine, b: StrassenBlocking) -> Array:
    """[groups][7^levels][iterations][blocks][kh][kw][block][vecs * lanes] from [out, in, kh, kw], summed in f64."""
    quarter = replace(
        s,
        x=Image(1, s.x.channels >> b.levels, 1, 1, s.x.block),
        y=Image(1, -(-s.y.channels // b.groups) >> b.levels, 1, 1, s.y.block),
    )
    parts = np.split(weights.astype(np.float64), b.groups)
    packed = [
        np.stack([pack(w.astype(np.float32), quarter, machine, b.tile.vecs)[0] for w in _products(part, b.levels)])
        for part in parts
    ]
    return np.stack(packed)


def _products(w: Array, levels: int) -> list[Array]:
    """The right-hand sides of the products, in their order."""
    if levels == 0:
        return [w]
    top, bottom = np.split(w, 2)
    (b11, b21), (b12, b22) = np.split(top, 2, axis=1), np.split(bottom, 2, axis=1)
    t1 = b12 - b11
    t2 = b22 - t1
    each = (b11, b21, t2, b22 - b12, t1, b22, b21 - t2)
    return [product for half in each for product in _products(half, levels - 1)]


# -------------------------------------------------------------------------------------------- kernel
@dataclass(frozen=True, eq=False)
class MatrixView:
    """A part of a tensor [n][blocks][rows][cols][block]: the offset of its first element, and the strides of its rows
    and columns."""

    tensor: Tensor
    n: IndexLike
    block: Index
    row: Index
    col: Index
    stride: tuple[int, int] = (1, 1)

    def moved(self, blocks: IndexLike, rows: int, cols: int) -> MatrixView:
        return replace(
            self,
            block=self.block + blocks,
            row=self.row + rows * self.stride[0],
            col=self.col + cols * self.stride[1],
        )

    def vector(self, lanes: int, at: tuple[IndexLike, IndexLike, IndexLike, IndexLike]) -> Expr:
        """The vector at (block, row, col, vector of the block)."""
        c, i, j, v = at
        row, col = self.row + index(i) * self.stride[0], self.col + index(j) * self.stride[1]
        return self.tensor.vec(lanes)[self.n, self.block + c, row, col, v]

    def put(self, lanes: int, at: tuple[IndexLike, IndexLike, IndexLike, IndexLike], value: Expr) -> None:
        c, i, j, v = at
        self.tensor.vec(lanes)[self.n, self.block + c, self.row + i, self.col + j, v] = value


@dataclass(frozen=True, eq=False)
class Destination:
    """The destination of a product: ``adds`` are added to it, then it is stored in ``view``, or if that is None in the
    result, from (block, row, col) on."""

    view: MatrixView | None
    adds: tuple[MatrixView, ...] = ()
    block: IndexLike = 0
    row: IndexLike = 0
    col: IndexLike = 0

    def moved(self, blocks: int, rows: int, cols: int) -> Destination:
        return Destination(
            self.view and self.view.moved(blocks, rows, cols),
            tuple(a.moved(blocks, rows, cols) for a in self.adds),
            index(self.block) + blocks,
            index(self.row) + rows,
            index(self.col) + cols,
        )

    def plus(self, view: MatrixView) -> Destination:
        return replace(self, adds=(view, *self.adds))


Targets = tuple[Destination, ...]


@lru_cache(maxsize=512)
def strassen(s: Conv, machine: Machine, b: StrassenBlocking) -> Kernel:
    """Parameters: x, transformed weights, bias (padded), mask when ``clear``, operands, ``scratch``, y.  The halo of
    ``x`` must cover ``overhang``."""
    k = Builder(
        f"strassen{b.levels}_{'x'.join(map(str, s.kernel))}_{s.x.channels}_{s.y.channels}_{s.y.h}x{s.y.w}",
        f"{described(s)}, by {b.levels} levels of Strassen's algorithm",
    )
    x = k.param("x", *s.x.shape)
    given = Given.of(k, s, machine, b)
    with k.loop("n", s.y.n) as n, blocks(k, s, b) as (group, top, left):
        row = top * s.stride[0] + (s.x.top - s.top)
        col = left * s.stride[1] + (s.x.left - s.left)
        given.multiply(MatrixView(x, n, Index(), row, col, s.stride), n, group, top, left)
    return k.done()


@contextmanager
def blocks(k: Builder, s: Conv, b: StrassenBlocking) -> Iterator[tuple[Index, Index, Index]]:
    """The parallel loop over blocks; yields (part of the output channels, first row, first column).  Blocks of the same
    rows are neighbours; where the last rows are fewer, blocks of the same channels, so that threads that have all rows
    of some channels have equally much to do."""
    across, rows = s.y.w // b.cols, down(s, b)
    with k.loop("block", rows * across * b.groups, kind="parallel") as block:
        if odd(s, b):
            yield block // rows, block % rows * b.rows, Index()
            return
        at = block // b.groups
        yield block % b.groups, *((at * b.rows, Index()) if across == 1 else (Index(), at * b.cols))


@dataclass(frozen=True, eq=False)
class Given:
    """The parameters of a kernel from the weights on, by their roles."""

    k: Builder
    s: Conv
    machine: Machine
    b: StrassenBlocking
    w: Tensor
    bias: Tensor | None
    mask: Tensor | None
    operands: list[Tensor]
    kept: list[Tensor]
    y: Tensor

    @classmethod
    def of(cls, k: Builder, s: Conv, machine: Machine, b: StrassenBlocking) -> Given:
        width = b.tile.vecs * machine.lanes
        iterations, ins = (s.padded // b.groups >> b.levels) // width, s.x.blocks >> b.levels
        return cls(
            k,
            s,
            machine,
            b,
            k.param("w", b.groups, 7**b.levels, iterations, ins, *s.kernel, s.x.block, width),
            k.param("b", s.padded) if s.bias else None,
            k.param("m", s.padded, dtype=I32) if s.clear else None,
            [k.param("r", *i.shape) for i in s.operands],
            [k.param("st"[i % 2], *shape, scratch=True) for i, shape in enumerate(scratch(s, b))],
            k.param("y", *s.y.shape, out=True),
        )

    def multiply(self, a: MatrixView, n: Index, group: Index, top: Index, left: Index) -> None:
        """The block of image ``n`` and part ``group`` of the output channels at (top, left), from its inputs."""
        target = Destination(None, (), group * (self.s.y.blocks // self.b.groups), top, left)
        multiply(Parts(n=n, group=group, top=top, **vars(self)), a, (target,))


class _Rows(Enum):
    """Rows of the halves: all of the upper one, those that both halves have, or the last one of the upper half if it
    is in this one alone."""

    ALL, PAIRS, LAST = range(3)


@dataclass(frozen=True, eq=False)
class Parts(Given):
    """Operands and indices of all steps; ``n`` is the index of the image, ``group`` that of the part of the output
    channels, and ``top`` the first row of the block.  ``rows``: of which products are made."""

    n: Index
    group: Index
    top: Index
    rows: _Rows = _Rows.ALL

    @property
    def odd(self) -> bool:
        return odd(self.s, self.b)

    def spans(self, rows: int, which: _Rows) -> list[tuple[int, int, list[Index]]]:
        """(first, number, what must not be negative) of the ``which`` of ``rows`` rows: the last one depends on whether
        this block is the last."""
        if which is _Rows.ALL:
            return [(0, rows, [])]
        beyond, alone = self.top + (self.b.rows - self.s.y.h), down(self.s, self.b) == 1
        if which is _Rows.LAST:
            return [(rows - 1, 1, [] if alone else [beyond])]
        last = [] if alone else [(rows - 1, 1, [-1 - beyond])]
        return [*([(0, rows - 1, [])] if rows > 1 else []), *last]

    def sums(self, level: int, which: int) -> MatrixView:
        stride = (1, 1) if _gathers(self.s) else self.s.stride
        return MatrixView(self.kept[2 * level - 2], which, Index(), Index(), Index(), stride)

    def product(self, level: int, which: int) -> MatrixView:
        return MatrixView(self.kept[2 * level - 1], which, Index(), Index(), Index())


def multiply(p: Parts, a: MatrixView, to: Targets, level: int = 0, number: int = 0) -> None:
    """The product of ``a`` and the weights ``number`` of this level."""
    if level == p.b.levels:
        _multiply(p, a, to, number)
        return
    inner, number = level + 1, 7 * number
    h, w = p.b.extent(inner)
    down = (h, 0) if h < p.b.extent(level)[0] else (0, w)
    ins, outs = p.s.x.blocks >> inner, p.s.y.blocks // p.b.groups >> inner
    u, v = (p.product(inner, i) for i in range(2))
    s1, s2, s3, s4 = (p.sums(inner, i) for i in range(4))

    def part(i: int, j: int, add: MatrixView) -> Targets:
        return tuple(t.moved(j * outs, i * down[0], i * down[1]).plus(add) for t in to)

    def product(i: int, left: MatrixView, *targets: Destination, rows: _Rows = _Rows.ALL) -> None:
        with p.k.outline(f"product{inner}", "one of the products of halves"):
            multiply(replace(p, rows=rows), left, targets, inner, number + i)

    pairs = _Rows.PAIRS if p.odd else _Rows.ALL
    _add_inputs(p, a, ins, down, inner)
    product(0, a, Destination(u))
    product(1, a.moved(ins, 0, 0), *part(0, 0, u))
    product(2, s2, Destination(v, (u,)), rows=pairs)
    product(3, s3, Destination(u, (v,)), rows=pairs)
    product(4, s1, Destination(v, (v,)), *part(1, 1, u), rows=pairs)
    if p.odd:
        product(4, s1, Destination(v, (u,)), rows=_Rows.LAST)
    product(5, s4, *part(0, 1, v))
    product(6, a.moved(ins, *down), *part(1, 0, u), rows=pairs)


def _add_inputs(p: Parts, a: MatrixView, ins: int, down: tuple[int, int], level: int) -> None:
    """a21 + a22, that - a11, a11 - a21, a12 - the second; of a row of the upper half that has none beside it, a11 and
    a12 in place of the first and the last."""
    s, lanes = p.s, p.machine.lanes
    rows, cols = _reach(s, p.b.extent(level))
    below = a.moved(0, *down)
    if not _gathers(s):
        a, below = replace(a, stride=(1, 1)), replace(below, stride=(1, 1))
    to = [replace(p.sums(level, i), stride=(1, 1)) for i in range(4)]
    k = p.k
    with k.outline("sums", "sums and differences of parts of the input"), k.loop("c", ins) as c:
        for first, count, facts in p.spans(rows, _Rows.PAIRS if p.odd else _Rows.ALL):
            with k.when(*facts), k.loop("i", count) as i, k.loop("j", cols) as j:
                for v in range(s.x.block // lanes):
                    at = c, i + first, j, v
                    a11, a12 = (k.let("a", a.moved(m, 0, 0).vector(lanes, at)) for m in (0, ins))
                    a21, a22 = (k.let("a", below.moved(m, 0, 0).vector(lanes, at)) for m in (0, ins))
                    s1 = k.let("s", a21 + a22)
                    s2 = k.let("s", s1 - a11)
                    for view, value in zip(to, (s1, s2, a11 - a21, a12 - s2), strict=True):
                        view.put(lanes, at, value)
        for first, _, facts in p.spans(rows, _Rows.LAST) if p.odd else []:
            with k.when(*facts), k.loop("j", cols) as j:
                for v, (m, view) in product_of(range(s.x.block // lanes), ((0, to[0]), (ins, to[3]))):
                    at = c, index(first), j, v
                    view.put(lanes, at, a.moved(m, 0, 0).vector(lanes, at))


def _multiply(p: Parts, a: MatrixView, to: Targets, number: int) -> None:
    """An innermost product, tile by tile; groups of output channels are outermost."""
    k, tile, (rows, cols) = p.k, p.b.tile, p.b.extent(p.b.levels)
    across = -(-cols // tile.cols)
    of = across * -(-rows // tile.rows)
    with k.loop("o", p.w.buffer.shape[2]) as o:
        for start, extent, facts in p.spans(rows, p.rows):
            for first, count, height in segments(extent, tile.rows):
                with k.when(*facts), k.loop("i", count) as i:
                    for left, iterations, width in segments(cols, tile.cols):
                        with (
                            k.loop("j", iterations) as j,
                            k.outline(
                                f"{height}x{width}x{tile.vecs}",
                                f"a tile of {height} x {width} positions and {tile.vecs} vectors of output channels",
                            ),
                        ):
                            turn = (i + (start + first) // tile.rows) * across + (j + left // tile.cols)
                            at = i * height + (start + first), j * width + left
                            _micro(p, a, to, _TileStep(number, o, at, (height, width), turn, of))


@dataclass(frozen=True, eq=False)
class _TileStep:
    """A tile of product ``number`` and group of output channels ``o``: number ``turn`` of ``of``."""

    number: int
    o: Index
    at: tuple[Index, Index]
    size: tuple[int, int]
    turn: Index
    of: int


def _micro(p: Parts, a: MatrixView, to: Targets, t: _TileStep) -> None:
    k, s, lanes, vecs = p.k, p.s, p.machine.lanes, p.b.tile.vecs
    ins, deep, (kh, kw) = s.x.blocks >> p.b.levels, s.x.block, s.kernel
    together = lane_products.applies(p.machine, deep, deep, lanes, math.prod(t.size))
    most = lanes if together else p.machine.unroll
    unroll = next(u for u in range(min(most, deep), 0, -1) if deep % u == 0)
    acc = k.local("a", *t.size, vecs, lanes=lanes)
    with k.unroll("p", t.size[0]) as i, k.unroll("q", t.size[1]) as j, k.unroll("v", vecs) as v:
        acc[i, j, v] = 0.0
    w = p.w.vec(lanes)
    with k.loop("c", ins) as c, k.loop("ky", kh) as ky, k.loop("kx", kw) as kx, k.loop("ci", deep // unroll) as ci:
        round, rounds = ((c * kh + ky) * kw + kx) * (deep // unroll) + ci, ins * kh * kw * (deep // unroll)
        ahead = Ahead(p.w, (p.group, t.number, t.o + 1, 0, 0, 0, 0), t.turn, p.machine.prefetching(t.of), rounds)
        x = a.tensor.vec(lanes) if together else a.tensor

        def value(i: Index, j: Index, ch: Index) -> Expr:
            row = a.row + (t.at[0] + i) * a.stride[0] + ky * s.dilation[0]
            col = a.col + (t.at[1] + j) * a.stride[1] + kx * s.dilation[1]
            return x[a.n, a.block + c, row, col, ch]

        def weights(ch: Index) -> list[Expr]:
            return [k.let(f"w{v}", w[p.group, t.number, t.o, c, ky, kx, ch, v]) for v in range(vecs)]

        asked = ahead if p.machine.prefetch else None
        if together:
            lane_products.ask(asked, round, unroll * vecs * lanes)
            own = [partial(weights, ci * unroll + u) for u in range(unroll)]
            lane_products.multiply_add(k, acc, t.size, own, partial(value, ch=ci))
        else:
            with unrolled(k, unroll, round, vecs * lanes, asked) as u:
                ch = ci * unroll + u
                multiply_add(k, p.machine, acc, t.size, lanes, weights(ch), partial(value, ch=ch))
    per_block = s.y.block // lanes
    with k.unroll("p", t.size[0]) as i, k.unroll("q", t.size[1]) as j, k.unroll("v", vecs) as v:
        vector = t.o * vecs + v
        for target in to:
            _store(p, target, (vector // per_block, t.at[0] + i, t.at[1] + j, vector % per_block), acc[i, j, v])


def _store(p: Parts, to: Destination, at: tuple[IndexLike, IndexLike, IndexLike, IndexLike], value: Expr) -> None:
    """Apply the additions of a destination, and bias and epilogue where it is the result."""
    s, lanes = p.s, p.machine.lanes
    for view in to.adds:
        value = value + view.vector(lanes, at)
    if to.view is not None:
        to.view.put(lanes, at, value)
        return
    c, i, j, v = at
    channel, row, col = (index(to.block) + c) * s.y.block + index(v) * lanes, index(to.row) + i, index(to.col) + j
    if p.bias is not None:
        value = value + p.bias.vec(lanes)[channel // lanes]
    mask = None if p.mask is None else p.mask.vec(lanes)[channel // lanes]
    with p.k.when(*([s.y.h - 1 - row] if s.y.h % p.b.rows and not p.odd else [])):
        finish(s, p.y, p.operands, (p.n, channel, row, col), lanes, value, mask)
