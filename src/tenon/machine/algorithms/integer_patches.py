"""Convolution of planes of f32, quantised as they are read, by a matrix unit (``kernels.integer_patches``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Algorithm, Cost, Input, Limits, Output, Problem, Stage, Step, Weights
from tenon.machine.algorithms.estimate import DEVICE_CYCLES, DEVICE_ENDS, DEVICE_LATENCY, fitting, waves
from tenon.machine.algorithms.integer_tiled import described
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.integer_patches import ImagePatch, PatchTile, integer_patches, pack, paired, supported
from tenon.machine.kernels.integer_staged import WORDS
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import M

_SUMS = 64
"""Most sums of a thread."""

_OTHERS = 56
"""Registers of a thread besides its sums."""

_ELEMENT, _PART, _RESULT, _PRODUCT = 13, 40, 14, 3
"""Instructions of an element that is quantised, of a pair of words besides, of a result that is stored, and of an
instruction of the matrix unit with its operands."""

_APART = 3
"""Cycles between the instructions of a warp that has its unit for itself: most wait for the one before.  By it a single
image is cut into blocks of four rows, whose threads have few parts: the fastest ones on an H100 (bench/NOTES.md)."""


@dataclass(frozen=True)
class IntegerPatches(Algorithm):
    """Sums of a patch of the image in shared memory, by ``tile``."""

    tile: PatchTile
    name: ClassVar[str] = "integer-patches"
    offered: ClassVar[int] = 4
    quantises: ClassVar[bool] = True

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        (s, *more) = problem
        staged = machine.launch is not None and machine.launch.copies
        return not more and staged and bool(s.image_scale) and supported(s, machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        (s,), launch, space = problem, machine.launch, machine.space("shared")
        assert launch is not None
        c, most = paired(s), 0 if space is None else space.bytes
        n = next((n for n in (16, 32) if n >= s.padded), 64)  # of fewer, more blocks would quantise the same
        tiles = [PatchTile(rows, own, n) for rows, own in product((2, 4, 8, 16), (1, 2, 4))]
        able = [
            tile
            for tile in tiles
            if 64 <= tile.threads <= 256 and tile.sums <= _SUMS and ImagePatch.of(c, tile).shared(tile) <= most
        ]
        return [cls(tile) for tile in sorted(able, key=lambda tile: cycles(s, tile, launch))[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(PatchTile(numbers["rows"], numbers["own"], numbers["n"]))

    @property
    def numbers(self) -> Mapping[str, int]:
        return asdict(self.tile)

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.tile.n

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        (s,), tile = problem, self.tile
        assert machine.launch is not None
        words = ImagePatch.of(paired(s), tile).steps * WORDS * -(-s.padded // tile.n) * tile.n
        return Cost(cycles(s, tile, machine.launch) / DEVICE_CYCLES, 4 * words)

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        s = described(stage)
        packed = Weights(pack(stage.constant, s, self.tile))
        return [Step(integer_patches(s, self.tile), (Input(0), packed, *stage.operands, Output()))]


def cycles(s: Conv, tile: PatchTile, launch: Launch) -> float:
    """Cycles of a device until the layer is computed: a block waits for what it reads, then issues its instructions."""
    patch, (height, width) = ImagePatch.of(paired(s), tile), s.extent
    blocks = s.y.n * -(-height // tile.rows) * -(-width // M) * -(-s.padded // tile.n)
    most = min(fitting(launch, tile.threads, tile.sums + _OTHERS), (200 << 10) // patch.shared(tile))
    pairs = -(-patch.rows * patch.pairs // tile.threads)  # of a thread
    read = pairs * (2 * s.x.channels * _ELEMENT + _PART)
    products = patch.steps * tile.sums / 4 * _PRODUCT
    own = read + products + tile.sums * _RESULT
    busy, alone = tile.threads / 32 * own / 4, DEVICE_LATENCY + _APART * own
    return sum(max(busy * n, alone) + DEVICE_ENDS for n in waves(launch, blocks, most)) + DEVICE_LATENCY
