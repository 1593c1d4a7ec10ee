"""Products of two matrices of quantised integers, both computed at run time.

Sources: the TensorFlow Lite quantization specification (BATCH_MATMUL); ONNX's QLinearMatMul.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import integer_matmul as kernels
from tenon.machine.kernels.requantize import Rounding
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import ROW_MAJOR, DType, Quant, TensorType
from tenon.network.ops.base import Accuracy, Case, Input, Layouts, Operator, Output, Site, Step, register, typed
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_product import ACTIVATIONS
from tenon.network.ops.requantize import Factors, clamped, quantized_multiplier, row_type


@register
@dataclass(frozen=True)
class IntegerMatMul(Operator):
    """Matrices a [batch..., M, K] times b [batch..., K, N], batches broadcast.

    The sum of (a - ``zeros[0]``) * (b - ``zeros[1]``) times ``fixed``, a fixed-point factor, or ``factor`` in f32 with
    the rounding "float", plus ``zeros[2]``, is clamped between ``low`` and ``high``.  ``scale`` is that of the result.
    """

    rounding: Rounding = "double"
    zeros: tuple[int, int, int] = (0, 0, 0)
    low: int = -128
    high: int = 127
    to: str = "i8"
    scale: float = 1.0
    factor: float = 1.0
    fixed: Fixed = (0, 0)
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[Accuracy] = Accuracy.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        a, b = typed(inputs)
        if any(t.dtype not in ACTIVATIONS for t in (a, b)):
            raise ShapeError(f"{self.name}: {a} and {b} are not quantised integers")
        if a.rank < 2 or b.rank < 2 or a.dims[-1] != b.dims[-2]:
            raise ShapeError(f"{self.name}: {list(a.dims)} and {list(b.dims)} are not two matrices that fit")
        try:
            batch = np.broadcast_shapes(a.dims[:-2], b.dims[:-2])
        except ValueError:
            raise ShapeError(f"{self.name}: batches of {list(a.dims)} and {list(b.dims)} do not broadcast") from None
        dims = (*map(int, batch), a.dims[-2], b.dims[-1])
        return (TensorType(DType(self.to), dims, quant=Quant((self.scale,), (self.zeros[2],))),)

    def zero_points(self) -> tuple[int, int]:
        return self.zeros[:2]

    def factors(self) -> Factors:
        return Factors.single(self.rounding, self.factor, self.fixed)

    def reference(self, a: Array, b: Array) -> Array:
        left, right = a.astype(np.int64) - self.zeros[0], b.astype(np.int64) - self.zeros[1]
        return clamped(self.factors().apply(left @ right) + self.zeros[2], self.low, self.high, DType(self.to))

    def layouts(self, site: Site) -> Layouts:
        return Layouts((ROW_MAJOR, ROW_MAJOR), (ROW_MAJOR,))

    def lower(self, site: Site) -> list[Step]:
        a, b, y = site.input(0), site.input(1), site.output
        known = self.factors()
        kernel = known.kernel(self.zeros[2], self.low, self.high, DType(self.to))
        s = kernels.IntegerMatMul(
            (y.dims[-2], a.dims[-1], y.dims[-1]), _batch(a.dims[:-2], b.dims[:-2], y.dims[:-2]), self.zeros[:2],
            (a.dtype, b.dtype), kernel,
            tuple((row[0].item(), row_type(self.rounding, name)) for name, row in known.rows().items()),
        )  # fmt: skip
        return [Step(kernels.integer_matmul(s, site.machine), (Input(0), Input(1), Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        return outputs[0].size * inputs[0].dims[-1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(12)
        for a, b in (((1, 3, 5), (1, 5, 7)), ((2, 1, 3, 8), (4, 8, 19)), ((6, 4), (3, 4, 1)), ((2, 3, 1), (1, 17))):
            for rounding in ("double", "single", "float"):
                left, right = (rng.integers(-128, 128, dims).astype(np.int8) for dims in (a, b))
                op = cls(rounding, (3, -7, 11), factor=0.004, fixed=quantized_multiplier(0.004))
                yield Case(op, (left, right), (), 0, label=f"{len(a)}{len(b)}x{b[-1]}_{rounding}")
        u8 = rng.integers(0, 256, (2, 5, 6)).astype(np.uint8)
        op = cls("double", (131, 7, 120), 0, 255, "u8", fixed=quantized_multiplier(0.003))
        yield Case(op, (u8, np.swapaxes(u8, 1, 2).copy()), (), 0, label="u8")
        i16 = rng.integers(-(1 << 15), 1 << 15, (2, 5, 6)).astype(np.int16)
        op = cls("reduced", (0, 0, 0), -(1 << 15), (1 << 15) - 1, "i16", fixed=quantized_multiplier(1e-5))
        yield Case(op, (i16, np.swapaxes(i16, 1, 2).copy()), (), 0, label="i16")
        i8, fixed = rng.integers(-128, 128, (6, 7)).astype(np.int8), quantized_multiplier(3e-3)
        for op in (cls("reduced", low=-32768, high=32767, to="i16", fixed=fixed),
                   cls("single", low=-32768, high=32767, to="i16", fixed=fixed)):  # fmt: skip
            yield Case(op, (i16[0], i8), (), 0, label=f"i16_i8_{op.rounding}")


def _batch(a: tuple[int, ...], b: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """For each outer axis of the result its extent and the steps of both operands, zero where they are broadcast."""

    def steps(dims: tuple[int, ...]) -> list[int]:
        full = (1,) * (len(y) - len(dims)) + dims
        return [0 if n == 1 else math.prod(full[i + 1 :]) for i, n in enumerate(full)]

    return tuple(zip(y, steps(a), steps(b), strict=True))
