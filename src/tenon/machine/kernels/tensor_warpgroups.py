"""Convolution and matrix product of 16-bit floats by groups of four warps, beside their copies (``isa.warpgroups``).

A block computes ``m`` positions by ``n`` channels, each group of warps 64 of the positions by all channels.  The
products of a step are on their way while threads issue the copies of a further one.  Shared memory has image and
weights in groups of 16 bytes: those of a position, or of a channel, side by side, and positions one after the other.
What threads do with their sums is that of ``kernels.tensor_staged``.  Words of four bytes (``integer_warpgroups``) lie
likewise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.warpgroups import COLUMNS, sums_after
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import Store, copies_of_stages, issue_first, issue_next
from tenon.machine.kernels.group_tiles import Depth, about, name_of, wide
from tenon.machine.kernels.tensor_staged import (
    OPERATIONS,
    K,
    M,
    MatrixUnit,
    N,
    StagedContext,
    StagedTile,
    added,
    in_rows,
    opened_blocks,
    store_sums,
)
from tenon.machine.kernels.tensor_staged import supported as supported_by_warps
from tenon.machine.kernels.tiled import parameters
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32

GROUP = 4 * M
"""Positions of a group of warps."""
UNITS = {dtype: MatrixUnit(f"wgmma_{dtype}", K, 8, F32, added) for dtype in OPERATIONS}
_APART = 1
"""Positions past those of a group in shared memory, by which threads that copy a row reach all banks."""


@dataclass(frozen=True)
class WarpgroupTile(StagedTile):
    """``m`` is a multiple of 64, ``n`` one of the numbers of columns of an instruction; ``rows`` is 16 and ``cols`` is
    ``n``: the sums of a warp."""

    @property
    def each(self) -> int:
        """Elements of a position, or of a channel, that lie side by side in shared memory."""
        return 16 // self.bytes

    @property
    def loads(self) -> float:
        return 0.0

    @property
    def shared(self) -> int:
        return self.bytes * self.stages * self.k * (self.m + _APART + self.n)


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: images in groups of four elements, of 16 bits as the weights are."""
    return s.x.dtype in OPERATIONS and wide(s) == 4 and supported_by_warps(s)


def pack(weights: Array, s: Conv, tile: WarpgroupTile) -> Array:
    """[blocks of channels][steps][k / 8][n][8] from [channels out, channels in, kh, kw], zeros past the last."""
    return in_rows(group_tiles.pack(weights, s, tile), tile, tile.each)


@dataclass(frozen=True, eq=False)
class _WarpgroupContext(StagedContext):
    """Neighbouring threads copy the parts of a group of a position, then the next position."""

    @property
    def parts(self) -> int:
        """Copies of a group of a position."""
        return self.unit.each // self.depth.wide

    def x_part(self, part: Index) -> tuple[Index, Index]:
        if self.s.x.blocks == 1 and self.s.x.block > self.depth.wide:
            return super().x_part(part)
        at, m = part // self.parts, self.tile.m
        return at // m * self.parts + part % self.parts, at % m

    def x_place(self, stage: Index, group: Index, position: Index) -> tuple[Index, ...]:
        return stage, group // self.parts, position, group % self.parts * self.depth.wide


@lru_cache(maxsize=512)
def tensor_warpgroups(s: Conv, tile: WarpgroupTile) -> Kernel:
    """Parameters: those of ``kernels.tensor_staged``, weights as ``pack`` returns them."""
    k = Builder(f"warpgroups_{name_of(s)}", about(s, tile, "warp"))
    x, w, into = parameters(k, s, tile, whole=tile.in_one_launch)
    add_products(k, s, tile, UNITS[s.x.dtype], (x, w), into)
    return k.done()


def add_products(
    k: Builder,
    s: Conv,
    tile: WarpgroupTile,
    unit: MatrixUnit,
    operands: tuple[Tensor, Tensor],
    into: Store | Tensor,
    fill: int = 0,
) -> None:
    """The loops over blocks and threads of a kernel, which gives the sums of ``operands``, image and weights, to
    ``into``.  Taps beside the image are ``fill``."""
    assert tile.rows == M
    assert tile.cols == tile.n in COLUMNS
    assert tile.m % GROUP == 0
    depth, (x, w) = Depth.of(s, tile.k), operands
    stages = tile.fitting(depth.steps)
    with opened_blocks(k, s, tile, unit.sums) as (across, down, part, _):
        xs = k.local("xs", stages, tile.k // unit.each, tile.m + _APART, unit.each, dtype=s.x.dtype, space="shared")
        ws = k.local("ws", stages, tile.k * tile.n, dtype=s.weights, space="shared")
        with (
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            p = _WarpgroupContext(
                k, s, tile, depth, x, w, xs, ws, fill, across, down, part, tx, Index(), None, g, t, unit
            )
            acc = k.local("a", 1, tile.n // N, 4, dtype=unit.sums)
            for j in range(tile.n // N):
                for c in range(4):
                    acc[0, j, c] = 0.0 if unit.sums is F32 else 0
            _add_steps(p, stages, acc)
            store_sums(p, acc, into)


def _add_steps(p: _WarpgroupContext, stages: int, acc: Tensor) -> None:
    """The products of all steps, those of ``stages - 1`` on their way to shared memory."""
    k, copies = p.k, copies_of_stages(p)
    issue_first(p, copies, stages)
    with k.loop("s", p.steps) as s:
        k.wait(stages - 2)
        with k.instruction("wgmma_copies", []):
            pass
        k.barrier()
        _begin(p, acc, s % stages)
        issue_next(p, copies, stages, s)
        with k.instruction(f"{sums_after(p.unit.operation)}_n{p.tile.n}", _sums(acc)):
            pass


def _sums(acc: Tensor) -> list[Operand]:
    return [(acc, (0, j, c)) for j in range(acc.buffer.shape[1].const) for c in range(4)]


def _begin(p: _WarpgroupContext, acc: Tensor, stage: Index) -> None:
    """Begin to add the products of a step."""
    k, tile, unit, g, t = p.k, p.tile, p.unit, p.group, p.member
    operands: list[Operand] = [(p.xs, (stage, 0, p.tx // 4 * GROUP, 0)), (p.ws, (stage, 0)), *_sums(acc)]
    numbers = tile.m + _APART, tile.n, tile.k // unit.k
    with k.instruction(f"{unit.operation}_n{tile.n}", operands, *numbers), k.loop("e", tile.k) as e:
        for j in range(tile.n // N):
            for c in range(4):
                left = p.xs[stage, e // unit.each, p.tx * M + g + c // 2 * 8, e % unit.each]
                column = t * 2 + (j * N + c % 2)
                right = p.ws[stage, e // unit.each * (tile.n * unit.each) + column * unit.each + e % unit.each]
                acc[0, j, c] = unit.product(acc[0, j, c], left, right)
