"""Pooling over windows of blocked images.

Windows are clipped at the edges: positions whose windows are clipped in the same way form a segment with loops of its
own, so that kernels have no bounds checks and images need no halo.  On devices, whose work items would run these
loops one after the other, maxima of bytes are computed by one loop, whose loads are guarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from tenon.machine.kernel_ir.build import Builder, Tensor, guarded, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Load,
    Type,
    bitcast,
    broadcast,
    lanes_of,
    less,
    maximum,
    minimum,
    select,
)
from tenon.machine.kernels.epilogue import finish, finish_four
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.integer_tiled import BYTES, byte_of, repeated, word_of
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import LONGEST, in_blocks
from tenon.machine.kernels.storage_types import NARROW, computed, loaded, stored
from tenon.network.graph.types import F32, I32, DType

UNROLLED = 64
"""The most taps that are unrolled in one tile."""

_INFINITY = 0xFF80
"""The bits of minus infinity in bf16; greater ones, as an unsigned integer, are NaN with a sign."""


@dataclass(frozen=True)
class Segment:
    """Windows ``first .. + count`` along one axis.

    The first reads ``taps`` elements from ``start`` on; each next one starts ``step`` further and has ``grow``
    more taps (clipped less at the front) or fewer (clipped more at the back).
    ``weight`` is a tap's weight in an average.
    """

    first: int
    count: int
    start: int
    taps: int
    step: int
    weight: float = 1.0
    grow: int = 0

    @property
    def most(self) -> int:
        """The most taps that a window has."""
        return self.taps + max(0, self.grow * (self.count - 1))

    def extent(self, i: Index) -> IndexLike:
        """The number of taps of window ``i``."""
        return i * self.grow + self.taps if self.grow else self.taps


@dataclass(frozen=True)
class Pool:
    """A pooling: the maximum of every window, or when ``average`` the sum over its two weights' product."""

    x: Image
    y: Image
    rows: tuple[Segment, ...]
    cols: tuple[Segment, ...]
    dilation: tuple[int, int]
    average: bool = False
    operands: tuple[Image, ...] = ()
    epilogue: Epilogue = identity
    clear: bool = False


def lowest(dtype: DType) -> float | int:
    """The identity of maximum."""
    if dtype.is_float or dtype.is_small_float:
        return float("-inf")
    return -(1 << (8 * dtype.bytes - 1)) if dtype.is_signed else 0


@dataclass(frozen=True, eq=False)
class _PoolContext:
    """Data that all tiles of a kernel share: vector ``c`` of the channels of image ``n``."""

    k: Builder
    s: Pool
    lanes: int
    x: Tensor
    mask: Expr | None
    operands: Sequence[Tensor]
    y: Tensor
    n: Index
    c: Index


@lru_cache(maxsize=256)
def pool(s: Pool, machine: Machine) -> Kernel:
    """Parameters: x, mask when ``clear``, operands, y.  Blocks are whole vectors, or vectors one lane wide; those of y
    may be wider than those of x, or narrower."""
    kind = "average" if s.average else "max"
    k = Builder(
        f"{kind}_pool_{s.y.channels}_{s.y.h}x{s.y.w}", f"{kind.capitalize()} pooling of {s.x.shown} to {s.y.shown}"
    )
    shared = math.gcd(s.x.block, s.y.block)
    lanes = machine.lanes if shared % machine.lanes == 0 else 1
    in_bits = lanes > 1 and _in_bits(s)
    if in_bits and shared % (2 * lanes) == 0:
        lanes *= 2
    if machine.launch is not None and _by_words(s):
        _words(k, s)
        return k.done()
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    m = k.param("m", s.y.blocks * s.y.block, dtype=I32) if s.clear else None
    operands = [k.param("r", *i.shape, dtype=i.dtype) for i in s.operands]
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    if machine.launch is not None:
        _items(k, s, (x, m, operands, y))
        return k.done()
    vectors, read = s.y.block // lanes, s.x.blocks * s.x.block // lanes
    (kind,), inside = deal(s.y.blocks)
    tile = _tile_of_bits if in_bits else _tile
    with k.loop("n", s.y.n) as n, k.loop("c", s.y.blocks, kind=kind) as block:
        for rows in s.rows:
            with k.loop("i", rows.count, kind=inside) as i:
                for cols in s.cols:
                    width = _width(cols, rows.taps * cols.taps, machine, 3 if in_bits else 1)
                    for start, iterations, size in segments(cols.count, width):
                        with k.loop("j", iterations) as j, k.loop("v", vectors) as v:
                            c = block * vectors + v
                            parts = _PoolContext(k, s, lanes, x, None, operands, y, n, c)
                            with k.when(*([read - 1 - c] if read < s.y.blocks * vectors else [])):
                                mask = None if m is None else k.let("mask", m.vec(lanes)[c])
                                tile(replace(parts, mask=mask), rows, cols, i, j * size + start, size)
                            if read < s.y.blocks * vectors:
                                with k.when(c - read):
                                    _nothing(parts, i + rows.first, j * size + start + cols.first, size)
    return k.done()


