"""First layers by tiles in registers of a processor's matrix unit, of patches (``kernels.tile_patches``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Algorithm,
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
from tenon.machine.algorithms.tile_products import blocks, direct_sums, sums_time, takes_weights, unshifted
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_blocks import RegisterTiles
from tenon.machine.kernels.tile_patches import (
    integer_tile_patches,
    lines,
    pack,
    patch_bytes,
    supported,
    tile_patches,
    words_of,
)

_COPY = 4.0
"""Time to copy a patch of one channel, in multiply-adds of a vector."""
_MOST = 1 << 12
"""Patches of a band, which should stay in the second cache; more would make hardly fewer copies."""


@dataclass(frozen=True)
class TilePatches(Algorithm):
    """Sums by blocks of ``tile``, of patches of ``band`` rows of the output at a time."""

    tile: RegisterTiles
    band: int
    name: ClassVar[str] = "tile-patches"
    offered: ClassVar[int] = 2
    own_memory: ClassVar[bool] = True
    any_block: ClassVar[bool] = True

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile, band) for tile, band in _ranked(problem[0], machine)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(RegisterTiles(*(numbers[name] for name in ("rows", "down", "across", "flat"))), numbers["band"])

    @property
    def numbers(self) -> Mapping[str, int]:
        return {**asdict(self.tile), "band": self.band}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.across

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,) = problem
        return Cost(_time(s, machine, self.tile, self.band), s.padded * s.kernel[0] * 4 * words_of(s))

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile, band = stages, self.tile, self.band
        ends: tuple[Arg, ...] = tuple(stage.epilogue_args())
        if isinstance(stage, IntegerStage):
            if not takes_weights(stage.described):
                return direct_sums(problem[0], stage, machine)
            kernel, s = integer_tile_patches(stage.described, machine, tile, band), stage.described.conv
            ends = unshifted(stage, machine)
        else:
            kernel, s = tile_patches(stage.conv, machine, tile, band), stage.conv
        left = Input(0) if isinstance(stage, IntegerStage) else stage.left
        patches = Scratch("patches", patch_bytes(s, band), per_thread=True)
        return [Step(kernel, (left, *map(Weights, pack(stage.constant, s, tile)), patches, *ends, Output()))]


@lru_cache(maxsize=64)
def _ranked(s: Conv, machine: Machine) -> list[tuple[RegisterTiles, int]]:
    """All blocks, each with the band that fits the cache, the least time first."""
    height = s.extent[0]
    whole = [rows for rows in range(1, min(height, 16) + 1) if height % rows == 0]
    fitting = [
        rows for rows in whole if lines(s, rows) * s.extent[1] <= _MOST and height // rows >= 2 * (machine.threads - 1)
    ]
    band = (fitting or [1])[-1]
    listed = [(tile, band) for tile in blocks(s.extent[1], s.padded)]
    return sorted(listed, key=lambda each: _time(s, machine, *each))


def _time(s: Conv, machine: Machine, tile: RegisterTiles, band: int) -> float:
    """Time of the convolution, in multiply-adds of a vector."""
    bands = s.extent[0] // band
    copies = s.y.n * bands * lines(s, band) * s.extent[1] * s.x.blocks * _COPY
    positions = replace(s, x=replace(s.x, left=0, right=0))
    sums = sums_time(positions, machine, tile, s.kernel[0])
    return (copies + sums) * slowest(bands, machine.threads)
