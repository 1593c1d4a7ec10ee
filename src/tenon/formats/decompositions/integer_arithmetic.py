"""Arithmetic of integers in Python's notation, as nodes: ``(x * 3 + 1) >> 2`` is a Mul, an Add and a BitShift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType


@dataclass(frozen=True, eq=False)
class Integers:
    """A tensor of integers in a graph under construction.

    Results have the type of the left operand and wrap around; numbers and arrays become constants of that type.
    ``>>`` keeps the sign where there is one, ``//`` rounds towards zero; what a comparison gives counts as 0 or 1.
    Floats may be added, multiplied and compared alike.
    """

    builder: ChannelsLast
    value: Value

    @property
    def dtype(self) -> DType:
        return self.builder.type(self.value).dtype

    @property
    def dims(self) -> list[int]:
        return list(self.builder.dims(self.value))

    def to(self, dtype: DType) -> Integers:
        """Cut to, or widened to another type."""
        return self if dtype is self.dtype else self.node("Cast", to=dtype.value)

    def node(self, type: str, *others: Operand, **attributes: Any) -> Integers:
        """Any operator whose first operand this is."""
        operands = (self._operand(other) for other in others)
        return Integers(self.builder, self.builder.add(type, self.value, *operands, **attributes))

    def like(self, numbers: Array | int) -> Integers:
        """Constants of the same type."""
        return Integers(self.builder, self.builder.constant(np.asarray(numbers).astype(self.dtype.numpy), "numbers"))

    def _operand(self, other: Operand) -> Value:
        if not isinstance(other, Integers):
            return self.like(other).value
        return (other.to(self.dtype) if other.dtype is DType.BOOL else other).value

    def __add__(self, other: Operand) -> Integers:
        return self.node("Add", other)

    def __sub__(self, other: Operand) -> Integers:
        return self.node("Sub", other)

    def __mul__(self, other: Operand) -> Integers:
        return self.node("Mul", other)

    def __floordiv__(self, other: Operand) -> Integers:
        return self.node("Div", other)

    def __and__(self, other: Operand) -> Integers:
        return self.node("BitwiseAnd", other)

    def __lshift__(self, other: Operand) -> Integers:
        return self.node("BitShift", other, direction="LEFT")

    def __rshift__(self, other: Operand) -> Integers:
        return self.node("BitShift", other, direction="RIGHT")

    def __neg__(self) -> Integers:
        return self.node("Neg")

    def above(self, other: Operand) -> Integers:
        return self.node("Greater", other)

    def below(self, other: Operand) -> Integers:
        return self.node("Less", other)

    def minimum(self, other: Operand) -> Integers:
        return self.node("Min", other)

    def maximum(self, other: Operand) -> Integers:
        return self.node("Max", other)

    def where(self, condition: Integers, other: Operand) -> Integers:
        """This value where a comparison holds, else the other."""
        return Integers(self.builder, self.builder.add("Where", condition.value, self.value, self._operand(other)))

    def sum(self, axis: int) -> Integers:
        return Integers(self.builder, self.builder.reduce("Sum", self.value, [axis], keep=False))

    def reshape(self, *dims: int) -> Integers:
        return Integers(self.builder, self.builder.reshape(self.value, dims))

    def take(self, indices: Array | Integers, axis: int = 0) -> Integers:
        """Elements along an axis, by their numbers."""
        at = indices.value if isinstance(indices, Integers) else self.builder.constant(indices, "indices")
        return Integers(self.builder, self.builder.add("Gather", self.value, at, axis=axis))

    def parts(self, axis: int) -> list[Integers]:
        """The slices along an axis."""
        return [Integers(self.builder, v) for v in self.builder.unpack(self.value, axis)]

    def bits(self, width: int) -> Integers:
        """How many bits a number has that is not negative, by comparing it with ``width`` powers of two."""
        powers = np.array([1 << i for i in range(width)], np.uint64)
        return self.reshape(*self.dims, 1).above(powers - 1).to(self.dtype).sum(len(self.dims))


Operand = Integers | Array | int


def joined(values: list[Integers], axis: int) -> Integers:
    """Concatenates along an axis."""
    first, *others = values
    return first.node("Concat", *others, axis=axis)


def stacked(values: list[Integers], axis: int) -> Integers:
    """Stacks along a new axis."""
    builder = values[0].builder
    return Integers(builder, builder.pack([v.value for v in values], axis))
