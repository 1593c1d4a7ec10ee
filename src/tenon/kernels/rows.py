"""Walking a row of n elements in vectors and narrower tails: its total, and a body for each part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tenon.ir.build import Builder, Tensor, lane_segments, segments
from tenon.ir.index import Index
from tenon.ir.loops import Const, Expr, Type, op, reduce_lanes
from tenon.ir.types import DType

CHAINS = 4
"""Partial results side by side: enough for additions not to wait for each other."""

Part = Callable[[Index, int], Expr]
"""f(first element, lanes): those elements as a vector."""


def initial(combine: str, dtype: DType) -> Const:
    """What add, mul, max or min leaves as it is."""
    if combine in ("add", "mul"):
        return Const(1 if combine == "mul" else 0, Type(dtype))
    if dtype.is_float:
        return Const(-np.inf if combine == "max" else np.inf, Type(dtype))
    if dtype is DType.BOOL:
        return Const(0 if combine == "max" else 1, Type(dtype))
    limits = np.iinfo(dtype.numpy.name)
    return Const(int(limits.min if combine == "max" else limits.max), Type(dtype))


def joined(combine: str, parts: list[Expr]) -> Expr:
    """All parts as one, neighbours first."""
    while len(parts) > 1:
        pairs = [op(combine, a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def partial(k: Builder, combine: str, cells: int, dtype: DType, lanes: int) -> Tensor:
    """Registers for ``cells`` partial results, set to what changes nothing."""
    acc = k.local("a", cells, dtype=dtype, lanes=lanes)
    with k.unroll("c", cells) as c:
        acc[c] = initial(combine, dtype)
    return acc


def runs(n: int, lanes: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut n elements into runs of a few vectors per trip: (first element, trips, vectors per trip, lanes)."""
    for start, trips, width in lane_segments(n, lanes):
        for first, count, side in segments(trips, CHAINS):
            yield start + first * width, count, side, width


def total(k: Builder, combine: str, n: int, lanes: int, dtype: DType, part: Part) -> Expr:
    """The combination of ``part`` over a row, in one lane.  ``part`` may have effects: it is used once each."""
    parts = []
    for start, count, side, width in runs(n, lanes):
        acc = partial(k, combine, side, dtype, width)
        with k.loop("r", count) as r, k.unroll("c", side) as c:
            acc[c] = op(combine, acc[c], part((r * side + c) * width + start, width))
        parts.append(reduce_lanes(combine, joined(combine, [acc[c] for c in range(side)])))
    return k.let("t", joined(combine, parts) if parts else initial(combine, dtype))


def each(k: Builder, n: int, lanes: int, body: Callable[[Index, int], None]) -> None:
    """``body(first element, lanes)`` for all parts of a row."""
    for start, count, side, width in runs(n, lanes):
        with k.loop("r", count) as r, k.unroll("c", side) as c:
            body((r * side + c) * width + start, width)
