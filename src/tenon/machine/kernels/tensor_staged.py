"""Convolution and matrix product by a matrix unit, with copies in stages (``isa.tensor_cores``): of 16-bit floats.

What follows holds for words of four bytes (``integer_staged``) as well, of which a unit takes half as many.

A warp of 32 threads computes ``tile.rows`` positions by ``tile.cols`` channels, in tiles of 16 by 8, 16 products at a
time.  Shared memory has the image in groups of four elements, positions side by side, and for each channel 16 products
in a row: so every operand of an instruction is eight bytes that threads load without meeting in a bank.  Images whose
elements do not lie in groups of four (first layers) are copied through registers in two stages.

The products of a result are shared out to the blocks of a cluster where the tile says so: each adds up the sums of all
for a part of the channels, in a fixed order, and stores these results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Operand, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, vector4
from tenon.machine.kernels import group_tiles
from tenon.machine.kernels import tiled as of_threads
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_copies import (
    GroupContext,
    StepSource,
    Store,
    beside_stages,
    in_stages,
    in_steps,
    store_quad,
)
from tenon.machine.kernels.group_tiles import (
    Depth,
    about,
    batched,
    name_of,
    past_quads,
    place,
    positions,
    stored_at,
    wide,
)
from tenon.machine.kernels.storage_types import loaded
from tenon.machine.kernels.tensor_tiled import WarpTile
from tenon.machine.kernels.tiled import FloatStore, parameters
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType

M, N, K = 16, 8, 16
"""The tile of an instruction for 16-bit floats: positions, channels, products."""


@dataclass(frozen=True)
class MatrixUnit:
    """An instruction of ``k`` elements in a row, ``each`` of them side by side in shared memory (eight bytes for
    instructions of a warp), whose sums are ``sums``; ``product`` adds the product of two elements to a sum."""

    operation: str
    k: int
    each: int
    sums: DType
    product: Callable[[Expr, Expr, Expr], Expr]


def added(total: Expr, left: Expr, right: Expr) -> Expr:
    return total + loaded(left) * loaded(right)


OPERATIONS = {DType.F16: "mma_f16_k16", DType.BF16: "mma_bf16_k16"}
UNITS = {dtype: MatrixUnit(name, K, 4, F32, added) for dtype, name in OPERATIONS.items()}
_APART = 4
"""Positions past a row of the image in shared memory, by which threads that load four rows reach all banks."""
_BETWEEN = 2
"""Positions past those of four channels of a block's sums, for the same reason."""


