"""Which loops of a nest are parallel: the outermost ones, as many as needed for enough work items."""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 32
"""Work items for which a few threads are balanced."""

_EACH = 4
"""Work items per thread for which many threads are balanced."""


def enough(threads: int) -> int:
    """Work items that a kernel should have."""
    return max(ENOUGH, _EACH * threads) if threads > 1 else ENOUGH


def deal(*extents: int, threads: int = 1) -> tuple[Sequence[str], str]:
    """The kinds of nested loops of these extents, outermost first, and of the loops inside of them."""
    kinds, items = [], 1
    for n in extents:
        kinds.append("parallel" if n > 1 and items < enough(threads) else "serial")
        items *= n
    return kinds, "parallel" if items < enough(threads) else "serial"
