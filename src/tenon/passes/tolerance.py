"""How far two computations of one graph may differ: by the propagated rounding error, and no more.

Whoever computes an operator is taken to compute it exactly, but on operands that are a little off, and to store a
result that is a little off (backward error).  The graph is evaluated with every operator so disturbed, by several
patterns of signs, and what that does to an element of the outputs is what that element may differ by.  Nothing is
allowed where nothing is rounded: exact operators disturb nothing, and an integer or a truth value that no
disturbance changes must be the same.  An element that jumps (a comparison on the brink, an overflow) says nothing.

This is Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic" (1997), with extreme patterns added, so that a step function near its step is seen to jump.  One more
pattern computes every operator in f64: where that makes an infinity or a NaN a number, or another, it came of the order
in which a sum happened to overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.ir.evaluate import by_reference, evaluate
from tenon.ir.graph import Array, Graph, Node
from tenon.ir.types import DType
from tenon.ops.base import Accuracy, Operator

UNIT = {DType.F64: 2.0**-48, DType.F32: 2.0**-21, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
"""Relative size of a disturbance: four roundings in f32 (a polynomial for exp or erf is that exact, and a sum of n
roundings grows with the square root of n), one in the formats that are rounded to once."""

PATTERNS = 4
MORE_PATTERNS = 32
"""Used when an element differs by more than few patterns show: those of ties and of sines of large numbers are rare."""

MARGIN = 4.0
"""Disturbances are this many units, and so large is what they do: the largest of a few is less than the worst."""

Extra = Callable[[Node, Array], float]
"""Absolute error that an algorithm may add to a node's result, besides roundings."""


def no_extra(node: Node, result: Array) -> float:
    """Nothing but roundings."""
    return 0.0


@dataclass(frozen=True, eq=False)
class Expected:
    """An output by the reference, and by how much each element may differ (NaN: it may be anything)."""

    value: Array
    allowed: Array

    def differs(self, got: Array) -> str:
        """Empty, or where and by how much ``got`` is wrong."""
        value = self.value
        if (got.dtype, got.shape) != (value.dtype, value.shape):
            return f"{got.dtype}{list(got.shape)} instead of {value.dtype}{list(value.shape)}"
        return _worst(got, value, ~(_gap(got, value) > self.allowed))


class Reference:
    """What a graph gives for some inputs.  Disturbances are computed when something differs at all."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], extra: Extra = no_extra) -> None:
        self.graph, self.inputs, self.extra = graph, inputs, extra
        self.values = evaluate(graph, inputs)
        self._expected: dict[int, dict[str, Expected]] = {}

    def differs(self, outputs: Mapping[str, Array]) -> str:
        """Empty, or the first output that is wrong, and how."""
        for name, value in self.values.items():
            if name not in outputs:
                return f"output '{name}' is missing"
            if not _close(outputs[name], value):
                why = self.expected()[name].differs(outputs[name])
                if why and (why := self.expected(MORE_PATTERNS)[name].differs(outputs[name])):
                    return f"output '{name}': {why}"
        return ""

    def expected(self, patterns: int = PATTERNS) -> dict[str, Expected]:
        """The outputs by name, each with what it may differ by, as so many patterns of disturbances show."""
        if patterns not in self._expected:
            steps = [*(self._disturbing(i) for i in range(patterns)), in_double]
            disturbed = [evaluate(self.graph, self.inputs, step) for step in steps]
            self._expected[patterns] = {
                name: Expected(value, _allowed(value, [d[name] for d in disturbed]))
                for name, value in self.values.items()
            }
        return self._expected[patterns]

    def _disturbing(self, pattern: int) -> Callable[[Node, Sequence[Array | None]], tuple[Array, ...]]:
        rng = np.random.default_rng(pattern)

        def off(array: Array, unit: float, absolute: float = 0.0) -> Array:
            signs = 1.0 - 2.0 * pattern if pattern < 2 else rng.uniform(-1, 1, array.shape)
            if not _unit(array):
                return array
            wide = array.astype(np.float64)
            moved: Array = (wide + MARGIN * signs * (unit * np.abs(wide) + absolute)).astype(array.dtype)
            return moved

        def step(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
            op = node.op
            if not isinstance(op, Operator) or op.exact():
                return by_reference(node, arrays)
            with np.errstate(all="ignore"):
                moved = [a if a is None or i in op.shape_operands else off(a, _unit(a)) for i, a in enumerate(arrays)]
                results = by_reference(node, moved)
                return tuple(off(a, _unit(a), _absolute(op, arrays, a) + self.extra(node, a)) for a in results)

        return step


def in_double(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """What the operator gives when it computes in f64, rounded to the type that it has."""
    plain = by_reference(node, arrays)
    if not any(a.dtype == np.float32 for a in plain):
        return plain
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in arrays]
    try:
        results = by_reference(node, wide)
    except (TypeError, ValueError, KeyError):
        return plain
    with np.errstate(all="ignore"):
        return tuple(a.astype(b.dtype) for a, b in zip(results, plain, strict=True))


def _unit(array: Array) -> float:
    return UNIT.get(DType.of(array.dtype), 0.0)


def _absolute(op: Operator, operands: Sequence[Array | None], result: Array) -> float:
    """By how much a result may be off, however small it is, of an operator that rounds parts of it."""
    if op.accuracy is not Accuracy.PARTS or not _unit(result):
        return 0.0
    floats = [np.abs(a.astype(np.float64)) for a in (*operands, result) if a is not None and _unit(a)]
    largest = max(float(a[np.isfinite(a)].max(initial=0.0)) for a in floats)
    return max(_unit(result) * min(1.0, largest), op.least_error)


def _wide(array: Array) -> Array:
    """As something to subtract: floats as f64, all else exactly."""
    if _unit(array) or array.dtype.isbuiltin != 1:
        return array.astype(np.float64)
    return array


def _gap(a: Array, b: Array) -> Array:
    """Distance of elements: 0 where they are the same (NaN is NaN), infinite where only one is finite or both are
    integers that differ."""
    x, y = _wide(a), _wide(b)
    if x.dtype != np.float64:
        return np.where(x == y, 0.0, np.inf)
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.where(np.isnan(gap), np.inf, gap))


def _close(a: Array, b: Array) -> bool:
    """Within two units everywhere: nothing to look into."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with np.errstate(all="ignore"):
        limit = np.where(np.isfinite(_wide(b)), 2 * _unit(b) * np.abs(_wide(b)), 0.0) if _unit(b) else 0.0
        return bool(np.all(_gap(a, b) <= limit))


def _allowed(value: Array, disturbed: Sequence[Array]) -> Array:
    """What each element may differ by: twice what disturbances did to it, and to its neighbours on average; NaN where
    a disturbance made it jump."""
    reach = np.max([_gap(d, value) for d in disturbed], axis=0, initial=0.0)
    if not _unit(value):
        return np.where(reach > 0, np.nan, 0.0)
    finite = reach[np.isfinite(reach)]
    around = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    tiny = float(np.finfo(np.float32 if value.dtype != np.float64 else np.float64).tiny)
    return np.where(np.isfinite(reach), 2 * reach + around + tiny, np.nan)


def _worst(got: Array, value: Array, right: Array) -> str:
    if right.all():
        return ""
    wrong = np.argwhere(~right)
    at = tuple(int(i) for i in wrong[0])
    return f"{len(wrong)} of {value.size} elements differ, first {list(at)}: {got[at]!r} instead of {value[at]!r}"
