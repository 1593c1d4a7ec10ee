"""The positions of extreme elements along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import reduce as kernels
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.types import I64, DType, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.reduce import check_axes, neutral


@register
@dataclass(frozen=True)
class ArgMax(Operator):
    """The index along ``axis`` of the greatest element."""

    axis: int = 0
    keepdims: int = 1
    select_last_index: int = 0
    least: ClassVar[bool] = False
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT
    along_axis: ClassVar[bool] = True
    counts_up: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        (axis,) = check_axes(self.name, [self.axis], x.rank)
        middle = (1,) if self.keepdims else ()
        if not x.dims[axis] and 0 not in (*x.dims[:axis], *x.dims[axis + 1 :]):
            raise ShapeError(f"{self.name}: axis {axis} of {list(x.dims)} has no elements")
        return (TensorType(I64, (*x.dims[:axis], *middle, *x.dims[axis + 1 :])),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents, axis = node.extents(0), self.axis % node.type(0).rank
        if self.select_last_index and axis in node.changing(0):
            raise SizeRefusedError(f"{self.name} of the last extreme along an axis whose extent a run decides")
        node.with_masked(0, [axis], neutral(node.type(0).dtype, greatest=self.least))
        return node.same([*extents[:axis], *[1] * self.keepdims, *extents[axis + 1 :]])

    def reference(self, x: Array) -> Any:
        find = np.argmin if self.least else np.argmax
        last = x.shape[self.axis] - 1
        indices = last - find(np.flip(x, self.axis), self.axis) if self.select_last_index else find(x, self.axis)
        indices = np.asarray(indices, np.int64)
        return np.expand_dims(indices, self.axis) if self.keepdims else indices

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        axis = self.axis % x.rank
        outer, inner = math.prod(x.dims[:axis]), math.prod(x.dims[axis + 1 :])
        last = bool(self.select_last_index)
        kernel = kernels.extreme(outer, x.dims[axis], inner, x.dtype, self.least, last, site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[2, 7, 7, 1], [4, 0, 4, 0], [3, 3, 3, 3]], np.float32)
        for axis in (0, -1):
            yield Case(cls(axis), (x,), label=f"axis{axis}")
            yield Case(cls(axis, 0, 1), (x,), label=f"axis{axis}_last")
        yield Case(cls(1), ((2, 5, 3, 7),), label="channels")
        yield Case(cls(0), (x.astype(np.uint8),), label="u8")
        yield Case(cls(-1), ((x - 4).astype(DType.I4.numpy),), label="i4")
        yield Case(cls(0), ((x[:1] - 4).astype(DType.I4.numpy),), label="one_i4")
        yield Case(cls(-1), (-x.astype(np.int64),), label="i64")


@register
@dataclass(frozen=True)
class ArgMin(ArgMax):
    """The index along ``axis`` of the least element."""

    least: ClassVar[bool] = True
