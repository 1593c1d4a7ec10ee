"""Convolutions of 8-bit integers by single products (``kernels.integer_scalar``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tenon.machine.algorithms.base import Cost, Problem, Stage, Step, WithoutParameters
from tenon.machine.algorithms.integer_pairs import PairStage, by_products, is_paired
from tenon.machine.kernels import integer_pairs, integer_scalar
from tenon.machine.kernels.integer_pairs import PairConv
from tenon.machine.kernels.machine import Machine


def _applies(problem: Problem, machine: Machine) -> bool:
    return is_paired(problem) and machine.has("mul") and not machine.has("dot2_i16")


@dataclass(frozen=True)
class ScalarDirect(WithoutParameters):
    """Direct sums of a panel of up to four positions."""

    name: ClassVar[str] = "scalar"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return _applies(problem, machine) and not problem[0].depthwise

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        tile = integer_scalar.channels(PairConv(problem[0], 0, False, 0, 0), machine)
        return by_products(problem[0], machine, 1 + 1 / tile + 1 / integer_scalar.POSITIONS, 12.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        weights, room = integer_scalar.pack(stage.constant, s, machine), 4 * math.prod(integer_scalar.panel(s))
        return [stage.step(integer_scalar.conv(s, machine), weights, room)]


@dataclass(frozen=True)
class ScalarDepthwise(WithoutParameters):
    """A depthwise convolution, from a plane with its border."""

    name: ClassVar[str] = "scalar-depthwise"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return _applies(problem, machine) and problem[0].depthwise

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        return by_products(problem[0], machine, 2.0, 10.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s = stage.described
        weights, room = integer_pairs.pack_depthwise(stage.constant), math.prod(integer_scalar.plane(s))
        return [stage.step(integer_scalar.depthwise(s, machine), weights, room)]
