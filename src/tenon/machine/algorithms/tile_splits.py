"""Convolution of f32 as three products of bf16 by tiles in registers (``kernels.tile_splits``), where asked for.

The error is that of the numbers as two of bf16, and of the products of their low parts, which are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.register_tiles import InRegisterTiles
from tenon.machine.algorithms.tile_products import product_time, ranked
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_blocks import pitch
from tenon.machine.kernels.tile_products import pack, steps_of, tile_products, words_of
from tenon.machine.kernels.tile_splits import split, split_bytes, split_image, split_weights, supported
from tenon.network.graph.graph import Array

ERROR = 4e-5
"""Largest error on random data, relative to the RMS of an output channel: measured 1.5e-5 to 3e-5."""
_SPLIT = 6.0
"""Time to split a vector, in multiply-adds of a vector."""


@dataclass(frozen=True)
class TileSplits(InRegisterTiles):
    """Sums by blocks of ``tile``."""

    name: ClassVar[str] = "tile-bf16x3"
    offered: ClassVar[int] = 2

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        if not limits.bf16x3:
            return []
        return [cls(tile) for tile in ranked(split(problem[0]).flattened(), machine)[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = split(problem[0]).flattened()
        vectors = split_bytes(problem[0]) / 96  # three of bf16 for each of f32
        time = product_time(s, machine, self.tile) + _SPLIT * vectors / machine.threads
        return Cost(time, s.padded * steps_of(s) * 4 * words_of(s))

    def error(self, problem: Problem, weights: Array | None) -> float:
        return ERROR

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        s = split(stage.conv).flattened()
        tile = self.tile if _alike(s, split(wanted).flattened()) else ranked(s, machine)[0]
        copies = Scratch("split", split_bytes(stage.conv))
        weights = split_weights(stage.constant, stage.conv)
        args = (copies, *map(Weights, pack(weights, s, tile)), *stage.epilogue_args(), Output())
        return [
            Step(split_image(stage.conv, machine), (stage.left, copies)),
            Step(tile_products(s, machine, tile), args),
        ]


def _alike(s: Conv, wanted: Conv) -> bool:
    """Whether a halo leaves the rows as the tile was chosen for."""
    return s.extent == wanted.extent and pitch(s) == pitch(wanted)
