"""Which loops of a nest threads share out: the outermost ones, as many as it takes to make enough work items."""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 32
"""Work items with which a handful of threads end at about the same time."""


def deal(*extents: int) -> tuple[Sequence[str], str]:
    """The kinds of nested loops of these extents, outermost first, and of the loops inside all of them."""
    kinds, items = [], 1
    for n in extents:
        kinds.append("parallel" if n > 1 and items < ENOUGH else "serial")
        items *= n
    return kinds, "parallel" if items < ENOUGH else "serial"
