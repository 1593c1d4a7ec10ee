"""One tensor in several arithmetics of quantised integers, until a compilation chooses one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import Piece, move, whole
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Alias, Case, Input, Operator, Output, Site, Step, register, typed


@register
@dataclass(frozen=True)
class ArithmeticChoice(Operator):
    """Inputs: a tensor as LiteRT computes it, and the same as TFLite Micro does.  The first, unless ``passes.integers``
    puts the second in its place."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        litert, tflm = typed(inputs)
        if (litert.dtype, litert.shape) != (tflm.dtype, tflm.shape):
            raise ShapeError(f"ArithmeticChoice: {litert} and {tflm} differ")
        return (litert,)

    def reference(self, litert: Array, tflm: Array) -> Array:
        return litert

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(0, 0),)

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        piece = Piece(y.dims, whole(y.rank), whole(y.rank))
        return [Step(move("choice", x, y, (piece,), site.machine), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), (np.arange(6, dtype=np.int8), np.arange(1, 7, dtype=np.int8)), (), 0, label="two")
        yield Case(cls(), ((2, 3), (2, 3)), (), 0, label="floats")
