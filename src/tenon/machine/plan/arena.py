"""Offsets in one arena for blocks whose lifetimes are known.

Placing blocks so that the arena is as short as possible is NP-hard (dynamic storage allocation); greedy
placement in a good order comes within a few percent on networks (Pisarchyk and Lee, "Efficient Memory Management
for Deep Neural Net Inference", 2020).  Several orders are tried, then the best is improved by moving the blocks
that exceed the lower bound to the front, until the bound is met or the moves are used up.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.signedinteger]


@dataclass(frozen=True)
class Block:
    """``size`` bytes needed from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int


def bound(blocks: list[Block]) -> int:
    """The most bytes alive at one step: no placement can be shorter."""
    return max((alive for _, alive in _alive(blocks)), default=0)


def fullest(blocks: list[Block]) -> int:
    """The first step at which the most bytes are alive."""
    return max(_alive(blocks), key=lambda step: step[1], default=(0, 0))[0]


def _alive(blocks: list[Block]) -> list[tuple[int, int]]:
    """(step, bytes alive from it on), for the steps at which that changes."""
    steps: dict[int, int] = {}
    for b in blocks:
        steps[b.first] = steps.get(b.first, 0) + b.size
        steps[b.last + 1] = steps.get(b.last + 1, 0) - b.size
    order = sorted(steps)
    return list(zip(order, accumulate(steps[step] for step in order), strict=True))


MOVES = 300
"""The most moves that are tried."""

EFFORT = 3_000_000
"""The most pairs of blocks compared while blocks are moved, which takes some seconds: an unrolled recurrent network has
thousands of blocks, whose first placement can hardly be improved."""


def place(blocks: list[Block]) -> tuple[list[int], int]:
    """(offset of each block, length of the arena); sizes must be aligned already."""
    placement = _Placement(blocks)
    moves = min(MOVES, EFFORT // max(1, sum(map(len, placement.meets))))
    least = bound(blocks)
    indices = range(len(blocks))
    keys = [
        lambda i: (-blocks[i].size, blocks[i].first),
        lambda i: (blocks[i].first, -blocks[i].size),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size),
        lambda i: (-blocks[i].size * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
    ]
    orders = [sorted(indices, key=key) for key in keys]
    tried = [(*placement.greedy(order), order) for order in orders]
    offsets, length, order = min(tried, key=lambda t: t[1])
    chance = random.Random(len(blocks))
    for _ in range(moves if blocks else 0):
        if length == least:
            break
        sticking = [i for i in indices if offsets[i] + blocks[i].size == length]
        moved = chance.choice(sticking) if chance.random() < 0.7 else chance.choice(order)
        new = [i for i in order if i != moved]
        new.insert(chance.randrange(order.index(moved) + 1), moved)
        moved_offsets, size = placement.greedy(new)
        if size <= length:
            offsets, length, order = moved_offsets, size, new
    return offsets, length


def _meetings(blocks: list[Block]) -> list[list[int]]:
    """For each block, those with overlapping lifetimes."""
    order = sorted(range(len(blocks)), key=lambda i: blocks[i].first)
    firsts = [blocks[i].first for i in order]
    meets: list[list[int]] = [[] for _ in blocks]
    alive, ends = dict[int, None](), list[tuple[int, int]]()  # blocks that began before, and when they end
    for at, i in enumerate(order):
        while ends and ends[0][0] < blocks[i].first:
            del alive[heappop(ends)[1]]
        begun = bisect_right(firsts, blocks[i].last)  # blocks before it in ``order`` begin during this one's life
        meets[i] = [*alive, *order[at + 1 : begun]]
        alive[i] = None
        heappush(ends, (blocks[i].last, i))
    return meets


FEW = 64
"""Neighbours of a block up to which a loop is faster than operations on arrays."""


class _Placement:
    """Offsets of blocks, placed one after the other."""

    def __init__(self, blocks: list[Block]) -> None:
        self.blocks, self.meets = blocks, _meetings(blocks)
        self.sizes = np.array([b.size for b in blocks], np.int64)
        self.many = {i: np.array(m, np.intp) for i, m in enumerate(self.meets) if len(m) > FEW}

    def greedy(self, order: list[int]) -> tuple[list[int], int]:
        """Each block in turn at the lowest offset that is free during its whole life: the offsets, and the length."""
        offsets, placed = [0] * len(self.blocks), [False] * len(self.blocks)
        known, known_placed = np.zeros(len(self.blocks), np.int64), np.zeros(len(self.blocks), bool)
        length = 0
        for i in order:
            size = self.blocks[i].size
            if i in self.many:
                near = self.many[i][known_placed[self.many[i]]]
                at = _lowest(known[near], self.sizes[near], size)
            else:
                busy = sorted((offsets[j], offsets[j] + self.blocks[j].size) for j in self.meets[i] if placed[j])
                at = 0
                for start, end in busy:
                    if at + size <= start:
                        break
                    at = max(at, end)
            offsets[i] = known[i] = at
            placed[i] = known_placed[i] = True
            length = max(length, at + size)
        return offsets, length


def _lowest(starts: Numbers, sizes: Numbers, size: int) -> int:
    """The lowest offset of ``size`` bytes outside of the intervals that begin at ``starts``."""
    order = np.argsort(starts)
    starts = starts[order]
    highest = np.maximum.accumulate(np.concatenate([[0], starts + sizes[order]]))
    gaps = np.flatnonzero(highest[:-1] + size <= starts)
    return int(highest[gaps[0] if gaps.size else -1])
