"""Loop nests of copies between tensors: axes of source and target as affine functions of loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Expr
from tenon.network.graph.types import TensorType


@dataclass(frozen=True)
class AffineIndex:
    """floor((start + sum of coefficient * loop) / by): ``terms`` are (loop, coefficient)."""

    start: int = 0
    terms: tuple[tuple[int, int], ...] = ()
    by: int = 1

    def coefficient(self, loop: int) -> int:
        return dict(self.terms).get(loop, 0)

    def without(self, loop: int) -> AffineIndex:
        return replace(self, terms=tuple(t for t in self.terms if t[0] != loop))

    def at(self, loops: Sequence[IndexLike]) -> Index:
        total = Index((), self.start)
        for i, k in self.terms:
            total = total + loops[i] * k
        return total // self.by


def along(loop: int, start: int = 0, step: int = 1, by: int = 1) -> AffineIndex:
    """(start + step * loop) // by."""
    return AffineIndex(start, ((loop, step),) if step else (), by)


@dataclass(frozen=True)
class Piece:
    """For every position of a loop nest of these extents: target = source, or = ``value`` without a source; None
    stands for a number that is known at run time.

    ``unrolled`` counts the innermost loops that are worth unrolling when the copy cannot be vectorised.
    """

    extents: tuple[int, ...]
    target: tuple[AffineIndex, ...]
    source: tuple[AffineIndex, ...] | None = None
    value: float | None = 0.0
    unrolled: int = 0


