"""A depthwise convolution and the 1x1 convolution of its result in one kernel: what lies between them stays in cache.

See ``kernels.separable``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms import strassen as products
from tenon.machine.algorithms.base import Algorithm, Cost, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.depthwise import best_tile
from tenon.machine.algorithms.estimate import slowest
from tenon.machine.kernels import depthwise
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.separable import block_rows, scratch, separable
from tenon.machine.kernels.strassen import StrassenBlocking, transform
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32

_NEAR, _CACHE = 32_000, 100_000
"""Bytes of a thread's own memory that stay nearest to the processor, and the most that it may be."""


@dataclass(frozen=True)
class Separable(Algorithm):
    """Both convolutions block by block; ``blocking`` is that of the products, of any number of levels."""

    blocking: StrassenBlocking
    name: ClassVar[str] = "separable"
    own_memory: ClassVar[bool] = True
    cut_alike: ClassVar[bool] = False
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """The image between the two is as the first's result."""
        if len(problem) != 2:
            return False
        first, second = problem
        single = {first.x.dtype, first.y.dtype, first.weights} == {F32}
        plain = second.kernel == second.stride == (1, 1) and not (second.top or second.left) and not first.operands
        return single and plain and first.depthwise and not first.clear and products.divisible(second, machine, 0)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        first, second = problem
        blockings = products.best_blockings(second, machine, 64, limits.strassen, least=0)
        whole = [b for b in blockings if b.cols == first.y.w and first.y.h % b.rows == 0]
        blockings = [b for b in whole if _own(first, second, b) <= _CACHE]
        return [cls(b) for b in sorted(blockings, key=lambda b: estimate(first, second, machine, b))[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(products.blocking_of(numbers))

    @property
    def numbers(self) -> Mapping[str, int]:
        return products.numbers_of(self.blocking)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.levels, self.blocking.groups, self.blocking.tile.vecs

    @property
    def numerics(self) -> tuple[str | int, ...]:
        return self.name, self.blocking.levels

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (first, second), levels = problem, self.blocking.levels
        weights = 4 * second.padded * second.x.channels * 7**levels // 4**levels + 4 * first.padded * first.taps
        return Cost(estimate(first, second, machine, self.blocking), weights)

    def error(self, problem: Problem, weights: Array | None) -> float:
        return products.ERROR.get(self.blocking.levels, 0.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (first, second), b = stages, self.blocking
        tile = best_tile(block_rows(first.conv, b), machine)
        kernel = separable(first.conv, second.conv, machine, b, tile)
        shapes = scratch(first.conv, second.conv, b)
        own = [Scratch(f"own{i}", 4 * math.prod(shape), per_thread=True) for i, shape in enumerate(shapes)]
        taps = Weights(depthwise.pack(first.constant.astype(np.float32), first.conv, machine))
        packed = Weights(transform(second.constant, second.conv, machine, b))
        args = first.left, taps, *first.bias_args(), own[0], packed, *second.epilogue_args(), *own[1:], Output()
        return [Step(kernel, args)]


def estimate(first: Conv, second: Conv, machine: Machine, b: StrassenBlocking) -> float:
    """Time of both, the unit being one multiply-add of a vector.  Every group makes the block between for itself."""
    vectors = first.y.n * first.y.h * first.y.w * first.padded / machine.lanes
    far = 1.0 if _own(first, second, b) > _NEAR else 0.0
    rows = ((b.rows - 1) * first.stride[0] + first.kernel[0]) / b.rows  # of input, for one of output
    loads = rows * first.stride[1] + 3 + far
    blocks = second.y.n * (second.y.h // b.rows) * (second.y.w // b.cols) * b.groups
    own = b.groups * vectors * (1.2 * first.taps + loads) * slowest(blocks, machine.threads)
    return products.estimate(second, machine, b) + own


def _own(first: Conv, second: Conv, b: StrassenBlocking) -> int:
    """Bytes of a thread's own memory."""
    return 4 * sum(map(math.prod, scratch(first, second, b)))
