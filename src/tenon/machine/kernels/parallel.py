"""The parallel loops of a nest: the outermost ones, as many as needed for enough work items; and in which order
threads share output channels and positions."""

from __future__ import annotations

from collections.abc import Sequence

ENOUGH = 32
"""Work items for which a few threads are balanced."""

_EACH = 4
"""Work items per thread for which many threads are balanced."""

EXCHANGED = 3.0
"""Bytes that a thread gets from another processor's cache in the time of one multiply-add of a vector: 20 GB/s."""

_KEPT = 1 << 19
"""Bytes of weights that stay in the second cache while a thread walks its positions."""


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


def parts_of_groups(groups: int, image: int, weights: int, threads: int, stream: float) -> int:
    """In how many equal parts threads share groups of output channels, before they share positions: ``groups`` where
    each reads the whole ``image`` and its part of the ``weights`` (both in bytes), 1 where it is the other way round.

    An image comes from the processors that made it, ``stream`` bytes of weights arrive in the time of a multiply-add.
    """
    if threads == 1 or groups == 1:
        return groups
    able = [n for n in range(1, groups + 1) if groups % n == 0 and (weights <= n * _KEPT or n == groups)]
    return min(reversed(able), key=lambda parts: reading_time(parts, image, weights, threads, stream))


def reading_time(parts: int, image: int, weights: int, threads: int, stream: float) -> float:
    """The time in which a thread gets what it reads of an image and of weights, where threads share the output channels
    in so many parts and then positions."""
    read = image * min(1.0, parts / threads) * (1 - 1 / threads) / EXCHANGED
    return read + weights * max(1 / parts, 1 / threads) / stream
