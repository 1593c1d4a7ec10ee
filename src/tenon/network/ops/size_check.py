"""A number that a run checks: a size of its inputs, or one that it computes, within the range that was compiled for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Alias, Case, ErrorBound, Operator, Site, Step, register, typed
from tenon.network.ops.move import reordered


@register
@dataclass(frozen=True)
class Bounded(Operator):
    """The input, an i64 of rank 0 that is ``least``, ``least + step``, ... or ``most``.

    A run in which it is another number ends with the status ``SIZE_OUT_OF_RANGE`` before anything that depends on the
    result is computed.  Raises ShapeError for a constant that is another number, as the reference does.
    """

    least: int = 0
    most: int = 0
    step: int = 1
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    internal: ClassVar[bool] = True

    @property
    def range(self) -> SizeRange:
        """The numbers that a run may have."""
        return SizeRange(self.least, self.most, self.step)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if (x.dtype, x.dims) != (DType.I64, ()):
            raise ShapeError(f"Bounded: its input is {x}, not an i64 of rank 0")
        if problem := self.range.problem:
            raise ShapeError(f"Bounded: {self.range}: {problem}")
        return (TensorType(x.dtype, x.dims),)

    def reference(self, x: Array) -> Array:
        if int(x) not in self.range:
            raise ShapeError(f"{int(x)} is not in {self.range}")
        return x

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),)

    def lower(self, site: Site) -> list[Step]:
        """A copy, where the result cannot lie where the input does; the planner adds the check itself."""
        return reordered(site)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(Bounded(1, 9, 4), (np.array(5),), label="step")
