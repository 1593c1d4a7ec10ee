"""Algorithms whose sums are made by outer products in tiles of a processor's matrix unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Algorithm
from tenon.machine.kernels.outer_products import OuterTiles


@dataclass(frozen=True)
class InOuterTiles(Algorithm):
    """An algorithm that is chosen by the tiles of its blocks; weights are packed for tiles of channels side by side."""

    tile: OuterTiles
    plain_weights: ClassVar[bool] = True

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(OuterTiles(numbers["down"], numbers["across"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        return asdict(self.tile)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.across
