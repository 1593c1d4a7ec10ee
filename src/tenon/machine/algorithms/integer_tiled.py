"""Convolution and matrix product of bytes in work groups (``kernels.integer_tiled``, ``kernels.integer_vector``).

Tiles are chosen as those of floats are (``tiled``), for products of words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms import tiled as float_tiled
from tenon.machine.algorithms import vector_product as float_vector
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
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.integers import IntegerStage, four_time
from tenon.machine.kernels import integer_tiled, integer_vector
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, GroupTile, in_words, sums_shape
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.integer_staged import OPERATIONS
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.vector_product import VectorBlock, depth

_LONGER = 1.4
"""How many times what tiles of floats would take, where estimates of a matrix unit are compared with it: of 16 layers
on an H100 (``bench/gpu_tiles.py``)."""


def _applies(problem: Problem, machine: Machine) -> bool:
    alone = len(problem) == 1 and machine.launch is not None and not in_floats(problem)
    return alone and integer_tiled.supported(problem[0], machine)


def described(stage: Stage) -> IntegerConv:
    assert isinstance(stage, IntegerStage)
    return replace(stage.described, conv=stage.described.conv.flattened())


def _words(problem: Problem) -> Conv:
    return in_words(problem[0].flattened())


def _rate(machine: Machine) -> float:
    """Products of words that a unit adds in a cycle."""
    return float_tiled.FMAS / four_time(machine)


def product_tile(s: Conv, machine: Machine) -> GroupTile | None:
    """The best tile of a product of words that are packed at run time; None without work
    groups."""
    return next(iter(float_tiled.ranked(s, machine, _rate(machine))), None) if machine.launch is not None else None


class IntegerTiled(float_tiled.Tiled):
    """Direct sums of bytes in work groups, by tiles of ``tile``, whose ``k`` are words."""

    name: ClassVar[str] = "integer-tiled"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return _applies(problem, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in float_tiled.ranked(_words(problem), machine, _rate(machine))[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s, tile = _words(problem), self.tile
        assert machine.launch is not None
        time = float_tiled.cycles(s, tile, machine.launch, _rate(machine))
        if machine.has(OPERATIONS[problem[0].x.dtype]):
            time *= _LONGER
        words = Depth.of(s, tile.k).steps * tile.k * -(-s.padded // tile.n) * tile.n
        return Cost(time / DEVICE_CYCLES, 4 * words)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        assert isinstance(stage, IntegerStage)
        s = described(stage)
        packed = Weights(integer_tiled.pack(stage.constant, s, tile))
        ends = (*stage.operands, Output())
        if tile.splits == 1:
            return [Step(integer_tiled.tiled(s, tile, machine), (Input(0), packed, *ends))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s.conv, tile)))
        products = Step(integer_tiled.tiled(s, tile, machine), (Input(0), packed, sums))
        return [products, Step(integer_tiled.joined_parts(s, tile), (sums, *ends))]


@dataclass(frozen=True)
class IntegerVector(Algorithm):
    """Sums of bytes at one position in work groups, by ``block``."""

    block: VectorBlock
    name: ClassVar[str] = "integer-vector"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Few positions in one row, and one tap."""
        return _applies(problem, machine) and float_vector.few_positions(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        assert machine.launch is not None
        return [cls(block) for block in float_vector.ranked(in_words(problem[0]), machine.launch)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(VectorBlock(numbers["outs"], numbers["slices"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        return asdict(self.block)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.block.outs

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = in_words(problem[0])
        assert machine.launch is not None
        channels = -(-s.padded // self.block.outs) * self.block.outs
        return Cost(float_vector.cycles(s, self.block, machine.launch) / DEVICE_CYCLES, 4 * depth(s) * channels)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        assert isinstance(stage, IntegerStage)
        s = stage.described
        packed = Weights(integer_vector.pack(stage.constant, s, self.block))
        kernel = integer_vector.vector_product(s, self.block, machine)
        return [Step(kernel, (Input(0), packed, *stage.operands, Output()))]
