"""Convolution of bytes by a matrix unit in work groups, with copies in stages (``kernels.integer_staged``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
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
    in_floats,
)
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.integer_tiled import IntegerTiled, described
from tenon.machine.algorithms.tensor_staged import ranked, staged_cycles
from tenon.machine.kernels.group_tiles import Depth, in_words, sums_shape
from tenon.machine.kernels.integer_staged import WordTile, integer_staged, pack, supported
from tenon.machine.kernels.integer_tiled import joined_parts
from tenon.machine.kernels.machine import Machine


class IntegerStaged(IntegerTiled):
    """Direct sums of bytes by tiles of a matrix unit, whose ``k`` are words; of weights with a zero point without it
    (``IntegerTiled``)."""

    name: ClassVar[str] = "integer-staged"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.launch.copies and not in_floats(problem)
        return able and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        tiles = ranked(in_words(problem[0].flattened()), machine, WordTile)
        return [cls(tile) for tile in tiles if not tile.cluster][:count]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(WordTile(**{field.name: numbers[field.name] for field in fields(WordTile)}))

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s, tile = in_words(problem[0].flattened()), self.tile
        assert machine.launch is not None
        assert isinstance(tile, WordTile)
        words = Depth.of(s, tile.k).steps * tile.k * -(-s.padded // tile.n) * tile.n
        return Cost(staged_cycles(s, tile, machine.launch) / DEVICE_CYCLES, 4 * words)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        assert isinstance(tile, WordTile)
        s = described(stage)
        if s.weight_zero:
            return IntegerTiled.candidates(problem, machine, Limits(), 1)[0].lower(problem, stages, machine)
        packed, ends = Weights(pack(stage.constant, s, tile)), (*stage.operands, Output())
        kernel = integer_staged(s, tile)
        if tile.splits == 1:
            return [Step(kernel, (Input(0), packed, *ends))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s.conv, tile)))
        return [Step(kernel, (Input(0), packed, sums)), Step(joined_parts(s, tile), (sums, *ends))]
