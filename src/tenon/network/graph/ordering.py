"""A list with insertion, removal and comparison of positions in (amortised) constant time.

Elements are linked and have increasing labels; the label of a new element is halfway between its neighbours'.  If there
is none in between, all elements are relabelled (Dietz and Sleator, "Two algorithms for
maintaining order in a list", 1987, in its simplest form).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

_GAP = 1 << 32
"""Distance of the labels of neighbours after relabelling: room for 32 insertions at one position."""

T = TypeVar("T", bound=Hashable)


class Order(Generic[T]):
    """Distinct elements in order."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._label: dict[T, int] = {}
        self._before: dict[T, T | None] = {}
        self._after: dict[T, T | None] = {}
        self._first: T | None = None
        self._last: T | None = None
        for item in items:
            self.append(item)

    def __iter__(self) -> Iterator[T]:
        item = self._first
        while item is not None:
            yield item
            item = self._after[item]

    def __len__(self) -> int:
        return len(self._label)

    def __contains__(self, item: object) -> bool:
        return item in self._label

    def position(self, item: T) -> int:
        """A number that increases with the position of an element; valid until an element is inserted."""
        return self._label[item]

    def append(self, item: T) -> None:
        self._label[item] = 0 if self._last is None else self._label[self._last] + _GAP
        self._link(item, self._last, None)

    def insert(self, item: T, after: T) -> None:
        """Insert ``item`` directly before ``after``.  Raises KeyError if that is missing."""
        before = self._before[after]
        low = self._label[after] - 2 * _GAP if before is None else self._label[before]
        label = (low + self._label[after]) // 2
        self._link(item, before, after)
        self._label[item] = label
        if label == low:
            self._label = {each: i * _GAP for i, each in enumerate(self)}

    def remove(self, item: T) -> None:
        """Raises KeyError if it is missing."""
        del self._label[item]
        before, after = self._before.pop(item), self._after.pop(item)
        self._join(before, after)

    def _link(self, item: T, before: T | None, after: T | None) -> None:
        self._join(before, item)
        self._join(item, after)

    def _join(self, a: T | None, b: T | None) -> None:
        """Make ``b`` the successor of ``a``; None is before the first and after the last element."""
        if a is None:
            self._first = b
        else:
            self._after[a] = b
        if b is None:
            self._last = a
        else:
            self._before[b] = a
