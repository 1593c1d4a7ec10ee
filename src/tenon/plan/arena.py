"""Offsets in one arena for blocks whose lifetimes are known.

Placing blocks so that the arena is as short as possible is NP-hard (dynamic storage allocation); greedy
placement in a good order comes within a few percent on networks (Pisarchyk and Lee, "Efficient Memory Management
for Deep Neural Net Inference", 2020).  Several orders are tried, then the best is improved by moving the blocks
that stick out to the front, until the lower bound is met or the moves are used up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """``size`` bytes needed from step ``first`` to step ``last``, both included."""

    size: int
    first: int
    last: int


def bound(blocks: list[Block]) -> int:
    """The most bytes alive at one step: no placement can be shorter."""
    steps: dict[int, int] = {}
    for b in blocks:
        steps[b.first] = steps.get(b.first, 0) + b.size
        steps[b.last + 1] = steps.get(b.last + 1, 0) - b.size
    alive = most = 0
    for step in sorted(steps):
        alive += steps[step]
        most = max(most, alive)
    return most


def place(blocks: list[Block], moves: int = 300) -> tuple[list[int], int]:
    """(offset of each block, length of the arena); sizes are taken as they are, so align them before."""
    least = bound(blocks)
    indices = range(len(blocks))
    keys = [
        lambda i: (-blocks[i].size, blocks[i].first),
        lambda i: (blocks[i].first, -blocks[i].size),
        lambda i: (blocks[i].first - blocks[i].last, -blocks[i].size),
        lambda i: (-blocks[i].size * (blocks[i].last - blocks[i].first + 1), blocks[i].first),
    ]
    orders = [sorted(indices, key=key) for key in keys]
    tried = [(*_greedy(blocks, order), order) for order in orders]
    offsets, length, order = min(tried, key=lambda t: t[1])
    chance = random.Random(len(blocks))
    for _ in range(moves if blocks else 0):
        if length == least:
            break
        sticking = [i for i in indices if offsets[i] + blocks[i].size == length]
        moved = chance.choice(sticking) if chance.random() < 0.7 else chance.choice(order)
        new = [i for i in order if i != moved]
        new.insert(chance.randrange(order.index(moved) + 1), moved)
        found, size = _greedy(blocks, new)
        if size <= length:
            offsets, length, order = found, size, new
    return offsets, length


def _greedy(blocks: list[Block], order: list[int]) -> tuple[list[int], int]:
    """Each block in turn at the lowest offset that is free during its whole life."""
    offsets = [0] * len(blocks)
    placed: list[int] = []
    length = 0
    for i in order:
        b = blocks[i]
        busy = sorted(
            (offsets[j], offsets[j] + blocks[j].size)
            for j in placed
            if blocks[j].first <= b.last and b.first <= blocks[j].last
        )
        at = 0
        for start, end in busy:
            if at + b.size <= start:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
        length = max(length, at + b.size)
    return offsets, length
