"""Convolution and matrix product of f16 in work groups, by cooperative matrices (``isa.cooperative_matrices``).

As ``tensor_tiled``, but that only the instructions know which thread has which sums: each subgroup stores them in
shared memory, a row of tiles at a time, and takes from there what it stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import Store, blocks, in_steps, store_quad
from tenon.machine.kernels.group_tiles import Depth, about, name_of, past_quads, place
from tenon.machine.kernels.storage_types import loaded
from tenon.machine.kernels.tensor_tiled import WarpContext, WarpTile
from tenon.machine.kernels.tiled import parameters
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

PRODUCT, CLEAR, STORE = "matrix_f16", "matrix_clear", "matrix_store"
SIDE = 16
"""Rows, columns and depth of a tile."""
_PADDING, _AFTER_SUMS = 8, 4
"""Elements past a row of factors and of sums in shared memory."""


@dataclass(frozen=True)
class MatrixTile(WarpTile):
    """``rows x cols`` of a subgroup, multiples of 16 as is ``k``."""

    @property
    def subgroups(self) -> int:
        """Subgroups of a block."""
        return self.threads // 32

    @property
    def copies_apart(self) -> bool:
        """It is not proved of several subgroups of the same positions."""
        return self.m > self.rows or self.n == self.cols

    @property
    def loads(self) -> float:
        return self.k // SIDE * (self.rows + self.cols) / 4

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: factors in two stages, and a row of tiles of sums of each subgroup."""
        sums = 4 * self.subgroups * SIDE * (self.cols + _AFTER_SUMS)
        return 2 * 2 * (self.m + self.n) * (self.k + _PADDING) + sums


def pack(weights: Array, s: Conv, tile: MatrixTile) -> Array:
    """[blocks of channels][steps][n][k] from [channels out, channels in, kh, kw], zeros past the last of each."""
    split = group_tiles.pack(weights, s, tile)
    split = split.reshape(*split.shape[:2], tile.k, tile.n).swapaxes(2, 3)
    return np.ascontiguousarray(split.reshape(*split.shape[:2], -1))


@lru_cache(maxsize=512)
def matrix_tiled(s: Conv, tile: MatrixTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y; with splits
    only x, weights and the sums [splits, channels / 4, positions, 4]."""
    k = Builder(f"matrix_{name_of(s)}", about(s, tile, "subgroup"))
    depth = Depth.of(s, tile.k)
    x, w, into = parameters(k, s, tile, whole=tile.in_one_launch)
    with blocks(k, s, tile) as (across, down, part, images):
        xs = k.local("xs", 2, tile.m, tile.k + _PADDING, dtype=DType.F16, space="shared")
        ws = k.local("ws", 2, tile.n, tile.k + _PADDING, dtype=DType.F16, space="shared")
        cells = k.local("cells", tile.subgroups, SIDE, tile.cols + _AFTER_SUMS, space="shared")
        with (
            k.loop("ty", tile.n // tile.cols, kind="thread") as ty,
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            p = WarpContext(k, s, tile, depth, x, w, xs, ws, 0, across, down, part, tx, ty, images, g, t)
            acc = k.local("a", tile.rows // SIDE, tile.cols // SIDE, 8)
            with k.instruction(CLEAR, [(acc, (i, j, Index())) for i, j in _tiles(tile)]):
                for i, j in _tiles(tile):
                    for c in range(8):
                        acc[i, j, c] = 0.0
            in_steps(p, lambda stage: _multiply(p, tile, acc, stage))
            _results(p, tile, acc, cells, into)
    return k.done()


def _tiles(tile: MatrixTile) -> Iterator[tuple[Index, Index]]:
    """The numbers of a subgroup's tiles."""
    for i in range(tile.rows // SIDE):
        for j in range(tile.cols // SIDE):
            yield Index((), i), Index((), j)


def _row(p: WarpContext, c: int) -> Index:
    """The row in its tile of a thread's sum."""
    return p.group + c // 2 % 2 * 8


def _column(p: WarpContext, c: int) -> Index:
    return p.member * 2 + (c // 4 * 8 + c % 2)


def _multiply(p: WarpContext, tile: MatrixTile, acc: Tensor, stage: Index) -> None:
    """Add the products of one step."""
    k, row, column, stride = p.k, p.tx * tile.rows, p.ty * tile.cols, tile.k + _PADDING
    sums = [(acc, (i, j, Index())) for i, j in _tiles(tile)]
    numbers = (tile.rows // SIDE, tile.cols // SIDE, stride, stride)
    with k.loop("d", tile.k // SIDE) as d:
        factors = [(p.xs, (stage, row, d * SIDE)), (p.ws, (stage, column, d * SIDE))]
        with k.instruction(PRODUCT, [*factors, *sums], *numbers), k.loop("e", SIDE) as e:
            for i, j in _tiles(tile):
                for c in range(8):
                    left = loaded(p.xs[stage, row + i * SIDE + _row(p, c), d * SIDE + e])
                    right = loaded(p.ws[stage, column + j * SIDE + _column(p, c), d * SIDE + e])
                    acc[i, j, c] = acc[i, j, c] + left * right


def _results(p: WarpContext, tile: MatrixTile, acc: Tensor, cells: Tensor, into: Store | Tensor) -> None:
    """Store a subgroup's results, or its sums: a thread takes four channels of two positions of each tile."""
    k, s = p.k, p.s
    own = p.ty * (tile.m // tile.rows) + p.tx
    for i in range(tile.rows // SIDE):
        tiles = [(Index((), i), Index((), j)) for j in range(tile.cols // SIDE)]
        operands = [(cells, (own, Index(), Index())), *((acc, (row, j, Index())) for row, j in tiles)]
        with k.instruction(STORE, operands, tile.cols + _AFTER_SUMS):
            for row, j in tiles:
                for c in range(8):
                    cells[own, _row(p, c), j * SIDE + _column(p, c)] = acc[row, j, c]
        k.barrier()
        with k.unroll("h", 2) as half, k.unroll("j", tile.cols // SIDE) as j:
            row = half * 8 + p.group
            number = p.down * tile.m + p.tx * tile.rows + i * SIDE + row
            quad = p.across * (tile.n // 4) + p.ty * (tile.cols // 4) + j * 4 + p.member
            image, line, col, within = place(s, number, tile.m)
            with k.when(*within, *past_quads(s, quad, tile.n)):
                values = [cells[own, row, j * SIDE + p.member * 4 + c] for c in range(4)]
                store_quad(p, into, number, (image, line, col), quad, values)
        if i + 1 < tile.rows // SIDE:
            k.barrier()
