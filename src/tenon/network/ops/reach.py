"""How far along an axis the operands of an operator are read for the first positions of its result.

Where the extent of an axis is known at run time, only the first positions of a tensor are needed.  An operator's rule
(``Operator.reach``) says what it needs of its operands then; without a rule it needs all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tenon.network.graph.graph import Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.window import Axis, Ints

Operands = Sequence[Value | None]


@dataclass(frozen=True)
class Reach:
    """For the first n positions of a result, the first ceil((factor * n + offset) / divisor) of an operand along
    ``axis``."""

    axis: int
    factor: int = 1
    offset: int = 0
    divisor: int = 1

    def then(self, other: Reach) -> Reach:
        """The reach of an operand of the operator that computes this operand: ``other`` of as many positions.

        ceil((f * ceil(n / d) + o) / e) <= ceil((f * n + f * (d - 1) + o * d) / (d * e)), where f > 1, and
        ceil((ceil(n / d) + o) / e) = ceil((n + o * d) / (d * e)).
        """
        rounded = self.divisor - 1 if other.factor > 1 else 0
        offset = other.factor * (self.offset + rounded) + other.offset * self.divisor
        return Reach(other.axis, other.factor * self.factor, offset, self.divisor * other.divisor)


@dataclass(frozen=True)
class Absorbed:
    """Elements of operand ``operand`` that are ``value``, or less if that is -inf, change no result, wherever they lie
    along ``axis``: sums, products or extremes run over it."""

    operand: int
    axis: int
    value: float = 0.0


@dataclass(frozen=True)
class CountedRead:
    """Elements of operand ``operand`` are read only where the index along ``axis`` is below a number, which operand
    ``number`` is."""

    operand: int
    axis: int
    number: int


Reaches = tuple[Reach | None, ...]
"""The reach of each operand; None stands for all of it."""


def broadcast_reach(inputs: Operands, output: TensorType, axis: int) -> Reaches:
    """The reach of an elementwise operator: of an operand that is broadcast along the axis, everything."""
    reaches: list[Reach | None] = []
    for value in inputs:
        own = -1 if value is None else axis - (output.rank - value.type.rank)
        same = value is not None and own >= 0 and value.type.dims[own] == output.dims[axis]
        reaches.append(Reach(own) if same else None)
    return tuple(reaches)


def alike(inputs: Operands, axis: int) -> Reaches:
    """The reach of an operator whose axes are those of its first operand."""
    return (Reach(axis), *(None for _ in inputs[1:]))


def window_reach(axes: Sequence[Axis], inputs: Operands, axis: int) -> Reaches | None:
    """The reach of windows over the spatial axes of the first operand, [N, C, ...]; None along channels."""
    if axis == 0:
        return alike(inputs, 0)
    if axis == 1:
        return None
    a = axes[axis - 2]
    return (Reach(axis, a.stride, a.span - a.stride - a.before), *(None for _ in inputs[1:]))


def kept_axis(before: Ints, after: Ints, axis: int) -> int | None:
    """The axis of a tensor of shape ``before`` that axis ``axis`` of the same elements in shape ``after`` is."""
    outer = math.prod(after[:axis])
    for i, extent in enumerate(before):
        if extent == after[axis] and math.prod(before[:i]) == outer and extent > 1:
            return i
    return None