def _in_bits(s: Pool) -> bool:
    """Whether the maximum of bf16 is taken of their bits, as integers, which need no conversion to f32 and back."""
    plain = s.epilogue is identity and not s.operands and not s.clear
    return s.x.dtype is s.y.dtype is DType.BF16 and not s.average and plain


def _by_words(s: Pool) -> bool:
    """Whether four neighbouring bytes of the maxima are one word, of the image and of the result."""
    bytes = s.x.dtype is s.y.dtype in BYTES and s.x.block == s.y.block == FOUR
    return bytes and not s.average and s.epilogue is identity and not s.operands and not s.clear


def _words(k: Builder, s: Pool) -> None:
    """A work item for each window of four channels of bytes.  Windows that reach past the image are computed as others
    where that is a matter of what they load: then a device runs one loop, not one after the other."""
    x = k.param("x", *s.x.shape[:-1], 1, dtype=I32)
    y = k.param("y", *s.y.shape[:-1], 1, dtype=I32, out=True)
    rows_of_all, cols_of_all = _whole(s.rows, s.x.h), _whole(s.cols, s.x.w)
    parts, together = list(product(s.rows, s.cols)), False
    if rows_of_all is not None and cols_of_all is not None and s.dilation == (1, 1):
        parts, together = [(rows_of_all, cols_of_all)], True
    signed = s.x.dtype is DType.I8
    with k.loop("n", s.y.n, kind="parallel") as n, k.loop("b", s.y.blocks, kind="parallel") as b:
        p = _PoolContext(k, s, 1, x, None, (), y, n, b)
        for rows, cols in parts:
            with k.loop("i", rows.count, kind="parallel") as i, k.loop("j", cols.count, kind="parallel") as j:
                acc = k.local("a", FOUR, dtype=I32)
                for lane in range(FOUR):
                    acc[lane] = lowest(s.x.dtype)
                for ky, kx, sums in _taps(p, rows, cols, (i, j), acc, FOUR):
                    row, col = (
                        window * segment.step + tap * apart + segment.start
                        for window, segment, tap, apart in zip((i, j), (rows, cols), (ky, kx), s.dilation, strict=True)
                    )
                    facts = [*_beside(rows, row, s.x.h), *_beside(cols, col, s.x.w)] if together else []
                    element = Load(x.buffer, (n, b, row + s.x.top, col + s.x.left, Index()), Type(I32))
                    word = k.let("v", guarded(tuple(facts), element, repeated(int(lowest(s.x.dtype)))))
                    for lane in range(FOUR):
                        sums[lane] = maximum(sums[lane], byte_of(word, lane, signed=signed))
                at = n, b, i + rows.first + s.y.top, j + cols.first + s.y.left, 0
                y[at] = word_of([acc[lane] for lane in range(FOUR)])


