"""Rows that are each moved by another number of places: positions of others relative to one's own, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.skew import skew
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64, TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.reach import CountedRead, Operands, Reach, Reaches


@register
@dataclass(frozen=True)
class Skew(Operator):
    """Inputs: x [..., rows, n], offset and count (i64 scalars).  y [..., i, j] for ``columns`` columns is
    x [..., i, step * i + j + offset] where that lies in range(count), else 0.

    With a step of -1, scores by distance become scores by position (Shaw et al., "Self-Attention with Relative Position
    Representations", 2018); with 1 these become scores by distance again.
    """

    step: int = -1
    columns: int = 1
    arity: ClassVar[tuple[int, int]] = (3, 3)
    internal: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, *numbers = typed(inputs)
        if x.rank < 2 or numbers != [TensorType(I64, ())] * 2 or self.columns < 1:
            raise ShapeError(f"Skew: {x} by {numbers[0]} and {numbers[1]} is not a matrix by two i64 scalars")
        return (TensorType(x.dtype, (*x.dims[:-1], self.columns)),)

    def reference(self, x: Array, offset: Array, count: Array) -> Array:
        rows, width = x.shape[-2:]
        i, j = np.indices((rows, self.columns))
        at = self.step * i + j + int(offset)
        inside = (at >= 0) & (at < min(int(count), width))
        return np.where(inside, x[..., i, np.where(inside, at, 0)], np.zeros((), x.dtype)).astype(x.dtype)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None if axis == outputs[0].rank - 1 else (Reach(axis), None, None)

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        assert inputs[0] is not None
        return (CountedRead(0, inputs[0].type.rank - 1, 2),)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        if not site.output.size or not x.size:
            return []
        shape = math.prod(x.dims[:-2]), x.dims[-2], x.dims[-1], self.columns
        return [Step(skew(*shape, self.step, x.dtype), (Input(0), Input(1), Input(2), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, step: int, columns: int, x: Array | tuple[int, ...], offset: int, count: int) -> Case:
            return Case(cls(step, columns), (x, np.array(offset), np.array(count)), tolerance=0, label=label)

        yield case("to_positions", -1, 5, (1, 2, 5, 9), 4, 9)
        yield case("to_fewer_positions", -1, 5, (1, 2, 5, 9), 2, 5)
        yield case("to_distances", 1, 9, (2, 5, 5), -4, 5)
        yield case("to_fewer_distances", 1, 9, (5, 5), -2, 3)
        yield case("by_two", 2, 7, np.arange(24, dtype=np.int8).reshape(2, 3, 4), -1, 4)
        yield case("outside", 0, 3, (2, 4), 99, 4)
        yield case("before", 0, 3, (2, 4), -99, 4)
        yield case("i64", -1, 3, np.arange(15).reshape(3, 5), 2, 7)
