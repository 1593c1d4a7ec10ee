"""Depthwise convolution by many work items (``kernels.depthwise_items``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import Cost, Limits, Output, Problem, Stage, Step, Weights, without_halo
from tenon.machine.algorithms.depthwise import UNROLLED, OfDepthwiseTile, touched
from tenon.machine.algorithms.estimate import DEVICE_CYCLES, DEVICE_ENDS, DEVICE_LATENCY
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.depthwise import DepthwiseTile, pack_blocks
from tenon.machine.kernels.depthwise_items import channels_of, depthwise_items
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import NARROW
from tenon.network.graph.types import F32, Layout

_ISSUED = 128
"""Instructions of threads that a unit issues in a cycle."""

_LOAD, _ITEM = 6, 40
"""Instructions of a load and its tests, and of what an item does besides."""


class DepthwiseItems(OfDepthwiseTile):
    """Channel by channel, a work item for each tile of positions of a channel."""

    name: ClassVar[str] = "depthwise-items"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        s = problem[0]
        layer = len(problem) == 1 and s.depthwise and s.taps > 0 and machine.launch is not None
        return layer and {s.x.dtype, s.y.dtype, s.weights, *(i.dtype for i in s.operands)} <= {F32, *NARROW}

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        assert machine.launch is not None
        return [cls(tile) for tile in ranked(problem[0], machine.launch, channels_of(problem[0]))[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        assert machine.launch is not None
        time = cycles(s, self.tile, machine.launch, channels_of(s))
        return Cost(time / DEVICE_CYCLES, s.weights.bytes * s.padded * s.taps)

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """Taps beside the image need no halo."""
        return without_halo(x), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        s = stage.conv
        packed = Weights(pack_blocks(stage.constant.astype(np.float32).astype(s.weights.numpy), s, s.y.block))
        kernel = depthwise_items(s, self.tile)
        return [Step(kernel, (stage.left, packed, *stage.epilogue_args(), Output()))]


_APART = 4
"""Columns from what one item loads to what the next one loads up to which the loads of neighbours are as fast as those
of elements side by side."""


def ranked(s: Conv, launch: Launch, lanes: int = 1) -> list[DepthwiseTile]:
    """All tiles, the least time first; an item computes ``lanes`` channels."""
    sizes = [(r, c) for r, c in product((1, 2, 4), (1, 2, 4)) if r < 2 * s.extent[0] and c < 2 * s.extent[1]]
    tiles = [DepthwiseTile(r, c, r * c * s.taps * lanes > UNROLLED) for r, c in sizes]
    return sorted(tiles, key=lambda tile: cycles(s, tile, launch, lanes))


def cycles(s: Conv, tile: DepthwiseTile, launch: Launch, lanes: int = 1) -> float:
    """Cycles of a device until the layer is computed; an item computes ``lanes`` channels, which it loads at once and
    takes apart."""
    (height, width), size = s.extent, tile.rows * tile.cols
    items = s.y.n * s.padded // lanes * -(-height // tile.rows) * -(-width // tile.cols)
    inputs = size * s.taps if tile.looped else 1
    for axis, own in enumerate((tile.rows, tile.cols)):
        inputs *= 1 if tile.looped else touched(own, axis, s.kernel, s.stride, s.dilation)
    lines = max(1.0, tile.cols * s.stride[1] / _APART)
    each = inputs * (_LOAD * lines + lanes - 1) + (size + 1) * s.taps * lanes + _ITEM * (1 + lanes) / 2
    per_unit = -(-items // launch.units)
    return max(per_unit * each / _ISSUED, each) + DEVICE_LATENCY + DEVICE_ENDS
