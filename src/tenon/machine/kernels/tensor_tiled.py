"""Convolution and matrix product of f16 in work groups, by tiles of a matrix unit: sums in f32 (``isa.tensor_cores``).

A warp of 32 threads computes ``tile.rows`` positions by ``tile.cols`` channels, in tiles of 16 by 8.  Shared memory has
a row of products for each position and each channel.  Channels are ordered so that a thread has four neighbouring ones
of two tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels import tiled as of_threads
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import GroupContext, Store, blocks, in_steps, store_quad
from tenon.machine.kernels.group_tiles import (
    Depth,
    GroupTile,
    about,
    batched,
    name_of,
    past_quads,
    place,
    wide,
)
from tenon.machine.kernels.storage_types import loaded
from tenon.machine.kernels.tiled import parameters
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

OPERATION = "mma_f16"
M, N, K = 16, 8, 8
"""The tile of an instruction: positions, channels, products."""
_PADDING = 8
"""Elements past a row in shared memory, by which threads that load eight rows reach all banks."""


@dataclass(frozen=True)
class WarpTile(GroupTile):
    """``rows x cols`` of a warp, multiples of 16; ``k`` is a multiple of 8."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * super().threads

    @property
    def sums(self) -> int:
        return self.rows * self.cols // 32

    @property
    def loads(self) -> float:
        return self.k // K * (2 * self.rows // M + self.cols // N) / 2

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return 2 * 2 * (self.m + self.n) * (self.k + _PADDING)

    @property
    def in_one_launch(self) -> bool:
        """Whether the kernel gives results, and not sums of parts of the products."""
        return self.splits == 1

    @property
    def copies_apart(self) -> bool:
        """Whether it is proved that threads copy different elements."""
        return True


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: images and constant weights of f16, of which four lie side by side."""
    halves = s.x.dtype is s.weights is DType.F16
    return halves and of_threads.supported(s) and s.packed and not batched(s) and wide(s) == 4


def pack(weights: Array, s: Conv, tile: WarpTile) -> Array:
    """[blocks of channels][steps][n][k] from [channels out, channels in, kh, kw], zeros past the last of each."""
    split = group_tiles.pack(weights, s, tile)
    split = split.reshape(*split.shape[:2], tile.k, tile.n // 16, 4, 2, 2)  # channel: 16 * a + 4 * t + 2 * b + e
    ordered = split.transpose(0, 1, 3, 5, 4, 6, 2)  # row: 16 * a + 8 * b + 2 * t + e
    return np.ascontiguousarray(ordered.reshape(*split.shape[:2], -1))


@dataclass(frozen=True, eq=False)
class WarpContext(GroupContext):
    """``tx`` and ``ty`` are those of the warp; a thread of it is number ``4 * group + member``."""

    group: Index
    member: Index

    @property
    def thread(self) -> Index:
        warp = self.ty * (self.tile.m // self.tile.rows) + self.tx
        return warp * 32 + self.group * 4 + self.member

    def x_place(self, stage: Index, group: Index, position: Index) -> tuple[Index, ...]:
        return stage, position, group * self.depth.wide

    def w_place(self, stage: Index, part: Index, lanes: int) -> tuple[Index, ...]:
        each = self.tile.k // lanes
        return stage, part // each, part % each * lanes


@lru_cache(maxsize=512)
def tensor_tiled(s: Conv, tile: WarpTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y; with splits
    only x, weights and the sums [splits, channels / 4, positions, 4]."""
    k = Builder(f"tensor_{name_of(s)}", about(s, tile, "warp"))
    depth = Depth.of(s, tile.k)
    x, w, into = parameters(k, s, tile, whole=tile.in_one_launch)
    with blocks(k, s, tile) as (across, down, part, images):
        xs = k.local("xs", 2, tile.m, tile.k + _PADDING, dtype=DType.F16, space="shared")
        ws = k.local("ws", 2, tile.n, tile.k + _PADDING, dtype=DType.F16, space="shared")
        with (
            k.loop("ty", tile.n // tile.cols, kind="thread") as ty,
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            p = WarpContext(k, s, tile, depth, x, w, xs, ws, 0, across, down, part, tx, ty, images, g, t)
            acc = k.local("a", tile.rows // M, tile.cols // N, 4)
            with k.unroll("i", tile.rows // M) as i, k.unroll("j", tile.cols // N) as j, k.unroll("c", 4) as c:
                acc[i, j, c] = 0.0
            in_steps(p, lambda stage: _multiply(p, acc, stage))
            _results(p, acc, into)
    return k.done()


def _multiply(p: WarpContext, acc: Tensor, stage: Index) -> None:
    """Add the products of one step."""
    k, tile, g, t = p.k, p.tile, p.group, p.member
    with k.loop("d", tile.k // K) as d:
        for i in range(tile.rows // M):
            for j in range(tile.cols // N):
                row, column = p.tx * tile.rows + i * M, p.ty * tile.cols + j * N
                places = [(stage, row + g, d * K + t * 2), (stage, row + g + 8, d * K + t * 2)]
                operands = [(p.xs, places[0]), (p.xs, places[1]), (p.ws, (stage, column + g, d * K + t * 2))]
                operands += [(acc, (Index((), i), Index((), j), Index((), c))) for c in range(4)]
                with k.instruction(OPERATION, operands), k.loop("e", K) as e:
                    for c in range(4):
                        left = loaded(p.xs[stage, row + g + c // 2 * 8, d * K + e])
                        right = loaded(p.ws[stage, column + t * 2 + c % 2, d * K + e])
                        acc[i, j, c] = acc[i, j, c] + left * right


def _results(p: WarpContext, acc: Tensor, into: Store | Tensor) -> None:
    """Store a thread's results, or its sums: four channels of a position at a time."""
    k, s, tile = p.k, p.s, p.tile
    with (
        k.unroll("i", tile.rows // M) as i,
        k.unroll("h", 2) as half,
        k.unroll("j", tile.cols // (2 * N)) as j,
    ):
        number = p.down * tile.m + p.tx * tile.rows + i * M + half * 8 + p.group
        quad = p.across * (tile.n // 4) + p.ty * (tile.cols // 4) + j * 4 + p.member
        image, row, col, within = place(s, number, tile.m)
        with k.when(*within, *past_quads(s, quad, tile.n)):
            values = [acc[i, j * 2 + b, half * 2 + e] for b in range(2) for e in range(2)]
            store_quad(p, into, number, (image, row, col), quad, values)
