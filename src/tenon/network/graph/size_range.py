"""Sizes that a run chooses: an extent of the inputs with a range, as users and graphs state it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tenon.errors import InputError

LARGEST_SIZE = 2**31 - 1
"""The largest extent of a dimension."""

Extents = tuple[tuple[int, str], ...]
"""For each axis of a tensor whose extent only a run knows: the axis, and the name of the input or output, an i64 of
rank 0, that holds the extent.  The buffer has the largest extents."""


class SizeRange(NamedTuple):
    """The sizes ``least``, ``least + step``, ... up to ``most``, which is one of them."""

    least: int
    most: int
    step: int = 1

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.least <= size <= self.most and (size - self.least) % self.step == 0

    def __str__(self) -> str:
        return f"{self.least}..{self.most}" + (f":{self.step}" if self.step != 1 else "")

    @property
    def problem(self) -> str:
        """The reason why no run can have such a size; "" if there is none."""
        if not 0 <= self.least <= self.most <= LARGEST_SIZE:
            return f"the smallest size is 0 and the largest {LARGEST_SIZE}, and the first is not above the second"
        if self.step < 1:
            return "the step is 1 or more"
        if (self.most - self.least) % self.step:
            return f"the largest size is {self.most - (self.most - self.least) % self.step} with that step"
        return ""


@dataclass(frozen=True)
class Size:
    """A dimension that every run chooses: in the shape of an input, in place of a number.

    ``name`` is that of the dimension; dimensions of one name have the same size in a run.  ``least`` and ``most`` are
    the smallest and the largest size, ``step`` their distance.  Raises InputError for a range that has no size.
    """

    name: str
    least: int
    most: int
    step: int = 1

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise InputError(f"'{self.name}' is no name of a size: use letters, digits and underscores")
        if problem := self.range.problem:
            raise InputError(f"size {self}: {problem}")

    @property
    def range(self) -> SizeRange:
        """The sizes."""
        return SizeRange(self.least, self.most, self.step)

    def __str__(self) -> str:
        return f"{self.name}:{self.range}"
