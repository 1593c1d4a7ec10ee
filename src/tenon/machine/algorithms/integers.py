"""Direct sums of quantised integers, requantised: tiles as of ``direct``, and how long they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Algorithm,
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
    WithoutParameters,
    in_floats,
)
from tenon.machine.algorithms.direct import Direct, InnerLoop, best_tiles, estimate
from tenon.machine.algorithms.estimate import Arithmetic
from tenon.machine.kernels import integer_conv, integer_depthwise, word_products
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine

FINISH = 12.0
"""Time to requantise a vector of sums and to store it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class IntegerStage(Stage):
    """A convolution of integers about to be lowered.

    ``described`` is what its kernel computes and ``weights`` the integers that it stores; ``operands`` are what the
    kernel takes between weights and output: bias, factors, mask.
    """

    described: IntegerConv


@dataclass(frozen=True)
class IntegerDirect(Algorithm):
    """Direct sums of integers in i32, by register tiles of ``tile``."""

    tile: OutputTile
    name: ClassVar[str] = "integer"
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One convolution of integers, but for a depthwise one and those by pairs (``algorithms.integer_pairs``)."""
        s = problem[0]
        return len(problem) == 1 and not in_floats(problem) and not s.paired and (not s.depthwise or s.groups == 1)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        return [cls(tile) for tile in best_tiles(s.flattened(), machine, count, cls.loop(s, machine))]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(Direct.of_numbers(numbers).tile)

    @classmethod
    def loop(cls, s: Conv, machine: Machine) -> InnerLoop:
        """The inner loop, as if the weights allowed the best products of the machine."""
        channels = -(-s.x.channels // s.groups)
        if integer_conv.in_fours(s, machine):
            words = "" if integer_conv.by_taps(s, machine) else word_products.words_of(s, machine)
            return InnerLoop(max(1, s.taps * -(-channels // 4)), replace(_fours(machine), lanes=words), FINISH)
        return InnerLoop(max(1, s.taps * channels), Arithmetic(1.0, 1.0, 1.0), FINISH)

    def settled(self, wanted: Conv, s: Conv, machine: Machine) -> OutputTile:
        """The tile, or the best one of the long row where a halo keeps the rows apart."""
        same = s.extent == wanted.flattened().extent
        return self.tile if same else best_tiles(s, machine, 1, self.loop(s, machine))[0]

    @property
    def numbers(self) -> Mapping[str, int]:
        return Direct(self.tile).numbers

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.vecs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        elements = s.padded * s.taps * s.x.channels // s.groups
        time = estimate(s.flattened(), machine, self.tile, self.loop(s, machine))
        return Cost(time * machine.instruction, elements * s.weights.bytes)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        assert isinstance(stage, IntegerStage)
        s = replace(stage.described, conv=stage.described.conv.flattened())
        tile = self.settled(wanted, s.conv, machine)
        packed = map(Weights, integer_conv.pack(stage.constant, s, machine, tile.vecs))
        return [Step(integer_conv.conv(s, machine, tile), (Input(0), *packed, *stage.operands, Output()))]


def four_time(machine: Machine) -> float:
    """Time of a product of bytes four at a time, of a machine that has one."""
    return next(iter(machine.fours.values())).time


def _fours(machine: Machine) -> Arithmetic:
    """The inner loop of products of bytes four at a time."""
    unit = next(iter(machine.fours.values()))
    return Arithmetic(unit.time, unit.widening, unit.widening)


@dataclass(frozen=True)
class IntegerDepthwise(WithoutParameters):
    """A depthwise convolution of integers, vectors of channels at a time (``kernels.integer_depthwise``)."""

    name: ClassVar[str] = "integer-depthwise"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        s = problem[0]
        return len(problem) == 1 and not in_floats(problem) and not s.paired and s.depthwise and s.groups > 1

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        """With the halo that it asks for."""
        s = problem[0]
        if s.x.dtype.bytes == s.weights.bytes == 1 and integer_conv.taps_in_fours(s.dilation[1], machine):
            sums = s.kernel[0] * -(-s.kernel[1] // 4) * four_time(machine)
        else:
            sums = s.taps * 2.0  # each value is widened
        vectors = s.y.n * math.prod(s.extent) * -(-s.padded // s.lanes(machine))
        return Cost(vectors * (sums + FINISH) * machine.instruction, s.padded * s.taps * s.weights.bytes)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, IntegerStage)
        packed = Weights(integer_depthwise.pack(stage.constant, stage.described, machine))
        kernel = integer_depthwise.conv(stage.described, machine)
        return [Step(kernel, (Input(0), packed, *stage.operands, Output()))]


def product_tiles(s: Conv, machine: Machine, count: int) -> list[OutputTile]:
    """The best tiles of a product whose weights are packed at run time, four channels at a time."""
    loop = InnerLoop(max(1, -(-s.x.channels // 4)), _fours(machine), FINISH)
    return best_tiles(s, machine, count, loop)
