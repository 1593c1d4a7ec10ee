"""Products of a vector and a matrix in work groups (``kernels.vector_product``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import Algorithm, Cost, Limits, Output, Problem, Stage, Step, Weights
from tenon.machine.algorithms.estimate import DEVICE_BARRIER, DEVICE_BYTES, DEVICE_CYCLES, DEVICE_ENDS, DEVICE_LATENCY
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import batched, positions
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tiled import supported
from tenon.machine.kernels.vector_product import VectorBlock, depth, pack, vector_product

MOST = 4
"""Positions of which each reads all weights again."""

_AHEAD = 8
"""Loads of a thread that are under way at the same time."""


@dataclass(frozen=True)
class VectorProduct(Algorithm):
    """Sums of one position in work groups, by ``block``."""

    block: VectorBlock
    name: ClassVar[str] = "vector"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Few positions in one row, and one tap."""
        plain = len(problem) == 1 and machine.launch is not None and supported(problem[0])
        return plain and few_positions(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        assert machine.launch is not None
        return [cls(block) for block in ranked(problem[0], machine.launch)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(VectorBlock(numbers["outs"], numbers["slices"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"outs": self.block.outs, "slices": self.block.slices}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.block.outs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        assert machine.launch is not None
        channels = -(-s.padded // self.block.outs) * self.block.outs
        return Cost(cycles(s, self.block, machine.launch) / DEVICE_CYCLES, s.weights.bytes * depth(s) * channels)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        packed = Weights(pack(stage.constant.astype(np.float32), stage.conv, self.block))
        kernel = vector_product(stage.conv, self.block)
        return [Step(kernel, (stage.left, packed, *stage.epilogue_args(), Output()))]


def few_positions(s: Conv) -> bool:
    """Whether it is a product of few positions in one row, at which one tap is multiplied."""
    plain = (
        s.packed
        and not batched(s)
        and s.kernel == s.stride == s.y_step == (1, 1)
        and s.positions is None
        and s.y_start == (0, 0)
    )
    return plain and s.y.h == s.x.h == 1 and s.x.w == s.y.w and not (s.top or s.left) and positions(s) <= MOST


def ranked(s: Conv, launch: Launch) -> list[VectorBlock]:
    """All blocks that a device can run, the least time first."""
    sizes = (VectorBlock(outs, slices) for outs, slices in product((8, 16, 32, 64), (4, 8, 16, 32)))
    able = [b for b in sizes if launch.width <= b.outs * b.slices <= min(256, launch.group)]
    return sorted(able, key=lambda b: cycles(s, b, launch))


def cycles(s: Conv, block: VectorBlock, launch: Launch) -> float:
    """Cycles of a device until the layer is computed."""
    blocks = positions(s) * -(-s.padded // block.outs)
    each = -(-blocks // launch.units)
    waits = DEVICE_LATENCY * (1 + depth(s) / block.slices / _AHEAD)
    arrives = each * s.weights.bytes * depth(s) * block.outs / DEVICE_BYTES
    return max(waits, arrives) + math.log2(block.slices) * DEVICE_BARRIER + DEVICE_ENDS
