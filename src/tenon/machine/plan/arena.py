"""Offsets in one arena for blocks whose lifetimes are known.

Placing blocks so that the arena is as short as possible is NP-hard (dynamic storage allocation); greedy
placement in a good order comes within a few percent on networks (Pisarchyk and Lee, "Efficient Memory Management
for Deep Neural Net Inference", 2020).  Several orders are tried, then the best is improved by moving the blocks
that exceed the lower bound to the front, until the bound is met or the moves are used up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate


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
    meets = _meetings(blocks)
    moves = min(MOVES, EFFORT // max(1, sum(map(len, meets))))
    least = bound(blocks)
    indices = range(len(blocks))
    keys = [
        lambda i: (-blocks[i].size, blocks[i].first),
        lambda i: (blocks[i].first, -blocks[i].size),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size),
        lambda i: (-blocks[i].size * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
    ]
    orders = [sorted(indices, key=key) for key in keys]
    tried = [(*_greedy(blocks, order, meets), order) for order in orders]
    offsets, length, order = min(tried, key=lambda t: t[1])
    chance = random.Random(len(blocks))
    for _ in range(moves if blocks else 0):
        if length == least:
            break
        sticking = [i for i in indices if offsets[i] + blocks[i].size == length]
        moved = chance.choice(sticking) if chance.random() < 0.7 else chance.choice(order)
        new = [i for i in order if i != moved]
        new.insert(chance.randrange(order.index(moved) + 1), moved)
        moved_offsets, size = _greedy(blocks, new, meets)
        if size <= length:
            offsets, length, order = moved_offsets, size, new
    return offsets, length


def _meetings(blocks: list[Block]) -> list[list[int]]:
    """For each block, those with overlapping lifetimes."""
    meets: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].first):
        alive = [j for j in alive if blocks[j].last >= blocks[i].first]
        meets[i] += alive
        for j in alive:
            meets[j].append(i)
        alive.append(i)
    return meets


def _greedy(blocks: list[Block], order: list[int], meets: list[list[int]]) -> tuple[list[int], int]:
    """Each block in turn at the lowest offset that is free during its whole life."""
    offsets = [0] * len(blocks)
    placed = [False] * len(blocks)
    length = 0
    for i in order:
        b = blocks[i]
        busy = sorted((offsets[j], offsets[j] + blocks[j].size) for j in meets[i] if placed[j])
        at = 0
        for start, end in busy:
            if at + b.size <= start:
                break
            at = max(at, end)
        offsets[i] = at
        placed[i] = True
        length = max(length, at + b.size)
    return offsets, length
