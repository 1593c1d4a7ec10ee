"""How far two computations of one graph may differ: by the propagated rounding error, and no more.

An implementation of an operator is assumed to be exact, but on slightly perturbed operands and with a slightly
perturbed result (backward error). The graph is evaluated with every operator perturbed in this way, with several
patterns of signs; the change of an output element is its tolerance.  Without rounding there is no tolerance: exact
operators are not perturbed, and an integer or bool that no perturbation changes must be equal.  An element that changes
discontinuously (a comparison of nearly equal values, an overflow) is not compared.

This is Monte Carlo arithmetic: Parker, "Monte Carlo Arithmetic: exploiting randomness in floating-point
arithmetic" (1997), with extreme patterns added, so that discontinuities near an operand are detected.  One more pattern
computes every operator in f64: where that replaces an infinity or NaN by another value, it was caused by an overflow
that depends on the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.evaluate import by_reference, evaluate
from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.graph.types import DType
from tenon.network.ops.base import ErrorBound, Operator

UNIT = {DType.F64: 2.0**-48, DType.F32: 2.0**-21, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
"""Relative size of a perturbation: four roundings in f32 (a polynomial for exp or erf is that exact, and a sum of n
roundings grows with the square root of n), one in the formats that are rounded to once."""

PATTERNS = 4
MORE_PATTERNS = 32
"""Used if an element differs by more than few patterns show, as for ties and for sines of large numbers."""

MARGIN = 4.0
"""Perturbations are this many units, because the largest of a few random effects is less than the worst case."""

Extra = Callable[[Node, Array], float]
"""Absolute error that an algorithm may add to a node's result, besides roundings."""


def no_extra(node: Node, result: Array) -> float:
    """No tolerance beyond rounding."""
    return 0.0


@dataclass(frozen=True, eq=False)
class Expected:
    """An output by the reference, with the tolerance of each element (NaN: not compared)."""

    value: Array
    allowed: Array

    def differs(self, got: Array) -> str:
        """Empty, or the position and size of the largest error of ``got``."""
        value = self.value
        if (got.dtype, got.shape) != (value.dtype, value.shape):
            return f"{got.dtype}{list(got.shape)} instead of {value.dtype}{list(value.shape)}"
        return _worst(got, value, ~(_gap(got, value) > self.allowed))


class Reference:
    """The results of a graph for some inputs. Perturbations are evaluated only if something differs at all."""

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], extra: Extra = no_extra) -> None:
        self.graph, self.inputs, self.extra = graph, inputs, extra
        self.values = evaluate(graph, inputs)
        self._expected: dict[int, dict[str, Expected]] = {}

    def differs(self, outputs: Mapping[str, Array]) -> str:
        """Empty, or the first output that is wrong, with its error."""
        for name, value in self.values.items():
            if name not in outputs:
                return f"output '{name}' is missing"
            if not _close(outputs[name], value):
                why = self.expected()[name].differs(outputs[name])
                if why and (why := self.expected(MORE_PATTERNS)[name].differs(outputs[name])):
                    return f"output '{name}': {why}"
        return ""

    def expected(self, patterns: int = PATTERNS) -> dict[str, Expected]:
        """The outputs by name with their tolerances, from ``patterns`` patterns of perturbations."""
        if patterns not in self._expected:
            steps = [*(self._perturbing(i) for i in range(patterns)), in_double]
            perturbed = [evaluate(self.graph, self.inputs, step) for step in steps]
            self._expected[patterns] = {
                name: Expected(value, _allowed(value, [d[name] for d in perturbed]))
                for name, value in self.values.items()
            }
        return self._expected[patterns]

    def _perturbing(self, pattern: int) -> Callable[[Node, Sequence[Array | None]], tuple[Array, ...]]:
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
    """The results of the operator computed in f64, rounded to its result type."""
    plain = by_reference(node, arrays)
    if node.bodies or not any(a.dtype == np.float32 for a in plain):
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
    """The absolute error of an operator that rounds intermediate results, independent of the result's magnitude."""
    if op.accuracy is not ErrorBound.PARTS or not _unit(result):
        return 0.0
    floats = [np.abs(a.astype(np.float64)) for a in (*operands, result) if a is not None and _unit(a)]
    largest = max(float(a[np.isfinite(a)].max(initial=0.0)) for a in floats)
    return max(_unit(result) * min(1.0, largest), op.least_error)


def _wide(array: Array) -> Array:
    """A type for exact subtraction: floats as f64, integers as they are."""
    if _unit(array) or array.dtype.isbuiltin != 1:
        return array.astype(np.float64)
    return array


def _gap(a: Array, b: Array) -> Array:
    """Distance of elements: 0 if they are equal (NaN equals NaN), infinite if only one is finite or if both are
    different integers.
    """
    x, y = _wide(a), _wide(b)
    if x.dtype != np.float64:
        return np.where(x == y, 0.0, np.inf)
    with np.errstate(all="ignore"):
        gap = np.abs(x - y)
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.where(np.isnan(gap), np.inf, gap))


def _close(a: Array, b: Array) -> bool:
    """Whether all differences are within two units in the last place, so that no perturbations are needed."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with np.errstate(all="ignore"):
        limit = np.where(np.isfinite(_wide(b)), 2 * _unit(b) * np.abs(_wide(b)), 0.0) if _unit(b) else 0.0
        return bool(np.all(_gap(a, b) <= limit))


def _allowed(value: Array, perturbed: Sequence[Array]) -> Array:
    """The tolerance of each element: twice its change by perturbations plus the RMS of the tensor's changes; NaN if a
    perturbation changed it discontinuously.
    """
    reach = np.max([_gap(d, value) for d in perturbed], axis=0, initial=0.0)
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
