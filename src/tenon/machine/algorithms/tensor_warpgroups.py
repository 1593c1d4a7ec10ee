"""Convolution and matrix product of 16-bit floats, and of bytes, by groups of four warps beside their copies
(``kernels.tensor_warpgroups``).

A step takes as long as its products, its copies, or what arrives, whichever is longest: the unit multiplies while
threads issue copies.  A block that is alone on its unit waits for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Cost, Limits, Problem
from tenon.machine.algorithms.estimate import (
    DEVICE_BYTES,
    DEVICE_CYCLES,
    DEVICE_ENDS,
    DEVICE_LATENCY,
    DEVICE_LAUNCH,
    fitting,
    waves,
)
from tenon.machine.algorithms.narrow_images import ReadsNarrowImages
from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.isa.warpgroups import COLUMNS, WGMMA_BF16, WGMMA_F16
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import Depth, positions
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import M
from tenon.machine.kernels.tensor_tiled import WarpTile
from tenon.machine.kernels.tensor_warpgroups import GROUP, WarpgroupTile, pack, supported, tensor_warpgroups
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, DType

_UNITS = {DType.F16: WGMMA_F16.operation, DType.BF16: WGMMA_BF16.operation}

_RATE, _READ = 4096.0, 128.0
"""Bytes of either operand that the tensor cores of a unit multiply in a cycle, and bytes that they, and copies, reach
in shared memory."""

_OTHERS = 48
"""Registers of a thread besides its sums."""

_MEMORY = 227 << 10
"""Bytes of shared memory of a unit."""

_STEP, _CHUNK = 450, 12
"""Cycles from the wait for a step's copies until its products run and after them to the next, and those in which a unit
issues the copies of a thread's part."""

_WORDS, _BEGIN, _RESULT = 7, 700, 12
"""Cycles where bytes are multiplied: those of a unit for copies of a warp from four places of memory, those before the
first step, and those of a thread for each result (of 5 layers of 32 images and 7 of one on an H100)."""


_FEW, _NARROW = 64, 128
"""Products of a result at which a block stores for longer than it multiplies, and the most channels of its tile then:
a unit has room for two such blocks, of which one stores while the other multiplies."""


class TensorWarpgroups(ReadsNarrowImages, TensorTiled):
    """Direct sums by tiles of a matrix unit that works beside the threads of four warps."""

    name: ClassVar[str] = "tensor-warpgroups"
    shape: ClassVar[type[WarpTile]] = WarpgroupTile

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        able = len(problem) == 1 and machine.launch is not None and machine.launch.copies
        return (
            able and problem[0].x.dtype in _UNITS and machine.has(_UNITS[problem[0].x.dtype]) and supported(problem[0])
        )

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(cls.arranged(problem[0]), machine, WarpgroupTile)[:count]]

    def packed(self, weights: Array, s: Conv) -> Array:
        assert isinstance(self.tile, WarpgroupTile)
        return pack(weights, s, self.tile)

    def kernel(self, s: Conv) -> Kernel:
        assert isinstance(self.tile, WarpgroupTile)
        return tensor_warpgroups(s, self.tile)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s, tile = self.arranged(problem[0]), self.tile
        assert machine.launch is not None
        assert isinstance(tile, WarpgroupTile)
        channels = -(-s.padded // tile.n) * tile.n
        time = cycles(s, tile, machine.launch) / DEVICE_CYCLES
        return Cost(time, 2 * Depth.of(s, tile.k).steps * tile.k * channels)


@lru_cache(maxsize=1024)
def ranked(s: Conv, machine: Machine, kind: type[WarpgroupTile]) -> list[WarpgroupTile]:
    """All tiles of a kind that the machine can run, the least time first; ``kind`` says what an element is."""
    launch, space = machine.launch, machine.space("shared")
    if launch is None or space is None:
        return []
    able = [tile for tile in _tiles(s, kind) if tile.shared <= space.bytes]
    return sorted(able, key=lambda tile: cycles(s, tile, launch))


def _tiles(s: Conv, kind: type[WarpgroupTile] = WarpgroupTile) -> Iterator[WarpgroupTile]:
    """Tiles that are not much larger than the result."""
    largest_m, largest_n = max(GROUP, 2 * positions(s) - 1), max(COLUMNS[0], 2 * s.padded - 1)
    depths, few = [size // kind.bytes for size in (64, 128, 256)], _FEW * 2 // kind.bytes
    for m, n, k, stages in product((64, 128, 256), COLUMNS, depths, (3, 4, 6)):
        stores = s.taps * s.x.channels <= few and n > _NARROW
        if m > largest_m or n > largest_n or m * n > 128 * 256 or stores:
            continue
        tile, steps = kind(m, n, k, M, n, 1, stages), Depth.of(s, k).steps
        for splits in (p for p in (1, 2, 3, 4, 6, 8) if steps % p == 0 and (p == 1 or steps // p >= 4)):
            parted = replace(tile, splits=splits)
            if parted.fitting(steps) == stages or stages == 3:
                yield replace(parted, stages=parted.fitting(steps))


def cycles(s: Conv, tile: WarpgroupTile, launch: Launch) -> float:
    """Cycles of a device until the layer is computed."""
    depth, words = Depth.of(s, tile.k), s.x.dtype is I32
    steps = depth.steps / tile.splits
    blocks = -(-positions(s) // tile.m) * -(-s.padded // tile.n) * tile.splits
    most = min(fitting(launch, tile.threads, tile.n // 2 + _OTHERS), _MEMORY // (tile.shared + 1024))
    multiplies = tile.m * tile.n * tile.k * tile.bytes / _RATE
    groups, copied = tile.m // GROUP, tile.bytes * tile.k * (tile.m + tile.n)
    reached = (groups * tile.bytes * tile.k * (GROUP + tile.n) + copied) / _READ
    arrives = tile.bytes * tile.k * (tile.m / min(s.taps, 3) + tile.n) / DEVICE_BYTES
    image, weights = tile.k * tile.m / depth.wide / 32, tile.k * tile.n * tile.bytes / 16 / 32
    issued = image * (_WORDS if words else _CHUNK / 4) + weights * _CHUNK / 4
    busy = max(multiplies, reached, arrives, issued)
    alone = _STEP + max(multiplies, issued)
    begin, stores = (_BEGIN, tile.m * tile.n * _RESULT / 128) if words else (0, 0.0)
    time = sum(
        begin + steps * max(busy * at_once, alone) + DEVICE_LATENCY + DEVICE_ENDS + stores * at_once
        for at_once in waves(launch, blocks, most)
    )
    if tile.splits > 1:
        sums = positions(s) * s.padded
        time += DEVICE_LAUNCH + DEVICE_LATENCY + 2 * tile.splits * 4 * sums / (launch.units * DEVICE_BYTES)
    return time
