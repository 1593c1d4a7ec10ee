"""Copies between tensors in any two layouts, to which every operator that only moves data is lowered.

A ``Piece`` is a loop nest over logical positions: each axis of the source and of the target is an affine function
of the loops.  It is rewritten to physical dimensions (a blocked channel axis becomes a block number and a lane),
loops with the same strides on both sides are merged, and elements contiguous on both sides are copied in vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Load, Type, bitcast, broadcast, interleave4, op
from tenon.machine.kernels.item_moves import emit_items
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.move_nests import AffineIndex as AffineIndex
from tenon.machine.kernels.move_nests import Nest, Side, joined, physical
from tenon.machine.kernels.move_nests import Piece as Piece
from tenon.machine.kernels.move_nests import along as along
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I32, DType, TensorType

UNROLLED = 512
"""Most copies that one body may hold."""


@lru_cache(maxsize=512)
def move(name: str, x: TensorType | None, y: TensorType, pieces: tuple[Piece, ...], machine: Machine) -> Kernel:
    """Parameters: x (unless None), the value of pieces where it is None, y.  Lanes past the last channel of ``y`` are
    set to zero."""
    if not y.rank:
        y = replace(y, shape=(1,))
        pieces = tuple(replace(p, target=(AffineIndex(),)) for p in pieces)
    if x is not None and not x.rank:
        x = replace(x, shape=(1,))
        pieces = tuple(replace(p, source=None if p.source is None else (AffineIndex(),)) for p in pieces)
    parts = [part for piece in (*pieces, *_padding(y)) for part in _split(piece, x, y)]
    nests = [physical(part, x, y) for part in parts if math.prod(part.extents)]
    y_shape, x_shape, nests = joined(y.physical, () if x is None else x.physical, nests)
    k = Builder(name, "Copies elements to other positions: " + name.replace("_", " "))
    source = None if x is None else k.param("x", *x_shape, dtype=x.dtype)
    given = k.param("v", 1, dtype=y.dtype)[0] if any(p.value is None for p in pieces) else None
    target = k.param("y", *y_shape, dtype=y.dtype, out=True)
    for nest in nests:
        if nest.source is None and nest.value is None:
            assert given is not None
            nest = replace(nest, value=k.let("v", given))
        _emit(k, nest, source, target, machine)
    return k.done()


def whole(rank: int) -> tuple[AffineIndex, ...]:
    """The identity map: every axis is its own loop."""
    return tuple(along(i) for i in range(rank))


def _padding(y: TensorType) -> list[Piece]:
    """Zeros for the lanes past the last channel."""
    if y.layout.in_order or y.dims[1] % y.block == 0:
        return []
    dims, block = y.dims, y.block
    extents = (dims[0], -dims[1] % block, *dims[2:])
    target = (along(0), along(1, dims[1]), *(along(i) for i in range(2, len(dims))))
    return [Piece(extents, target)]


# ------------------------------------------------------------------------------------ blocked channels
def _split(p: Piece, x: TensorType | None, y: TensorType) -> list[Piece]:
    """Split the loop over blocked channels into units that lie inside one block on both sides."""
    sides = [(y, p.target), *([(x, p.source)] if x is not None and p.source is not None else [])]
    blocked = [(t.block, axes[1]) for t, axes in sides if not t.layout.in_order and t.block > 1]
    loops = [loop for _, axis in blocked for loop, k in axis.terms if k == 1 and p.extents[loop] > 1]
    if not loops:
        return [p]
    loop = max(loops, key=lambda i: p.extents[i])
    unit = 0
    for block, axis in blocked:
        if axis.coefficient(loop) == 1:
            unit = math.gcd(unit, block, axis.start, *(k for i, k in axis.terms if i != loop))
    if unit <= 1:
        return [p]
    count, rest = divmod(p.extents[loop], unit)
    parts = []
    for first, iterations, width in ((0, count, unit), (count, 1, rest)):
        if iterations and width:
            extents = (*p.extents[:loop], iterations, *p.extents[loop + 1 :], width)
            source = None if p.source is None else tuple(_cut(a, loop, first, unit, len(p.extents)) for a in p.source)
            target = tuple(_cut(a, loop, first, unit, len(p.extents)) for a in p.target)
            unrolled = p.unrolled + 1
            parts.append(replace(p, extents=extents, target=target, source=source, unrolled=unrolled))
    return parts


def _cut(a: AffineIndex, loop: int, first: int, unit: int, lane: int) -> AffineIndex:
    """``loop`` becomes (first + loop) * unit + lane."""
    k = a.coefficient(loop)
    if not k:
        return a
    terms = ((i, c * unit) if i == loop else (i, c) for i, c in a.terms)
    return replace(a, start=a.start + k * first * unit, terms=(*terms, (lane, k)))


# ------------------------------------------------------------------------------------------- emitting
def _emit(k: Builder, nest: Nest, source: Tensor | None, target: Tensor, machine: Machine) -> None:
    if machine.launch is not None:
        emit_items(k, nest, source, target)
        return
    vector = _vector_loop(nest)
    if vector is None and (turned := _turned(nest)):
        _emit_turned(k, nest, source, target, turned, machine)
        return
    lanes = 1
    if vector is not None and machine.lanes > 1:
        lanes = max(1, machine.lanes * 4 // target.buffer.type.dtype.bytes)
    order = [i for i in range(len(nest.extents)) if nest.extents[i] > 1 and i != vector]
    unroll = _unrolled(nest, order) if vector is None else set()
    shared = [i for i in order if i not in unroll]
    kinds, inside = deal(*(nest.extents[i] for i in shared))
    kind = {**dict.fromkeys(unroll, "unroll"), **dict(zip(shared, kinds, strict=True))}
    loops: list[IndexLike] = [0] * len(nest.extents)
    with ExitStack() as stack:
        if vector is None and not shared:
            stack.enter_context(k.loop("all", 1, kind="parallel"))
        for i in order:
            loops[i] = stack.enter_context(k.loop("ijklmn"[i % 6], nest.extents[i], kind=kind[i]))
        if vector is None:
            _copy(k, nest, source, target, loops, 1, False)
            return
        spread = nest.source is not None and not any(dim.uses(vector) for dim in nest.source)
        for start, iterations, width in lane_segments(nest.extents[vector], lanes):
            with k.loop("v", iterations, kind=inside) as v:
                loops[vector] = v * width + start
                _copy(k, nest, source, target, loops, width, spread)


SQUARE = 16
"""Elements along each side of a transposition's square tiles: a cache line of f32."""


