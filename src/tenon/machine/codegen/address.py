"""Where an element lies in memory, in languages with pointers and without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Address:
    """The element ``at`` elements behind ``base``: a pointer, or, where ``array`` names an array, the number of one of
    its elements (empty: the first).  ``words`` stand before the type in a pointer there.  ``lane`` is the place of the
    element among four, where it is known."""

    base: str
    at: int
    array: str = ""
    words: str = ""
    lane: int | None = None

    @property
    def element(self) -> str:
        """The element itself."""
        if not self.array:
            return f"{self.base}[{self.at}]"
        return f"{self.array}[{self.sum if self.base else self.at}]"

    @property
    def sum(self) -> str:
        """The pointer to it, or its number, as a sum."""
        return f"{self.base}{offset_text(self.at)}"

    @property
    def pointer(self) -> str:
        """The pointer to it."""
        return f"({self.sum})" if self.at else self.base


def offset_text(at: int) -> str:
    """A constant that is added."""
    return f" + {at}" if at > 0 else f" - {-at}" if at < 0 else ""