@dataclass(frozen=True)
class StagedTile(WarpTile):
    """``rows x cols`` of a warp, multiples of 16; ``k`` is a multiple of 16.  ``cluster`` (0 or 1): the parts of the
    products are those of a cluster's blocks, whose sums lie in memory that they share."""

    stages: int = 4
    cluster: int = 0
    bytes: ClassVar[int] = 2
    """Bytes of an element."""

    @property
    def instructions(self) -> float:
        """Instructions along the products of a step."""
        return self.k * self.bytes / 32

    @property
    def loads(self) -> float:
        return self.instructions * (2 * self.rows / M + self.cols / N)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        copied = self.bytes * self.stages * (self.k * (self.m + _APART) + self.k * self.n)
        return copied + self.cluster * self.n * (self.m + _BETWEEN) * 4

    @property
    def in_one_launch(self) -> bool:
        return super().in_one_launch or bool(self.cluster)

    @property
    def joins(self) -> bool:
        """Whether the threads of a cluster's block have equal shares of the sums that it adds up."""
        return self.n // 4 % self.splits == 0 and self.n * self.m // 4 // self.splits % self.threads == 0

    def fitting(self, steps: int) -> int:
        """The stages of a product of so many steps."""
        return max(2, min(self.stages, steps // self.splits))


def supported(s: Conv) -> bool:
    """Whether a layer can be computed so: images and constant weights of one type of 16 bits."""
    narrow = s.x.dtype is s.weights and s.x.dtype in OPERATIONS
    depth = wide(s) == 4 or Depth.of(s, K).flat
    return narrow and of_threads.supported(s) and s.packed and not batched(s) and depth


def pack(weights: Array, s: Conv, tile: StagedTile) -> Array:
    """[blocks of channels][steps][k / 16][n][16] from [channels out, channels in, kh, kw], zeros past the last."""
    return in_rows(group_tiles.pack(weights, s, tile), tile, K)


def in_rows(split: Array, tile: StagedTile, row: int) -> Array:
    """[blocks of channels][steps][k / row][n][row] from [blocks][steps][k * n]."""
    split = split.reshape(*split.shape[:2], tile.k // row, row, tile.n // 16, 4, 2, 2)  # channel: 16 a + 4 t + 2 b + e
    ordered = split.transpose(0, 1, 2, 4, 6, 5, 7, 3)  # row: 16 a + 8 b + 2 t + e
    return np.ascontiguousarray(ordered.reshape(*split.shape[:2], -1))


@dataclass(frozen=True, eq=False)
class StagedContext(GroupContext):
    """``tx`` and ``ty`` are those of the warp; a thread of it is number ``4 * group + member``."""

    group: Index
    member: Index
    unit: MatrixUnit

    @property
    def thread(self) -> Index:
        warp = self.ty * (self.tile.m // self.tile.rows) + self.tx
        return warp * 32 + self.group * 4 + self.member

    def x_part(self, part: Index) -> tuple[Index, Index]:
        """Neighbouring threads copy neighbouring elements of memory: of a row, where elements of all blocks lie side by
        side."""
        rows, groups = self.s.x.blocks == 1 and self.s.x.block > self.depth.wide > 1, self.depth.groups
        return (part % groups, part // groups) if rows else super().x_part(part)

    def x_place(self, stage: Index, group: Index, position: Index) -> tuple[Index, ...]:
        if self.depth.wide == 1:
            return stage, group // self.unit.each, position, group % self.unit.each
        return stage, group, position, Index()

    def w_place(self, stage: Index, part: Index, lanes: int) -> tuple[Index, ...]:
        return stage, part * lanes


@lru_cache(maxsize=512)
def tensor_staged(s: Conv, tile: StagedTile) -> Kernel:
    """Parameters: x, weights as ``pack`` returns them, bias (padded), mask when ``clear``, operands, y; with splits
    and no cluster only x, weights and the sums [splits, channels / 4, positions, 4]."""
    k = Builder(f"tensor_{name_of(s)}", about(s, tile, "warp"))
    depth = Depth.of(s, tile.k)
    x, w, into = parameters(k, s, tile, whole=tile.in_one_launch)
    add_products(k, s, tile, UNITS[s.x.dtype], (x, w), into, staged=depth.wide == 4)
    return k.done()


def add_products(
    k: Builder,
    s: Conv,
    tile: StagedTile,
    unit: MatrixUnit,
    operands: tuple[Tensor, Tensor],
    into: Store | Tensor,
    *,
    staged: bool,
    fill: int = 0,
    source: Callable[[GroupContext], StepSource] | None = None,
) -> None:
    """The loops over blocks and threads of a kernel, which gives the sums of ``operands``, image and weights, to
    ``into``.  Taps beside the image are ``fill``.  ``source`` computes the elements of the image, where they are not
    copied from memory."""
    depth, (x, w) = Depth.of(s, tile.k), operands
    stages = tile.fitting(depth.steps) if staged else 2
    with opened_blocks(k, s, tile, unit.sums) as (across, down, part, shared_sums):
        xs = k.local("xs", stages, tile.k // unit.each, tile.m + _APART, unit.each, dtype=s.x.dtype, space="shared")
        ws = k.local("ws", stages, tile.k * tile.n, dtype=s.weights, space="shared")
        with (
            k.loop("ty", tile.n // tile.cols, kind="thread") as ty,
            k.loop("tx", tile.m // tile.rows, kind="thread") as tx,
            k.loop("g", 8, kind="thread") as g,
            k.loop("t", 4, kind="thread") as t,
        ):
            warp = tx if tile.m > tile.rows else Index(), ty if tile.n > tile.cols else Index()
            p = StagedContext(k, s, tile, depth, x, w, xs, ws, fill, across, down, part, *warp, None, g, t, unit)
            acc = k.local("a", tile.rows // M, tile.cols // N, 4, dtype=unit.sums)
            with k.unroll("i", tile.rows // M) as i, k.unroll("j", tile.cols // N) as j, k.unroll("c", 4) as c:
                acc[i, j, c] = 0.0 if unit.sums is F32 else 0
            if source is not None:
                beside_stages(p, stages, lambda stage: _multiply(p, acc, stage), source(p))
            elif staged:
                in_stages(p, stages, lambda stage: _multiply(p, acc, stage))
            else:
                in_steps(p, lambda stage: _multiply(p, acc, stage))
            if shared_sums is None:
                store_sums(p, acc, into)
            else:
                assert not isinstance(into, Tensor)
                _joined(p, acc, shared_sums, into)


@contextmanager
def opened_blocks(
    k: Builder, s: Conv, tile: StagedTile, dtype: DType
) -> Iterator[tuple[Index, Index, Index, Tensor | None]]:
    """The loops over blocks: of channels, of positions, of parts, and the sums of a cluster."""
    assert Depth.of(s, tile.k).steps % tile.splits == 0
    assert tile.joins or not tile.cluster
    with ExitStack() as stack:
        together = tile.splits > 1 and tile.cluster > 0
        part = Index() if together else stack.enter_context(k.loop("part", tile.splits, kind="block"))
        across = stack.enter_context(k.loop("across", -(-s.padded // tile.n), kind="block"))
        down = stack.enter_context(k.loop("down", -(-positions(s) // tile.m), kind="block"))
        if not together:
            yield across, down, part, None
            return
        sums = k.local("shared_sums", tile.splits, tile.n // 4, tile.m + _BETWEEN, 4, dtype=dtype, space="cluster")
        part = stack.enter_context(k.loop("part", tile.splits, kind="cluster"))
        yield across, down, part, sums


def _multiply(p: StagedContext, acc: Tensor, stage: Index) -> None:
    """Add the products of one step."""
    k, tile, unit, g, t = p.k, p.tile, p.unit, p.group, p.member
    with k.loop("d", tile.k // unit.k) as d:
        for i in range(tile.rows // M):
            for j in range(tile.cols // N):
                row, column = p.tx * tile.rows + i * M, d * tile.n + p.ty * tile.cols + j * N
                operands: list[Operand] = [(p.xs, (stage, d * 4 + t, row + g + 8 * half, 0)) for half in range(2)]
                operands += [(p.ws, (stage, (column + g) * unit.k + t * unit.each))]
                operands += [(acc, (Index((), i), Index((), j), Index((), c))) for c in range(4)]
                with k.instruction(unit.operation, operands), k.loop("e", unit.k) as e:
                    for c in range(4):
                        left = p.xs[stage, d * 4 + e // unit.each, row + g + c // 2 * 8, e % unit.each]
                        right = p.ws[stage, (column + t * 2 + c % 2) * unit.k + e]
                        acc[i, j, c] = unit.product(acc[i, j, c], left, right)


# ------------------------------------------------------------------------------------------------- results
Cell = tuple[Index, Index, Index]


def _fragments(p: StagedContext) -> Iterator[tuple[Index, Index, Sequence[Cell]]]:
    """A thread's results: their row and four channels in the block's tile, and where their sums lie."""
    k, tile = p.k, p.tile
    with (
        k.unroll("i", tile.rows // M) as i,
        k.unroll("h", 2) as half,
        k.unroll("j", tile.cols // (2 * N)) as j,
    ):
        cells = [(i, j * 2 + b, half * 2 + e) for b in range(2) for e in range(2)]
        yield p.tx * tile.rows + i * M + half * 8 + p.group, p.ty * (tile.cols // 4) + j * 4 + p.member, cells


@contextmanager
def _position(p: StagedContext, row: Index, quad: Index) -> Iterator[tuple[Index, tuple[Index, Index, Index], Index]]:
    """The number of a position of the block's tile, where it lies, and its four channels, if it is one of the
    image."""
    s, tile = p.s, p.tile
    number, quad = p.down * tile.m + row, p.across * (tile.n // 4) + quad
    image, line, col, within = place(s, number, tile.m)
    with p.k.when(*within, *past_quads(s, quad, tile.n)):
        yield number, (image, line, col), quad


def store_sums(p: StagedContext, acc: Tensor, into: Store | Tensor) -> None:
    """Store a thread's results, or its sums: four channels of a position at a time, after all operands of results are
    loaded."""
    computed = into if isinstance(into, FloatStore) and into.loads else None
    if computed is not None:
        for row, quad, cells in _fragments(p):
            with _position(p, row, quad) as (_, at, channels):
                results = computed.results(stored_at(p.s, at), channels, [acc[cell] for cell in cells])
                for cell, value in zip(cells, results, strict=True):
                    acc[cell] = value
    for row, quad, cells in _fragments(p):
        values = [acc[cell] for cell in cells]
        with _position(p, row, quad) as (number, at, channels):
            if computed is not None:
                computed.put(stored_at(p.s, at), channels, values)
            else:
                store_quad(p, into, number, at, channels, values)


def _joined(p: StagedContext, acc: Tensor, sums: Tensor, into: Store) -> None:
    """Add the sums of the blocks of a cluster, each block those of a part of the channels, and store the results."""
    k, tile = p.k, p.tile
    for row, quad, cells in _fragments(p):
        sums.vec(4)[p.part, quad, row, 0] = vector4(*(acc[cell] for cell in cells))
    k.barrier(cluster=True)
    quads = tile.n // 4 // tile.splits
    with k.unroll("e", quads * tile.m // tile.threads) as e:
        item = p.thread + e * tile.threads
        row, quad = item % tile.m, p.part * quads + item // tile.m
        totals = []
        for c in range(4):
            total: Expr = sums[0, quad, row, c]
            for part in range(1, tile.splits):
                total = total + sums[part, quad, row, c]
            totals.append(total)
        with _position(p, row, quad) as (number, at, channels):
            store_quad(p, into, number, at, channels, totals)
    k.barrier(cluster=True)
