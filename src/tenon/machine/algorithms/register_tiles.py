"""Algorithms whose sums are made by blocks of tiles in registers of a processor's matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

from tenon.machine.algorithms.base import Algorithm
from tenon.machine.kernels.tile_blocks import RegisterTiles


@dataclass(frozen=True)
class InRegisterTiles(Algorithm):
    """An algorithm that is chosen by the tiles of its blocks; weights are packed for tiles of channels side by side."""

    tile: RegisterTiles

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(RegisterTiles(*(numbers[name] for name in ("rows", "down", "across", "flat"))))

    @property
    def numbers(self) -> Mapping[str, int]:
        return asdict(self.tile)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.across
