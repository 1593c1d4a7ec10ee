"""Activation functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, less, maximum, minimum, op, select
from tenon.machine.kernels import math as functions
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sizes import extreme
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Case, ErrorBound, register
from tenon.network.ops.elementwise import Pointwise, Unary
from tenon.network.ops.pointwise import erf

LOST_TO_ONE = 2.0**-24
"""Error of exp(x) - 1 computed so: what x has below that goes in the sum with one."""


@register
@dataclass(frozen=True)
class Relu(Unary):
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def scalar(self, x: Expr) -> Expr:
        return maximum(0.0, x)

    def reference(self, x: Array) -> Any:
        return np.maximum(x, x.dtype.type(0))


@register
@dataclass(frozen=True)
class LeakyRelu(Unary):
    alpha: float = 0.01

    def scalar(self, x: Expr) -> Expr:
        return maximum(x, x * self.alpha) if self.alpha <= 1 else select(less(x, 0.0), x * self.alpha, x)

    def reference(self, x: Array) -> Array:
        return np.where(x < 0, x * x.dtype.type(self.alpha), x)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        yield Case(cls(1.5), ((3, 5),), label="steep")
        yield Case(cls(-0.5), ((3, 5),), label="falling")


@register
@dataclass(frozen=True)
class PRelu(Pointwise):
    """``slope`` (broadcast to x) times x where x is negative."""

    arity: ClassVar[tuple[int, int]] = (2, 2)

    def scalar(self, x: Expr, slope: Expr) -> Expr:
        return select(less(x, 0.0), x * slope, x)

    def reference(self, x: Array, slope: Array) -> Array:
        return np.where(x < 0, x * slope, x)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield Case(cls(), ((3, 5), (5,)), (1,), label="row")
        yield Case(cls(), ((1, 19, 3, 4), (19, 1, 1)), (1,), label="channel")
        yield Case(cls(), ((1, 19, 3, 4), np.array([0.25], np.float32)), (1,), label="number")


@register
@dataclass(frozen=True)
class Clip(Pointwise):
    """Clamp to [min, max]; either bound may be absent."""

    arity: ClassVar[tuple[int, int]] = (1, 3)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def scalar(self, x: Expr, low: Expr | None = None, high: Expr | None = None) -> Expr:
        x = x if low is None else maximum(low, x)
        return x if high is None else minimum(high, x)

    def of_numbers(self, x: Any, low: Any = None, high: Any = None, *, floats: bool) -> Any:
        x = x if low is None else extreme([x, low], greatest=True)
        return x if high is None else extreme([x, high], greatest=False)

    def reference(self, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
        x = x if low is None else np.maximum(x, low)
        return x if high is None else np.minimum(x, high)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        zero, six, tenth = (np.array(v, np.float32) for v in (0, 6, 0.1))
        yield Case(cls(), ((1, 19, 3, 4), zero, six), (1, 2), low=-8, high=8, label="relu6")
        yield Case(cls(), ((1, 5, 3, 3), tenth, None), (1,), label="low_above_zero")
        yield Case(cls(), ((37,), None, tenth), (2,), label="high_only")
        yield Case(cls(), ((37,),), label="no_bounds")
        yield Case(cls(), ((2, 3, 5), -tenth, tenth), label="bounds_at_run_time")
        x = np.arange(-5, 6, dtype=np.int32)
        yield Case(cls(), (x, np.array(-2, np.int32), np.array(3, np.int32)), (1, 2), label="integers")


@register
@dataclass(frozen=True)
class Sigmoid(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.sigmoid(x)

    def reference(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))


@register
@dataclass(frozen=True)
class Tanh(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.tanh(x)

    def reference(self, x: Array) -> Array:
        return np.tanh(x)


@register
@dataclass(frozen=True)
class HardSigmoid(Unary):
    alpha: float = 0.2
    beta: float = 0.5

    def scalar(self, x: Expr) -> Expr:
        return functions.clamp(x * self.alpha + self.beta, 0.0, 1.0)

    def reference(self, x: Array) -> Any:
        return np.clip(x * x.dtype.type(self.alpha) + x.dtype.type(self.beta), 0, 1)


@register
@dataclass(frozen=True)
class HardSwish(Unary):
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return x * functions.clamp(x * (1 / 6) + 0.5, 0.0, 1.0)

    def reference(self, x: Array) -> Any:
        return x * np.clip(x / 6 + x.dtype.type(0.5), 0, 1)


@register
@dataclass(frozen=True)
class Elu(Unary):
    alpha: float = 1.0
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS
    least_error: ClassVar[float] = LOST_TO_ONE

    def scalar(self, x: Expr) -> Expr:
        return select(less(x, 0.0), (functions.exp_of_negative(x) - 1.0) * self.alpha, x)

    def reference(self, x: Array) -> Array:
        return np.where(x < 0, x.dtype.type(self.alpha) * np.expm1(x), x)


@register
@dataclass(frozen=True)
class Selu(Unary):
    alpha: float = 1.67326319217681884765625
    gamma: float = 1.05070102214813232421875
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS
    least_error: ClassVar[float] = LOST_TO_ONE

    def scalar(self, x: Expr) -> Expr:
        return select(less(x, 0.0), (functions.exp_of_negative(x) - 1.0) * (self.alpha * self.gamma), x * self.gamma)

    def reference(self, x: Array) -> Any:
        alpha, gamma = x.dtype.type(self.alpha), x.dtype.type(self.gamma)
        return gamma * np.where(x < 0, alpha * np.expm1(x), x)


@register
@dataclass(frozen=True)
class Celu(Unary):
    alpha: float = 1.0
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS
    least_error: ClassVar[float] = LOST_TO_ONE

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        if not self.alpha:
            raise ShapeError("Celu: alpha is 0, and x is divided by it")
        return super().infer(inputs)

    def scalar(self, x: Expr) -> Expr:
        return select(less(x, 0.0), (functions.exp(x * (1 / self.alpha)) - 1.0) * self.alpha, x)

    def reference(self, x: Array) -> Array:
        alpha = x.dtype.type(self.alpha)
        return np.where(x < 0, alpha * np.expm1(x / alpha), x)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        yield Case(cls(2.0), ((3, 5),), low=-4, high=4, label="alpha")


@register
@dataclass(frozen=True)
class Softplus(Unary):
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return functions.softplus(x)

    def reference(self, x: Array) -> Any:
        return np.logaddexp(x, x.dtype.type(0))


@register
@dataclass(frozen=True)
class Softsign(Unary):
    def scalar(self, x: Expr) -> Expr:
        return x / (1.0 + op("abs", x))

    def reference(self, x: Array) -> Any:
        return x / (1 + np.abs(x))


@register
@dataclass(frozen=True)
class ThresholdedRelu(Unary):
    alpha: float = 1.0
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def scalar(self, x: Expr) -> Expr:
        return select(less(self.alpha, x), x, 0.0)

    def reference(self, x: Array) -> Array:
        return np.where(x > self.alpha, x, x.dtype.type(0))


@register
@dataclass(frozen=True)
class Swish(Unary):
    """x times the sigmoid of ``alpha`` x."""

    alpha: float = 1.0
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        return x * functions.sigmoid(x * self.alpha)

    def reference(self, x: Array) -> Any:
        return x / (1 + np.exp(-x.dtype.type(self.alpha) * x))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        yield Case(cls(1.702), ((3, 5),), low=-4, high=4, label="alpha")


@register
@dataclass(frozen=True)
class Gelu(Unary):
    """x times the normal distribution function of x; ``approximate="tanh"`` selects the approximation by tanh."""

    approximate: str = "none"
    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        if self.approximate == "tanh":
            # (1 + tanh(z)) / 2 is sigmoid(2 z), which is 0 for large negative z; the sum may be a rounding off 0.
            return x * functions.sigmoid((x * (x * x) * 0.044715 + x) * math.sqrt(8 / math.pi))
        return x * 0.5 * (1.0 + functions.erf(x * math.sqrt(0.5)))

    def reference(self, x: Array) -> Any:
        one, half = x.dtype.type(1), x.dtype.type(0.5)
        if self.approximate == "tanh":
            inner = (x + x.dtype.type(0.044715) * x**3) * x.dtype.type(math.sqrt(2 / math.pi))
            return half * x * (one + np.tanh(inner))
        return half * x * (one + erf(x * x.dtype.type(math.sqrt(0.5))))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        yield Case(cls("tanh"), ((1, 5, 3, 3),), low=-4, high=4, label="tanh")
        large = np.array([-1e9, -500, -30, 30, 500], np.float32)
        yield Case(cls("tanh"), (large[:3],), label="tanh_of_large_negative")
        yield Case(cls("tanh"), (large[3:],), label="tanh_of_large")


@register
@dataclass(frozen=True)
class Mish(Unary):
    """x tanh(log(1 + e**x)), which is x n / (n + 2) with n = e**x (e**x + 2)."""

    single_only: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def scalar(self, x: Expr) -> Expr:
        e = functions.exp(minimum(20.0, x))
        n = e * (e + 2.0)
        return x * (n / (n + 2.0))

    def reference(self, x: Array) -> Any:
        return x * np.tanh(np.logaddexp(x, x.dtype.type(0)))
