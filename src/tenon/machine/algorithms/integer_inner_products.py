"""Sums of bytes by Winograd's inner products of 16-bit integers (``kernels.integer_inner_products``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Input, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.direct import InnerLoop
from tenon.machine.algorithms.estimate import Arithmetic, barrier
from tenon.machine.algorithms.integer_widened import WEIGHT, IntegerWidened
from tenon.machine.algorithms.integers import FINISH, IntegerStage
from tenon.machine.kernels import integer_inner_products
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine

_PRODUCT = 1.76
"""Time of two sums, their product and its addition, in those of a product and its addition alone."""
_PIXEL = 0.75
"""Time to multiply a vector of activations with each other."""


def four_products(machine: Machine) -> Arithmetic:
    """The inner loop of products of four neighbouring channels."""
    unit = machine.unit("madd_i16")
    assert unit is not None
    return Arithmetic(_PRODUCT * unit.time, operands=2)


@dataclass(frozen=True)
class IntegerInnerProducts(IntegerWidened):
    """Inner products by register tiles of ``tile``."""

    name: ClassVar[str] = "integer-inner-products"
    own_memory: ClassVar[bool] = True

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One convolution of bytes with channels of more than one block, not of groups."""
        return super().applies(problem, machine) and integer_inner_products.applies(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return super().candidates(_gathered(problem), machine, limits, count)

    @classmethod
    def loop(cls, s: Conv, machine: Machine) -> InnerLoop:
        return InnerLoop(s.taps * -(-s.x.channels // 4), four_products(machine), FINISH)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem = _gathered(problem)
        direct = super().cost(problem, machine)
        pixels = s.x.n * s.x.blocks * s.x.block * s.x.h * s.x.w / machine.lanes / machine.threads
        weights = WEIGHT * direct.weights / machine.lanes / machine.threads
        meeting = barrier(machine.threads)
        return Cost(direct.time + (_PIXEL * pixels + weights) * machine.instruction + meeting, direct.weights)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        assert isinstance(stage, IntegerStage)
        s, kernels = stage.described, integer_inner_products
        if s.nibbles:  # two weights of 4 bits are a byte
            return super().lower(problem, stages, machine)
        widened = kernels.widened(s.conv, machine)
        s = replace(s, conv=kernels.gathered(s.conv))
        tile, x = self.settled(kernels.gathered(wanted), s.conv, machine), s.conv.x
        wide = Scratch("widened", 2 * math.prod(x.shape))
        pixels = Scratch("pixels", 4 * math.prod(x.shape) // (x.blocks * x.block))
        packed = map(Weights, kernels.pack(stage.constant, s, machine, tile.vecs))
        own = Weights(kernels.own_products(stage.constant, s))
        panel = Scratch("panel", 2 * kernels.panel(s.conv, machine, tile.vecs), per_thread=True)
        args = (wide, pixels, *packed, own, *stage.operands, Output(), panel)
        return [
            Step(widened, (Input(0), wide)),
            Step(kernels.pixel_products(x, machine), (wide, pixels)),
            Step(kernels.conv(s, machine, tile), args),
        ]


def _gathered(problem: Problem) -> Problem:
    (s,) = problem
    return (integer_inner_products.gathered(s),)
