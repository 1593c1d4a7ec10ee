"""Data movement operators, added to any value: reversed, out of range, along any axis of up to six, and with empty
results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tenon.network.graph.graph import Value

if TYPE_CHECKING:
    from fuzzing.generate import Generator

MOST_AXES = 6
BOUNDS = (-(2**31), -100, -2, -1, 0, 1, 2, 100, 2**31 - 1)


def axis_of(g: Generator, x: Value) -> int:
    return int(g.rng.integers(-x.type.rank, x.type.rank))


def sliced(g: Generator, x: Value) -> Value:
    """Some axes, each with any bounds and any step."""
    axes = g.rng.permutation(x.type.rank)[: 1 + g.rng.integers(2)]
    steps = g.rng.choice([-3, -2, -1, -1, 1, 2, 3], len(axes))
    bounds = np.zeros((2, len(axes)), np.int64)
    for i, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        n = x.type.dims[axis]
        if g.chance(0.6):  # most of the axis
            ends = (-1 - int(g.rng.integers(2)), -n - 1) if step < 0 else (int(g.rng.integers(2)), n)
        else:
            ends = tuple(g.pick((*BOUNDS, n, -n, -n - 1, n // 2)) for _ in range(2))
        bounds[:, i] = ends
    return g.add("Slice", x, *(g.integers(*map(int, row)) for row in (*bounds, axes, steps)))


def reversed_channels(g: Generator, x: Value) -> Value:
    """RGB to BGR, by either operator."""
    axis = 1 if x.type.rank > 1 else 0
    n = x.type.dims[axis]
    if g.chance(0.5):
        return g.add("Slice", x, g.integers(-1), g.integers(-(2**31)), g.integers(axis), g.integers(-1))
    return g.add("Gather", x, g.integers(*range(n - 1, -1, -1)), axis=axis)


def gathered(g: Generator, x: Value) -> Value:
    """Increasing, decreasing, or arbitrary indices along an axis; sometimes computed at run time."""
    axis = axis_of(g, x)
    n = x.type.dims[axis]
    count = int(g.rng.integers(0 if g.nothing else 1, 9))
    start, step = int(g.rng.integers(n)), g.pick((-2, -1, 1, 2))
    falling = [i for i in range(start, start + step * count, step) if -n <= i < n]
    numbers = falling if falling and g.chance(0.6) else g.rng.integers(-n, n, count).tolist()
    indices = g.fresh(np.array(numbers, np.int64), constant=g.chance(0.8))
    return g.add("Gather", x, indices, axis=axis)


def padded(g: Generator, x: Value) -> Value:
    """Along any axis; negative pads crop."""
    pads = np.zeros(2 * x.type.rank, np.int64)
    at = g.rng.integers(0, len(pads), 2)
    pads[at] = g.rng.integers(-2, 4, 2)
    return g.add("Pad", x, g.integers(*pads.tolist()), mode=g.pick(("constant", "constant", "edge", "wrap", "reflect")))


def transposed(g: Generator, x: Value) -> Value:
    return g.add("Transpose", x, perm=tuple(int(i) for i in g.rng.permutation(x.type.rank)))


def more_axes(g: Generator, x: Value) -> Value:
    """An axis cut in two, or a new one."""
    if x.type.rank >= MOST_AXES:
        return transposed(g, x)
    axis = axis_of(g, x) % x.type.rank
    n = x.type.dims[axis]
    parts = [d for d in range(2, n) if n % d == 0]
    if not parts:
        return g.add("Unsqueeze", x, g.integers(int(g.rng.integers(-x.type.rank - 1, x.type.rank + 1))))
    d = g.pick(parts)
    return g.add("Reshape", x, g.integers(*x.type.dims[:axis], d, n // d, *x.type.dims[axis + 1 :]), allowzero=1)


def repeated(g: Generator, x: Value) -> Value:
    counts = [1] * x.type.rank
    counts[axis_of(g, x)] = int(g.rng.integers(0 if g.nothing else 1, 4))
    return g.add("Tile", x, g.integers(*counts))


def concatenated(g: Generator, x: Value) -> Value:
    return g.add("Concat", x, x, axis=axis_of(g, x))


def split(g: Generator, x: Value) -> Value:
    axis = axis_of(g, x)
    first = int(g.rng.integers(x.type.dims[axis] + 1))
    return g.add("Split", x, g.integers(first, x.type.dims[axis] - first), axis=axis)


def reduced(g: Generator, x: Value) -> Value:
    axes = [int(a) for a in g.rng.permutation(x.type.rank)[: 1 + g.rng.integers(2)]]
    kinds = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")
    return g.add(g.pick(kinds), x, g.integers(*axes), keepdims=int(g.chance(0.5)))


def summed(g: Generator, x: Value) -> Value:
    axis = g.fresh(np.array(axis_of(g, x), np.int64), constant=True)
    return g.add("CumSum", x, axis, reverse=int(g.chance(0.5)), exclusive=int(g.chance(0.5)))


def selected(g: Generator, x: Value) -> Value:
    return g.add(g.pick(("ArgMax", "ArgMin")), x, axis=axis_of(g, x), select_last_index=int(g.chance(0.5)))


MOVES: tuple[Callable[[Generator, Value], Value], ...] = (
    sliced,
    sliced,
    sliced,
    reversed_channels,
    reversed_channels,
    gathered,
    gathered,
    padded,
    transposed,
    more_axes,
    more_axes,
    repeated,
    concatenated,
    split,
    reduced,
    summed,
    selected,
)
