"""Convolution and matrix product of f16 by cooperative matrices, in work groups (``kernels.matrix_tiled``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.tiled import Tiled, cycles
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, positions, sums_shape
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.matrix_tiled import PRODUCT, MatrixTile, matrix_tiled, pack
from tenon.machine.kernels.tensor_tiled import supported
from tenon.machine.kernels.tiled import joined_parts

_RATE = 512.0
"""Products that the matrix unit of a processor of the device adds in a cycle."""

_SUMS = 64
"""Most sums of a thread."""


class MatrixTiled(Tiled):
    """Direct sums by cooperative matrices."""

    name: ClassVar[str] = "matrix-tiled"

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.has(PRODUCT)
        return able and supported(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in _ranked(problem[0].flattened(), machine)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(MatrixTile(*astuple(Tiled.of_numbers(numbers).tile)))

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = problem[0].flattened()
        assert machine.launch is not None
        channels = -(-s.padded // self.tile.n) * self.tile.n
        time = cycles(s, self.tile, machine.launch, _RATE)
        return Cost(time / DEVICE_CYCLES, 2 * Depth.of(s, self.tile.k).steps * self.tile.k * channels)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        assert isinstance(tile, MatrixTile)
        s = stage.conv.flattened()
        packed = Weights(pack(stage.constant, s, tile))
        ends = (*stage.epilogue_args(), Output())
        if tile.splits == 1:
            return [Step(matrix_tiled(s, tile), (stage.left, packed, *ends))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s, tile)))
        return [Step(matrix_tiled(s, tile), (stage.left, packed, sums)), Step(joined_parts(s, tile), (sums, *ends))]


@lru_cache(maxsize=1024)
def _ranked(s: Conv, machine: Machine) -> list[MatrixTile]:
    """All tiles that the machine can run, the least time first."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    able = [tile for tile in _tiles(s, launch) if tile.shared <= space.bytes]
    return sorted(able, key=lambda tile: cycles(s, tile, launch, _RATE))


def _tiles(s: Conv, launch: Launch) -> Iterator[MatrixTile]:
    """Tiles that are not much larger than the result, with 32 positions at least, as in ``TensorTiled``.  Several
    subgroups of the same positions are not proved to copy different elements."""
    largest_m, largest_n = max(32, 2 * positions(s) - 1), max(16, 2 * s.padded - 1)
    for m, n, k, rows, cols in product((32, 64, 128), (16, 32, 64, 128), (16, 32), (16, 32, 64), (16, 32, 64)):
        tile = MatrixTile(m, n, k, rows, cols)
        fits = m % rows == n % cols == 0 and m <= largest_m and n <= largest_n and (m > rows or n == cols)
        if not fits or tile.sums > _SUMS or tile.threads > min(256, launch.group):
            continue
        steps = Depth.of(s, k).steps
        for splits in (p for p in (1, 2, 3, 4, 6, 8, 9, 12, 16) if steps % p == 0 and (p == 1 or steps // p >= 3)):
            yield MatrixTile(m, n, k, rows, cols, splits)
