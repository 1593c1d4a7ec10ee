"""Depthwise convolution of bytes by many work items (``kernels.integer_depthwise_items``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
    in_floats,
    without_halo,
)
from tenon.machine.algorithms.depthwise import OfDepthwiseTile
from tenon.machine.algorithms.depthwise_items import cycles, ranked
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.kernels.integer_depthwise_items import depthwise_items, pack, supported
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import Layout

_LANES = 4
"""Channels of an item."""


class IntegerDepthwiseItems(OfDepthwiseTile):
    """Four channels at a time, a work item for each tile of positions of a word."""

    name: ClassVar[str] = "integer-depthwise-items"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        alone = len(problem) == 1 and machine.launch is not None and not in_floats(problem)
        return alone and not problem[0].paired and supported(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        assert machine.launch is not None
        return [cls(tile) for tile in ranked(problem[0], machine.launch, _LANES)[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        assert machine.launch is not None
        return Cost(cycles(s, self.tile, machine.launch, _LANES) / DEVICE_CYCLES, s.padded * s.taps)

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """Taps beside the image need no halo."""
        return without_halo(x), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, IntegerStage)
        packed = Weights(pack(stage.constant, stage.described))
        kernel = depthwise_items(stage.described, self.tile)
        return [Step(kernel, (Input(0), packed, *stage.operands, Output()))]
