"""Sets of bytes of the memory regions, as sorted ranges that do not touch each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from tenon.machine.plan.program import Region


class Ranges:
    """Bytes of regions; ``add`` and ``meet`` take the first byte of a range, and the one after the last."""

    def __init__(self) -> None:
        self.firsts: dict[Region, list[int]] = defaultdict(list)
        self.ends: dict[Region, list[int]] = defaultdict(list)

    def add(self, region: Region, first: int, end: int) -> None:
        """Add a range, merged with those that it touches.  An empty one adds nothing."""
        if first >= end:
            return
        firsts, ends = self.firsts[region], self.ends[region]
        low, high = bisect_left(ends, first), bisect_right(firsts, end)
        if low < high:
            first, end = min(first, firsts[low]), max(end, ends[high - 1])
        firsts[low:high], ends[low:high] = [first], [end]

    def meet(self, region: Region, first: int, end: int) -> bool:
        """Is any byte of a range in the set?"""
        firsts, ends = self.firsts[region], self.ends[region]
        at = bisect_right(ends, first)
        return first < end and at < len(firsts) and firsts[at] < end
