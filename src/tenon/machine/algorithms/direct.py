"""The definition: a tile of the output stays in registers while the kernel walks input channels and taps.

A tile has as many positions and vectors of output channels as registers hold, of which the ones with the least
estimated time are compared.  Structure after Georganas et al. (2018), see ``kernels.conv``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Algorithm,
    Arg,
    Cost,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.depthwise import Depthwise
from tenon.machine.algorithms.estimate import (
    Arithmetic,
    arithmetic,
    fits,
    fits_by_lane,
    overlapped,
    slowest,
    step_time,
    steps,
    streamed,
    work_items,
)
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv, OutputTile, conv, pack
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import parts_of_groups, reading_time


@dataclass(frozen=True)
class Direct(Algorithm):
    """Direct sums, by register tiles of ``tile``."""

    tile: OutputTile
    name: ClassVar[str] = "direct"
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One float convolution, except depthwise (a dense tile would multiply zeros)."""
        return len(problem) == 1 and in_floats(problem) and not Depthwise.applies(problem, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        return [cls(tile) for tile in best_tiles(s.flattened(), machine, count)]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(OutputTile(numbers["rows"], numbers["cols"], numbers["vecs"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"rows": self.tile.rows, "cols": self.tile.cols, "vecs": self.tile.vecs}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.vecs

    def compared(self, problem: Problem, machine: Machine) -> float:
        """As if rows were apart: a halo, which layouts may add later, keeps them from being one long row."""
        (s,) = problem
        return estimate(s, machine, self.tile)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        elements = s.padded * s.taps * s.x.channels // s.groups
        return Cost(estimate(s.flattened(), machine, self.tile), elements * s.weights.bytes)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        s, tile = stage.conv.flattened(), self.tile
        if s.extent != wanted.flattened().extent:  # a halo keeps the rows apart: the tile is one of the long row
            tile = best_tiles(s, machine, 1)[0]
        right: list[Arg] = []
        if stage.weights is not None:
            right += map(Weights, pack(stage.weights, s, machine, tile.vecs))
        elif stage.right is not None:
            right.append(stage.right)
        return [Step(conv(s, machine, tile), (stage.left, *right, *stage.epilogue_args(), Output()))]


@dataclass(frozen=True)
class InnerLoop:
    """The inner loop of direct sums: its ``steps`` for one position, what they compute, and the time to make results of
    a vector of sums."""

    steps: int
    arithmetic: Arithmetic
    finish: float = 3.0

    @classmethod
    def of(cls, s: Conv, machine: Machine) -> InnerLoop:
        """The direct convolution of floats for a layer."""
        return cls(steps(s, machine), arithmetic(s, machine))


def best_tiles(s: Conv, machine: Machine, count: int, loop: InnerLoop | None = None) -> list[OutputTile]:
    """The tile with the least estimated time, then the best others, each number of vectors represented.

    A tile never spans groups that one vector would not: every further group multiplies zeros.
    """
    lanes = s.lanes(machine)
    vectors = max(1, -(-s.y.channels // lanes))
    per_group = max(1, s.y.channels // s.groups // lanes)
    widest = vectors if s.groups == 1 else per_group
    single = loop is None and s.clipped(machine)
    ranked = _ranked(s.extent, vectors, widest, loop or InnerLoop.of(s, machine), machine, single=single)
    by_vecs = ([t for t in ranked if t.vecs == vecs] for vecs in dict.fromkeys(t.vecs for t in ranked))
    return [tile for turn in zip_longest(*by_vecs) for tile in turn if tile is not None][:count]


def estimate(s: Conv, machine: Machine, tile: OutputTile, loop: InnerLoop | None = None) -> float:
    """Time of the convolution, the unit being one multiply-add of a vector."""
    vectors = max(1, -(-s.y.channels // s.lanes(machine)))
    weights = s.weights.bytes * s.y.channels * max(1, s.taps * s.x.channels // s.groups)
    memory = weights / machine.stream
    if machine.threads > 1:
        image = math.prod(s.x.shape) * s.x.dtype.bytes
        parts = parts_of_groups(max(1, vectors // tile.vecs), image, weights, machine.threads, machine.stream)
        memory = max(
            weights / (machine.stream * streamed(machine.threads)),
            reading_time(parts, image, weights, machine.threads, machine.stream),
        )
    time = _image_time(s.extent, vectors, loop or InnerLoop.of(s, machine), tile, machine)
    return overlapped(s.y.n * time, memory)


def _image_time(extent: tuple[int, int], vectors: int, loop: InnerLoop, tile: OutputTile, machine: Machine) -> float:
    total, rows = 0.0, segments(extent[0], tile.rows)
    items = work_items(
        -(-vectors // tile.vecs), sum(n for _, n, _ in rows), inside=-(-extent[1] // tile.cols), threads=machine.threads
    )
    for vecs, groups in ((tile.vecs, vectors // tile.vecs), (vectors % tile.vecs, 1)):
        if not vecs or not groups:
            continue
        for _, down, height in rows:
            for _, across, width in segments(extent[1], tile.cols):
                m = height * width
                step = step_time(m, vecs, machine, loop.arithmetic)
                total += groups * down * across * (loop.steps * step + loop.finish * m * vecs + 20)
    return total * slowest(items, machine.threads)


@lru_cache(maxsize=4096)
def _ranked(
    extent: tuple[int, int], vectors: int, widest: int, loop: InnerLoop, machine: Machine, *, single: bool
) -> list[OutputTile]:
    """All tiles that fit registers, of one position only if ``single``, the least time first."""
    timed, (tall, wide) = [], (1, 1) if single else extent
    for vecs in (v for v in (1, 2, 3, 4, 6, 8) if v <= widest):
        for rows in range(1, min(tall, 8) + 1):
            for cols in range(1, min(wide, 28) + 1):
                able = fits(rows * cols, vecs, machine, loop.arithmetic)
                able = able and fits_by_lane(rows * cols, vecs, machine, loop.arithmetic)
                if able or rows * cols * vecs == 1:
                    tile = OutputTile(rows, cols, vecs)
                    time = _image_time(extent, vectors, loop, tile, machine)
                    timed.append((time * (1 + 0.002 * rows), tile))  # wide tiles walk memory in order
    return [tile for _, tile in sorted(timed, key=lambda each: each[0])]
