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


@dataclass(frozen=True, eq=False)
class Mixed:
    """Factors of a product with "even" rounding: ``fitted`` ones of all channels but those that ``by_floats`` lists,
    and the shift of sums to the ``left``."""

    fitted: Array
    by_floats: Array
    left: int


@dataclass(frozen=True, eq=False, kw_only=True)
class PairStage(Stage):
    """A convolution of integers about to be lowered: what its kernel computes, and ``integer_pairs.factors``.

    ``weights`` are i8 [out, in, kh, kw], ``bias`` is i32 [out] and includes the zero point of the input; ``operands``
    are what is added to the sums.  ``mixed`` are other factors of the same product.
    """

    described: PairConv
    factors: Array
    mixed: Mixed | None = None

    def step(self, kernel: Kernel, words: Array, room: int, factors: Array | None = None) -> Step:
        """A kernel with packed weights, factors and ``room`` bytes of scratch memory."""
        assert self.bias is not None
        constants = (Weights(words), Weights(self.bias), Weights(self.factors if factors is None else factors))
        return Step(kernel, (Input(0), *constants, *self.operands, Scratch("panel", room, True), Output()))


def is_paired(problem: Problem) -> bool:
    """Whether it is one convolution that the kernels of this family compute (``ops.integer_pairs``)."""
    return len(problem) == 1 and problem[0].paired


def of_instructions(count: float, weights: int, machine: Machine) -> Cost:
    """The cost of so many instructions, and of packed weights in bytes."""
    return Cost(count * machine.instruction, weights)


def by_products(c: Conv, machine: Machine, each: float, result: float) -> Cost:
    """The cost of a convolution by instructions for each product and each result."""
    results = c.y.n * c.y.channels * math.prod(c.extent)
    inputs = c.taps * c.x.channels // c.groups
    return of_instructions(results * (inputs * each + result), c.y.channels * inputs, machine)


@dataclass(frozen=True)
class PairsDirect(WithoutParameters):
    """Direct sums of a panel of four positions."""

    name: ClassVar[str] = "pairs"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return is_paired(problem) and not problem[0].depthwise and machine.has("dot2_i16")

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (c,) = problem
        pairs = c.kernel[0] * c.kernel[1] * 2 * -(-c.x.channels // 4)
        if c.x.channels == 1:
            pairs = c.kernel[0] * -(-c.kernel[1] // 2)
        time = 0.0
        for _, count, width in segments(c.extent[1], integer_pairs.POSITIONS):
            products = (3 + 2.5 * width) * pairs + 2 * width * _RESULT + 30
            time += count * (3.0 * width * pairs + -(-c.y.channels // 2) * products)
        return of_instructions(c.y.n * c.extent[0] * time, c.y.channels * 2 * pairs, machine)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        words = integer_pairs.pack(stage.constant, s)
        return [stage.step(integer_pairs.conv(s), words, integer_pairs.panel_bytes(s))]


@dataclass(frozen=True)
class PairsDepthwise(WithoutParameters):
    """A depthwise convolution, from a plane that is widened to pairs."""

    name: ClassVar[str] = "pairs-depthwise"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return is_paired(problem) and problem[0].depthwise and machine.has("dot2_i16")

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        return by_products(problem[0], machine, 2.0, 10.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        words, room = integer_pairs.pack_depthwise(stage.constant), 4 * math.prod(integer_pairs.plane(stage.described))
        return [stage.step(integer_pairs.depthwise(stage.described), words, room)]


@dataclass(frozen=True)
class PairsWinograd(WithoutParameters):
    """Winograd's F(2x2, 3x3): exact, with fewer products and weights of 32 bytes for 9."""

    name: ClassVar[str] = "pairs-winograd"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Where no unit sums more than two products."""
        by_pairs = machine.has("dot2_i16") and not machine.has("dot16")
        return is_paired(problem) and by_pairs and integer_winograd.applies(problem[0])

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
        return of_instructions(c.y.n * c.extent[0] // 2 * time, _packed_bytes(c), machine)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        words = integer_winograd.pack(stage.constant, s)
        room = 4 * math.prod(integer_winograd.panel(s))
        return [stage.step(integer_winograd.conv(s), words, room)]


def _packed_bytes(c: Conv) -> int:
    return 2 * integer_winograd.ELEMENTS * c.y.channels * 4 * -(-c.x.channels // 4)
