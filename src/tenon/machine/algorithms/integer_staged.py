"""Convolution of bytes by a matrix unit in work groups, with copies in stages (``kernels.integer_staged``,
``kernels.integer_warpgroups``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import ClassVar, Self

from tenon.machine.algorithms import tensor_warpgroups
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
from tenon.machine.algorithms.narrow_images import ReadsNarrowImages
from tenon.machine.algorithms.tensor_staged import ranked, staged_cycles
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels import integer_warpgroups
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, in_rows_of_taps, in_words, sums_shape
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.integer_staged import WordTile, integer_staged, pack, supported
from tenon.machine.kernels.integer_tiled import joined_parts
from tenon.machine.kernels.integer_warpgroups import WordGroupTile
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import StagedTile
from tenon.network.graph.graph import Array


class IntegerStaged(ReadsNarrowImages, IntegerTiled):
    """Direct sums of bytes by tiles of a matrix unit, whose ``k`` are words; of weights with a zero point without it
    (``IntegerTiled``)."""

    name: ClassVar[str] = "integer-staged"
    shape: ClassVar[type[StagedTile]] = WordTile
    """The class of its tiles."""

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.launch.copies and not in_floats(problem)
        return able and cls.supports(problem[0], machine)

    @classmethod
    def supports(cls, s: Conv, machine: Machine) -> bool:
        """Whether there is a kernel for a layer."""
        return supported(s, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        tiles = ranked(in_words(cls.arranged(problem[0])), machine, WordTile)
        return [cls(tile) for tile in tiles if not tile.cluster][:count]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(cls.shape(**{field.name: numbers[field.name] for field in fields(cls.shape)}))

    def cycles(self, s: Conv, launch: Launch) -> float:
        """Cycles of a device until a layer of words is computed."""
        assert isinstance(self.tile, WordTile)
        return staged_cycles(s, self.tile, launch)

    def packed(self, weights: Array, s: IntegerConv) -> Array:
        """The weights as ``kernel`` reads them."""
        assert isinstance(self.tile, WordTile)
        return pack(weights, s, self.tile)

    def kernel(self, s: IntegerConv) -> Kernel:
        """Parameters: x, weights, what follows the sums, y; where these are in parts only x, weights and the sums."""
        assert isinstance(self.tile, WordTile)
        return integer_staged(s, self.tile)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s, tile = in_words(self.arranged(problem[0])), self.tile
        assert machine.launch is not None
        words = Depth.of(s, tile.k).steps * tile.k * -(-s.padded // tile.n) * tile.n
        return Cost(self.cycles(s, machine.launch) / DEVICE_CYCLES, 4 * words)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        s = described(stage)
        if s.weight_zero:
            return IntegerTiled.candidates(problem, machine, Limits(), 1)[0].lower(problem, stages, machine)
        s = replace(s, conv=in_rows_of_taps(s.conv))
        packed, ends = Weights(self.packed(stage.constant, s)), (*stage.operands, Output())
        kernel = self.kernel(s)
        if tile.splits == 1:
            return [Step(kernel, (Input(0), packed, *ends))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s.conv, tile)))
        return [Step(kernel, (Input(0), packed, sums)), Step(joined_parts(s, tile), (sums, *ends))]


class IntegerWarpgroups(IntegerStaged):
    """The same by tiles of a matrix unit that works beside the threads of four warps."""

    name: ClassVar[str] = "integer-warpgroups"
    shape: ClassVar[type[StagedTile]] = WordGroupTile

    @classmethod
    def supports(cls, s: Conv, machine: Machine) -> bool:
        return integer_warpgroups.supported(s, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        tiles = tensor_warpgroups.ranked(in_words(cls.arranged(problem[0])), machine, WordGroupTile)
        return [cls(tile) for tile in tiles[:count]]

    def cycles(self, s: Conv, launch: Launch) -> float:
        assert isinstance(self.tile, WordGroupTile)
        return tensor_warpgroups.cycles(s, self.tile, launch)

    def packed(self, weights: Array, s: IntegerConv) -> Array:
        assert isinstance(self.tile, WordGroupTile)
        return integer_warpgroups.pack(weights, s, self.tile)

    def kernel(self, s: IntegerConv) -> Kernel:
        assert isinstance(self.tile, WordGroupTile)
        return integer_warpgroups.integer_warpgroups(s, self.tile)