# ------------------------------------------------------------------------------- physical dimensions
@dataclass(frozen=True)
class Dim:
    """An index in one physical dimension of that extent: scale * (outer / by, or outer mod by) + inner."""

    extent: int
    inner: AffineIndex
    outer: AffineIndex | None = None
    by: int = 1
    rest: bool = False
    scale: int = 1

    def at(self, loops: Sequence[IndexLike]) -> Index:
        inner = self.inner.at(loops)
        if self.outer is None:
            return inner
        outer = self.outer.at(loops)
        return (outer % self.by if self.rest else outer // self.by) * self.scale + inner

    def uses(self, loop: int) -> bool:
        return bool(self.inner.coefficient(loop) or (self.outer and self.outer.coefficient(loop)))

    def walks(self, loop: int) -> bool:
        """Whether ``loop`` has stride one."""
        outer = self.outer is not None and self.outer.coefficient(loop)
        return self.inner.coefficient(loop) == 1 and self.inner.by == 1 and not outer


Side = tuple[Dim, ...]


@dataclass(frozen=True)
class Nest:
    """A piece in physical dimensions."""

    extents: tuple[int, ...]
    target: Side
    source: Side | None
    value: float | Expr | None
    unrolled: int


def physical(p: Piece, x: TensorType | None, y: TensorType) -> Nest:
    source = None if x is None or p.source is None else _dims(p.source, x, p.extents)
    return Nest(p.extents, _dims(p.target, y, p.extents), source, p.value, p.unrolled)


def _dims(axes: tuple[AffineIndex, ...], t: TensorType, extents: tuple[int, ...]) -> Side:
    axes = tuple(replace(a, terms=tuple((i, k) for i, k in a.terms if extents[i] > 1)) for a in axes)
    shape = t.physical
    if t.layout.in_order:
        return tuple(Dim(n, a) for n, a in zip(shape, axes, strict=True))
    number, lane = _channel(axes[1], shape[1], t.block, extents)
    halos = t.layout.halos(t.rank)
    spatial = (
        Dim(n, replace(a, start=a.start + before * a.by))
        for n, a, (before, _) in zip(shape[2:-1], axes[2:], halos, strict=True)
    )
    return (Dim(shape[0], axes[0]), number, *spatial, lane)


def _channel(channel: AffineIndex, blocks: int, block: int, extents: tuple[int, ...]) -> tuple[Dim, Dim]:
    """Block number and lane of a channel."""
    if block == 1:
        return Dim(blocks, channel), Dim(1, AffineIndex())
    steps = [k * (extents[i] - 1) for i, k in channel.terms]
    low = channel.start + sum(s for s in steps if s < 0)
    high = channel.start + sum(s for s in steps if s > 0)
    if low // block == high // block:
        inside = replace(channel, start=channel.start - low // block * block)
        return Dim(blocks, AffineIndex(low // block)), Dim(block, inside)
    walked = (i for i, k in reversed(channel.terms) if k == 1)
    lane = next((i for i in walked if extents[i] <= _unit(channel.without(i), block)), None)
    base, inner = (channel, AffineIndex()) if lane is None else (channel.without(lane), along(lane))
    unit = _unit(base, block)
    outer = AffineIndex(base.start // unit, tuple((i, k // unit) for i, k in base.terms))
    return Dim(blocks, AffineIndex(), outer, block // unit), Dim(block, inner, outer, block // unit, True, unit)


def _unit(channel: AffineIndex, block: int) -> int:
    return math.gcd(block, channel.start, *(k for _, k in channel.terms))


# -------------------------------------------------------------------------------------- joining loops
def joined(
    y_shape: tuple[int, ...], x_shape: tuple[int, ...], nests: list[Nest]
) -> tuple[tuple[int, ...], tuple[int, ...], list[Nest]]:
    """Merge neighbouring dimensions of both buffers wherever every nest traverses them as one."""
    for d in reversed(range(len(y_shape) - 1)):
        for e in (*reversed(range(len(x_shape) - 1)), None):
            joined = [_join(nest, d, e) for nest in nests]
            if joined and all(joined):
                nests = [n for n in joined if n is not None]
                y_shape = _merged(y_shape, d)
                x_shape = x_shape if e is None else _merged(x_shape, e)
                break
    return y_shape, x_shape, nests


def _merged(shape: tuple[int, ...], d: int) -> tuple[int, ...]:
    return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])


def _join(nest: Nest, d: int, e: int | None) -> Nest | None:
    """The nest with dimensions d, d + 1 of the target and e, e + 1 of the source merged, or None."""
    target = _join_side(nest.target, d, nest.extents)
    if target is None:
        return None
    side, pair = target
    source = nest.source
    if source is not None:
        if e is None:
            if pair and any(dim.uses(loop) for dim in source for loop in pair):
                return None
        else:
            side_of_source = _join_side(source, e, nest.extents)
            if side_of_source is None or side_of_source[1] != pair:
                return None
            source = side_of_source[0]
    extents = list(nest.extents)
    if pair:
        outer, inner = pair
        if any(dim.uses(outer) for dim in (*side, *(source or ()))):
            return None
        extents[inner] *= extents[outer]
        extents[outer] = 1
    return replace(nest, extents=tuple(extents), target=side, source=source)


def _join_side(side: Side, d: int, extents: tuple[int, ...]) -> tuple[Side, tuple[int, int] | None] | None:
    """The side with dimensions d, d + 1 merged, and the (outer, inner) loops that must be fused for it."""
    high, low = side[d], side[d + 1]
    if high.outer is not None or low.outer is not None or high.inner.by != 1:
        return None
    n = low.extent
    start = high.inner.start * n
    if n == 1 and not low.inner.terms:
        return (*side[:d], Dim(high.extent, high.inner), *side[d + 2 :]), None
    if low.inner.start or low.inner.by != 1 or len(low.inner.terms) != 1:
        return None
    inner, k = low.inner.terms[0]
    if k != 1 or extents[inner] != n or any(dim.uses(inner) for i, dim in enumerate(side) if i != d + 1):
        return None
    if not high.inner.terms:
        return (*side[:d], Dim(high.extent * n, along(inner, start)), *side[d + 2 :]), None
    outer = next((i for i, c in reversed(high.inner.terms) if c == 1), None)
    if outer is None or any(dim.uses(outer) for i, dim in enumerate(side) if i != d):
        return None
    terms = tuple((i, c * n) for i, c in high.inner.terms if i != outer)
    return (*side[:d], Dim(high.extent * n, AffineIndex(start, (*terms, (inner, 1)))), *side[d + 2 :]), (outer, inner)
