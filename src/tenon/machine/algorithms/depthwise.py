"""Depthwise convolution: every channel by itself, a tile of positions in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import Algorithm, Cost, Limits, Output, Problem, Stage, Step, Weights, in_floats
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.depthwise import DepthwiseTile, depthwise, pack
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.rows import LONGEST_F16

UNROLLED = 256
"""Most multiply-adds that one tile is unrolled to: beyond that, code grows and time does not shrink."""


@dataclass(frozen=True)
class OfDepthwiseTile(Algorithm):
    """An algorithm that differs from others of its class by its tile alone; weights are packed alike for all tiles."""

    tile: DepthwiseTile

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(DepthwiseTile(numbers["rows"], numbers["cols"], bool(numbers["looped"])))

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"rows": self.tile.rows, "cols": self.tile.cols, "looped": int(self.tile.looped)}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return (self.name,)


class Depthwise(OfDepthwiseTile):
    """Channel by channel, by tiles of ``tile``."""

    name: ClassVar[str] = "depthwise"
    offered: ClassVar[int] = 1

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        s = problem[0]
        layer = len(problem) == 1 and s.depthwise and s.taps > 0
        return layer and in_floats(problem) and s.y.block % s.lanes(machine) == 0

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(best_tile(problem[0], machine))]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        vectors = s.padded // s.lanes(machine)
        time = tile_time(self.tile, s.extent, s.kernel, s.stride, s.dilation, machine.registers)
        return Cost(s.y.n * vectors * time, s.padded * s.taps * s.weights.bytes)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        packed = Weights(pack(stage.constant.astype(np.float32), stage.conv, machine))
        kernel = depthwise(stage.conv, machine, self.tile)
        return [Step(kernel, (stage.left, packed, *stage.epilogue_args(), Output()))]


def best_tile(s: Conv, machine: Machine) -> DepthwiseTile:
    """The tile with the least estimated time: multiply-adds, and half a slot for each vector loaded."""
    looped = s.taps > (LONGEST_F16 if s.halves(machine) else UNROLLED)
    return _best_tile(s.extent, s.kernel, s.stride, s.dilation, machine.registers, looped)


Pair = tuple[int, int]


@lru_cache(maxsize=4096)
def _best_tile(extent: Pair, kernel: Pair, stride: Pair, dilation: Pair, registers: int, looped: bool) -> DepthwiseTile:
    taps = kernel[0] * kernel[1]
    best: tuple[float, DepthwiseTile] = (float("inf"), DepthwiseTile(1, 1, looped))
    for rows, cols in product(range(1, min(extent[0], 8) + 1), range(1, min(extent[1], 16) + 1)):
        n = rows * cols
        if n + 2 > registers - 1 or (not looped and n * taps > UNROLLED):
            continue
        tile = DepthwiseTile(rows, cols, looped)
        time = tile_time(tile, extent, kernel, stride, dilation, registers)
        if time < best[0]:
            best = time, tile
    return best[1]


def tile_time(tile: DepthwiseTile, extent: Pair, kernel: Pair, stride: Pair, dilation: Pair, registers: int) -> float:
    """Time of one vector of channels of an image by such tiles."""
    taps, total = kernel[0] * kernel[1], 0.0
    for _, down, height in segments(extent[0], tile.rows):
        for _, across, width in segments(extent[1], tile.cols):
            m = height * width
            resident = not tile.looped and taps + m + 1 <= registers
            inputs = (
                m * taps
                if tile.looped
                else touched(height, 0, kernel, stride, dilation) * touched(width, 1, kernel, stride, dilation)
            )
            loads = inputs + (0 if resident else taps if tile.looped else m * taps / 2)
            total += down * across * (m * taps + 0.5 * loads + 4)
    return total


def touched(n: int, axis: int, kernel: Pair, stride: Pair, dilation: Pair) -> int:
    """How many input rows (columns) ``n`` neighbouring outputs read."""
    return len({p * stride[axis] + t * dilation[axis] for p in range(n) for t in range(kernel[axis])})
