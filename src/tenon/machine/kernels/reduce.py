"""Reductions over any set of axes or over the plane of an image, and argmax/argmin.

Sums have several independent accumulators, which hides the latency of additions and lets rounding errors grow with the
length of one accumulator's chain only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, broadcast, cast, less, op, reduce_lanes, select
from tenon.machine.kernels.group_rows import GroupRow, by_groups, plane_groups, threads_of
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import (
    CHAINS,
    LONGEST,
    additions,
    in_blocks,
    initial,
    joined,
    partial,
    plane_in_blocks,
    runs,
)
from tenon.machine.kernels.storage_types import computed, loaded, stored
from tenon.network.graph.types import F32, I32, I64, DType


@dataclass(frozen=True)
class Reduction:
    """``finish(combine of map(x))`` over the axes marked in ``reduced``; ``combine`` is add, mul, max or min.

    With ``row``, an operand of the output's shape is the second argument of both functions.  Half precision is
    accumulated in single; integers, where they are summed ``wide``, in i64.
    """

    name: str
    shape: tuple[int, ...]
    reduced: tuple[bool, ...]
    combine: str
    dtype: DType = F32
    map: Epilogue = identity
    finish: Epilogue = identity
    row: bool = False
    wide: bool = False

    @property
    def sums_in(self) -> DType:
        dtype = computed(self.dtype)
        return I64 if self.wide and not dtype.is_float and dtype.bytes < 8 else dtype

    def merged(self) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """The shape with neighbouring axes of one kind merged, and their kinds; never empty."""
        shape: list[int] = []
        kinds: list[bool] = []
        for n, kind in zip(self.shape, self.reduced, strict=True):
            if n == 1:
                continue
            if kinds and kinds[-1] == kind:
                shape[-1] *= n
            else:
                shape.append(n)
                kinds.append(kind)
        return (tuple(shape), tuple(kinds)) if shape else ((1,), (False,))


@contextmanager
def _loops(k: Builder, extents: Sequence[int], kinds: Sequence[str] = ()) -> Iterator[list[Index]]:
    with ExitStack() as stack:
        pairs = zip(extents, kinds or ("serial",) * len(extents), strict=True)
        yield [stack.enter_context(k.loop("i", n, kind=kind)) for n, kind in pairs]


class _Writing:
    """A reduction being built: its buffers, and the indices into x for positions along kept and reduced axes."""

    def __init__(self, s: Reduction, machine: Machine) -> None:
        self.s = s
        self.lanes = 1 if s.combine == "mul" else machine.lanes_of(s.sums_in)
        self.shape, self.kinds = s.merged()
        self.kept = [n for n, kind in zip(self.shape, self.kinds, strict=True) if not kind]
        self.reduced = [n for n, kind in zip(self.shape, self.kinds, strict=True) if kind]
        self.k = k = Builder(
            f"{s.name}_{'x'.join(map(str, self.shape))}",
            f"Reduction by {s.combine} along {sum(self.reduced)} of the axes",
        )
        self.x = k.param("x", *self.shape, dtype=s.dtype)
        self.row = k.param("r", *(self.kept or [1]), dtype=s.dtype) if s.row else None
        self.y = k.param("y", *(self.kept or [1]), dtype=s.dtype, out=True)

    def at(self, kept: Sequence[Index], reduced: Sequence[Index]) -> tuple[Index, ...]:
        i, r = iter(kept), iter(reduced)
        return tuple(next(r) if kind else next(i) for kind in self.kinds)

    def mapped(self, at: tuple[Index, ...], lanes: int, extra: list[Expr]) -> Expr:
        return self.s.map(_read(self.x, at, lanes, self.s.sums_in), *extra)

    def extra(self, kept: tuple[Index, ...], lanes: int) -> list[Expr]:
        """The row operand's elements for results from ``kept`` on."""
        return [] if self.row is None else [_read(self.row, kept or (Index(),), lanes, self.s.sums_in)]

    @property
    def limit(self) -> int | None:
        """The limit for ``in_blocks``: only sums of floats accumulate rounding errors."""
        return LONGEST if self.s.combine == "add" and self.s.sums_in.is_float else None

    def partial(self, cells: int, lanes: int) -> Tensor:
        """Registers for ``cells`` partial results, set to the identity."""
        return partial(self.k, self.s.combine, cells, self.s.sums_in, lanes)

    def combine(self, acc: Tensor, cell: Index, value: Expr) -> None:
        acc[cell] = op(self.s.combine, acc[cell], value)

    def joined(self, acc: Tensor, first: int, cells: int) -> Expr:
        return joined(self.s.combine, [acc[first + c] for c in range(cells)])


