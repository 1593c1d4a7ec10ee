"""Convolution and matrix product by tiles in registers of a processor's matrix unit (``kernels.tile_products``).

The estimate counts products and loads of tiles, of which the longer shows, and what follows the sums: these leave the
tiles through memory, which takes as long as eight products of a block of four tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from tenon.machine.algorithms.base import (
    Arg,
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
)
from tenon.machine.algorithms.estimate import overlapped, slowest, streamed, work_items
from tenon.machine.algorithms.integers import IntegerDirect, IntegerStage
from tenon.machine.algorithms.register_tiles import InRegisterTiles
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tile_blocks import CHANNELS, RegisterTiles, parts, pitch, runs_of
from tenon.machine.kernels.tile_products import (
    block_of,
    integer_tile_products,
    pack,
    reblocked,
    steps_of,
    supported,
    tile_products,
    words_of,
)
from tenon.network.graph.types import Layout

_LOAD = 16.6
"""Time to load a tile, in multiply-adds of a vector."""
_ACROSS_LINES = 109.0
"""The same of one whose rows lie across cache lines."""
_LINE = 64
"""Bytes of a cache line."""
_FLOOR = 9
"""A product of fewer rows takes as long as one of these."""
_FINISH, _BLOCK = 6.0, 60.0
"""Time to finish a vector of sums, and to begin a block; one of more than three tiles of positions takes twice that."""
_SIZES = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2))
"""Tiles of positions and of channels of the blocks that are compared: at most four, as more registers make loads wait
where the core is shared (``isa.amx``)."""


@dataclass(frozen=True)
class TileProducts(InRegisterTiles):
    """Sums by blocks of ``tile``."""

    name: ClassVar[str] = "tile-products"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(problem[0], machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in ranked(reblocked(problem[0]).flattened(), machine)[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        s = reblocked(problem[0]).flattened()
        return Cost(product_time(s, machine, self.tile), s.padded * steps_of(s) * 4 * words_of(s))

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        return replace(x, block=block_of(problem[0])), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        ((wanted,), (stage,)) = problem, stages
        if isinstance(stage, IntegerStage):
            return self._of_integers(wanted, stage, machine)
        s = stage.conv.flattened()
        tile = self._settled(wanted, s, machine)
        packed = map(Weights, pack(stage.constant, s, tile))
        args = (stage.left, *packed, *stage.epilogue_args(), Output())
        return [Step(tile_products(s, machine, tile), args)]

    def _of_integers(self, wanted: Conv, stage: IntegerStage, machine: Machine) -> list[Step]:
        s = replace(stage.described, conv=stage.described.conv.flattened())
        if not takes_weights(s):
            return direct_sums(wanted, stage, machine)
        tile = self._settled(wanted, s.conv, machine)
        packed = map(Weights, pack(stage.constant, s.conv, tile))
        args = (Input(0), *packed, *unshifted(stage, machine), Output())
        return [Step(integer_tile_products(s, machine, tile), args)]

    def _settled(self, wanted: Conv, s: Conv, machine: Machine) -> RegisterTiles:
        """The tile, or the best one where a halo keeps rows apart that were to be one, or joins others."""
        same = s.extent == wanted.flattened().extent and pitch(s) == pitch(wanted.flattened())
        return self.tile if same else ranked(s, machine)[0]


def takes_weights(s: IntegerConv) -> bool:
    """Whether a tile unit multiplies the weights: none with a zero point or of 4 bits."""
    return not (s.weight_zero or s.nibbles)


def direct_sums(wanted: Conv, stage: IntegerStage, machine: Machine) -> list[Step]:
    """The steps of a convolution whose weights tiles cannot multiply, by direct sums."""
    (direct,) = IntegerDirect.candidates((stage.described.conv.flattened(),), machine, Limits(), 1)
    return direct.lower((wanted,), (stage,), machine)


def unshifted(stage: IntegerStage, machine: Machine) -> tuple[Arg, ...]:
    """The operands of a stage for a unit that takes bytes with and without sign as they are: without what turns those
    of one kind into the other, and its part of the bias."""
    shifted = stage.described.shifted(machine)
    if not shifted:
        return stage.operands
    bias, _, *rest = stage.operands
    assert isinstance(bias, Weights)
    sums = stage.constant.astype(np.int64).reshape(len(stage.constant), -1).sum(1)
    own = bias.data + np.pad(shifted * sums, (0, len(bias.data) - len(sums)))
    return (Weights(own.astype(np.int32)), *rest)


@lru_cache(maxsize=1024)
def ranked(s: Conv, machine: Machine) -> list[RegisterTiles]:
    """All blocks that are compared, the least time first."""
    listed = []
    for flat in (0, 1) if s.stride == (1, 1) and s.extent[0] > 1 else (0,):
        wide = (s.extent[0] - 1) * pitch(s) + s.extent[1] if flat else s.extent[1]
        listed += blocks(wide, s.padded, flat)
    return sorted(listed, key=lambda tile: product_time(s, machine, tile))


def blocks(width: int, channels: int, flat: int = 0) -> list[RegisterTiles]:
    """All blocks for rows of so many positions."""
    able = [(down, across) for down, across in _SIZES if across <= max(1, channels // CHANNELS)]
    rows = {-(-width // -(-width // 16)), min(16, width)}
    return [RegisterTiles(each, down, across, flat) for each in sorted(rows) for down, across in able]


def sums_time(s: Conv, machine: Machine, tile: RegisterTiles, steps: int, *, across_lines: bool = False) -> float:
    """Time of all sums of a convolution of so many steps, in multiply-adds of a vector; ``across_lines``: rows of left
    tiles lie across cache lines."""
    unit = machine.tiles(s.x.dtype)
    assert unit is not None
    left = _ACROSS_LINES if across_lines else _LOAD
    total = 0.0
    for _, _, rows, count in parts(tile, s.extent, pitch(s)):
        for _, number, down in segments(count, tile.down):
            for run in runs_of(s, tile.across):
                product = unit.time * max(rows, _FLOOR) / 16
                step = max(down * run.across * product, down * left + run.across * _LOAD)
                finish = _FINISH * rows * down * run.across
                total += run.count * number * (steps * step + finish + _BLOCK * (1 + (down > 3)))
    return s.y.n * total


def product_time(s: Conv, machine: Machine, tile: RegisterTiles) -> float:
    """Time of a convolution, in multiply-adds of a vector."""
    steps, words = steps_of(s), words_of(s)
    cut = parts(tile, s.extent, pitch(s))
    positions = sum(-(-count // tile.down) for *_, count in cut)
    items = work_items(-(-s.padded // (CHANNELS * tile.across)), positions, threads=machine.threads)
    memory = s.padded * steps * 4 * words / (machine.stream * streamed(machine.threads))
    time = sums_time(s, machine, tile, steps, across_lines=_LINE % (4 * words) > 0)
    return overlapped(time * slowest(items, machine.threads), memory)
