"""Convolutions of 8-bit integers by sums of sixteen products of bytes (``kernels.integer_dots``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tenon.machine.algorithms.base import Cost, Problem, Stage, Step, WithoutParameters
from tenon.machine.algorithms.integer_pairs import PairStage, by_products, is_paired
from tenon.machine.kernels import integer_dots
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.integer_pairs import PairConv
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array

LARGEST_PANEL = 2048
"""Bytes that a copy of inputs may take, where another kernel needs less."""


def _applies(problem: Problem, machine: Machine) -> bool:
    return is_paired(problem) and machine.has("dot16") and integer_dots.fits(problem[0])


def _rounded(stage: PairStage) -> tuple[PairConv, Array]:
    """The kernel's description and its factors, rounded for each block of channels by itself where that is faster."""
    s, mixed = stage.described, stage.mixed
    if mixed is None:
        return s, integer_dots.factors(stage.factors)
    table = integer_dots.mixed(stage.factors, mixed.fitted, mixed.by_floats)
    if 2 * table[-1].sum() > len(stage.constant):
        return s, integer_dots.factors(stage.factors)
    return replace(s, fitted_left=mixed.left), table


def _panel_bytes(c: Conv) -> int:
    return 4 * math.prod(integer_dots.panel(PairConv(c, 0, False, 0, 0)))


@dataclass(frozen=True)
class DotsDirect(WithoutParameters):
    """Direct sums of a panel of two positions."""

    name: ClassVar[str] = "dots"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        if not _applies(problem, machine) or problem[0].depthwise:
            return False
        return _panel_bytes(problem[0]) <= LARGEST_PANEL

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        return by_products(problem[0], machine, 0.11, 5.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s, factors = _rounded(stage)
        words, room = integer_dots.pack(stage.constant, s), 4 * math.prod(integer_dots.panel(s))
        return [stage.step(integer_dots.conv(s), words, room, factors)]


@dataclass(frozen=True)
class DotsDepthwise(WithoutParameters):
    """A depthwise convolution, four channels at a time."""

    name: ClassVar[str] = "dots-depthwise"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return _applies(problem, machine) and problem[0].depthwise

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        return by_products(problem[0], machine, 0.6, 4.0)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, PairStage)
        s, factors = _rounded(stage)
        words, room = integer_dots.pack_depthwise(stage.constant), math.prod(integer_dots.plane(s))
        return [stage.step(integer_dots.depthwise(s), words, room, factors)]
