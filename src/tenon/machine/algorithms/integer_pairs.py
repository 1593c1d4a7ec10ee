"""Convolutions of 8-bit integers by products of pairs of 16 bits, directly and by Winograd's F(2x2, 3x3).

Both give the same bits; see ``kernels.integer_pairs`` and ``kernels.integer_winograd``.  Times are instructions of a
core with DSP instructions, as counted on the kernels' assembly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
    WithoutParameters,
)
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import integer_pairs, integer_winograd
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.integer_pairs import PairConv
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array

_RESULT = 7
"""Instructions to requantise a sum and to store it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PairStage(Stage):
    """A convolution of integers about to be lowered: what its kernel computes, and ``integer_pairs.factors``.

    ``weights`` are i8 [out, in, kh, kw], ``bias`` is i32 [out] and includes the zero point of the input; ``operands``
    are what is added to the sums.
    """

    described: PairConv
    factors: Array

    def step(self, kernel: Kernel, words: Array, room: int) -> Step:
        """A kernel with packed weights and ``room`` bytes of scratch memory."""
        assert self.bias is not None
        constants = (Weights(words), Weights(self.bias), Weights(self.factors))
        return Step(kernel, (Input(0), *constants, *self.operands, Scratch("pairs", room, True), Output()))


@dataclass(frozen=True)
class PairsDirect(WithoutParameters):
    """Direct sums of a panel of four positions."""

    name: ClassVar[str] = "pairs"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and problem[0].paired

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (c,) = problem
        pairs = c.kernel[0] * c.kernel[1] * 2 * -(-c.x.channels // 4)
        if c.x.channels == 1:
            pairs = c.kernel[0] * -(-c.kernel[1] // 2)
        time = 0.0
        for _, count, width in segments(c.extent[1], integer_pairs.POSITIONS):
            products = (3 + 2.5 * width) * pairs + 2 * width * _RESULT + 30
            time += count * (3.0 * width * pairs + -(-c.y.channels // 2) * products)
        return Cost(c.y.n * c.extent[0] * time, c.y.channels * 2 * pairs)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        words = integer_pairs.pack(stage.constant, s)
        return [stage.step(integer_pairs.conv(s), words, integer_pairs.panel_bytes(s))]


@dataclass(frozen=True)
class PairsWinograd(WithoutParameters):
    """Winograd's F(2x2, 3x3): exact, with fewer products and weights of 32 bytes for 9."""

    name: ClassVar[str] = "pairs-winograd"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and problem[0].paired and integer_winograd.applies(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (c,) = problem
        return [cls()] if _packed_bytes(c) <= limits.integer_winograd else []

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (c,) = problem
        pairs, time = 2 * -(-c.x.channels // 4), 0.0
        for _, count, width in segments(c.extent[1] // 2, integer_winograd.TILES):
            products = integer_winograd.ELEMENTS * ((3 + 2 * width) * pairs + 4 * width + 14)
            results = 2 * width * (44 + 4 * _RESULT)
            time += count * (100.0 * width * pairs + c.y.channels // 2 * (products + results))
        return Cost(c.y.n * c.extent[0] // 2 * time, _packed_bytes(c))

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        words = integer_winograd.pack(stage.constant, s)
        return [stage.step(integer_winograd.conv(s), words, 4 * math.prod(integer_winograd.panel(s)))]


def _packed_bytes(c: Conv) -> int:
    return 2 * integer_winograd.ELEMENTS * c.y.channels * 4 * -(-c.x.channels // 4)