@lru_cache(maxsize=512)
def reduction(s: Reduction, machine: Machine) -> Kernel:
    """Parameters: x, the row operand if there is one, y."""
    w = _Writing(s, machine)
    if w.kinds[-1] and len(w.reduced) == 1 and by_groups(machine, prod(w.kept), w.reduced[0]):
        _in_groups(w, machine)
    elif w.kinds[-1]:
        with _loops(w.k, w.kept, deal(*w.kept)[0]) as at:
            _along(w, at)
    else:
        kinds, inside = deal(*w.kept[:-1])
        with _loops(w.k, w.kept[:-1], kinds) as at:
            for start, iterations, lanes in lane_segments(w.kept[-1], w.lanes):
                for first, count, side in segments(iterations, CHAINS):
                    with w.k.loop("j", count, kind=inside) as j:
                        _across(w, at, j * (side * lanes) + (first * lanes + start), side, lanes)
    return w.k.done()


def _read(t: Tensor, at: tuple[Index, ...], lanes: int, dtype: DType) -> Expr:
    """A vector whose first element is ``at``, whose last index is a multiple of ``lanes``."""
    return cast(loaded(t.vec(lanes)[(*at[:-1], at[-1] // lanes)]), dtype)


def _across(w: _Writing, outer: list[Index], column: Index, side: int, lanes: int) -> None:
    """The innermost axis is kept: ``side`` neighbouring vectors of results from ``column`` on."""
    chains = max(1, CHAINS // side)
    acc = w.partial(chains * side, lanes)
    for where, chain, sums in _positions(w, acc, chains):
        for u in range(side):
            kept = (*outer, column + u * lanes)
            w.combine(sums, chain + u * chains, w.mapped(w.at(kept, where), lanes, w.extra(kept, lanes)))
    for u in range(side):
        kept = (*outer, column + u * lanes)
        value = w.s.finish(w.joined(acc, u * chains, chains), *w.extra(kept, lanes))
        w.y.vec(lanes)[(*kept[:-1], kept[-1] // lanes)] = stored(value, w.s.dtype)


def _along(w: _Writing, kept: list[Index]) -> None:
    """The innermost axis is reduced: vectors of partial results, combined at the end."""
    k = w.k
    extra = [k.let("m", e) for e in w.extra(tuple(kept), 1)]
    cut = list(runs(w.reduced[-1], w.lanes))
    tiles = [w.partial(width, lanes) for _, _, width, lanes in cut]
    most = max((additions([count]) for _, count, _, _ in cut), default=1)
    for outer, rows in in_blocks(k, [("i", n) for n in w.reduced[:-1]], tiles, most, w.limit):
        for acc, (start, count, width, lanes) in zip(rows, cut, strict=True):
            for (r,), (sums,) in in_blocks(k, [("r", count)], [acc], limit=w.limit):
                with k.unroll("c", width) as c:
                    at = w.at(kept, [*outer, (r * width + c) * lanes + start])
                    w.combine(sums, c, w.mapped(at, lanes, extra))
    parts = [
        reduce_lanes(w.s.combine, w.joined(acc, 0, width)) for acc, (_, _, width, _) in zip(tiles, cut, strict=True)
    ]
    total = joined(w.s.combine, parts) if parts else initial(w.s.combine, w.s.sums_in)
    w.y[tuple(kept) or 0] = stored(w.s.finish(total, *extra), w.s.dtype)


def _in_groups(w: _Writing, machine: Machine) -> None:
    """The innermost axis is reduced, that of each result by a block."""
    row = GroupRow(w.k, w.reduced[0], threads_of(machine, w.reduced[0]))
    with _loops(w.k, w.kept, ["block"] * len(w.kept)) as kept:
        cells = row.cells(w.s.sums_in)
        with row.running():
            extra = [w.k.let("m", e) for e in w.extra(tuple(kept), 1)]
            total = row.total(cells, w.s.combine, w.s.sums_in, lambda at, _: w.mapped(w.at(kept, [at]), 1, extra))
            with w.k.when(*row.first()):
                w.y[tuple(kept) or 0] = stored(w.s.finish(total, *extra), w.s.dtype)


def _positions(w: _Writing, acc: Tensor, chains: int) -> Iterator[tuple[list[Index], Index, Tensor]]:
    """Loops over the reduced axes, the last one interleaved over ``chains``: (position, chain, registers to add to)."""
    if not w.reduced:
        yield [], Index(), acc
        return
    k, (*before, last) = w.k, w.reduced
    for outer, (row,) in in_blocks(k, [("i", n) for n in before], [acc], additions([-(-last // chains)]), w.limit):
        for first, count, width in segments(last, chains):
            for (r,), (sums,) in in_blocks(k, [("r", count)], [row], limit=w.limit):
                with k.unroll("c", width) as c:
                    yield [*outer, r * width + c + first], c, sums


# ------------------------------------------------------------------------------------------------ images
@lru_cache(maxsize=512)
def plane(x: Image, y: Image, combine: str, map: Epilogue, finish: Epilogue, machine: Machine) -> Kernel:
    """Reduce every channel's plane to one element.  Parameters: x, y.

    ``finish`` and ``map`` of zero must be zero, or the channels whole blocks: padding lanes are computed too.
    """
    if by_groups(machine, x.n * x.blocks, x.h * x.w * x.block) and x.block in (1, 2, 4, 8):
        return plane_groups(x, y, combine, map, finish, machine)
    k = Builder(
        f"{combine}_plane_{x.channels}_{x.h}x{x.w}", f"Every channel of {x.shown} reduced to one element ({combine})"
    )
    source = k.param("x", *x.shape, dtype=x.dtype)
    target = k.param("y", *y.shape, dtype=y.dtype, out=True)
    limit = LONGEST if combine == "add" else None
    with k.loop("n", x.n) as n, k.loop("b", x.blocks, kind="parallel") as b:
        for start, iterations, lanes in lane_segments(x.block, machine.lanes):
            with k.loop("v", iterations) as v:
                acc = partial(k, combine, CHAINS, F32, lanes)
                for i, j, c, sums in plane_in_blocks(k, x.h, x.w, acc, limit):
                    at = (n, b, i + x.top, j + x.left, v + start // lanes)
                    sums[c] = op(combine, sums[c], map(loaded(source.vec(lanes)[at])))
                total = finish(joined(combine, [acc[c] for c in range(CHAINS)]))
                target.vec(lanes)[n, b, y.top, y.left, v + start // lanes] = stored(total, y.dtype)
    return k.done()


# ---------------------------------------------------------------------------------------------- positions
@lru_cache(maxsize=128)
def extreme(outer: int, n: int, inner: int, dtype: DType, least: bool, last: bool, machine: Machine) -> Kernel:
    """The index along the middle axis of [outer, n, inner] of the greatest (least) element, as i64.

    Of equal elements the first, or the ``last``.  Parameters: x, y.
    """
    k = Builder(
        f"{'argmin' if least else 'argmax'}_{outer}x{n}x{inner}",
        "Position of the extreme element along the middle axis",
    )
    x = k.param("x", outer, n, inner, dtype=dtype)
    y = k.param("y", outer, inner, dtype=I64, out=True)
    sums_in = computed(dtype)
    widest = max(1, machine.lanes // 2) if sums_in.bytes == 4 else 1  # masks as wide as the counter
    (kind,), inside = deal(outer)
    with k.loop("o", outer, kind=kind) as o:
        for start, iterations, lanes in lane_segments(inner, widest):
            with k.loop("j", iterations, kind=inside) as j:
                column = j * lanes + start
                best = k.local("b", 1, dtype=sums_in, lanes=lanes)
                place = k.local("p", 1, dtype=I32, lanes=lanes)
                count = k.local("c", 1, dtype=I32)
                best[0] = _read(x, (o, Index(), column), lanes, sums_in)
                place[0] = Const(0, Type(I32))
                count[0] = Const(0, Type(I32))
                with k.loop("i", n - 1) as i:
                    count[0] = count[0] + 1
                    v = k.let("v", _read(x, (o, i + 1, column), lanes, sums_in))
                    low, high = (v, best[0]) if least else (best[0], v)
                    better = k.let("m", op("less_equal", low, high) if last else less(low, high))
                    place[0] = select(cast(better, I32), broadcast(count[0], lanes), place[0])
                    best[0] = select(better, v, best[0])
                y.vec(lanes)[o, column // lanes] = cast(place[0], I64)
    return k.done()
