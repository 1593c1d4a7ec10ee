"""Requantisation of quantised integers, and functions of one that are linear on both sides of zero.

Sources: the TensorFlow Lite quantization specification (QUANTIZE, LEAKY_RELU, PRELU, ABS), and the reference kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, cast, less, maximum, minimum, op, select
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, broadcast_shapes, register, typed
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.integer_arithmetic import Fixed, IntegerBinary, fixed
from tenon.network.ops.integer_product import ACTIVATIONS
from tenon.network.ops.requantize import clamped, quantized_multiplier, rescaled


@register
@dataclass(frozen=True)
class IntegerRescale(Pointwise):
    """x less ``zeros[0]``, of which ``absolute`` takes the magnitude, shifted up by ``headroom`` bits, times ``above``,
    or times ``below`` where it is negative, rounded doubly, plus ``zeros[1]``, between ``low`` and ``high``.

    ``scale`` is that of the result.
    """

    zeros: tuple[int, int] = (0, 0)
    above: Fixed = (1 << 30, 1)
    below: Fixed = (1 << 30, 1)
    absolute: int = 0
    headroom: int = 0
    low: int = -128
    high: int = 127
    to: str = "i8"
    scale: float = 1.0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        if types[0].dtype not in ACTIVATIONS:
            raise ShapeError(f"{self.name}: {types[0]} are not quantised integers")
        return (
            TensorType(DType(self.to), broadcast_shapes(self.name, types), quant=Quant((self.scale,), self.zeros[1:])),
        )

    def zero_points(self) -> tuple[int]:
        return self.zeros[:1]

    def result(self, dtypes: Sequence[DType]) -> DType:
        return DType(self.to)

    def scalar(self, x: Expr) -> Expr:
        given = cast(x, I32) - self.zeros[0]
        given = (op("abs", given) if self.absolute else given) << self.headroom
        scaled = fixed(given, self.above)
        if self.below != self.above:
            scaled = select(less(given, 0), fixed(given, self.below), scaled)
        return cast(minimum(maximum(scaled + self.zeros[1], self.low), self.high), DType(self.to))

    def reference(self, x: Array) -> Array:
        given = x.astype(np.int64) - self.zeros[0]
        given = (np.abs(given) if self.absolute else given) << self.headroom
        above, below = (rescaled(given, *f, "double") for f in (self.above, self.below))
        return clamped(np.where(given < 0, below, above) + self.zeros[1], self.low, self.high, DType(self.to))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng, wide = np.random.default_rng(13), cls(low=-(1 << 15), high=(1 << 15) - 1, to="i16")
        ratio, part = quantized_multiplier(0.0123), quantized_multiplier(0.0031)
        up = quantized_multiplier(37.3)
        for label, dtype, made in (
            ("narrowed", np.int16, cls((0, -4), ratio, ratio)),
            ("widened", np.int8, replace(wide, zeros=(-3, 0), above=up, below=up)),
            ("leaky", np.int16, replace(wide, above=quantized_multiplier(0.9), below=part)),
            ("shifted", np.int8, cls((4, 0), ratio, ratio, headroom=8, low=-(1 << 31), high=(1 << 31) - 1, to="i32")),
            ("absolute", np.int16, replace(wide, above=up, below=up, absolute=1)),
            ("leaky_8", np.int8, cls((5, -100), ratio, part, low=-110, high=90)),
        ):
            kind = np.iinfo(dtype)
            for shape in ((2, 5, 3, 7), (41,)):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                yield Case(made, (x,), (), 0, label=f"{label}_{len(shape)}")


@register
@dataclass(frozen=True)
class IntegerPRelu(IntegerBinary):
    """a times ``above``, or a * b times ``below`` where a is negative, rounded doubly; only the rounding "double"."""

    above: Fixed = (1 << 30, 1)
    below: Fixed = (1 << 30, 1)

    def combined_arrays(self, left: Array, right: Array) -> Array:
        return np.where(left < 0, left * right, left)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        left, right = self.centred(a, b)
        return self.bounded(select(less(left, 0), fixed(left * right, self.below), fixed(left, self.above)))

    def reference(self, a: Array, b: Array) -> Array:
        left, right = self.centred_arrays(a, b)
        above, below = rescaled(left, *self.above, "double"), rescaled(left * right, *self.below, "double")
        return self.bounded_array(np.where(left < 0, below, above))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(14)
        made = cls("double", (3, -4, 5), above=quantized_multiplier(0.8), below=quantized_multiplier(0.013))
        for a, b in (((2, 8, 3, 3), (8, 1, 1)), ((41,), (41,))):
            arrays = tuple(rng.integers(-128, 128, dims).astype(np.int8) for dims in (a, b))
            yield Case(made, arrays, (1,), 0, label=f"{len(a)}{len(b)}")


@register
@dataclass(frozen=True)
class IntegerSquaredDifference(IntegerBinary):
    """(a - b) squared: ``factors`` bring a and b, shifted up by ``headroom`` bits, to a common scale, and the square of
    their difference to that of the result; only the rounding "double".
    """

    factors: tuple[Fixed, Fixed, Fixed] = ((1 << 30, 1),) * 3
    headroom: int = 7

    def combined_arrays(self, left: Array, right: Array) -> Array:
        return (left - right) ** 2

    def scalar(self, a: Expr, b: Expr) -> Expr:
        left, right = (fixed(x << self.headroom, f) for x, f in zip(self.centred(a, b), self.factors[:2], strict=True))
        difference = op("sub", left, right)
        return self.bounded(fixed(difference * difference, self.factors[2]))

    def reference(self, a: Array, b: Array) -> Array:
        pair = zip(self.centred_arrays(a, b), self.factors[:2], strict=True)
        left, right = (rescaled(x << self.headroom, *f, "double") for x, f in pair)
        return self.bounded_array(rescaled((left - right) ** 2, *self.factors[2], "double"))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(15)
        multipliers = tuple(map(quantized_multiplier, (0.5, 0.3, 0.01 / (1 << 14) * 4)))
        made = cls("double", (3, -4, -120), factors=multipliers)  # type: ignore[arg-type]
        for a, b in (((2, 8, 3, 3), (8, 1, 1)), ((41,), (41,))):
            arrays = tuple(rng.integers(-128, 128, dims).astype(np.int8) for dims in (a, b))
            yield Case(made, arrays, (1,), 0, label=f"{len(a)}{len(b)}")