def _turned(nest: Nest) -> tuple[int, int] | None:
    """The loops of stride one in the target and in the source, if they differ and are long enough for square tiles."""
    if nest.source is None:
        return None
    candidates = [
        next((i for i, n in enumerate(nest.extents) if n > 1 and side[-1].walks(i)), None)
        for side in (nest.target, nest.source)
    ]
    to, of = candidates
    if to is None or of is None or to == of:
        return None
    return (to, of) if nest.extents[to] >= SQUARE // 2 and nest.extents[of] >= SQUARE // 4 else None


def _emit_turned(
    k: Builder, nest: Nest, source: Tensor | None, target: Tensor, turned: tuple[int, int], machine: Machine
) -> None:
    """Transpose in square tiles, so that every cache line is read or written once.  Otherwise each line is revisited
    many times, and lines a power of two apart evict each other."""
    order = [i for i in range(len(nest.extents)) if nest.extents[i] > 1 and i not in turned]
    cuts = [segments(nest.extents[i], SQUARE) for i in turned]
    squares = [sum(iterations for _, iterations, _ in cut) for cut in cuts]
    kinds, _ = deal(*(nest.extents[i] for i in order), *squares)
    shuffled = 0 if source is None else _shuffled(nest, turned, source, target, machine)
    loops: list[IndexLike] = [0] * len(nest.extents)
    with ExitStack() as stack:
        for i, kind in zip(order, kinds, strict=False):
            loops[i] = stack.enter_context(k.loop("ijklmn"[i % 6], nest.extents[i], kind=kind))
        for down, rows, height in cuts[0]:
            with k.loop("r", rows, kind=kinds[-2]) as r:
                for right, columns, width in cuts[1]:
                    with k.loop("s", columns, kind=kinds[-1]) as c:
                        first = r * height + down, c * width + right
                        _square(k, nest, source, target, loops, (turned, first, (height, width)), shuffled=shuffled)


_Square = tuple[tuple[int, int], tuple[Index, Index], tuple[int, int]]
"""A tile: its loops of stride one in target and source, where they start, and how long they are."""


