"""Repeated selection of the best of a list, in logarithmic time: a tournament tree.

The list is the leaves of a binary tree whose nodes hold the better of their two children; removing one replays the
matches on its path to the root (Knuth, The Art of Computer Programming 3, 5.2.3: tree selection).  Of equals the first
wins, so that removing all is a stable sort.
"""

from __future__ import annotations

from collections.abc import Callable

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, less, op, select
from tenon.network.graph.types import F32, I32, DType

NONE = -1
"""The index of an element that was removed, or never was appended."""

Better = Callable[[Expr, Expr], Expr]
"""Whether the second value sorts before the first, as a mask."""


def greater(a: Expr, b: Expr) -> Expr:
    """The greatest first, NaN last."""
    return _or_only(less(a, b), a, b)


def greater_or_nan(a: Expr, b: Expr) -> Expr:
    """NaN first, then the greatest."""
    return _or_only(less(a, b), b, a)


def lesser(a: Expr, b: Expr) -> Expr:
    """The least first, NaN last."""
    return _or_only(less(b, a), a, b)


def _or_only(mask: Expr, a: Expr, b: Expr) -> Expr:
    """``mask``, or whether ``a`` is NaN and ``b`` not, which integers never are."""
    if not a.type.dtype.is_float:
        return mask
    return op("or", mask, op("and", op("not_equal", a, a), op("equal", b, b)))


def leaves(most: int) -> int:
    """The number of leaves for that many elements and one empty one."""
    return 1 << most.bit_length()


def room(most: int, dtype: DType = F32) -> dict[str, int]:
    """Bytes of scratch memory, by parameter."""
    return {"matches": 2 * leaves(most) * dtype.bytes, "winners": 8 * leaves(most), "length": 8}


class Tournament:
    """A list of at most ``most`` values, empty at first.  ``play`` must come before ``best`` and ``place``."""

    def __init__(self, k: Builder, most: int, dtype: DType = F32, better: Better = greater) -> None:
        self.k, self.most, self.better = k, most, better
        self.leaves = leaves(most)
        self.depth = self.leaves.bit_length() - 1
        self.values = k.param("matches", 2 * self.leaves, out=True, dtype=dtype)
        self.places = k.param("winners", 2 * self.leaves, out=True, dtype=I32)
        self.state = k.param("length", 2, out=True, dtype=I32)

    def clear(self) -> None:
        self.state[0] = Const(0, Type(I32))

    @property
    def length(self) -> Expr:
        """The number of elements appended since the list was cleared."""
        return self.state[0]

    def append(self, value: Expr, mask: Expr | None = None) -> None:
        """Append a value to the list, where ``mask`` holds."""
        with self.k.bind("end", self.state[0], self.most) as end:
            self.values[end] = value
            self.places[end] = self.state[0]
        self.state[0] = self.state[0] + (Const(1, Type(I32)) if mask is None else op("and", cast(mask, I32), 1))

    def play(self) -> None:
        """Build the tree, once everything was appended; nodes past the end of the list are empty."""
        k = self.k
        self.state[1] = self.state[0]
        for level in range(self.depth):
            first, after = self._first(level), self._first(level + 1)
            with k.bind("behind", self.state[1], (self.leaves >> level) + 1) as behind:
                self.places[behind + first] = Const(NONE, Type(I32))
            self.state[1] = (self.state[1] + 1) >> 1
            width = self.leaves >> (level + 1)
            with k.bind("width", self.state[1], width + 1) as count, k.loop("j", width, count) as j:
                self._match(first, after, j)

    def best(self) -> Expr:
        """The best value left."""
        return self.values[2 * self.leaves - 2]

    def place(self) -> Expr:
        """The index in the list; NONE if nothing is left."""
        return self.places[2 * self.leaves - 2]

    def drop(self, at: Index) -> None:
        """Remove the element at that index."""
        self.places[at] = Const(NONE, Type(I32))
        for level in range(self.depth):
            self._match(self._first(level), self._first(level + 1), at // (2 << level))

    def _first(self, level: int) -> int:
        """The offsets of the levels' nodes: the leaves first, then level by level."""
        return 2 * self.leaves - (2 * self.leaves >> level)

    def _match(self, first: int, after: int, j: Index) -> None:
        left, right = first + j * 2, first + j * 2 + 1
        k, values, places = self.k, self.values, self.places
        a, b = k.let("a", values[left]), k.let("b", values[right])
        mine, other = k.let("p", places[left]), k.let("q", places[right])
        none = Const(0, Type(I32))
        wins = op("or", cast(self.better(a, b), I32), cast(less(mine, none), I32))
        wins = k.let("wins", op("and", wins, cast(op("less_equal", none, other), I32)))
        wins = op("not_equal", wins, none)
        values[after + j] = select(wins, b, a)
        places[after + j] = select(wins, other, mine)
