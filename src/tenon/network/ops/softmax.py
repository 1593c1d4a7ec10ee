"""Softmax along any axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.machine.kernels import softmax as kernels
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.normalize import single_only
from tenon.network.ops.reach import Absorbed, Operands, Reaches, alike
from tenon.network.ops.reduce import check_axes


@register
@dataclass(frozen=True)
class Softmax(Operator):
    """exp(x) divided by its sum along ``axis``."""

    axis: int = -1
    log: ClassVar[bool] = False
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS
    along_axis: ClassVar[bool] = True
    narrow_rows: ClassVar[bool] = True

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        check_axes(self.name, [self.axis], x.rank)
        return (TensorType(x.dtype, x.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        axis = self.axis % node.type(0).rank
        node.with_masked(0, [axis], -math.inf)
        (result,) = node.same(node.extents(0))
        if not self.log and axis in node.changing(0):
            node.sizes.filled[result] = {axis: 0.0}
        return [result]

    def reference(self, x: Array) -> Any:
        e = np.exp(x - x.max(self.axis, keepdims=True))
        return e / e.sum(self.axis, keepdims=True)

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None if axis == self.axis % outputs[0].rank else alike(inputs, axis)

    def absorbs(self, inputs: Operands) -> tuple[Absorbed, ...]:
        assert inputs[0] is not None
        return (Absorbed(0, self.axis % inputs[0].type.rank, -np.inf),)

    def supported(self, site: Site) -> str:
        return single_only(site)

    def lower(self, site: Site) -> list[Step]:
        dims = site.input(0).dims
        axis = self.axis % len(dims)
        outer, inner = math.prod(dims[:axis]), math.prod(dims[axis + 1 :])
        make = kernels.softmax_rows if inner == 1 else kernels.softmax
        kernel = make(kernels.Softmax(outer, dims[axis], inner, self.log, site.input(0).dtype), site.machine)
        return [Step(kernel, (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 37),), low=-9, high=9, label="rows")
        yield Case(cls(0), ((7,),), low=-9, high=9, label="rank1")
        yield Case(cls(1), ((2, 5, 3, 7),), low=-9, high=9, label="channels")
        yield Case(cls(-2), ((4, 6, 1),), low=-9, high=9, label="inner_is_one")
        yield Case(cls(0), ((3, 5),), low=-500, high=500, label="large")


@register
@dataclass(frozen=True)
class LogSoftmax(Softmax):
    """The logarithm of the softmax along ``axis``."""

    log: ClassVar[bool] = True

    def reference(self, x: Array) -> Any:
        shifted = x - x.max(self.axis, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(self.axis, keepdims=True))
