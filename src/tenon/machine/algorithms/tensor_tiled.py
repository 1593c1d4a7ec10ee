"""Convolution and matrix product of f16 by a matrix unit, in work groups (``kernels.tensor_tiled``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Output, Problem, Scratch, Stage, Step, Weights
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.tiled import Tiled, cycles
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, positions, sums_shape
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_tiled import OPERATION, WarpTile, pack, supported, tensor_tiled
from tenon.machine.kernels.tiled import joined_parts
from tenon.network.graph.graph import Array

_RATE = 512.0
"""Products that the matrix unit of a processor of the device adds in a cycle, by instructions of 16 x 8 x 8."""

_SUMS = 64
"""Most sums of a thread."""


class TensorTiled(Tiled):
    """Direct sums by tiles of a matrix unit."""

    name: ClassVar[str] = "tensor-tiled"
    operation: ClassVar[str] = OPERATION
    """The product unit of a machine that it needs."""
    shape: ClassVar[type[WarpTile]] = WarpTile
    """The class of its tiles."""

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.has(cls.operation)
        return able and supported(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        ranked = _ranked(problem[0].flattened(), machine, cls.shape)  # type: ignore[arg-type]  # a class has a hash
        return [cls(tile) for tile in ranked[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(cls.shape(**{field.name: numbers[field.name] for field in fields(cls.shape)}))

    @classmethod
    def arranged(cls, s: Conv) -> Conv:
        """A layer as it is computed."""
        return s.flattened()

    def packed(self, weights: Array, s: Conv) -> Array:
        """The weights as ``kernel`` reads them."""
        assert isinstance(self.tile, WarpTile)
        return pack(weights, s, self.tile)

    def kernel(self, s: Conv) -> Kernel:
        """Parameters: x, weights, what follows the sums, y; where these are in parts only x, weights and the sums."""
        assert isinstance(self.tile, WarpTile)
        return tensor_tiled(s, self.tile)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = problem[0].flattened()
        assert machine.launch is not None
        channels = -(-s.padded // self.tile.n) * self.tile.n
        time = cycles(s, self.tile, machine.launch, _RATE)
        return Cost(time / DEVICE_CYCLES, 2 * Depth.of(s, self.tile.k).steps * self.tile.k * channels)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        assert isinstance(tile, WarpTile)
        s = self.arranged(stage.conv)
        packed = Weights(self.packed(stage.constant, s))
        ends = (*stage.epilogue_args(), Output())
        if tile.in_one_launch:
            return [Step(self.kernel(s), (stage.left, packed, *ends))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s, tile)))
        return [Step(self.kernel(s), (stage.left, packed, sums)), Step(joined_parts(s, tile), (sums, *ends))]


@lru_cache(maxsize=1024)
def _ranked(s: Conv, machine: Machine, kind: type[WarpTile]) -> list[WarpTile]:
    """All tiles of a kind that the machine can run, the least time first."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    able = [tile for tile in _tiles(s, launch, kind) if tile.shared <= space.bytes]
    return sorted(able, key=lambda tile: cycles(s, tile, launch, _RATE))


def _tiles(s: Conv, launch: Launch, kind: type[WarpTile]) -> Iterator[WarpTile]:
    """Tiles that are not much larger than the result.  Blocks have 32 positions at least: where threads of eight rows
    copy half of one, it is not proved that they copy different elements."""
    largest_m, largest_n = max(32, 2 * positions(s) - 1), max(16, 2 * s.padded - 1)
    for m, n, k, rows, cols in product((32, 64, 128), (16, 32, 64, 128), (16, 32), (16, 32, 64), (16, 32, 64)):
        tile = kind(m, n, k, rows, cols)
        fits = m % rows == n % cols == 0 and m <= largest_m and n <= largest_n and tile.copies_apart
        if not fits or tile.sums > _SUMS or tile.threads > min(256, launch.group):
            continue
        steps = Depth.of(s, k).steps
        for splits in (p for p in (1, 2, 3, 4, 6, 8, 9, 12, 16) if steps % p == 0 and (p == 1 or steps // p >= 3)):
            yield replace(tile, splits=splits)