def _whole(parts: Sequence[Segment], size: int) -> Segment | None:
    """All windows along an axis of an image of so many elements as one segment, of which some reach past it; None where
    some are none of its windows, cut off at the ends of the image."""
    longest = max(parts, key=lambda segment: segment.most)
    step = next((each.step for each in parts if each.count > 1), longest.step)
    if longest.grow:
        return None
    whole = Segment(0, sum(each.count for each in parts), longest.start - longest.first * step, longest.taps, step)
    for segment in parts:
        for i in range(segment.count):
            first = whole.start + (segment.first + i) * step
            start, taps = segment.start + i * segment.step, segment.taps + i * segment.grow
            if (max(0, first), min(size, first + whole.taps)) != (start, start + taps):
                return None
    return whole


def _beside(segment: Segment, at: Index, size: int) -> list[Index]:
    """Facts that are negative where an element of a window is not in the image."""
    past = segment.start + (segment.count - 1) * segment.step + segment.taps > size
    return [at] * (segment.start < 0) + [size - 1 - at] * past


def _items(k: Builder, s: Pool, tensors: tuple[Tensor, Tensor | None, list[Tensor], Tensor]) -> None:
    """A work item for each window of a channel, those of channels that lie side by side next to each other; of floats
    of 16 bits for each window of four channels, which are loaded and stored as whole words."""
    x, m, operands, y = tensors
    fours = s.x.dtype in NARROW and s.y.dtype in NARROW and s.x.block == s.y.block == FOUR
    with k.loop("n", s.y.n, kind="parallel") as n, k.loop("b", s.y.blocks, kind="parallel") as b:
        for rows, cols in product(s.rows, s.cols):
            with (
                k.loop("i", rows.count, kind="parallel") as i,
                k.loop("j", cols.count, kind="parallel") as j,
                k.loop("c", 1 if fours else s.y.block, kind="parallel") as lane,
            ):
                if fours:
                    _tile_of_four(_PoolContext(k, s, 1, x, None, operands, y, n, b * FOUR), rows, cols, (i, j), m)
                    continue
                c = b * s.y.block + lane
                mask = None if m is None else k.let("mask", m[c])
                _tile(_PoolContext(k, s, 1, x, mask, operands, y, n, c), rows, cols, i, j, 1)


def _tile_of_four(
    p: _PoolContext, rows: Segment, cols: Segment, window: tuple[Index, Index], mask: Tensor | None
) -> None:
    """A window of the four channels from ``p.c`` on."""
    k, s, (i, j) = p.k, p.s, window
    acc = k.local("a", FOUR, dtype=computed(s.x.dtype))
    for lane in range(FOUR):
        acc[lane] = 0.0 if s.average else lowest(computed(s.x.dtype))
    for ky, kx, sums in _taps(p, rows, cols, window, acc, FOUR):
        row = i * rows.step + ky * s.dilation[0] + rows.start
        col = j * cols.step + kx * s.dilation[1] + cols.start
        values = k.let("v", loaded(p.x.vec(FOUR)[s.x.place(p.n, p.c, row, col, FOUR)]))
        for lane, value in enumerate(lanes_of(values)):
            sums[lane] = sums[lane] + value if s.average else maximum(sums[lane], value)
    scale = 1.0 / (rows.weight * cols.weight)
    results = [acc[lane] * scale if s.average else acc[lane] for lane in range(FOUR)]
    masks = None if mask is None else [mask[p.c + lane] for lane in range(FOUR)]
    finish_four(s, p.y, p.operands, (p.n, p.c, i + rows.first, j + cols.first), results, masks)


