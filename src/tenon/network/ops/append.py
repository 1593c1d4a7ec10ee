"""Rows appended to a tensor whose extent is known at run time: a decoder's cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.append import append, append_to_slots
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64, TensorType
from tenon.network.ops.base import Case, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.indexing import copied, parted
from tenon.network.ops.move import normal_axis
from tenon.network.ops.reach import CountedRead, Operands, Reach, Reaches

_COUNTED, _OF_SLOTS = 4, 5
"""Inputs where the number of rows is one, and where rows have slots."""
TURNED = (0, 2, 1, 3)
"""The order of axes that turned rows come from."""
_HEADS = (4, 2, 1)
"""Rank, axis and first extent of data whose new rows may be turned."""


@register
@dataclass(frozen=True)
class Append(Operator):
    """Inputs: data, new, extent (an i64).  The data with ``new`` written from index ``extent`` on along ``axis``.

    The data has room behind its true extent: the result has its shape, and rows of ``new`` that would lie past its end
    are not written.  An extent below 0 or past the end counts as the nearest of the two.  With ``positions`` the data
    is a ring: row number n, below ``positions``, is written at n modulo the data's extent.  One more input, an i64,
    says how many rows of ``new`` there are, of which the others are not read.  ``turned``: of data [1, heads, room, n]
    the new rows are [1, rows, heads, n].

    Two more inputs in place of that one are for several sequences: the slot of each row, i64 [rows], and how many rows
    there are.  The data is [slots, heads, room, n], ``new`` [1, heads, rows, n], and the extent, i64 [rows], is the
    place of each row.
    """

    axis: int = 0
    positions: int = 0
    turned: bool = False
    arity: ClassVar[tuple[int, int]] = (3, 5)
    internal: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, new, extent, *more = typed(inputs)
        if len(more) > 1:
            fits = x.rank == new.rank == 4 and (1, x.dims[1], x.dims[3]) == (new.dims[0], new.dims[1], new.dims[3])
            rows = TensorType(I64, (new.dims[2],)) if fits else None
            if extent != rows or more != [rows, TensorType(I64, ())] or x.dtype is not new.dtype:
                raise ShapeError(f"Append: {new} at {extent} does not fit the slots {x}")
            return (x,)
        axis = normal_axis(self.name, self.axis, x.rank)
        alike = (x.dtype, x.rank) == (new.dtype, new.rank) and (self._of_heads(x) or not self.turned)
        if not alike or any(n != new.dims[self._own_axis(d)] for d, n in enumerate(x.dims) if d != axis):
            raise ShapeError(f"Append: {new} does not fit {x} along axis {axis}")
        if extent.dtype is not I64 or extent.size != 1:
            raise ShapeError(f"Append: the extent {extent} must be one i64")
        if more and more != [TensorType(I64, ())]:
            raise ShapeError(f"Append: the number of rows {more[0]} must be an i64 scalar")
        return (TensorType(x.dtype, x.dims, quant=x.quant),)

    def _own_axis(self, axis: int) -> int:
        """The axis of the new rows along which the data has ``axis``."""
        return TURNED[axis] if self.turned else axis

    def _of_heads(self, x: TensorType) -> bool:
        """Whether the data are those of the heads of one sequence, [1, heads, room, n]."""
        return (x.rank, self.axis % x.rank, x.dims[0]) == _HEADS

    def takes_turned(self, inputs: Operands) -> bool:
        """Whether the new rows may be ``turned``: their heads and rows change places."""
        x = inputs[0]
        return x is not None and self._of_heads(x.type) and not self.turned and len(inputs) != _OF_SLOTS

    def reference(self, x: Array, new: Array, extent: Array, *more: Array) -> Array:
        if len(more) > 1:
            slots, count = more
            y = x.copy()
            for i in range(min(max(int(count), 0), new.shape[2])):
                slot = min(max(int(slots[i]), 0), len(x) - 1)
                place = min(max(int(extent[i]), 0), (self.positions or x.shape[2]) - 1)
                y[slot, :, place % x.shape[2]] = new[0, :, i]
            return y
        axis, y = self.axis % x.ndim, x.copy()
        new = new.transpose(TURNED) if self.turned else new
        most = self.positions or x.shape[axis]
        start = min(max(int(extent.item()), 0), most)
        rows = np.moveaxis(new, axis, 0)[: most - start]
        if more:
            rows = rows[: max(int(more[0]), 0)]
        for i, row in enumerate(rows):
            np.moveaxis(y, axis, 0)[(start + i) % x.shape[axis]] = row
        return y

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        if len(inputs) == _OF_SLOTS:
            return None
        new = None if axis == self.axis % outputs[0].rank else Reach(self._own_axis(axis))
        return (Reach(axis), new, None, None)[: len(inputs)]

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        if len(inputs) != _COUNTED or inputs[1] is None:
            return ()
        return (CountedRead(1, self._own_axis(self.axis % inputs[1].type.rank), 3),)

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    def lower(self, site: Site) -> list[Step]:
        x, new = site.input(0), site.input(1)
        steps = [copied(site)] if x.size and 0 not in site.placed else []
        if len(site.inputs) == _OF_SLOTS and new.size and x.size:
            shape = (x.dims[1], x.dims[2], x.dims[3])
            kernel = append_to_slots(x.dims[0], shape, new.dims[2], x.dtype, site.machine, self.positions)
            steps.append(Step(kernel, (*(Input(i) for i in range(1, 5)), Output())))
        elif new.size and x.size:
            outer, extent, inner = parted(x.dims, self.axis % x.rank)
            counted = [Input(3)] if len(site.inputs) == _COUNTED else []
            sizes = outer, extent, new.dims[self._own_axis(self.axis % x.rank)], inner
            kernel = append(*sizes, x.dtype, site.machine, self.positions, counted=bool(counted), turned=self.turned)
            steps.append(Step(kernel, (Input(1), Input(2), *counted, Output())))
        return steps

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(2), ((1, 3, 7, 19), (1, 3, 1, 19), np.array(4)), label="cache")
        yield Case(cls(-1), ((2, 3, 5), (2, 3, 2), np.array([3])), label="last_axis")
        integers = np.arange(12, dtype=np.int8).reshape(4, 3)
        yield Case(cls(), (integers, -integers[:3], np.array(2)), label="no_room")
        yield Case(cls(), (integers, -integers[:2], np.array(9)), label="past_the_end")
        yield Case(cls(), (integers, -integers[:2], np.array(-3)), label="below_zero")
        for start in (2, 30, 37):
            yield Case(cls(1, 39), ((2, 7, 5), (2, 4, 5), np.array(start)), label=f"ring_{start}")
        for count in (-1, 0, 3, 9):
            yield Case(cls(2), ((1, 3, 7, 19), (1, 3, 4, 19), np.array(2), np.array(count)), label=f"counted_{count}")
        yield Case(cls(1), ((2, 7, 5), (2, 6, 5), np.array(4), np.array(5)), label="counted_no_room")
        yield Case(cls(1, 39), ((2, 7, 5), (2, 4, 5), np.array(30), np.array(2)), label="counted_ring")
        turned = (1, 3, 7, 19), (1, 4, 3, 19), np.array(2)
        yield Case(cls(2, turned=True), turned, label="turned")
        yield Case(cls(2, turned=True), (*turned, np.array(3)), label="turned_counted")
        yield Case(cls(2, 39, turned=True), (*turned[:2], np.array(30), np.array(3)), label="turned_ring")
        slots = (np.array([1, 2, 0, 1]), np.array(3))
        places = np.array([4, 0, 6, 5])
        yield Case(cls(2), ((3, 2, 7, 19), (1, 2, 4, 19), places, *slots), label="slots")
        yield Case(cls(2, 13), ((3, 2, 7, 19), (1, 2, 4, 19), places * 2, *slots), label="slots_ring")
