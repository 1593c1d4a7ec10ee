"""Comparisons, logic, and selection by a mask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, less, op, select
from tenon.network.graph.graph import Array
from tenon.network.graph.sizes import below, equal
from tenon.network.graph.types import BOOL, DType
from tenon.network.ops.base import Case, ErrorBound, register
from tenon.network.ops.elementwise import Pointwise, mask_of, truth


# ------------------------------------------------------------------------------------ comparison, logic
@dataclass(frozen=True)
class ComparisonOperator(Pointwise):
    """Two tensors of one type to a tensor of bool."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def result(self, dtypes: Sequence[DType]) -> DType:
        super().result(dtypes)
        return BOOL

    @classmethod
    def cases(cls) -> Iterable[Case]:
        x = np.array([[1, 2, 3], [3, 2, 1]], np.float32)
        yield Case(cls(), (x, x[::-1].copy()), label="f32")
        yield Case(cls(), (x.astype(np.int64), np.array([2], np.int64)), (1,), label="i64")
        yield Case(cls(), (x.astype(np.uint8), x.astype(np.uint8)[:, :1]), label="u8")
        yield Case(cls(), ((1, 5, 3, 7), (1, 5, 1, 1)), label="images")


@register
@dataclass(frozen=True)
class Equal(ComparisonOperator):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return truth(op("equal", a, b))

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return equal(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.equal(a, b)


@register
@dataclass(frozen=True)
class Less(ComparisonOperator):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return truth(less(a, b))

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return below(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.less(a, b)


@register
@dataclass(frozen=True)
class LessOrEqual(ComparisonOperator):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return truth(op("less_equal", a, b))

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return not below(b, a)

    def reference(self, a: Array, b: Array) -> Array:
        return np.less_equal(a, b)


@register
@dataclass(frozen=True)
class Greater(ComparisonOperator):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return truth(less(b, a))

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return below(b, a)

    def reference(self, a: Array, b: Array) -> Array:
        return np.greater(a, b)


@register
@dataclass(frozen=True)
class GreaterOrEqual(ComparisonOperator):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return truth(op("less_equal", b, a))

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return not below(a, b)

    def reference(self, a: Array, b: Array) -> Array:
        return np.greater_equal(a, b)


@dataclass(frozen=True)
class Logic(Pointwise):
    """Tensors of bool to a tensor of bool."""

    arity: ClassVar[tuple[int, int]] = (2, 2)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def result(self, dtypes: Sequence[DType]) -> DType:
        if set(dtypes) != {BOOL}:
            raise ShapeError(f"{self.name}: inputs of types {', '.join(dtypes)} must be bool")
        return BOOL

    @classmethod
    def cases(cls) -> Iterable[Case]:
        a = np.arange(18).reshape(2, 9) % 2 == 0
        b = np.arange(18).reshape(2, 9) % 3 == 0
        count = cls.arity[0]
        yield Case(cls(), (a, b)[:count], label="equal")
        yield Case(cls(), (a[0], b[:, :1])[:count], label="broadcast")


@register
@dataclass(frozen=True)
class And(Logic):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("and", a, b)

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return a and b

    def reference(self, a: Array, b: Array) -> Array:
        return np.logical_and(a, b)


@register
@dataclass(frozen=True)
class Or(Logic):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("or", a, b)

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return a or b

    def reference(self, a: Array, b: Array) -> Array:
        return np.logical_or(a, b)


@register
@dataclass(frozen=True)
class Xor(Logic):
    def scalar(self, a: Expr, b: Expr) -> Expr:
        return op("xor", a, b)

    def of_numbers(self, a: Any, b: Any, *, floats: bool) -> Any:
        return a != b

    def reference(self, a: Array, b: Array) -> Array:
        return np.logical_xor(a, b)


@register
@dataclass(frozen=True)
class Not(Logic):
    arity: ClassVar[tuple[int, int]] = (1, 1)

    def scalar(self, a: Expr) -> Expr:
        return op("xor", a, 1)

    def of_numbers(self, a: Any, *, floats: bool) -> Any:
        return not a

    def reference(self, a: Array) -> Array:
        return np.logical_not(a)


@register
@dataclass(frozen=True)
class Where(Pointwise):
    """The second input where the first (bool) is true, else the third."""

    arity: ClassVar[tuple[int, int]] = (3, 3)
    moves: ClassVar[bool] = True

    def result(self, dtypes: Sequence[DType]) -> DType:
        if dtypes[0] is not BOOL:
            raise ShapeError(f"Where: a condition of type {dtypes[0]} must be bool")
        return super().result(dtypes[1:])

    def scalar(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        return select(mask_of(condition, a), a, b)

    def of_numbers(self, condition: Any, a: Any, b: Any, *, floats: bool) -> Any:
        return a if condition else b

    def reference(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        flags = np.arange(12).reshape(3, 4) % 3 == 0
        yield Case(cls(), (flags, (3, 4), (3, 4)), label="equal")
        yield Case(cls(), (flags, (2, 3, 4), np.array(-1, np.float32)), (2,), label="number")
        yield Case(cls(), (flags[:, :1], (1, 4), (3, 1)), label="broadcast")
        yield Case(cls(), (flags, np.arange(4), -np.arange(4)), label="i64")
        yield Case(cls(), (np.array([True]), np.arange(100, dtype=np.uint8), np.array(0, np.uint8)), label="u8")
        yield Case(cls(), (flags, flags[::-1].copy(), ~flags), label="bool")
