"""A list whose elements can be put before others, taken out and compared by place, each without walking it.

Elements are linked and bear labels that rise from first to last; a new element's label lies in the middle of its
neighbours', and where these leave no room all labels are dealt out anew (Dietz and Sleator, "Two algorithms for
maintaining order in a list", 1987, in its simplest form).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

_GAP = 1 << 32
"""Between the labels of neighbours that are dealt out: room for 32 elements one before the other."""

T = TypeVar("T", bound=Hashable)


class Order(Generic[T]):
    """Different elements, in the order in which they stand."""

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
        """A number that is larger the later an element stands, until another is put in."""
        return self._label[item]

    def append(self, item: T) -> None:
        self._label[item] = 0 if self._last is None else self._label[self._last] + _GAP
        self._link(item, self._last, None)

    def insert(self, item: T, after: T) -> None:
        """Put ``item`` just before ``after``.  Raises KeyError if that is not here."""
        before = self._before[after]
        low = self._label[after] - 2 * _GAP if before is None else self._label[before]
        label = (low + self._label[after]) // 2
        self._link(item, before, after)
        self._label[item] = label
        if label == low:
            self._label = {each: i * _GAP for i, each in enumerate(self)}

    def remove(self, item: T) -> None:
        """Raises KeyError if it is not here."""
        del self._label[item]
        before, after = self._before.pop(item), self._after.pop(item)
        self._join(before, after)

    def _link(self, item: T, before: T | None, after: T | None) -> None:
        self._join(before, item)
        self._join(item, after)

    def _join(self, a: T | None, b: T | None) -> None:
        """Let ``b`` follow ``a``; None is what stands before the first and after the last."""
        if a is None:
            self._first = b
        else:
            self._after[a] = b
        if b is None:
            self._last = a
        else:
            self._before[b] = a
