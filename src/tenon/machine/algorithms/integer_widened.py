"""Direct sums of bytes by products of pairs of 16 bits, of activations widened ahead (``kernels.integer_widened``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tenon.machine.algorithms.base import (
    Cost,
    Input,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
)
from tenon.machine.algorithms.direct import InnerLoop, estimate
from tenon.machine.algorithms.estimate import Arithmetic, barrier
from tenon.machine.algorithms.integers import FINISH, IntegerDirect, IntegerStage
from tenon.machine.kernels import integer_widened
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine

WEIGHT = 0.5
"""Time to widen a vector of weights."""
_WIDENED = 1.0
"""Time to widen a vector of activations."""


@dataclass(frozen=True)
class IntegerWidened(IntegerDirect):
    """Direct sums of pairs of 16 bits, by register tiles of ``tile``."""

    name: ClassVar[str] = "integer-widened"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One convolution of bytes, but for a depthwise one."""
        return super().applies(problem, machine) and integer_widened.applies(problem[0], machine)

    @classmethod
    def loop(cls, s: Conv, machine: Machine) -> InnerLoop:
        unit = machine.unit("madd_i16")
        assert unit is not None
        return InnerLoop(max(1, integer_widened.pairs(s)), Arithmetic(unit.time, WEIGHT), FINISH)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        vectors = s.x.n * s.x.blocks * s.x.block * s.x.h * s.x.w / machine.lanes / machine.threads
        time = estimate(s.flattened(), machine, self.tile, self.loop(s, machine)) + _WIDENED * vectors
        meeting = barrier(machine.threads)
        elements = s.padded * s.taps * s.x.blocks * s.x.block // s.groups
        return Cost(time * machine.instruction + meeting, elements)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        assert isinstance(stage, IntegerStage)
        s = replace(stage.described, conv=stage.described.conv.flattened())
        if s.nibbles:  # two weights of 4 bits are a byte
            return IntegerDirect(self.tile).lower(problem, stages, machine)
        tile, kernels = self.settled(wanted, s.conv, machine), integer_widened
        rows = kernels.in_rows(s.conv)
        wide = Scratch("widened", 2 * math.prod(kernels.widened_shape(s.conv)))
        packed = map(Weights, kernels.pack(stage.constant, s, machine, tile.vecs))
        widening = kernels.widened_rows(s.conv, machine) if rows else kernels.widened(s.conv.x, machine)
        return [
            Step(widening, (Input(0), wide)),
            Step(integer_widened.conv(s, machine, tile), (wide, *packed, *stage.operands, Output())),
        ]