def _width(cols: Segment, taps: int, machine: Machine, results: int = 1) -> int:
    """The number of neighbouring windows in one tile, whose accumulations, ``results`` each, are independent."""
    if cols.grow:
        return 1
    return max(1, min(cols.count, 8, machine.registers // (results + 1), UNROLLED // taps))


def _tile(p: _PoolContext, rows: Segment, cols: Segment, i: Index, j: Index, size: int) -> None:
    """``size`` windows along a row, from window (i, j) of their segments on."""
    k, s, lanes = p.k, p.s, p.lanes
    channel = p.c * lanes
    acc = k.local("a", size, lanes=lanes, dtype=computed(s.x.dtype))
    with k.unroll("q", size) as q:
        acc[q] = 0.0 if s.average else lowest(computed(s.x.dtype))
    for ky, kx, sums in _taps(p, rows, cols, (i, j), acc, size):
        with k.unroll("q", size) as q:
            row = i * rows.step + ky * s.dilation[0] + rows.start
            col = (j + q) * cols.step + kx * s.dilation[1] + cols.start
            value = loaded(p.x.vec(lanes)[s.x.place(p.n, channel, row, col, lanes)])
            sums[q] = sums[q] + value if s.average else maximum(sums[q], value)
    with k.unroll("q", size) as q:
        result = acc[q] * (1.0 / (rows.weight * cols.weight)) if s.average else acc[q]
        _finish(p, i + rows.first, j + q + cols.first, result)


def _tile_of_bits(p: _PoolContext, rows: Segment, cols: Segment, i: Index, j: Index, size: int) -> None:
    """``size`` windows of bf16 along a row, from window (i, j) of their segments on, by the bits of their elements: NaN
    if one of a window is NaN, and 0 is greater than -0.

    Numbers without a sign are in the order of their bits as integers, below which are those with a sign, in reverse
    order.  So the maximum is the greatest integer where that has no sign, else the least one.  NaN with a sign is above
    all others as an unsigned integer.
    """
    k, s, lanes = p.k, p.s, p.lanes
    most = k.local("a", size, lanes=lanes, dtype=DType.I16)
    least = k.local("l", size, lanes=lanes, dtype=DType.I16)
    top = k.local("u", size, lanes=lanes, dtype=DType.U16)
    with k.unroll("q", size) as q:
        most[q], least[q], top[q] = -0x8000, 0x7FFF, 0
    for ky, kx, _ in _taps(p, rows, cols, (i, j), most, size):
        with k.unroll("q", size) as q:
            row = i * rows.step + ky * s.dilation[0] + rows.start
            col = (j + q) * cols.step + kx * s.dilation[1] + cols.start
            bits = k.let("v", bitcast(p.x.vec(lanes)[s.x.place(p.n, p.c * lanes, row, col, lanes)], DType.U16))
            value = bitcast(bits, DType.I16)
            most[q] = maximum(most[q], value)
            least[q] = minimum(least[q], value)
            top[q] = maximum(top[q], bits)
    with k.unroll("q", size) as q:
        number = select(less(most[q], 0), least[q], most[q])
        result = select(less(_INFINITY, top[q]), top[q], bitcast(number, DType.U16))
        _finish(p, i + rows.first, j + q + cols.first, bitcast(result, DType.BF16))


def _nothing(p: _PoolContext, row: Index, col: Index, size: int) -> None:
    """Zeros for ``size`` windows of channels that only fill a block, of which x has none."""
    zero = broadcast(Const(0.0, Type(F32)), p.lanes)
    with p.k.unroll("q", size) as q:
        at = p.s.y.place(p.n, p.c * p.lanes, row, col + q, p.lanes)
        p.y.vec(p.lanes)[at] = stored(zero, p.s.y.dtype)


def _taps(
    p: _PoolContext, rows: Segment, cols: Segment, window: tuple[Index, Index], acc: Tensor, size: int
) -> Iterator[tuple[Index, Index, Tensor]]:
    """Loops over the taps of a window: (row, column, registers for its result)."""
    k = p.k
    extents = rows.extent(window[0]), cols.extent(window[1])
    if p.s.average and rows.most * cols.most > LONGEST:
        for (ky, kx), (sums,) in in_blocks(k, [("ky", rows.most), ("kx", cols.most)], [acc]):
            inside = [n - 1 - tap for n, tap in zip(extents, (ky, kx), strict=True) if isinstance(n, Index)]
            with k.when(*inside):
                yield ky, kx, sums
        return
    even = not rows.grow and not cols.grow
    kind = "unroll" if even and rows.taps * cols.taps * size <= UNROLLED else "serial"
    with k.loop("ky", extents[0], kind=kind) as ky, k.loop("kx", extents[1], kind=kind) as kx:
        yield ky, kx, acc


def _finish(p: _PoolContext, row: Index, col: Index, value: Expr) -> None:
    """Epilogue and store of one vector."""
    finish(p.s, p.y, p.operands, (p.n, p.c * p.lanes, row, col), p.lanes, value, p.mask)
