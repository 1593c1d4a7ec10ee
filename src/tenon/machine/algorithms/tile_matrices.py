"""Product of two matrices that a run computes, by tiles in registers (``kernels.tile_matrices``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Arg, Cost, Limits, Output, Problem, Scratch, Stage, Step
from tenon.machine.algorithms.register_tiles import InRegisterTiles
from tenon.machine.algorithms.tile_products import product_time, ranked
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_matrices import (
    packed_columns,
    padded,
    supported,
    tile_columns,
    tile_matrices,
    tile_rows,
)

_COPIED = 3.0
"""Time to copy a vector of either factor, in multiply-adds of a vector."""


@dataclass(frozen=True)
class TileMatrices(InRegisterTiles):
    """Sums by blocks of ``tile``, of factors that are copied first."""

    name: ClassVar[str] = "tile-matrices"
    offered: ClassVar[int] = 1

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(padded(problem[0]), machine)[:count]]

    @property
    def packing(self) -> tuple[str | int, ...]:
        return (self.name,)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        columns = sum(each.nbytes for each in packed_columns(s, self.tile))
        rows = 2 * s.x.n * s.x.w * padded(s).x.channels if _copied(s) else 0
        return Cost(product_time(padded(s), machine, self.tile) + _COPIED * (columns + rows) / 64)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        s, left, steps = stage.conv, stage.left, list[Step]()
        assert stage.right is not None
        if _copied(s):
            rows = Scratch("rows", 2 * s.x.n * s.x.w * padded(s).x.channels)
            steps.append(Step(tile_rows(s, machine), (left, rows)))
            left = rows
        columns: list[Arg] = []
        for number, each in enumerate(packed_columns(s, tile)):
            columns.append(Scratch(f"columns{number}", each.nbytes))
            steps.append(Step(tile_columns(s, machine, tile, number), (stage.right, columns[-1])))
        args = (left, *columns, *stage.epilogue_args(), Output())
        return [*steps, Step(tile_matrices(s, machine, tile), args)]


def _copied(s: Conv) -> bool:
    """Whether rows of the left factor are copied: those that do not end with whole steps, or not at cache lines."""
    return padded(s).x.channels != s.x.channels or 2 * s.x.channels % 64 > 0
