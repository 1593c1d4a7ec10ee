"""Convolution and matrix product of 16-bit floats by a matrix unit, with copies in stages (``kernels.tensor_staged``).

Copies are on their way while a block computes, so that the time of a step is that of arithmetic, of shared memory or
of what arrives, whichever is longest; memory's latency counts once, and in each step where a block has two stages.
Small results are cut into parts of the products: of a cluster's blocks, where the machine has clusters, or of separate
blocks and a second launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Problem
from tenon.machine.algorithms.estimate import (
    COPIED,
    DEVICE_BYTES,
    DEVICE_CYCLES,
    DEVICE_ENDS,
    DEVICE_LATENCY,
    DEVICE_LAUNCH,
    ComputedImage,
    fitting,
    waves,
)
from tenon.machine.algorithms.narrow_images import ReadsNarrowImages
from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, divides, positions, wide
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import OPERATIONS, StagedTile, pack, supported, tensor_staged
from tenon.machine.kernels.tensor_tiled import WarpTile
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32

_RATE = 1024.0
"""Products that the tensor cores of a unit add in a cycle, by instructions of 16 x 8 x 16."""

_SUMS = 128
"""Most sums of a thread."""

_OTHERS = 64
"""Registers of a thread besides its sums."""

_STEP, _OTHER_STEP, _CHAIN, _MEETING = 150, 250, 35, 7000
"""Cycles of a step in which a block waits for its threads and computes places, the same where groups of a step have
taps of their own or it computes the image, of an instruction until its sums are there (the first fitted to 18 layers on
an H100), and what a launch of clusters takes longer: on an H100 more than a second launch, which is why it is not
chosen unless it is measured (``bench/gpu_tiles.py``)."""

_CHUNK, _FLAT = 16, 40
"""Cycles in which a unit issues the copies of a thread's part, with the places that it computes: of the groups of one
tap or a few, and where each group has a tap of its own (``Depth.flat``)."""


class TensorStaged(ReadsNarrowImages, TensorTiled):
    """Direct sums by tiles of a matrix unit, copied in stages."""

    name: ClassVar[str] = "tensor-staged"
    shape: ClassVar[type[WarpTile]] = StagedTile

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.launch.copies
        return able and supported(problem[0]) and machine.has(OPERATIONS[problem[0].x.dtype])

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(cls.arranged(problem[0]), machine)[:count]]

    def packed(self, weights: Array, s: Conv) -> Array:
        assert isinstance(self.tile, StagedTile)
        return pack(weights, s, self.tile)

    def kernel(self, s: Conv) -> Kernel:
        assert isinstance(self.tile, StagedTile)
        return tensor_staged(s, self.tile)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s, tile = self.arranged(problem[0]), self.tile
        assert machine.launch is not None
        assert isinstance(tile, StagedTile)
        channels = -(-s.padded // tile.n) * tile.n
        return Cost(
            staged_cycles(s, tile, machine.launch) / DEVICE_CYCLES,
            2 * Depth.of(s, tile.k).steps * tile.k * channels,
        )


@lru_cache(maxsize=1024)
def ranked(s: Conv, machine: Machine, kind: type[StagedTile] = StagedTile) -> list[StagedTile]:
    """All tiles of a kind that the machine can run, the least time first; ``kind`` says what an element is."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    able = [tile for tile in tiles(s, launch, kind, space.bytes) if tile.shared <= space.bytes]
    return sorted(able, key=lambda tile: staged_cycles(s, tile, launch))


def tiles(s: Conv, launch: Launch, kind: type[StagedTile], most: int) -> Iterator[StagedTile]:
    """Tiles that are not much larger than the result.  Blocks have 32 positions at least: where threads of eight rows
    copy half of one, it is not proved that they copy different elements."""
    largest_m, largest_n = max(32, 2 * positions(s) - 1), max(16, 2 * s.padded - 1)
    depths = [size // kind.bytes for size in (32, 64, 128, 256)]
    for m, n, k, rows, cols in product((32, 64, 128), (16, 32, 64, 128), depths, (16, 32, 64), (16, 32, 64)):
        tile = kind(m, n, k, rows, cols, 1, 4 if is_staged(s) else 2)
        while tile.stages > 2 and tile.shared > most:
            tile = replace(tile, stages=tile.stages - 1)
        fits = m % rows == n % cols == 0 and m <= largest_m and n <= largest_n
        if not fits or tile.sums > _SUMS or not 64 <= tile.threads <= min(256, launch.group):
            continue
        yield from _in_parts(s, tile, launch)


def _in_parts(s: Conv, tile: StagedTile, launch: Launch) -> Iterator[StagedTile]:
    """The tile with the products of results in parts, and fewer stages for fewer steps."""
    steps = Depth.of(s, tile.k).steps
    for splits in (p for p in (1, 2, 3, 4, 6, 8, 9, 12, 16) if steps % p == 0 and (p == 1 or steps // p >= 2)):
        parted = replace(tile, splits=splits)
        parted = replace(parted, stages=parted.fitting(steps))
        yield replace(parted, cluster=int(1 < splits <= launch.cluster and parted.joins))


def is_staged(s: Conv) -> bool:
    """Whether copies are asynchronous: of groups of four floats, and of words."""
    return wide(s) == 4 or s.x.dtype is I32


def staged_cycles(s: Conv, tile: StagedTile, launch: Launch, image: ComputedImage = COPIED) -> float:
    """Cycles of a device until the layer is computed."""
    depth = Depth.of(s, tile.k)
    blocks = -(-positions(s) // tile.m) * -(-s.padded // tile.n) * tile.splits
    most = min(fitting(launch, tile.threads, tile.sums + _OTHERS), (200 << 10) // tile.shared)
    warps = tile.threads // 32
    steps = depth.steps / tile.splits
    multiplies = tile.m * tile.n * tile.instructions * 16 / _RATE
    loads = warps * tile.loads * 2
    again = min(s.taps, 3) if is_staged(s) else 1  # taps find in the first cache what others have read
    arrives = tile.k * tile.bytes * (tile.m / again + tile.n) / DEVICE_BYTES
    copied = 0 if image.issued else tile.k * tile.m / depth.wide
    copies = (
        copied * (_FLAT / _CHUNK if divides(s, depth) and is_staged(s) else 1) + tile.k * tile.n * tile.bytes / 16
    ) / tile.threads
    issued = warps * copies * _CHUNK / 4
    busy = max(multiplies, loads, arrives) + issued + image.issued
    alone = (
        (_OTHER_STEP if depth.flat or image.issued else _STEP)
        + tile.instructions * (_CHAIN + tile.rows * tile.cols / 16)
        + copies * _CHUNK
        + image.alone
    )
    first = 0.0  # what the first step waits for
    if not is_staged(s):
        alone += DEVICE_LATENCY  # each step waits for what it copies
    elif not image.issued:
        first = arrives
        alone = max(alone, (DEVICE_LATENCY + arrives) * (tile.stages == 2))
    each = (steps * max(busy * n, alone) + first * n for n in waves(launch, blocks, most))
    time = sum(cycles + DEVICE_LATENCY + DEVICE_ENDS for cycles in each)
    if tile.splits > 1 and tile.cluster:
        time += _MEETING + 60 * tile.splits
    elif tile.splits > 1:
        sums = positions(s) * s.padded
        time += DEVICE_LAUNCH + DEVICE_LATENCY + 2 * tile.splits * 4 * sums / (launch.units * DEVICE_BYTES)
    return time
