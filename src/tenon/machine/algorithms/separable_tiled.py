"""A depthwise convolution and the 1x1 convolution of its result in one launch (``kernels.separable_tiled``).

One launch and the image between the two are saved.  The depthwise results are computed once for each block of output
channels, and while they are, nothing is multiplied: so it takes less time than two launches where few blocks of
channels cover the output, and where few steps cover the channels between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import Algorithm, Cost, Limits, Output, Problem, Stage, Step, Weights
from tenon.machine.algorithms.depthwise import touched
from tenon.machine.algorithms.estimate import DEVICE_CYCLES, DEVICE_LATENCY, ComputedImage
from tenon.machine.algorithms.tensor_staged import TensorStaged, staged_cycles
from tenon.machine.algorithms.tensor_staged import tiles as staged_tiles
from tenon.machine.algorithms.tiled import cycles as tiled_cycles
from tenon.machine.algorithms.tiled import tiles
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.depthwise import pack_blocks
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.group_tiles import Depth, GroupTile
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.separable_tiled import runs_of, separable_staged, separable_tiled, supported, unrolled
from tenon.machine.kernels.tensor_staged import StagedTile, pack

ISSUED = 128
"""Instructions of threads that a unit issues in a cycle."""

LOAD, RESULT, PART = 10, 4, 40
"""Instructions of a load of four elements and its tests, of a result that is finished and stored, and of what a thread
does besides."""

LONGEST = 128
"""Bytes of a step, for which estimates are right: in longer ones threads wait for what they compute."""

WAITS, AGAIN = 1, 0.2
"""Waits for memory of a part besides one for each row of taps, and what they take longer for each further block that
reads the same: upper bounds from pairs on an H100 (``bench/gpu_tiles.py``), as loads of all rows are issued at once."""


@dataclass(frozen=True)
class SeparableTiled(Algorithm):
    """By tiles of ``tile`` of the 1x1 convolution; a thread computes ``run`` depthwise results of a row at once."""

    tile: GroupTile
    run: int
    name: ClassVar[str] = "separable-tiled"
    offered: ClassVar[int] = 8
    shape: ClassVar[type[GroupTile]] = GroupTile
    """The class of its tiles."""

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Where no matrix unit multiplies the types of the 1x1 convolution."""
        return _able(problem, machine) and not SeparableStaged.applies(problem, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        first, second = problem
        return [cls(*each) for each in _ranked(first, second, machine, cls.shape)[:count]]  # type: ignore[arg-type]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(cls.shape(**{field.name: numbers[field.name] for field in fields(cls.shape)}), numbers["run"])

    @property
    def numbers(self) -> Mapping[str, int]:
        return {**asdict(self.tile), "run": self.run}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.n, self.tile.k

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (first, second), tile = problem, self.tile
        assert machine.launch is not None
        channels = -(-second.padded // tile.n) * tile.n
        packed = second.weights.bytes * Depth.of(second, tile.k).steps * tile.k * channels
        time = cycles(first, second, tile, self.run, machine.launch)
        return Cost(time / DEVICE_CYCLES, packed + first.weights.bytes * first.padded * first.taps)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (first, second), tile = stages, self.tile
        taps = pack_blocks(first.constant.astype(np.float32).astype(first.conv.weights.numpy), first.conv, FOUR)
        if isinstance(tile, StagedTile):
            kernel = separable_staged(first.conv, second.conv, tile, self.run)
            packed = pack(second.constant, second.conv, tile)
        else:
            kernel = separable_tiled(first.conv, second.conv, tile, self.run)
            packed = group_tiles.pack(second.constant.astype(np.float32), second.conv, tile)
        args = first.left, Weights(taps), *first.bias_args(), Weights(packed), *second.epilogue_args(), Output()
        return [Step(kernel, args)]


class SeparableStaged(SeparableTiled):
    """The same by tiles of a matrix unit."""

    name: ClassVar[str] = "separable-staged"
    shape: ClassVar[type[GroupTile]] = StagedTile

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return _able(problem, machine) and TensorStaged.applies(problem[1:], machine)


def _able(problem: Problem, machine: Machine) -> bool:
    return len(problem) == 2 and machine.launch is not None and supported(*problem)


@lru_cache(maxsize=1024)
def _ranked(first: Conv, second: Conv, machine: Machine, kind: type[GroupTile]) -> list[tuple[GroupTile, int]]:
    """All tiles of a kind that the machine can run, and positions of a thread, the least time first."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    every = staged_tiles(second, launch, kind, space.bytes) if issubclass(kind, StagedTile) else tiles(second, launch)
    able = [tile for tile in every if tile.splits == 1 and tile.shared <= space.bytes]
    able = [tile for tile in able if not isinstance(tile, StagedTile) or tile.k * tile.bytes <= LONGEST]
    listed = [(tile, run) for tile in able for run in runs_of(first) if tile.m % run == 0]
    return sorted(listed, key=lambda each: cycles(first, second, each[0], each[1], launch))


def cycles(first: Conv, second: Conv, tile: GroupTile, run: int, launch: Launch) -> float:
    """Cycles of a device until both are computed."""
    image = _depthwise(first, tile, run, -(-second.padded // tile.n))
    if isinstance(tile, StagedTile):
        return staged_cycles(second, tile, launch, image)
    return tiled_cycles(second, tile, launch, image=image)


def _depthwise(first: Conv, tile: GroupTile, run: int, across: int) -> ComputedImage:
    """How long a block computes the depthwise results of a step, as ``across`` blocks do for other output channels."""
    columns = touched(run, 1, first.kernel, first.stride, first.dilation) if unrolled(first, run) else first.kernel[1]
    loads = first.kernel[0] * (columns + first.kernel[1]) * LOAD
    each = loads + run * FOUR * (first.taps + RESULT) + PART
    parts = tile.k * tile.m / (FOUR * run)
    turns = -(-parts // tile.threads)  # threads without a part wait for the others
    issued = turns * tile.threads * each / ISSUED
    waits = turns * (WAITS + (first.kernel[0] if unrolled(first, run) else first.taps))
    return ComputedImage(issued, waits * DEVICE_LATENCY * (1 + AGAIN * (across - 1)) + issued)
