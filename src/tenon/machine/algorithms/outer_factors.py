"""Product of two matrices that a run computes, by outer products in tiles (``kernels.outer_factors``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Output, Problem, Scratch, Stage, Step
from tenon.machine.algorithms.estimate import slowest, work_items
from tenon.machine.algorithms.outer_matrices import product_time, ranked
from tenon.machine.algorithms.outer_tiles import InOuterTiles
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_factors import one_by_packed, outer_factors, supported
from tenon.machine.kernels.outer_matrices import panel_bytes


@dataclass(frozen=True)
class OuterFactors(InOuterTiles):
    """Sums by blocks of ``tile``, of rows of the left matrix that are put side by side."""

    name: ClassVar[str] = "outer-factors"
    offered: ClassVar[int] = 1
    own_memory: ClassVar[bool] = True
    plain_weights: ClassVar[bool] = False

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(one_by_packed(problem[0]), machine)[:count]]

    @property
    def packing(self) -> tuple[str | int, ...]:
        return (self.name,)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        items = work_items(s.batches[0][0], -(-s.y.w // (SIDE * self.tile.down)), threads=machine.threads)
        of_one = product_time(one_by_packed(s), replace(machine, threads=1), self.tile)
        return Cost(s.y.n * of_one * slowest(items, machine.threads))

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        s = stage.conv
        assert stage.right is not None
        panels = [Scratch(f"panel{i}", size, per_thread=True) for i, size in enumerate(panel_bytes(s, self.tile))]
        args = (stage.left, stage.right, *panels, *stage.epilogue_args(), Output())
        return [Step(outer_factors(s, machine, self.tile), args)]
