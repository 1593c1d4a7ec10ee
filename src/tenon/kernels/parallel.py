"""Which loops of a nest threads share out: the outermost ones, as many as it takes to make enough work items."""

from __future__ import annotations

import math
from collections.abc import Sequence

ENOUGH = 32
"""Work items with which a handful of threads end at about the same time."""

_EACH = 4
"""Work items with which each of many threads has about as much to do as the others."""

MEETING = 4000.0
"""Time until all threads have met, in multiply-adds of a vector: about half a microsecond."""


def enough(threads: int) -> int:
    """Work items that a kernel should have."""
    return max(ENOUGH, _EACH * threads) if threads > 1 else ENOUGH


def deal(*extents: int, threads: int = 1) -> tuple[Sequence[str], str]:
    """The kinds of nested loops of these extents, outermost first, and of the loops inside all of them."""
    kinds, items = [], 1
    for n in extents:
        kinds.append("parallel" if n > 1 and items < enough(threads) else "serial")
        items *= n
    return kinds, "parallel" if items < enough(threads) else "serial"


def dealt(*extents: int, inside: int = 1, threads: int = 1) -> int:
    """How many work items that makes; the loops inside all of these have ``inside`` trips in all."""
    kinds, last = deal(*extents, threads=threads)
    items = math.prod(n for n, kind in zip(extents, kinds, strict=True) if kind == "parallel")
    return max(1, items * (inside if last == "parallel" else 1))


def slowest(items: int, threads: int) -> float:
    """The share of all work that is done when the thread that has the most of ``items`` equal ones is done."""
    return -(-items // threads) / items if threads > 1 else 1.0


def streamed(threads: int) -> float:
    """How many times as much of main memory several threads get as one: about four processors' worth."""
    return float(min(threads, 4))