def _square(
    k: Builder,
    nest: Nest,
    source: Tensor | None,
    target: Tensor,
    loops: list[IndexLike],
    square: _Square,
    *,
    shuffled: int,
) -> None:
    """Transpose a tile, ``shuffled`` by as many elements at a time where that is not 0."""
    (to, of), (top, left), size = square
    high, wide = (n - n % shuffled if shuffled else 0 for n in size)
    if high and wide and source is not None:
        with k.loop("q", wide // shuffled) as q, k.loop("p", high // shuffled) as p:
            loops[to], loops[of] = top + p * shuffled, left + q * shuffled
            _shuffle(k, nest, source, target, loops, (to, of), shuffled)
    else:
        high = wide = 0
    for down, right, rows, columns in ((high, 0, size[0] - high, wide), (0, wide, size[0], size[1] - wide)):
        if rows and columns:
            with k.loop("q", columns) as q, k.loop("p", rows) as p:
                loops[to], loops[of] = top + down + p, left + right + q
                _copy(k, nest, source, target, loops, 1, False)


def _shuffled(nest: Nest, turned: tuple[int, int], source: Tensor, target: Tensor, machine: Machine) -> int:
    """How many elements a vector of 16 bytes has that is loaded along one of the loops and stored along the other; 0
    where there is none.  Cores that multiply pairs have no instructions that shuffle vectors."""
    sides = (nest.target, turned[0]), (nest.source or (), turned[1])
    plain = not any(dim.uses(loop) for side, loop in sides for dim in side[:-1])
    dtype = target.buffer.type.dtype
    if not plain or source.buffer.type.dtype is not dtype or machine.lanes < 4 or machine.has("dot2_i16"):
        return 0
    return 16 if dtype in (DType.I8, DType.U8) else 4 if dtype.bytes == 4 else 0


def _shuffle(
    k: Builder, nest: Nest, source: Tensor, target: Tensor, loops: list[IndexLike], turned: tuple[int, int], count: int
) -> None:
    """Transpose ``count`` by ``count`` elements in registers."""
    (to, of), vector = turned, Type(target.buffer.type.dtype, count)
    start = loops[to], loops[of]

    def place(side: Side, loop: int, i: int) -> tuple[Index, ...]:
        at = [start[turned.index(j)] if j in turned else each for j, each in enumerate(loops)]
        at[loop] = at[loop] + i
        return tuple(dim.at(at) for dim in side)

    assert nest.source is not None
    loads = [k.let("v", Load(source.buffer, place(nest.source, to, i), vector)) for i in range(count)]
    for i, row in enumerate(_words(k, loads) if count == 4 else _bytes(k, loads)):
        k.store(target.buffer, place(nest.target, of, i), row)


def _words(k: Builder, rows: Sequence[Expr]) -> list[Expr]:
    """The columns of four vectors of four words."""
    pairs = [[k.let("t", op(name, *two)) for two in (rows[:2], rows[2:])] for name in ("low_words", "high_words")]
    return [op(name, *pair) for pair in pairs for name in ("low_halves", "high_halves")]


def _bytes(k: Builder, rows: Sequence[Expr]) -> list[Expr]:
    """The columns of sixteen vectors of sixteen bytes: words of four rows, then vectors of four words."""
    dtype, parts = rows[0].type.dtype, list[list[Expr]]()
    for first in range(0, 16, 4):
        words = _words(k, [bitcast(row, I32) for row in rows[first : first + 4]])
        parts.append([k.let("w", bitcast(interleave4(bitcast(word, dtype)), I32)) for word in words])
    return [bitcast(column, dtype) for i in range(4) for column in _words(k, [part[i] for part in parts])]


def _vector_loop(nest: Nest) -> int | None:
    """The longest loop with stride one in the target, and stride one or zero in the source."""
    candidates = []
    for loop, n in enumerate(nest.extents):
        *outer, last = nest.target
        if n == 1 or not last.walks(loop) or any(dim.uses(loop) for dim in outer):
            continue
        if nest.source is not None and any(dim.uses(loop) for dim in nest.source):
            *outer, last = nest.source
            if not last.walks(loop) or any(dim.uses(loop) for dim in outer):
                continue
        candidates.append(loop)
    return max(candidates, key=lambda i: nest.extents[i], default=None)


def _unrolled(nest: Nest, order: list[int]) -> set[int]:
    """The innermost loops to unroll: at most those that the piece marks, within the budget."""
    loops: set[int] = set()
    copies = 1
    marked = range(len(nest.extents) - nest.unrolled, len(nest.extents))
    for i in reversed(order):
        copies *= nest.extents[i]
        if i not in marked or copies > UNROLLED:
            break
        loops.add(i)
    return loops


def _copy(
    k: Builder, nest: Nest, source: Tensor | None, target: Tensor, loops: list[IndexLike], lanes: int, spread: bool
) -> None:
    """Copy one vector; ``spread`` broadcasts one element of the source."""
    dtype = target.buffer.type.dtype
    to = tuple(dim.at(loops) for dim in nest.target)
    value = nest.value if isinstance(nest.value, Expr) else Const(nest.value or 0.0, Type(dtype))
    if nest.source is not None and source is not None:
        at = tuple(dim.at(loops) for dim in nest.source)
        value = Load(source.buffer, at, Type(dtype, 1 if spread else lanes))
    k.store(target.buffer, to, broadcast(value, lanes))
