"""Convolution and matrix product of 16-bit floats by groups of four warps, beside their copies (``isa.warpgroups``).

A block computes ``m`` positions by ``n`` channels, each group of warps 64 of the positions by all channels.  The
products of a step are on their way while threads issue the copies of a further one.  Shared memory has image and
weights in groups of eight elements: those of a position, or of a channel, side by side, and positions one after the
other.  What threads do with their sums is that of ``kernels.tensor_staged``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.isa.warpgroups import COLUMNS
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import copies_of_stages, issue_first, issue_next
from tenon.machine.kernels.group_tiles import Depth, about, name_of, wide
from tenon.machine.kernels.tensor_staged import (
    OPERATIONS,
    UNITS,
    K,
    M,
    N,
    StagedContext,
    StagedTile,
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
_EACH = 8
"""Elements of a position, or of a channel, that lie side by side in shared memory."""
_APART = 1
"""Positions past those of eight elements in shared memory, by which threads that copy a row reach all banks."""


@dataclass(frozen=True)
class WarpgroupTile(StagedTile):
    """``m`` is a multiple of 64, ``n`` one of the numbers of columns of an instruction; ``rows`` is 16 and ``cols`` is
    ``n``: the sums of a warp."""

    @property
    def loads(self) -> float:
        return 0.0

    @property
    def shared(self) -> int:
        return self.bytes * self.stages * self.k * (self.m + _APART + self.n)


def operation(s: Conv, n: int) -> str:
    """The instruction for so many channels."""
    return f"wgmma_{s.x.dtype}_n{n}"


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: images in groups of four elements, of 16 bits as the weights are."""
    return s.x.dtype in OPERATIONS and wide(s) == 4 and supported_by_warps(s)


def pack(weights: Array, s: Conv, tile: WarpgroupTile) -> Array:
    """[blocks of channels][steps][k / 8][n][8] from [channels out, channels in, kh, kw], zeros past the last."""
    return in_rows(group_tiles.pack(weights, s, tile), tile, _EACH)


@dataclass(frozen=True, eq=False)
class _WarpgroupContext(StagedContext):
    """Neighbouring threads copy the halves of eight elements of a position, then the next position."""

    def x_part(self, part: Index) -> tuple[Index, Index]:
        if self.s.x.blocks == 1 and self.s.x.block > self.depth.wide:
            return super().x_part(part)
        pair, m = part // 2, self.tile.m
        return pair // m * 2 + part % 2, pair % m

    def x_place(self, stage: Index, group: Index, position: Index) -> tuple[Index, ...]:
        return stage, group // 2, position, group % 2 * 4


@lru_cache(maxsize=512)
def tensor_warpgroups(s: Conv, tile: WarpgroupTile) -> Kernel:
    """Parameters: those of ``kernels.tensor_staged``, weights as ``pack`` returns them."""
    assert tile.rows == M
    assert tile.cols == tile.n in COLUMNS
    assert tile.m % GROUP == 0
    k = Builder(f"warpgroups_{name_of(s)}", about(s, tile, "warp"))
    depth, stages = Depth.of(s, tile.k), tile.fitting(Depth.of(s, tile.k).steps)
    x, w, into = parameters(k, s, tile, whole=tile.in_one_launch)
    with opened_blocks(k, s, tile, F32) as (across, down, part, _):
        xs = k.local("xs", stages, tile.k // _EACH, tile.m + _APART, _EACH, dtype=s.x.dtype, space="shared")
        ws = k.local("ws", stages, tile.k * tile.n, dtype=s.weights, space="shared")
        with (
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            p = _WarpgroupContext(
                k, s, tile, depth, x, w, xs, ws, 0, across, down, part, tx, Index(), None, g, t, UNITS[s.x.dtype]
            )
            acc = k.local("a", 1, tile.n // N, 4)
            for j in range(tile.n // N):
                for c in range(4):
                    acc[0, j, c] = 0.0
            _add_steps(p, stages, acc)
            store_sums(p, acc, into)
    return k.done()


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
        with k.instruction(f"wgmma_sums_n{p.tile.n}", _sums(acc)):
            pass


def _sums(acc: Tensor) -> list[Operand]:
    return [(acc, (0, j, c)) for j in range(acc.buffer.shape[1].const) for c in range(4)]


def _begin(p: _WarpgroupContext, acc: Tensor, stage: Index) -> None:
    """Begin to add the products of a step."""
    k, tile, g, t = p.k, p.tile, p.group, p.member
    operands: list[Operand] = [(p.xs, (stage, 0, p.tx // 4 * GROUP, 0)), (p.ws, (stage, 0)), *_sums(acc)]
    numbers = tile.m + _APART, tile.n, tile.k // K
    with k.instruction(operation(p.s, tile.n), operands, *numbers), k.loop("e", tile.k) as e:
        for j in range(tile.n // N):
            for c in range(4):
                left = p.xs[stage, e // _EACH, p.tx * M + g + c // 2 * 8, e % _EACH]
                column = t * 2 + (j * N + c % 2)
                right = p.ws[stage, e // _EACH * (tile.n * _EACH) + column * _EACH + e % _EACH]
                acc[0, j, c] = p.unit.product(acc[0, j, c], left, right)
