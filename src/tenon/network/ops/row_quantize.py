"""Rows of floats in bytes, as caches of decoders hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.block_quantize import LEAST
from tenon.machine.kernels.row_quantize import row_quantize
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, DType, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, register, typed
from tenon.network.ops.reach import Operands, Reach, Reaches


@register
@dataclass(frozen=True)
class RowQuantize(Operator):
    """x f32 [..., n] in bytes.  Results: i8 [..., n] and f32 [..., 1].  Tenon's own, not ONNX's.

    The scale of a row is its largest magnitude over 127 (0 if that is below 2**-126), elements are multiplied by its
    reciprocal and rounded, halves to even.
    """

    arity: ClassVar[tuple[int, int]] = (1, 1)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        if x.dtype is not F32 or not x.rank or not x.dims[-1]:
            raise ShapeError(f"RowQuantize: {x} is not f32 with rows of elements")
        return TensorType(DType.I8, x.dims), TensorType(F32, (*x.dims[:-1], 1))

    def reference(self, x: Array) -> tuple[Array, ...]:
        scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
        small = scale < np.float32(LEAST)
        inverse = np.where(small, np.float32(0), np.float32(1) / np.where(small, np.float32(1), scale))
        return np.rint(x * inverse).astype(np.int8), np.where(small, np.float32(0), scale)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return (Reach(axis),) if axis < outputs[output].rank - 1 else None

    def lower(self, site: Site) -> list[Step]:
        *rows, n = site.input(0).dims
        kernel = row_quantize(math.prod(rows), n, site.machine)
        return [Step(kernel, (Input(0), Output(0), Output(1)))] if site.input(0).size else []

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((1, 2, 3, 29),), label="rows")
        yield Case(cls(), (np.zeros((2, 5), np.float32),), label="zeros")
