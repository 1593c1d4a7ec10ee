"""Sizes that a run chooses: an extent of the inputs with a range, as users and graphs state it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tenon.errors import InputError

LARGEST_SIZE = 2**31 - 1
"""The largest extent of a dimension."""

_DIMENSION = re.compile(r"(?:(?P<name>[^:]*):)?(?P<least>\d{1,18})\.\.(?P<most>\d{1,18})(?::(?P<step>\d{1,18}))?")

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

    def nearest(self, size: float) -> int:
        """The size that is nearest to a number."""
        steps = round((min(max(size, self.least), self.most) - self.least) / self.step)
        return self.least + steps * self.step

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
    parts: tuple[int | Size, ...] = ()
    """The sizes and numbers that a sum adds up; none where the size is no sum."""

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


def sum_of(dim: str, known: Mapping[str, int | Size]) -> int | Size | None:
    """The extent of a dimension whose name is a sum, as exporters write it (``past_length + 1``), of numbers and of
    dimensions that are ``known``; None if it is not."""
    words = [word.strip() for word in dim.split("+")]
    parts = [int(word) if word.isascii() and word.isdigit() else known.get(word) for word in words]
    present = tuple(part for part in parts if part is not None)
    if len(words) < 2 or len(present) < len(words):
        return None
    least, most = (sum(p if isinstance(p, int) else getattr(p, end) for p in present) for end in ("least", "most"))
    return least if least == most else Size(re.sub(r"\W+", "_", dim), least, most, parts=present)


def read_dimension(text: str, name: str = "") -> int | Size:
    """A dimension from text: ``"224"``, ``"H:64..512:32"`` (a name, a range and a step), or, where ``name`` is known,
    ``"64..512:32"``.  Raises InputError for anything else."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return int(text)
    match = _DIMENSION.fullmatch(text)
    if match is None:
        raise InputError(f"'{text}' is no dimension: write a number, or a range such as H:64..512:32")
    if not (name := (match["name"] or "").strip() or re.sub(r"\W", "_", name)):
        raise InputError(f"the range '{text}' has no name: write a name before it, as in H:64..512:32")
    return Size(name, int(match["least"]), int(match["most"]), int(match["step"] or 1))


Dimension = int | Size | str
"""A number, a size that every run chooses, or one of them as text."""


def read_shapes(
    shapes: Mapping[str, Dimension | Sequence[Dimension]] | None,
) -> dict[str, int | Size | Sequence[int | Size]]:
    """Shapes with dimensions as text read: ``{"x": (1, 3, "H:64..512:32", 64)}``, ``{"seq": "1..256"}`` or
    ``{"ids": "1,L:1..256"}``.  Raises InputError, naming the input or dimension."""
    return {name: _read_shape(name, given) for name, given in (shapes or {}).items()}


def _read_shape(name: str, given: Dimension | Sequence[Dimension]) -> int | Size | Sequence[int | Size]:
    try:
        if isinstance(given, str) and "," not in given:
            return read_dimension(given, name)
        if isinstance(given, int | Size):
            return given
        parts = given.split(",") if isinstance(given, str) else given
        return [read_dimension(part) if isinstance(part, str) else part for part in parts if part != ""]
    except InputError as error:
        raise InputError(f"--shape {name}: {error}") from None
