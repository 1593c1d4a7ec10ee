"""A part of a tensor stored into the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.move import Piece, move, whole
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Alias, Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.move import own, shifted


@register
@dataclass(frozen=True)
class Insert(Operator):
    """Inputs: a part, and the whole that it belongs to.  The whole, with the part from ``start`` on along ``axis``.

    Without the second input the result has ``extent`` positions along ``axis``, and zeros beside the part; of these the
    compiled code stores nothing, so that every other position must be inserted before the result is read.
    """

    axis: int = 0
    start: int = 0
    extent: int = 0
    arity: ClassVar[tuple[int, int]] = (1, 2)
    internal: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        part, *rest = typed(inputs)
        dims = (*part.dims[: self.axis], self.extent, *part.dims[self.axis + 1 :])
        if self.start + part.dims[self.axis] > self.extent or any(t.dims != dims for t in rest):
            raise ShapeError(f"Insert: {part} does not fit into {list(dims)} at {self.start}")
        return (TensorType(part.dtype, dims, quant=part.quant),)

    def reference(self, part: Array, rest: Array | None = None) -> Array:
        dims = (*part.shape[: self.axis], self.extent, *part.shape[self.axis + 1 :])
        result = np.zeros(dims, part.dtype) if rest is None else rest.copy()
        result[(*(slice(None),) * self.axis, slice(self.start, self.start + part.shape[self.axis]))] = part
        return result

    def layouts(self, site: Site) -> Layouts:
        layout = own(site.input(0))
        return Layouts((layout,) * len(site.inputs), (layout,))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return (Alias(1, 0, written=True),) if site.has(1) else ()

    def lower(self, site: Site) -> list[Step]:
        x, y = site.input(0), site.output
        piece = Piece(x.dims, shifted(y.rank, self.axis, self.start), whole(y.rank))
        steps = [Step(move("insert", x, y, (piece,), site.machine), (Input(0), Output()))]
        if site.has(1) and 1 not in site.placed:
            copy = Piece(y.dims, whole(y.rank), whole(y.rank))
            steps.insert(0, Step(move("copy", site.input(1), y, (copy,), site.machine), (Input(1), Output())))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(2, 2, 5), ((1, 19, 2, 3), (1, 19, 5, 3)), label="rows")
        yield Case(cls(1, 1, 4), ((2, 3), (2, 4)), label="columns")
        integers = np.arange(24, dtype=np.int8).reshape(1, 4, 2, 3)
        yield Case(cls(2, 0, 3), (integers, np.zeros((1, 4, 3, 3), np.int8)), label="integers")
