"""Direct sums of bytes by products of pairs of 16 bits, of activations widened ahead (``kernels.integer_widened``)."""

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
    Scratch,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.direct import Direct, InnerLoop, best_tiles, estimate
from tenon.machine.algorithms.estimate import BARRIER, Arithmetic
from tenon.machine.algorithms.integers import FINISH, IntegerDirect, IntegerStage
from tenon.machine.kernels import integer_widened
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.machine import Machine

_WEIGHT = 0.5
"""Time to widen a vector of weights."""
_WIDENED = 1.0
"""Time to widen a vector of activations."""


@dataclass(frozen=True)
class IntegerWidened(Algorithm):
    """Direct sums of pairs of 16 bits, by register tiles of ``tile``."""

    tile: OutputTile
    name: ClassVar[str] = "integer-widened"
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """One convolution of bytes, but for a depthwise one."""
        s = problem[0]
        plain = len(problem) == 1 and not in_floats(problem) and not s.paired
        return plain and not (s.depthwise and s.groups > 1) and integer_widened.applies(s, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,) = problem
        return [cls(tile) for tile in best_tiles(s.flattened(), machine, count, _loop(s, machine))]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(Direct.of_numbers(numbers).tile)

    @property
    def numbers(self) -> Mapping[str, int]:
        return Direct(self.tile).numbers

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.vecs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        vectors = s.x.n * s.x.blocks * s.x.block * s.x.h * s.x.w / machine.lanes / machine.threads
        time = estimate(s.flattened(), machine, self.tile, _loop(s, machine)) + _WIDENED * vectors
        barrier = BARRIER if machine.threads > 1 else 0.0
        elements = s.padded * s.taps * s.x.blocks * s.x.block // s.groups
        return Cost(time * machine.instruction + barrier, elements)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        assert isinstance(stage, IntegerStage)
        s = replace(stage.described, conv=stage.described.conv.flattened())
        if s.nibbles:  # two weights of 4 bits are a byte
            return IntegerDirect(self.tile).lower(problem, stages, machine)
        tile, x = self.tile, s.conv.x
        if s.conv.extent != wanted.flattened().extent:  # a halo keeps the rows apart: the tile is one of the long row
            tile = best_tiles(s.conv, machine, 1, _loop(s.conv, machine))[0]
        wide = Scratch("widened", 2 * math.prod(x.shape))
        packed = map(Weights, integer_widened.pack(stage.constant, s, machine, tile.vecs))
        return [
            Step(integer_widened.widened(x, machine), (Input(0), wide)),
            Step(integer_widened.conv(s, machine, tile), (wide, *packed, *stage.operands, Output())),
        ]


def _loop(s: Conv, machine: Machine) -> InnerLoop:
    unit = machine.unit("madd_i16")
    assert unit is not None
    channels = -(-s.x.channels // s.groups)
    return InnerLoop(max(1, s.taps * -(-channels // 2)), Arithmetic(unit.time, _WEIGHT), FINISH)
