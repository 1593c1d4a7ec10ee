"""Which loops of a nest threads share out: the outermost ones, as many as it takes to make enough work items."""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 32
"""Work items with which a handful of threads end at about the same time."""

_EACH = 4
"""Work items with which each of many threads has about as much to do as the others."""


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
