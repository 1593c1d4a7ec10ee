"""Convolution and matrix product in work groups, by tiles in shared memory (``kernels.tiled``).

Which tile is best depends on how many blocks it makes: a device has many units, and small images have few positions.
The estimate counts the cycles of the unit that has the most blocks: arithmetic, loads of shared memory and the wait for
memory in each step, what follows the sums, and the second launch where products are in parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import (
    Algorithm,
    Arg,
    Cost,
    Limits,
    Output,
    Problem,
    Scratch,
    Stage,
    Step,
    Weights,
    without_halo,
)
from tenon.machine.algorithms.estimate import (
    COPIED,
    DEVICE_BARRIER,
    DEVICE_BYTES,
    DEVICE_CYCLES,
    DEVICE_ENDS,
    DEVICE_LATENCY,
    DEVICE_LAUNCH,
    ComputedImage,
    fitting,
)
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, GroupTile, batched, matrices, pack, positions, sums_shape, wide
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tiled import joined_parts, supported, tiled
from tenon.network.graph.types import F32, Layout

FMAS = 128
"""Multiply-adds of a unit in a cycle."""

_OTHERS = 64
"""Registers of a thread besides its sums."""


@dataclass(frozen=True)
class Tiled(Algorithm):
    """Direct sums in work groups, by tiles of ``tile``."""

    tile: GroupTile
    name: ClassVar[str] = "tiled"
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and machine.launch is not None and supported(problem[0])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(problem[0].flattened(), machine)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(GroupTile(*(numbers[name] for name in ("m", "n", "k", "rows", "cols", "splits"))))

    @property
    def numbers(self) -> Mapping[str, int]:
        return asdict(self.tile)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.n, self.tile.k

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = problem[0].flattened()
        depth, channels = Depth.of(s, self.tile.k), -(-s.padded // self.tile.n) * self.tile.n
        assert machine.launch is not None
        return Cost(
            cycles(s, self.tile, machine.launch) / DEVICE_CYCLES, s.weights.bytes * depth.steps * self.tile.k * channels
        )

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """Taps beside the image need no halo."""
        return without_halo(x), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,), tile = stages, self.tile
        s = stage.conv.flattened()
        if stage.weights is not None:
            packed: Arg = Weights(pack(stage.weights.astype(np.float32), s, tile))
        else:
            assert stage.right is not None
            packed = stage.right
        if tile.splits == 1:
            return [Step(tiled(s, tile), (stage.left, packed, *stage.epilogue_args(), Output()))]
        sums = Scratch("sums", 4 * math.prod(sums_shape(s, tile)))
        ends = (sums, *stage.epilogue_args(), Output())
        return [Step(tiled(s, tile), (stage.left, packed, sums)), Step(joined_parts(s, tile), ends)]


@lru_cache(maxsize=1024)
def ranked(s: Conv, machine: Machine, rate: float = FMAS) -> list[GroupTile]:
    """All tiles that the machine can run, the least time first; a unit adds ``rate`` products in a cycle."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    able = [t for t in tiles(s, launch) if t.shared <= space.bytes]
    return sorted(able, key=lambda tile: cycles(s, tile, launch, rate))


def tiles(s: Conv, launch: Launch) -> Iterator[GroupTile]:
    """Tiles whose threads fill whole groups of those that are issued at once, and are not much larger than the
    result."""
    largest_m, largest_n = max(16, 2 * positions(s) - 1), max(16, 2 * s.padded - 1)
    for m, n, rows, cols in product((16, 32, 64, 128), (16, 32, 64, 128), (1, 2, 4, 8), (4, 8)):
        if m > largest_m or n > largest_n:
            continue
        threads = GroupTile(m, n, 4, rows, cols).threads
        if threads % launch.width or threads > min(256, launch.group):
            continue
        for k in _depths(s):
            steps = Depth.of(s, k).steps
            parts = (1,) if batched(s) else (1, 2, 3, 4, 6, 8, 9, 12, 16)
            for splits in (p for p in parts if steps % p == 0 and (p == 1 or steps // p >= 3)):
                yield GroupTile(m, n, k, rows, cols, splits)


def _depths(s: Conv) -> list[int]:
    """Products in a step."""
    if wide(s) == 4:
        return [8, 16, 32]
    whole = s.taps * s.x.channels
    return [k for k in range(4, 33) if whole % k == 0] or [16]


def cycles(s: Conv, tile: GroupTile, launch: Launch, rate: float = FMAS, image: ComputedImage = COPIED) -> float:
    """Cycles of a device until the layer is computed; a unit adds ``rate`` products in a cycle.

    What becomes f32 on its way to shared memory takes as long as f32, because each number is converted.
    """
    least = F32.bytes if rate == FMAS else 0
    depth = Depth.of(s, tile.k)
    blocks = matrices(s) * -(-positions(s) // tile.m) * -(-s.padded // tile.n) * tile.splits
    each = -(-blocks // launch.units)  # blocks of the unit that has the most
    together = max(1, min(each, fitting(launch, tile.threads, tile.sums + _OTHERS)))
    warps = tile.threads / launch.width
    multiplies = tile.m * tile.n * tile.k / rate
    loads = warps * tile.loads * 2.5
    filled = min(1.0, together * warps / 8)  # few threads hide little latency
    x_bytes, w_bytes = (max(least, dtype.bytes) for dtype in (s.x.dtype, s.weights))
    arrives = tile.k * (x_bytes * tile.m + w_bytes * tile.n) / DEVICE_BYTES
    busy = (max(multiplies, loads, arrives) + image.issued) / (0.25 + 0.75 * filled) + 8 * warps
    alone = image.alone + busy if image.alone else DEVICE_LATENCY
    step = max(busy * together, alone) + DEVICE_BARRIER
    time = -(-each // together) * (depth.steps / tile.splits * step + DEVICE_LATENCY + DEVICE_ENDS)
    if tile.splits > 1:
        sums = positions(s) * s.padded
        time += DEVICE_LAUNCH + DEVICE_LATENCY + 2 * tile.splits * 4 * sums / (launch.units * DEVICE_BYTES)
    return time
