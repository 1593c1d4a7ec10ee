"""Matrix products by outer products in tiles of a matrix unit (``kernels.outer_matrices``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Arg,
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
)
from tenon.machine.algorithms.estimate import slowest
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.algorithms.outer_products import block_time, weight_bytes
from tenon.machine.algorithms.outer_tiles import InOuterTiles
from tenon.machine.algorithms.tile_products import direct_sums, takes_weights, unshifted
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_matrices import (
    integer_outer_matrices,
    outer_matrices,
    panel_bytes,
    panel_of,
    supported,
)
from tenon.machine.kernels.outer_products import OuterTiles, pack

_SIZES = ((1, 1), (2, 1), (1, 2), (2, 2), (1, 4))
"""Tiles of positions and of channels of the blocks that are compared."""
_TURN = 0.3
"""Time to put a word beside that of the next row."""


@dataclass(frozen=True)
class OuterMatrices(InOuterTiles):
    """Sums by blocks of ``tile``, of rows that are put side by side."""

    name: ClassVar[str] = "outer-matrices"
    offered: ClassVar[int] = 2
    own_memory: ClassVar[bool] = True

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(problem[0], machine)[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (c,) = problem
        return Cost(product_time(c, machine, self.tile), weight_bytes(panel_of(c, self.tile)))

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        left: Arg = stage.left
        ends: tuple[Arg, ...] = tuple(stage.epilogue_args())
        if isinstance(stage, IntegerStage):
            s, left = stage.described, Input(0)
            if not takes_weights(s):
                return direct_sums(problem[0], stage, machine)
            kernel, c, ends = integer_outer_matrices(s, machine, tile), s.conv, unshifted(stage, machine)
        else:
            kernel, c = outer_matrices(stage.conv, machine, tile), stage.conv
        packed = map(Weights, pack(stage.constant, panel_of(c, tile), tile))
        panels = [Scratch(f"panel{i}", size, per_thread=True) for i, size in enumerate(panel_bytes(c, tile))]
        return [Step(kernel, (left, *packed, *panels, *ends, Output()))]


@lru_cache(maxsize=256)
def ranked(c: Conv, machine: Machine) -> list[OuterTiles]:
    """All blocks that the unit holds, the least time first."""
    able = [OuterTiles(*size) for size in _SIZES if size[1] <= -(-c.padded // SIDE)]
    return sorted(able, key=lambda tile: product_time(c, machine, tile))


def product_time(c: Conv, machine: Machine, tile: OuterTiles) -> float:
    """Time of the product, in multiply-adds of a vector."""
    words = c.x.channels * c.x.dtype.bytes / 4
    total = block_time(panel_of(c, tile), machine, tile, c.y.w)
    if c.y.w == 1:
        return c.y.n * total * slowest(-(-c.padded // (SIDE * tile.across)), machine.threads)
    return c.y.n * (total + c.y.w * words * _TURN) * slowest(-(-c.y.w // (SIDE * tile.down)), machine.threads)
