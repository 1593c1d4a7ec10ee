"""Depthwise convolution on blocked images.

A tile of output positions stays in registers.  Small kernels are unrolled over the tile's whole receptive field,
so that each input vector is loaded once and feeds every output it touches; large ones loop over their taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor, segments
from tenon.machine.kernel_ir.index import Index, IndexLike, index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast, fma_f16
from tenon.machine.kernels.conv import Conv, described
from tenon.machine.kernels.epilogue import finish
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import enough
from tenon.machine.kernels.rows import LONGEST_PRODUCT, in_blocks, in_f16_blocks
from tenon.machine.kernels.storage_types import loaded
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType


@dataclass(frozen=True)
class DepthwiseTile:
    """``rows x cols`` output positions; ``looped`` when the taps are loops and not unrolled."""

    rows: int
    cols: int
    looped: bool = False


def pack(weights: Array, s: Conv, machine: Machine) -> Array:
    """[channels / lanes][kh][kw][lanes] from [channels, 1, kh, kw], zeros past the last channel."""
    return pack_blocks(weights.astype(DType.F16.numpy) if s.halves(machine) else weights, s, s.lanes(machine))


def pack_blocks(weights: Array, s: Conv, lanes: int) -> Array:
    """``pack`` for vectors of that many lanes, in the type of the weights."""
    whole = np.zeros((s.padded, *s.kernel), weights.dtype)
    whole[: s.y.channels] = weights[:, 0]
    split = whole.reshape(-1, lanes, *s.kernel)
    return np.ascontiguousarray(np.moveaxis(split, 1, -1))


@dataclass(frozen=True, eq=False)
class _DepthwiseContext:
    """Data of all tiles of a kernel: vector ``c`` of the channels of image ``n``, whose rows from ``first`` on are
    stored as image ``into`` of ``y``."""

    k: Builder
    s: Conv
    lanes: int
    x: Tensor
    w: Tensor
    operands: list[Tensor]
    y: Tensor
    n: Index
    into: Index
    first: Index
    c: Index
    bias: Expr | None
    mask: Expr | None
    weights: dict[tuple[int, int], Expr]  # those that stay in registers
    halves: bool  # products are added in f16

    def input(self, row: Index, col: Index) -> Expr:
        """The input vector at a row and column counted from the start of the padding."""
        s, channel = self.s, self.c * self.lanes
        at = row + self.first * s.stride[0] + (s.x.top - s.top), col + (s.x.left - s.left)
        value = self.x.vec(self.lanes)[self.n, channel // s.x.block, *at, channel % s.x.block // self.lanes]
        return value if self.halves else loaded(value)

    def start(self) -> Expr | None:
        """The value that products are added to."""
        return broadcast(Const(0.0, Type(DType.F16)), self.lanes) if self.halves else self.bias

    def added(self, acc: Expr, value: Expr, weight: Expr) -> Expr:
        """A sum and a product."""
        return fma_f16(acc, value, weight) if self.halves else acc + value * weight

    def weight(self, ky: int, kx: int) -> Expr:
        resident = self.weights.get((ky, kx))
        return self.w.vec(self.lanes)[self.c, ky, kx, 0] if resident is None else resident


@lru_cache(maxsize=512)
def depthwise(s: Conv, machine: Machine, tile: DepthwiseTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y.

    ``s.depthwise`` must hold, and blocks be whole vectors.
    """
    k = Builder(_name(s), _about(s, tile))
    lanes = s.lanes(machine)
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    w = k.param("w", s.padded // lanes, *s.kernel, lanes, dtype=DType.F16 if s.halves(machine) else F32)
    b = k.param("b", s.padded) if s.bias else None
    m = k.param("m", s.padded, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    share = _shared(s.padded // lanes, sum(count for _, count, _ in segments(s.extent[0], tile.rows)), machine.threads)
    with k.loop("n", s.y.n) as n:
        walk(Tensors(k, x, w, b, m, operands, y), s, machine, tile, n, n, share=share)
    return k.done()


MANY = 8
"""Groups of channels that suffice to occupy a few threads."""


@dataclass(frozen=True)
class LoopOrder:
    """The kinds of the loops over groups of channels and over rows of tiles: which are distributed over threads; and
    whether rows are outermost."""

    channels: str = "serial"
    rows: str = "serial"
    by_rows: bool = False


def _shared(groups: int, rows: int, threads: int) -> LoopOrder:
    """How threads share groups of channels and rows of tiles.  Many threads share rows where each gets one: these are
    the rows that it has of the pointwise convolutions around."""
    if threads <= 2:
        return LoopOrder("parallel", "serial") if groups >= MANY else LoopOrder("serial", "parallel")
    if rows >= threads:
        return LoopOrder("serial" if rows >= enough(threads) else "parallel", "parallel", by_rows=True)
    return LoopOrder("parallel", "serial" if groups >= enough(threads) else "parallel")


@dataclass(frozen=True, eq=False)
class Tensors:
    """The parameters of ``depthwise``."""

    k: Builder
    x: Tensor
    w: Tensor
    bias: Tensor | None
    mask: Tensor | None
    operands: list[Tensor]
    y: Tensor


def walk(
    t: Tensors,
    s: Conv,
    machine: Machine,
    tile: DepthwiseTile,
    n: Index,
    into: Index,
    first: IndexLike = 0,
    share: LoopOrder = LoopOrder(),
) -> None:
    """The loops over channels and tiles: rows of image ``n`` from output row ``first`` on, stored as image ``into``."""
    k, groups, rows = t.k, s.padded // s.lanes(machine), segments(s.extent[0], tile.rows)
    at = n, into, index(first)
    if share.by_rows:
        for top, count, height in rows:
            with k.loop("i", count, kind=share.rows) as i, k.loop("c", groups, kind=share.channels) as c:
                _tiles_of_row(_context(t, s, machine, tile, (*at, c)), tile, i * height + top, height)
        return
    with k.loop("c", groups, kind=share.channels) as c:
        parts = _context(t, s, machine, tile, (*at, c))
        for top, count, height in rows:
            with k.loop("i", count, kind=share.rows) as i:
                _tiles_of_row(parts, tile, i * height + top, height)


def _context(
    t: Tensors, s: Conv, machine: Machine, tile: DepthwiseTile, at: tuple[Index, Index, Index, Index]
) -> _DepthwiseContext:
    """A group of channels, with what stays in registers: ``at`` has the image, where it is stored, its first row, and
    the group."""
    k, lanes, c = t.k, s.lanes(machine), at[-1]
    resident = not tile.looped and s.taps + tile.rows * tile.cols < machine.registers
    bias = None if t.bias is None else k.let("bias", t.bias.vec(lanes)[c])
    mask = None if t.mask is None else k.let("mask", t.mask.vec(lanes)[c])
    kept = product(range(s.kernel[0]), range(s.kernel[1])) if resident else ()
    weights = {(ky, kx): k.let(f"w{ky}{kx}", t.w.vec(lanes)[c, ky, kx, 0]) for ky, kx in kept}
    halves = s.halves(machine)
    return _DepthwiseContext(k, s, lanes, t.x, t.w, t.operands, t.y, *at, bias, mask, weights, halves)


def _tiles_of_row(p: _DepthwiseContext, tile: DepthwiseTile, top: Index, height: int) -> None:
    """All tiles of a row of these."""
    body = _looped if tile.looped else _unrolled
    for left, count, width in segments(p.s.extent[1], tile.cols):
        with p.k.loop("j", count) as j:
            body(p, top, j * width + left, height, width)


def _unrolled(p: _DepthwiseContext, top: Index, left: Index, height: int, width: int) -> None:
    """Load each input of a tile once, and multiply-add it to the outputs that depend on it."""
    k, s = p.k, p.s
    acc = k.local("a", height, width, lanes=p.lanes, dtype=DType.F16 if p.halves else F32)
    start, started = p.start(), set[tuple[int, int]]()
    for (row, down), (col, across) in product(reach(s, 0, height), reach(s, 1, width)):
        value = k.let("v", p.input(top * s.stride[0] + row, left * s.stride[1] + col))
        for (i, ky), (j, kx) in product(down, across):
            if (i, j) in started:
                acc[i, j] = p.added(acc[i, j], value, p.weight(ky, kx))
            elif start is None:
                acc[i, j] = value * p.weight(ky, kx)
            else:
                acc[i, j] = p.added(start, value, p.weight(ky, kx))
            started.add((i, j))
    for i, j in product(range(height), range(width)):
        _finish(p, top + i, left + j, acc[i, j])


def reach(s: Conv, axis: int, n: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """For ``n`` neighbouring outputs: each input row (column) they read, with the (output, tap) pairs that read it."""
    readers: dict[int, list[tuple[int, int]]] = {}
    for i, tap in product(range(n), range(s.kernel[axis])):
        readers.setdefault(i * s.stride[axis] + tap * s.dilation[axis], []).append((i, tap))
    return sorted(readers.items())


def _looped(p: _DepthwiseContext, top: Index, left: Index, height: int, width: int) -> None:
    """Loop over taps; each multiplies one vector of weights into the whole tile."""
    k, s = p.k, p.s
    acc = k.local("a", height, width, lanes=p.lanes)
    with k.unroll("p", height) as i, k.unroll("q", width) as j:
        acc[i, j] = 0.0 if p.bias is None or p.halves else p.bias
    loops = [("ky", s.kernel[0]), ("kx", s.kernel[1])]
    in_f32 = ((at, sums) for at, (sums,) in in_blocks(k, loops, [acc], limit=LONGEST_PRODUCT))
    for (ky, kx), sums in in_f16_blocks(k, loops, acc) if p.halves else in_f32:
        weight = k.let("w0", p.w.vec(p.lanes)[p.c, ky, kx, 0])
        with k.unroll("p", height) as i, k.unroll("q", width) as j:
            row = (top + i) * s.stride[0] + ky * s.dilation[0]
            col = (left + j) * s.stride[1] + kx * s.dilation[1]
            sums[i, j] = p.added(sums[i, j], p.input(row, col), weight)
    with k.unroll("p", height) as i, k.unroll("q", width) as j:
        _finish(p, top + i, left + j, acc[i, j])


def _finish(p: _DepthwiseContext, row: Index, col: Index, value: Expr) -> None:
    """Epilogue and store of one vector."""
    s, channel = p.s, p.c * p.lanes
    if p.halves:
        value = cast(value, F32) if p.bias is None else cast(value, F32) + p.bias
    row, col = row * s.y_step[0] + s.y_start[0], col * s.y_step[1] + s.y_start[1]
    finish(s, p.y, p.operands, (p.n, channel, row, col), p.lanes, value, p.mask, p.into)


def _name(s: Conv) -> str:
    size = "x".join(map(str, s.kernel)) + (f"_s{s.stride[0]}" if max(s.stride) > 1 else "")
    return f"depthwise{size}_{s.y.channels}_{s.y.h}x{s.y.w}"


def _about(s: Conv, tile: DepthwiseTile) -> str:
    return f"Depthwise: {described(s)}; tiles of {tile.rows} x {tile.cols} positions in registers"
