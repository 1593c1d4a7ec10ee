"""Convolution and matrix product by products of blocks (``kernels.product_blocks``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

from tenon.machine.algorithms.base import (
    Algorithm,
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
from tenon.machine.algorithms.direct import InnerLoop, estimate
from tenon.machine.algorithms.estimate import Arithmetic
from tenon.machine.algorithms.integers import FINISH, IntegerDirect, IntegerStage
from tenon.machine.algorithms.tile_products import direct_sums, takes_weights, unshifted
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.product_blocks import (
    BYTES,
    LANES,
    SUMS,
    integer_product_blocks,
    is_matrix,
    pack,
    product_blocks,
    steps_of,
    supported,
)
from tenon.network.graph.types import Layout

_FINISH = 4.0
"""Time to finish a vector of sums of floats."""


def _block(c: Conv) -> int:
    """The channels of a block of an image; rows of matrices and images of few channels stay as they are."""
    each = BYTES // c.x.dtype.bytes
    return c.x.block if is_matrix(c) or c.x.channels <= min(c.x.block, each // 2) else each


def _reblocked(c: Conv) -> Conv:
    """The convolution of an image in the layout that it wants."""
    return replace(c, x=replace(c.x, block=_block(c)))


@dataclass(frozen=True)
class ProductBlocks(Algorithm):
    """Sums by products of blocks, ``positions`` by ``vecs`` vectors of output channels at a time."""

    positions: int
    vecs: int
    name: ClassVar[str] = "product-blocks"
    offered: ClassVar[int] = 4
    plain_weights: ClassVar[bool] = True

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 1 and supported(_reblocked(problem[0]), machine)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls(tile.cols, tile.vecs) for tile in _ranked(_reblocked(problem[0]).flattened(), machine)[:count]]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(numbers["positions"], numbers["vecs"])

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"positions": self.positions, "vecs": self.vecs}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, self.vecs

    @property
    def tile(self) -> OutputTile:
        """As generators take it."""
        return OutputTile(1, self.positions, self.vecs)

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        c = _reblocked(problem[0]).flattened()
        return Cost(_time(c, machine, self.tile) * machine.instruction, c.padded * BYTES * steps_of(c))

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        return replace(x, block=_block(problem[0])), y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (stage,) = stages
        if isinstance(stage, IntegerStage):
            return self._of_integers(problem[0], stage, machine)
        c = stage.conv.flattened()
        packed = map(Weights, pack(stage.constant, c, self.tile))
        args = (stage.left, *packed, *stage.epilogue_args(), Output())
        return [Step(product_blocks(c, machine, self.tile), args)]

    def _of_integers(self, wanted: Conv, stage: IntegerStage, machine: Machine) -> list[Step]:
        s = replace(stage.described, conv=stage.described.conv.flattened())
        if not takes_weights(s) or self._slower(wanted, s.conv, machine):
            return direct_sums(wanted, stage, machine)
        packed = map(Weights, pack(stage.constant, s.conv, self.tile))
        args = (Input(0), *packed, *unshifted(stage, machine), Output())
        return [Step(integer_product_blocks(s, machine, self.tile), args)]

    def _slower(self, wanted: Conv, c: Conv, machine: Machine) -> bool:
        """Whether a halo keeps rows apart that were to be one, and these are too short."""
        if c.extent == wanted.flattened().extent:
            return False
        (direct,) = IntegerDirect.candidates((c,), machine, Limits(), 1)
        return direct.cost((c,), machine).time < self.cost((c,), machine).time


@lru_cache(maxsize=1024)
def _ranked(c: Conv, machine: Machine) -> list[OutputTile]:
    """All tiles that the registers hold, of each number of vectors the widest that are whole, the least time first."""
    listed = []
    for vecs in range(1, min(6, c.padded // LANES) + 1):
        widest = SUMS // (2 * vecs) * 2
        listed += [OutputTile(1, cols, vecs) for cols in {min(widest, c.extent[1] + c.extent[1] % 2), widest // 4 * 2}]
    return sorted((tile for tile in listed if tile.cols), key=lambda tile: (_time(c, machine, tile), tile.vecs))


def _time(c: Conv, machine: Machine, tile: OutputTile) -> float:
    """Time of the convolution: an odd number of positions takes as long as one more, and positions that are not side
    by side take more loads."""
    width = c.extent[1]
    whole, left = width // tile.cols * tile.cols, width % tile.cols
    pairs = (whole + left + left % 2) / width
    apart = 1.0 if c.stride[1] > 1 or is_matrix(c) else 0.0
    finish = _FINISH if in_floats((c,)) else FINISH
    return estimate(c, machine, tile, InnerLoop(steps_of(c), Arithmetic(pairs, 0.0, apart), finish + 1))
