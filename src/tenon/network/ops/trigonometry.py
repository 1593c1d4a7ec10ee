"""Trigonometric and hyperbolic functions, and float classification (IsNaN, IsInf)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.machine.kernel_ir.loops import Expr, op
from tenon.machine.kernels import math as functions
from tenon.network.graph.graph import Array
from tenon.network.graph.types import BOOL, DType
from tenon.network.ops.base import Case, ErrorBound, register
from tenon.network.ops.elementwise import Pointwise, Unary, truth


@register
@dataclass(frozen=True)
class Sin(Unary):
    """Within 1e-7 + 1.2e-16 |x| up to 1e14, as Cos: the range reduction loses a digit for each factor of
    ten past 1e9, and past 1e14 has hardly one left; the result is then finite but meaningless.  A processor with
    fused multiply-adds keeps 1e-7 up to 1e14."""

    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.sin(x)

    def reference(self, x: Array) -> Array:
        return np.sin(x)


@register
@dataclass(frozen=True)
class Cos(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.cos(x)

    def reference(self, x: Array) -> Array:
        return np.cos(x)


@register
@dataclass(frozen=True)
class Tan(Unary):
    """Within a relative 1e-7 of the tangent of a number that is within 1.2e-16 |x| of x, up to 1e14: below 1e6 that is
    1e-7 of the result, poles included.  Past 1e14 the result is finite but meaningless; with fused multiply-adds it
    is the tangent of a number within 1e-7 of x up to there.
    """

    single_only: ClassVar[bool] = True
    span: ClassVar[tuple[float, float]] = (-1.4, 1.4)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.tan(x)

    def reference(self, x: Array) -> Array:
        return np.tan(x)


@register
@dataclass(frozen=True)
class Asin(Unary):
    single_only: ClassVar[bool] = True
    span: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.asin(x)

    def reference(self, x: Array) -> Array:
        return np.arcsin(x)


@register
@dataclass(frozen=True)
class Acos(Unary):
    single_only: ClassVar[bool] = True
    span: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.acos(x)

    def reference(self, x: Array) -> Array:
        return np.arccos(x)


@register
@dataclass(frozen=True)
class Atan(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.atan(x)

    def reference(self, x: Array) -> Array:
        return np.arctan(x)


@register
@dataclass(frozen=True)
class Sinh(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.sinh(x)

    def reference(self, x: Array) -> Array:
        return np.sinh(x)


@register
@dataclass(frozen=True)
class Cosh(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.cosh(x)

    def reference(self, x: Array) -> Array:
        return np.cosh(x)


@register
@dataclass(frozen=True)
class Asinh(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.asinh(x)

    def reference(self, x: Array) -> Array:
        return np.arcsinh(x)


@register
@dataclass(frozen=True)
class Acosh(Unary):
    single_only: ClassVar[bool] = True
    span: ClassVar[tuple[float, float]] = (1.0, 9.0)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.acosh(x)

    def reference(self, x: Array) -> Array:
        return np.arccosh(x)


@register
@dataclass(frozen=True)
class Atanh(Unary):
    single_only: ClassVar[bool] = True
    span: ClassVar[tuple[float, float]] = (-0.99, 0.99)
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.atanh(x)

    def reference(self, x: Array) -> Array:
        return np.arctanh(x)


_ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.5, -1e4], np.float32)


@dataclass(frozen=True)
class Test(Pointwise):
    """A float tensor to a tensor of bool."""

    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def result(self, dtypes: Sequence[DType]) -> DType:
        return BOOL

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for dtype in (np.float32, np.float64, np.float16):
            yield Case(cls(), (_ODD.astype(dtype),), label=np.dtype(dtype).name)


@register
@dataclass(frozen=True)
class IsNaN(Test):
    def scalar(self, x: Expr) -> Expr:
        return truth(op("not_equal", x, x))

    def reference(self, x: Array) -> Array:
        return np.isnan(x)


@register
@dataclass(frozen=True)
class IsInf(Test):
    detect_negative: int = 1
    detect_positive: int = 1

    def scalar(self, x: Expr) -> Expr:
        high, low = op("equal", x, math.inf), op("equal", x, -math.inf)
        if self.detect_negative and self.detect_positive:
            return truth(op("or", high, low))
        if not (self.detect_negative or self.detect_positive):
            return truth(op("and", high, low))
        return truth(high if self.detect_positive else low)

    def reference(self, x: Array) -> Array:
        mask = np.zeros(x.shape, bool)
        if self.detect_negative:
            mask = mask | np.isneginf(x)
        return mask | np.isposinf(x) if self.detect_positive else mask

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        yield Case(cls(0, 1), (_ODD,), label="positive")
        yield Case(cls(1, 0), (_ODD,), label="negative")
