"""What TensorFlow and TFLite share: how operators see their operands, and operators that mean the same in both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from tenon.frontends.channels_last import ChannelsLast
from tenon.frontends.refused import RefusedError
from tenon.frontends.suppression import suppressed
from tenon.ir.graph import Array, Value

Made = Value | Sequence[Value]


class Operands(ABC):
    """An operator of a file with its operands, numbered from 0."""

    net: ChannelsLast

    @property
    @abstractmethod
    def count(self) -> int: ...

    @abstractmethod
    def x(self, k: int = 0) -> Value:
        """Operand ``k`` as what it stands for.  Raises RefusedError if there is none."""

    def stored(self, k: int) -> Value:
        """Operand ``k`` as it is stored."""
        return self.x(k)

    def xs(self) -> list[Value]:
        return [self.x(k) for k in range(self.count)]

    def array(self, k: int) -> Array:
        """A constant operand.  Raises RefusedError if it is computed at run time."""
        found = self.stored(k)
        if found.data is None:
            raise RefusedError(f"input {k} ('{found.name}') is computed at run time; it must be a constant")
        return found.data

    def numbers(self, k: int) -> list[int]:
        """A constant operand of integers."""
        found = self.array(k)
        if found.dtype.kind not in "iu":
            raise RefusedError(f"input {k} must hold integers")
        return [int(v) for v in found.ravel()]


_Made = TypeVar("_Made")
Spell = Callable[[Operands], Made]


def one(op: str, **attributes: object) -> Spell:
    return lambda layer: layer.net.add(op, layer.x(), **attributes)


def two(op: str) -> Spell:
    return lambda layer: layer.net.add(op, layer.x(0), layer.x(1))


def each(make: Callable[[str], _Made], pairs: str) -> dict[str, _Made]:
    """A table of what ``make`` makes of the second word of each "theirs:ours"."""
    return {theirs: make(ours) for theirs, ours in (pair.split(":") for pair in pairs.split())}


def not_equal(layer: Operands) -> Made:
    return layer.net.add("Not", layer.net.add("Equal", layer.x(0), layer.x(1)))


def squared_difference(layer: Operands) -> Made:
    return layer.net.square(layer.net.add("Sub", layer.x(0), layer.x(1)))


def select(layer: Operands, *, rows: bool) -> Made:
    """``rows``: a vector chooses whole rows."""
    condition, x, y = layer.stored(0), layer.x(1), layer.x(2)
    rank = layer.net.type(x).rank
    if rows and layer.net.type(condition).rank == 1 < rank:
        condition = layer.net.reshape(condition, (-1, *(1,) * (rank - 1)))
    return layer.net.add("Where", condition, x, y)


def part(layer: Operands) -> Made:
    """From where, and how much; -1 is all the rest."""
    x, starts, sizes = layer.x(), layer.numbers(1), layer.numbers(2)
    dims = layer.net.dims(x)
    ends = [n if size == -1 else a + size for a, size, n in zip(starts, sizes, dims, strict=True)]
    return layer.net.slice(x, starts, ends, range(len(dims)))


def suppression(layer: Operands, *, scores_too: bool) -> Made:
    """The numbers of the boxes that stay (and their scores), as many rows as asked for, and how many count."""
    if scores_too and layer.array(5).item() != 0:
        raise RefusedError("scores that fade with the overlap are not supported")
    (most,) = layer.numbers(2)
    numbers, scores, count = suppressed(layer.net, layer.x(0), layer.x(1), most, layer.x(3), layer.x(4))
    return (numbers, scores, count) if scores_too else (numbers, count)
