"""Softmax of 8-bit integers to 8 bits, the same bits on every machine.

ONNX Runtime's QLinearSoftmax adds up f32 exponentials and rounds each times what makes their sum one.  Here the
exponentials are integers of 21 bits, fewer for long rows, so that their sum does not depend on the order of additions:
a result differs from that of unrounded exponentials by one step at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tenon.machine.kernels import byte_softmax as kernels
from tenon.machine.kernels.lookup import CODES
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    ErrorBound,
    Input,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    register,
    typed,
)
from tenon.network.ops.integer_softmax import check_rows
from tenon.network.ops.reach import Operands, Reaches, alike
from tenon.network.ops.requantize import clamped, limits

LONGEST = 1 << 20
"""Elements of a row whose exponentials still have enough bits."""

_SUM_BITS = 30


@lru_cache(maxsize=64)
def exponentials(scale: float, n: int) -> Array:
    """i32 [256]: exp(-``scale`` * i) in fixed point, at most 21 bits, so that the sum of n has 31 bits at most."""
    bits = min(kernels.PLANES * kernels.PLANE_BITS, _SUM_BITS - (n - 1).bit_length())
    exact = Context(prec=30)
    table = [
        exact.exp(exact.multiply(Decimal(-i), Decimal(scale))) * (1 << bits) if i * scale < 64 else 0
        for i in range(CODES)
    ]
    return np.minimum([round(x) for x in table], (1 << bits) - 1).astype(np.int32)


@register
@dataclass(frozen=True)
class ByteSoftmax(Operator):
    """Softmax over the last axis of ``x_scale`` times x, of x in i8 or u8: to 8 bits ``to``, of that ``scale`` and zero
    point.  A zero point of x makes no difference."""

    x_scale: float = 1.0
    scale: float = 1 / 256
    zero: int = 0
    to: str = "u8"
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        check_rows(self.name, x, LONGEST)
        return (TensorType(DType(self.to), x.dims, quant=Quant((self.scale,), (self.zero,))),)

    @property
    def steps(self) -> np.float32:
        """The steps of a result of one."""
        return np.float32(1) / np.float32(self.scale)

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.int64)
        e = exponentials(self.x_scale, x.shape[-1])[wide.max(-1, keepdims=True) - wide]
        factor = self.steps / e.sum(-1, keepdims=True).astype(np.float32)
        results = np.rint(e.astype(np.float32) * factor).astype(np.int64) + self.zero
        to = DType(self.to)
        return clamped(results, *limits(to), to)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None if axis == outputs[0].rank - 1 else alike(inputs, axis)

    def described(self, x: TensorType) -> kernels.ByteSoftmax:
        """The kernel's description for an input of this type."""
        to, table = DType(self.to), exponentials(self.x_scale, x.dims[-1])
        stage = Requantize("float", self.zero, *limits(to), to, ("factor",))
        # The sum of a row is at least the first entry of the table; 0.499 leaves room for the rounding of the factor.
        counted = int(np.count_nonzero(table.astype(np.float64) * float(self.steps) > 0.499 * float(table[0])))
        return kernels.ByteSoftmax(
            math.prod(x.dims[:-1]), x.dims[-1], x.dtype, stage, float(self.steps), max(1, counted)
        )

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        tables = softmax_tables(self, x.dims[-1], planes=kernels.in_planes(site.machine))
        return [Step(kernels.byte_softmax(self.described(x), site.machine), (Input(0), *tables, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(12)
        for dtype, to in ((np.int8, "u8"), (np.uint8, "u8"), (np.uint8, "i8")):
            kind = np.iinfo(dtype)
            for shape, scale in (
                ((3, 10), 0.07),
                ((1, 1), 1.0),
                ((2, 3, 67), 0.02),
                ((5, 203), 0.1),
                ((1, 3000), 0.004),
            ):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                op = cls(scale, 1 / 255, 0 if to == "u8" else -128, to)
                yield Case(op, (x,), (), 0, label=f"{np.dtype(dtype)}_{to}_{shape[-1]}")


def softmax_tables(op: ByteSoftmax, n: int, *, planes: bool) -> list[Arg]:
    """The tables of exponentials that kernels take for rows of n."""
    table = exponentials(op.x_scale, n)
    return [Weights(table), *([Weights(kernels.planes(table))] if planes else [])]
