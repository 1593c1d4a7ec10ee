"""Extents that only a run knows, as numbers that importers compute with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.sized_node import FIX
from tenon.network.graph.sizes import Expression, UndecidedError, below, equal, expression, quotient, remainder


class SizeNumber:
    """An integer of which only a run knows the value.

    Arithmetic with it gives such numbers again, or integers where the result is the same in every run; comparisons
    give what holds in every run.  Everything else raises RefusedError.
    """

    __slots__ = ("expression",)

    def __init__(self, expression: Expression) -> None:
        self.expression = expression

    def __add__(self, other: Any) -> Any:
        return _number(lambda: self.expression + _of(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return _number(lambda: self.expression - _of(other))

    def __rsub__(self, other: Any) -> Any:
        return _number(lambda: _of(other) - self.expression)

    def __mul__(self, other: Any) -> Any:
        return _number(lambda: self.expression * _of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return _number(lambda: quotient(self.expression, _of(other)))

    def __rfloordiv__(self, other: Any) -> Any:
        return _number(lambda: quotient(_of(other), self.expression))

    def __mod__(self, other: Any) -> Any:
        return _number(lambda: remainder(self.expression, _of(other)))

    def __neg__(self) -> Any:
        return _number(lambda: -self.expression)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | SizeNumber):
            return False
        return _decided(lambda: equal(self.expression, _of(other)))

    def __lt__(self, other: Any) -> bool:
        return _decided(lambda: below(self.expression, _of(other)))

    def __gt__(self, other: Any) -> bool:
        return _decided(lambda: below(_of(other), self.expression))

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self.expression)

    def __index__(self) -> int:
        raise _refused()

    __int__ = __float__ = __index__

    def __truediv__(self, other: Any) -> float:
        raise _refused()

    __rtruediv__ = __truediv__

    def __str__(self) -> str:
        return str(self.expression)

    __repr__ = __str__


def _of(number: Any) -> Expression:
    if isinstance(number, SizeNumber):
        return number.expression
    if isinstance(number, float):
        raise _refused()
    return expression(int(number))


def _number(compute: Callable[[], Expression]) -> Any:
    try:
        result = compute()
    except UndecidedError:
        raise _refused() from None
    return int(result.constant) if result.known and result.constant.denominator == 1 else SizeNumber(result)


def _decided(compare: Callable[[], bool]) -> bool:
    try:
        return compare()
    except UndecidedError:
        raise _refused() from None


def _refused() -> RefusedError:
    return RefusedError("it computes with extents that are known only at run time", FIX)


def sized_dims(dims: tuple[int, ...], extents: Mapping[int, Expression]) -> tuple[int, ...]:
    """A shape, of which only a run knows the ``extents`` of some axes."""
    whole: list[Any] = list(dims)
    for axis, extent in extents.items():
        whole[axis] = SizeNumber(extent)
    return tuple(whole)
