"""Sums and products of two quantised tensors, element by element.

Sources: the TensorFlow Lite quantization specification (ADD, SUB, MUL); ONNX Runtime's QLinearAdd and QLinearMul.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import frexp
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, maximum, minimum, op
from tenon.machine.kernels.requantize import Rounding, rounded_to_even
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, I32, DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, broadcast_shapes, register, typed
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.integer_product import ACTIVATIONS
from tenon.network.ops.requantize import Factors, clamped, limits, quantized_multiplier, rescaled

Fixed = tuple[int, int]
"""A fixed-point factor: multiplier and shift to the left (see ``ops.requantize.quantized_multiplier``)."""

EXACT = 1 << 24
"""Whole numbers up to this are numbers of f32, too."""
HEADROOM = 20
"""Bits that 8-bit operands of a sum are shifted up by before they are scaled."""


@dataclass(frozen=True)
class IntegerBinary(Pointwise):
    """Two tensors of quantised integers, broadcast; the result is clamped between ``low`` and ``high``.

    ``zeros`` are the zero points of the operands and of the result.  With the rounding "float", ``scales`` are f32
    numbers: those of the operands and of the result.
    """

    rounding: Rounding = "double"
    zeros: tuple[int, int, int] = (0, 0, 0)
    low: int = -128
    high: int = 127
    to: str = "i8"
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        if any(t.dtype not in ACTIVATIONS for t in types):
            raise ShapeError(f"{self.name}: {', '.join(map(str, types))} are not quantised integers")
        quant = Quant((self.scales[2],), (self.zeros[2],))
        return (TensorType(DType(self.to), broadcast_shapes(self.name, types), quant=quant),)

    def zero_points(self) -> tuple[int, int]:
        return self.zeros[:2]

    def result(self, dtypes: Sequence[DType]) -> DType:
        return DType(self.to)

    def centred(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Both less their zero points, in i32."""
        return cast(a, I32) - self.zeros[0], cast(b, I32) - self.zeros[1]

    def centred_arrays(self, a: Array, b: Array) -> tuple[Array, Array]:
        return a.astype(np.int64) - self.zeros[0], b.astype(np.int64) - self.zeros[1]

    def real(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Both as the real numbers that they stand for, each rounded to f32."""
        pair = zip(self.centred(a, b), self.scales[:2], strict=True)
        left, right = (op("mul_rounded", cast(x, F32), Const(s, Type(F32))) for x, s in pair)
        return left, right

    def real_arrays(self, a: Array, b: Array) -> tuple[Array, Array]:
        left, right = self.centred_arrays(a, b)
        return left.astype(np.float32) * np.float32(self.scales[0]), right.astype(np.float32) * np.float32(
            self.scales[1]
        )

    def bounded(self, x: Expr) -> Expr:
        return cast(minimum(maximum(x + self.zeros[2], self.low), self.high), DType(self.to))

    def bounded_array(self, x: Array) -> Array:
        return clamped(x + self.zeros[2], self.low, self.high, DType(self.to))

    @abstractmethod
    def combined_arrays(self, left: Array, right: Array) -> Array:
        """The real number that is stored, of those of the operands."""

    def quantized(self, x: Expr, *operands: Expr) -> Expr:
        """A real number, computed from ``operands``, as an element of the result, halves to even."""
        reciprocal = None if any(each.type.dtype.bytes > 1 for each in operands) else _reciprocal(self)
        steps = x / self.scales[2] if reciprocal is None else x * reciprocal
        return rounded_to_even(steps, self.zeros[2], self.low, self.high, DType(self.to))

    def exponents(self) -> tuple[int, int, int] | None:
        """The exponents of the scales, if these are powers of two."""
        parts = [frexp(scale) for scale in self.scales]
        if any(fraction != 0.5 for fraction, _ in parts):
            return None
        one, other, result = (exponent - 1 for _, exponent in parts)
        return one, other, result

    def most(self, *operands: Expr) -> list[int]:
        """The greatest magnitudes of operands less their zero points."""
        ends = [limits(each.type.dtype) for each in operands]
        return [max(high - zero, zero - low) for (low, high), zero in zip(ends, self.zeros, strict=False)]

    def shifted(self, total: Expr, most: int, shift: int) -> Expr | None:
        """The result of ``quantized`` for ``total`` * 2**``shift``, of magnitudes up to ``most``, without floats; None
        where f32 does not hold all of these numbers, or i32 not what the shift gives."""
        if most > EXACT or (shift >= 0 and most << shift > EXACT) or shift < -24:
            return None
        if shift >= 0:
            return self.bounded(total << shift)
        halves = total + ((1 << -shift >> 1) - 1) + op("and", total >> -shift, 1)
        return self.bounded(halves >> -shift)

    def quantized_array(self, x: Array) -> Array:
        return self.rounded_array(x / np.float32(self.scales[2]))

    def rounded_array(self, steps: Array) -> Array:
        steps = np.rint(steps)
        return self.bounded_array(np.clip(steps, self.low - self.zeros[2], self.high - self.zeros[2]).astype(np.int64))


@lru_cache(maxsize=1024)
def _reciprocal(op: IntegerBinary) -> float | None:
    """The factor for where ``op`` divides by the scale of its result, which takes a fraction of the time: its
    reciprocal in f32, or a neighbour of that, if it gives the same results for all pairs of bytes."""
    bytes = np.arange(-128, 256)
    real = op.combined_arrays(*op.real_arrays(bytes[:, None], bytes[None]))
    expected, nearest = op.quantized_array(real), np.float32(1) / np.float32(op.scales[2])
    for each in (nearest, *(np.nextafter(nearest, np.float32(end)) for end in (0, np.inf))):
        if np.isfinite(each) and np.array_equal(op.rounded_array(real * each), expected):
            return float(each)
    return None


def fixed(x: Expr, factor: Fixed) -> Expr:
    """``x`` times a fixed-point factor, rounded doubly."""
    multiplier, shift = factor
    factors = Factors("double", np.array([multiplier]), np.array([shift]))
    kernel = factors.kernel(0, -(2**31), 2**31 - 1, I32)
    rows = [Const(int(row[0]), Type(I32)) for row in factors.rows().values()]
    return kernel.scaled(x, rows)


@register
@dataclass(frozen=True)
class IntegerAdd(IntegerBinary):
    """a + b, or a - b where ``subtract`` is 1.

    With the rounding "double" both operands, shifted up by ``headroom`` bits, are brought to a common scale by their
    ``factors``, added, and brought to that of the result by the third.
    """

    factors: tuple[Fixed, Fixed, Fixed] = ((0, 0), (0, 0), (0, 0))
    headroom: int = HEADROOM
    subtract: int = 0

    def scalar(self, a: Expr, b: Expr) -> Expr:
        sign = "sub" if self.subtract else "add"
        if self.rounding == "float":
            if (exact := self.in_integers(sign, a, b)) is not None:
                return exact
            return self.quantized(op(sign, *self.real(a, b)), a, b)
        left, right = (fixed(x << self.headroom, f) for x, f in zip(self.centred(a, b), self.factors[:2], strict=True))
        return self.bounded(fixed(op(sign, left, right), self.factors[2]))

    def in_integers(self, sign: str, a: Expr, b: Expr) -> Expr | None:
        """The result by shifts, if they give the same."""
        if (exponents := self.exponents()) is None:
            return None
        ups = [each - min(exponents[:2]) for each in exponents[:2]]
        if max(ups) > 24:
            return None
        left, right = (x << up for x, up in zip(self.centred(a, b), ups, strict=True))
        most = sum(size << up for size, up in zip(self.most(a, b), ups, strict=True))
        return self.shifted(op(sign, left, right), most, min(exponents[:2]) - exponents[2])

    def combined_arrays(self, left: Array, right: Array) -> Array:
        return left - right if self.subtract else left + right

    def reference(self, a: Array, b: Array) -> Array:
        sign = -1 if self.subtract else 1
        if self.rounding == "float":
            return self.quantized_array(self.combined_arrays(*self.real_arrays(a, b)))
        left, right = (
            rescaled(x << self.headroom, *f, "double")
            for x, f in zip(self.centred_arrays(a, b), self.factors[:2], strict=True)
        )
        return self.bounded_array(rescaled(left + sign * right, *self.factors[2], "double"))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for label, factors, (one, other, result) in (
            ("same", (1, 1), (0.05, 0.05, 0.11)),
            ("far", (1, 1), (0.003, 0.7, 0.5)),
        ):
            most = 2 * max(one, other)
            multipliers = tuple(
                map(quantized_multiplier, (one / most, other / most, most / ((1 << HEADROOM) * result)))
            )
            scales = tuple(float(np.float32(s)) for s in (one, other, result))
            double = cls("double", (3, -4, 5), scales=scales, factors=multipliers)  # type: ignore[arg-type]
            del factors
            for made in (double, replace(double, rounding="float"), replace(double, subtract=1, low=-20)):
                yield from _pairs(made, f"{label}_{made.rounding}_{made.subtract}")
        multipliers = tuple(map(quantized_multiplier, (0.5, 0.2, 1 / ((1 << 15) * 0.3))))
        ends = {"zeros": (0, 0, 0), "low": -(1 << 15), "high": (1 << 15) - 1, "to": "i16"}
        yield from _pairs(cls("double", **ends, factors=multipliers, headroom=15), "16_bits", 16)  # type: ignore[arg-type]
        yield from _mixed(cls)


@register
@dataclass(frozen=True)
class IntegerMul(IntegerBinary):
    """a * b, brought to the scale of the result by ``factor`` unless the rounding is "float"."""

    factor: Fixed = (0, 0)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        if self.rounding == "float":
            if (exact := self.in_integers(a, b)) is not None:
                return exact
            return self.quantized(op("mul", *self.real(a, b)), a, b)
        return self.bounded(fixed(op("mul", *self.centred(a, b)), self.factor))

    def in_integers(self, a: Expr, b: Expr) -> Expr | None:
        """The result by a shift, if it gives the same."""
        if (exponents := self.exponents()) is None:
            return None
        one, other = self.most(a, b)
        return self.shifted(op("mul", *self.centred(a, b)), one * other, exponents[0] + exponents[1] - exponents[2])

    def combined_arrays(self, left: Array, right: Array) -> Array:
        return left * right

    def reference(self, a: Array, b: Array) -> Array:
        if self.rounding == "float":
            return self.quantized_array(self.combined_arrays(*self.real_arrays(a, b)))
        left, right = self.centred_arrays(a, b)
        return self.bounded_array(rescaled(left * right, *self.factor, "double"))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        scales = tuple(float(np.float32(s)) for s in (0.02, 0.03, 0.05))
        double = cls("double", (3, -4, 5), scales=scales, factor=quantized_multiplier(0.02 * 0.03 / 0.05))  # type: ignore[arg-type]
        for made in (double, replace(double, rounding="float"), replace(double, factor=quantized_multiplier(1.7))):
            yield from _pairs(made, f"{made.rounding}_{made.factor[1]}")
        ends = {"zeros": (0, 0, 0), "low": -(1 << 15), "high": (1 << 15) - 1, "to": "i16"}
        yield from _pairs(cls("double", **ends, factor=quantized_multiplier(4e-5)), "16_bits", 16)  # type: ignore[arg-type]
        yield from _mixed(cls)


def _pairs(made: IntegerBinary, label: str, bits: int = 8) -> Iterable[Case]:
    rng = np.random.default_rng(7)
    for a, b in (((1, 5, 4, 7), (1, 5, 4, 7)), ((2, 8, 3, 3), (8, 1, 1)), ((41,), (41,))):
        half, kind = 1 << (bits - 1), DType(f"i{bits}").numpy
        left, right = (rng.integers(-half, half, dims).astype(kind) for dims in (a, b))
        yield Case(made, (left, right), (1,) if a != b else (), 0, label=f"{label}_{len(a)}{len(b)}")


def _mixed(cls: type[IntegerBinary]) -> Iterable[Case]:
    """Operands of 8 and of 16 bits, results of either."""
    rng = np.random.default_rng(9)
    ends = {"i8": (-128, 127), "i16": (-(1 << 15), (1 << 15) - 1)}
    for types in (("i8", "i8", "i16"), ("i8", "i16", "i16"), ("i16", "i16", "i16"), ("i16", "i16", "i8")):
        scales = tuple(float(np.float32(0.011 if t == "i8" else 0.00013)) for t in types)
        low, high = ends[types[2]]
        made = cls("float", (3, -4, 5), low, high, types[2], scales)  # type: ignore[arg-type]
        left, right = (rng.integers(ends[t][0], ends[t][1] + 1, (1, 5, 4, 7)).astype(DType(t).numpy) for t in types[:2])
        yield Case(made, (left, right), (), 0, label="_".join(types))
        for name, exponents in (("up", (-9, -12, -15)), ("down", (-7, -15, -13)), ("far", (-2, -15, -9))):
            scales = tuple(2.0**e for e in exponents)
            zeros = tuple(z if t == "i8" else 0 for z, t in zip((3, -4, 5), types, strict=True))
            powers = cls("float", zeros, low, high, types[2], scales)  # type: ignore[arg-type]
            yield Case(powers, (left, right), (), 0, label=f"{'_'.join(types)}_{name}")
