"""Convolution by outer products in tiles of a matrix unit (``kernels.outer_products``).

The estimate counts products and loads of vectors, and what follows the sums, which leave the tiles through memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Cost,
    Input,
    Limits,
    Output,
    Problem,
    Stage,
    Step,
    Weights,
    in_floats,
)
from tenon.machine.algorithms.estimate import overlapped, slowest, streamed, work_items
from tenon.machine.algorithms.integers import FINISH, IntegerStage
from tenon.machine.algorithms.outer_tiles import InOuterTiles
from tenon.machine.algorithms.tile_products import direct_sums, takes_weights, unshifted
from tenon.machine.isa.sme import TILES
from tenon.machine.isa.sme_blocks import SIDE
from tenon.machine.kernel_ir.build import segments
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.outer_products import (
    LANES,
    OuterTiles,
    cuts,
    integer_outer_products,
    outer_products,
    pack,
    steps_of,
    supported,
    unit_of,
    words_of,
)
from tenon.network.graph.types import Layout

_LOAD, _BLOCK = 2.0, 150.0
"""Time to load a vector, and to begin a block and to store its sums."""
_SIZES = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
"""Tiles of positions and of channels of the blocks that are compared."""
_MOST = 16
"""Bytes of a block of a position that one instruction takes apart."""


def _block(c: Conv) -> int:
    """The channels of a block of the input that one instruction loads, of bytes and bf16 up to four words."""
    most = _MOST // c.x.dtype.bytes // max(c.stride[1], 1)
    block = c.x.block
    while c.x.block > 1 and block < most and block < c.x.channels:
        block *= 2
    return block


def _reblocked(c: Conv) -> Conv:
    """The convolution of an image in the layout that it wants."""
    return replace(c, x=replace(c.x, block=_block(c)))


@dataclass(frozen=True)
class OuterProducts(InOuterTiles):
    """Sums by blocks of ``tile``."""

    name: ClassVar[str] = "outer-products"
    offered: ClassVar[int] = 4

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(_reblocked(problem[0]), machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile) for tile in _ranked(_reblocked(problem[0]).flattened(), machine)[:count]]

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        c = _reblocked(problem[0]).flattened()
        return Cost(_time(c, machine, self.tile), weight_bytes(c))

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        *outer, (before, after) = x.halo
        return replace(x, block=_block(problem[0]), halo=(*outer, (before, after + problem[0].stride[1] - 1))), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        if isinstance(stage, IntegerStage):
            return self._of_integers(problem[0], stage, machine)
        c = stage.conv.flattened()
        packed = map(Weights, pack(stage.constant, c, self.tile))
        args = (stage.left, *packed, *stage.epilogue_args(), Output())
        return [Step(outer_products(c, machine, self.tile), args)]

    def _of_integers(self, wanted: Conv, stage: IntegerStage, machine: Machine) -> list[Step]:
        s = replace(stage.described, conv=stage.described.conv.flattened())
        if not takes_weights(s):
            return direct_sums(wanted, stage, machine)
        packed = map(Weights, pack(stage.constant, s.conv, self.tile))
        args = (Input(0), *packed, *unshifted(stage, machine), Output())
        return [Step(integer_outer_products(s, machine, self.tile), args)]


def weight_bytes(c: Conv) -> int:
    """Bytes of the packed weights."""
    return -(-c.padded // SIDE) * SIDE * 4 * words_of(c) * steps_of(c)


@lru_cache(maxsize=1024)
def _ranked(c: Conv, machine: Machine) -> list[OuterTiles]:
    """All blocks that the unit holds, the least time first."""
    widest = -(-c.padded // SIDE)
    able = [OuterTiles(*size) for size in _SIZES if size[1] <= widest and size[0] * size[1] <= TILES]
    return sorted(able, key=lambda tile: _time(c, machine, tile))


def block_time(c: Conv, machine: Machine, tile: OuterTiles, width: int) -> float:
    """Time of the blocks of ``width`` positions by all channels, in multiply-adds of a vector."""
    unit = unit_of(c, machine)
    assert unit is not None
    total, finish = 0.0, 6.0 if in_floats((c,)) else FINISH
    for _, groups, across in cuts(c, tile):
        for _, count, positions in segments(width, SIDE * tile.down):
            down = -(-positions // SIDE)
            products, loads = down * across * unit.time, (down + across) * _LOAD
            step = words_of(c) * max(products, loads) + 4
            total += groups * count * (steps_of(c) * step + finish * positions * across * SIDE / LANES + _BLOCK)
    return total


def _time(c: Conv, machine: Machine, tile: OuterTiles) -> float:
    """Time of the convolution, in multiply-adds of a vector."""
    total = c.y.n * c.extent[0] * block_time(c, machine, tile, c.extent[1])
    items = work_items(-(-c.padded // (SIDE * tile.across)), c.extent[0], threads=machine.threads)
    memory = weight_bytes(c) / (machine.stream * streamed(machine.threads))
    return overlapped(total * slowest(items, machine.threads), memory)
