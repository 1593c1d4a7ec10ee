"""Operators on the bits of integers, and remainders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, cast, less, op, select
from tenon.machine.kernels import math as functions
from tenon.network.graph.graph import Array
from tenon.network.graph.sizes import UndecidedError, remainder
from tenon.network.graph.types import DType
from tenon.network.ops.base import Case, ErrorBound, register
from tenon.network.ops.elementwise import Pointwise


@dataclass(frozen=True)
class Bits(Pointwise):
    """A pointwise operator of integers."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def result(self, dtypes: Sequence[DType]) -> DType:
        if any(d.is_float or d.is_small_float for d in dtypes):
            raise ShapeError(f"{self.name}: inputs of types {', '.join(dtypes)} must be integers")
        return super().result(dtypes)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for dtype in (np.int32, np.uint8, np.int64, np.uint16):
            a, b = np.arange(15, dtype=dtype).reshape(3, 5), np.array([1, 7, 12, 3, 0], dtype)
            yield Case(cls(), (a, b)[: cls.arity[0]], label=np.dtype(dtype).name)


@register
@dataclass(frozen=True)
class BitwiseAnd(Bits):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("and", a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.bitwise_and(a, b)


@register
@dataclass(frozen=True)
class BitwiseOr(Bits):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("or", a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.bitwise_or(a, b)


@register
@dataclass(frozen=True)
class BitwiseXor(Bits):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("xor", a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.bitwise_xor(a, b)


@register
@dataclass(frozen=True)
class BitwiseNot(Bits):
    arity: ClassVar[tuple[int, int]] = (1, 1)

    def scalar(self, a: Expr) -> Expr:
        dtype = a.type.dtype
        return op("xor", a, -1 if dtype.is_signed else (1 << (8 * dtype.bytes)) - 1)

    def reference(self, a: Array) -> Array:
        return np.bitwise_not(a)


@register
@dataclass(frozen=True)
class BitShift(Bits):
    """Shift LEFT or RIGHT, arithmetically for signed types; a shift count out of range gives 0, or -1 for a negative
    number shifted right."""

    direction: str = "LEFT"

    def scalar(self, a: Expr, b: Expr) -> Expr:
        width, signed = 8 * a.type.dtype.bytes, a.type.dtype.is_signed
        fits = less(b, width)
        if signed:
            fits = op("and", fits, op("less_equal", functions.constant(0, b), b))
        zero = functions.constant(0, b)
        if self.direction == "LEFT":
            return select(fits, op("shl", a, select(fits, b, zero)), functions.constant(0, a))
        if signed:
            return op("shr", a, select(fits, b, functions.constant(width - 1, b)))
        return select(fits, op("shr", a, select(fits, b, zero)), functions.constant(0, a))

    def reference(self, a: Array, b: Array) -> Array:
        width = 8 * a.itemsize
        fits = (b >= 0) & (b < width)
        if self.direction == "LEFT":
            return np.where(fits, np.left_shift(a, np.where(fits, b, 0)), 0).astype(a.dtype)
        if a.dtype.kind == "i":
            return np.right_shift(a, np.where(fits, b, width - 1)).astype(a.dtype)
        return np.where(fits, np.right_shift(a, np.where(fits, b, 0)), 0).astype(a.dtype)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for dtype in (np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int32):
            for direction in ("LEFT", "RIGHT"):
                a, b = np.array([100, 7, 1, 127], dtype), np.array([3, 0, 64, 9], dtype)
                if np.dtype(dtype).kind == "i":
                    a, b = np.negative(a), np.array([3, 0, 64, -1], dtype)
                yield Case(cls(direction), (a, b), label=f"{direction.lower()}_{np.dtype(dtype).name}")


@register
@dataclass(frozen=True)
class Mod(Pointwise):
    """The remainder with the sign of the divisor, or of the dividend when ``fmod``.

    Of f32, exact while the quotient is below 2**29.
    """

    fmod: int = 0
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        dtype = a.type.dtype
        if not dtype.is_float:
            rest = op("mod", a, b)
            if self.fmod or not dtype.is_signed:
                return rest
            zero = functions.constant(0, a)
            wrong = op("and", op("not_equal", rest, zero), less(op("xor", rest, b), zero))
            return rest + select(wrong, b, zero)
        x, y = cast(a, DType.F64), cast(b, DType.F64)
        zero = functions.constant(0.0, x)
        rest = x - op("trunc", x / y) * y
        rest = rest - op("trunc", rest / y) * y
        endless = op("and", op("equal", op("abs", y), math.inf), less(op("abs", x), math.inf))
        rest = select(endless, x, rest)
        if not self.fmod:
            wrong = op("and", op("not_equal", rest, 0.0), op("not_equal", less(rest, 0.0), less(y, 0.0)))
            rest = rest + select(wrong, y, zero)
        return cast(rest, dtype)

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        if floats or (self.fmod and a.least < 0):
            raise UndecidedError(self.name)
        return remainder(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return (np.fmod if self.fmod else np.mod)(a, b)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        a = np.array([-4, 7, 5, 4, -7, 8, 0], np.int64)
        b = np.array([2, -3, 8, -2, 3, 5, 3], np.int64)
        for dtype in (np.int64, np.int32, np.int8):
            for fmod in (0, 1):
                yield Case(cls(fmod), (a.astype(dtype), b.astype(dtype)), label=f"{np.dtype(dtype).name}_{fmod}")
        yield Case(cls(), (np.abs(a).astype(np.uint8), np.abs(b).astype(np.uint8)), label="u8")
        for fmod in (0, 1):
            yield Case(cls(fmod), ((3, 7), (7,)), low=-5, high=7, tolerance=1e-6, label=f"f32_{fmod}")
