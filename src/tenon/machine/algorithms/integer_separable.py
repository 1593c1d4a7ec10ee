"""A depthwise convolution of bytes and the 1x1 convolution of its result in one launch (``kernels.integer_separable``).

It is offered where it takes less time by estimate than two launches, each by its best algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Cost,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.depthwise import touched
from tenon.machine.algorithms.estimate import DEVICE_CYCLES, DEVICE_LATENCY, DEVICE_LAUNCH, ComputedImage
from tenon.machine.algorithms.integer_depthwise_items import IntegerDepthwiseItems
from tenon.machine.algorithms.integer_staged import IntegerStaged, IntegerWarpgroups
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.algorithms.separable_tiled import AGAIN, ISSUED, LOAD, LONGEST, PART, WAITS, SeparableTiled
from tenon.machine.algorithms.tensor_staged import staged_cycles, tiles
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels import integer_depthwise_items, integer_staged
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.fours import FOUR
from tenon.machine.kernels.group_tiles import Depth, GroupTile, in_words
from tenon.machine.kernels.integer_separable import integer_separable, supported
from tenon.machine.kernels.integer_staged import WordTile
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.separable_tiled import runs_of

_TAP, _RESULT = 3, 14
"""Instructions of a product of two bytes, and of a result that is requantised and becomes part of a word."""


class IntegerSeparable(SeparableTiled):
    """The same of bytes, by tiles of a matrix unit."""

    name: ClassVar[str] = "integer-separable"
    shape: ClassVar[type[GroupTile]] = WordTile

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        if len(problem) != 2 or machine.launch is None or not machine.launch.copies or in_floats(problem):
            return False
        first, second = problem
        return supported(first, second, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        assert machine.launch is not None
        (first, second), launch = problem, machine.launch
        alone = [
            min(
                kind.candidates((s,), machine, limits, 1)[0].cost((s,), machine).time
                for kind in kinds
                if kind.applies((s,), machine)
            )
            for kinds, s in (((IntegerDepthwiseItems,), first), ((IntegerStaged, IntegerWarpgroups), second))
        ]
        apart = sum(alone) * DEVICE_CYCLES + DEVICE_LAUNCH
        listed = _ranked(first, second, machine)[:count]
        return [cls(tile, run) for tile, run in listed if cycles(first, second, tile, run, launch) < apart]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (first, second), tile = problem, self.tile
        assert machine.launch is not None
        assert isinstance(tile, WordTile)
        words = Depth.of(in_words(second), tile.k).steps * tile.k * -(-second.padded // tile.n) * tile.n
        time = cycles(first, second, tile, self.run, machine.launch)
        return Cost(time / DEVICE_CYCLES, 4 * words + first.padded * first.taps)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (first, second), tile = stages, self.tile
        assert isinstance(first, IntegerStage)
        assert isinstance(second, IntegerStage)
        assert isinstance(tile, WordTile)
        taps = Weights(integer_depthwise_items.pack(first.constant, first.described))
        packed = Weights(integer_staged.pack(second.constant, second.described, tile))
        kernel = integer_separable(first.described, second.described, tile, self.run)
        return [Step(kernel, (first.left, taps, *first.operands, packed, *second.operands, Output()))]


@lru_cache(maxsize=1024)
def _ranked(first: Conv, second: Conv, machine: Machine) -> list[tuple[WordTile, int]]:
    """All tiles that the machine can run, and positions of a thread, the least time first."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    every = tiles(in_words(second), launch, WordTile, space.bytes)
    able = [tile for tile in every if isinstance(tile, WordTile) and tile.splits == 1 and tile.shared <= space.bytes]
    able = [tile for tile in able if tile.k * tile.bytes <= LONGEST]
    listed = [(tile, run) for tile in able for run in runs_of(first) if tile.m % run == 0]
    return sorted(listed, key=lambda each: cycles(first, second, each[0], each[1], launch))


def cycles(first: Conv, second: Conv, tile: WordTile, run: int, launch: Launch) -> float:
    """Cycles of a device until both are computed."""
    columns = touched(run, 1, first.kernel, first.stride, first.dilation)
    loads = first.kernel[0] * (columns + first.kernel[1]) * LOAD
    each = loads + run * FOUR * (first.taps * _TAP + _RESULT) + PART
    turns = -(-tile.k * tile.m // run // tile.threads)  # threads without a part wait for the others
    issued, across = turns * tile.threads * each / ISSUED, -(-second.padded // tile.n)
    waits = turns * (WAITS + first.kernel[0]) * DEVICE_LATENCY * (1 + AGAIN * (across - 1))
    return staged_cycles(in_words(second), tile, launch, ComputedImage(issued, waits + issued))
