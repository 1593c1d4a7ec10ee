"""Products of rows by one of several matrices each, chosen at run time: the experts of a mixture.

Only the matrices that rows chose are read.  A row of results is a *pair* of a row of activations and an expert.  The
pairs of one row are multiplied one by one.  Of several rows, a counting sort puts the pairs of an expert one behind the
other, so that tiles of rows are multiplied by weights that are read and unpacked once; results are stored where they
belong.  A result is summed alike wherever its row is, so that both ways give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_product import BlockTiles, panel_runs, store_tile, tile_of
from tenon.machine.kernels.block_sums import (
    BlockOperands,
    BlockProduct,
    BlockWeights,
    TileRows,
    by_blocks,
    each_row,
    holds_rows,
    packing,
    sum_unit,
)
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import as_f32
from tenon.network.graph.types import F32, I32, I64, DType

_FLOAT_VECTORS = 4
"""Vectors of outputs of a tile of floats."""


@dataclass(frozen=True)
class ExpertProduct:
    """``pairs`` rows of results, each group of ``shared`` of them of one row of activations with ``columns``, by
    ``experts`` matrices of ``outputs`` rows, in blocks of ``format`` or as floats of type ``dtype``."""

    pairs: int
    shared: int
    experts: int
    columns: int
    outputs: int
    format: str = ""
    dtype: DType = F32

    @property
    def rows(self) -> int:
        """Rows of activations."""
        return self.pairs // self.shared

    @property
    def kind(self) -> str:
        """The format of weights, or the type of their elements."""
        return self.format or self.dtype.value

    def block_product(self, rows: int, lanes: int) -> BlockProduct:
        """The product of the activations by all matrices, whose panels of ``lanes`` outputs are all filled."""
        return BlockProduct(self.format, rows, self.columns, self.experts * ceil(self.outputs / lanes) * lanes)


@dataclass(frozen=True, eq=False)
class ExpertTiles:
    """How tiles of a kernel are multiplied: ``height`` rows by ``width`` panels of ``lanes`` outputs at most."""

    lanes: int
    height: int
    width: int
    summed: Callable[[TileRows, int, Index, int], Tensor]
    y: Tensor


@lru_cache(maxsize=256)
def expert_order(tokens: int, choices: int, experts: int, dtype: DType, *, counted_tokens: bool) -> Kernel:
    """The pairs of tokens and experts in the order of the experts: a counting sort.

    Parameters: experts [tokens * choices]; where ``counted_tokens``, how many tokens there are, i64 [1]; the pairs, i32
    [tokens * choices]; where those of each expert begin, i32 [experts + 1], whose last element is their number.
    """
    pairs = tokens * choices
    k = Builder(f"expert_order_{pairs}_{experts}", f"The order of {pairs} rows by {experts} experts that they chose")
    chosen = k.param("experts", pairs, dtype=dtype)
    count = k.param("count", 1, dtype=I64) if counted_tokens else None
    order = k.param("order", pairs, dtype=I32, out=True)
    starts = k.param("starts", experts + 1, dtype=I32, out=True)
    zero, one = Const(0, Type(I32)), Const(1, Type(I32))
    with k.loop("e", experts + 1) as e:
        starts[e] = zero
    with ExitStack() as stack:
        limits = [Index((), pairs)]
        if count is not None:
            limits.append(stack.enter_context(k.bind("n", count[0], tokens + 1)) * choices)
        with k.loop("i", *limits) as i, k.bind("e", cast(chosen[i], I64), experts) as e:
            starts[e + 1] = starts[e + 1] + one
        total = k.local("total", 1, dtype=I32)
        total[0] = zero
        with k.loop("e", experts) as e:
            own = k.let("own", starts[e + 1])
            starts[e + 1] = total[0]
            total[0] = total[0] + own
        number = k.local("number", 1, dtype=I32)
        number[0] = zero
        with k.loop("i", *limits) as i, k.bind("e", cast(chosen[i], I64), experts) as e:
            place = k.let("place", starts[e + 1])
            with k.bind("at", place, pairs) as at:
                order[at] = number[0]
            starts[e + 1] = place + one  # in the end where the next expert's pairs begin
            number[0] = number[0] + one
    return k.done()


@lru_cache(maxsize=256)
def expert_product(s: ExpertProduct, dtype: DType, machine: Machine, *, in_order: bool) -> Kernel:
    """Parameters: activations f32 [rows, columns], or for blocks as those of ``block_product``; the experts of pairs
    [pairs], of type ``dtype``, or where ``in_order`` what ``expert_order`` gives; the weights: the arrays of
    ``BlockPacking.pack``, or panels [experts * panels, columns, lanes]; y f32 [pairs, outputs]."""
    k = Builder(
        f"expert_product_{s.kind}_{s.pairs}x{s.columns}x{s.outputs}_{s.experts}",
        f"{s.pairs} rows of [{s.rows}, {s.columns}] times the {s.outputs} rows of one of {s.experts} matrices of "
        f"weights ({s.kind}) each",
    )
    x = activations(k, s)
    if in_order:
        order, starts = k.param("order", s.pairs, dtype=I32), k.param("starts", s.experts + 1, dtype=I32)
    else:
        chosen = k.param("experts", s.pairs, dtype=dtype)
    rows = s.pairs if in_order else 1
    tiles = _block_tiles(k, s, rows, x, machine) if s.format else _float_tiles(k, s, rows, x[0], machine)
    panels = ceil(s.outputs / tiles.lanes)

    def tile(expert: Index, panel: Index, vectors: int, pairs: TileRows, rows: TileRows, left: int) -> None:
        height = 1 if isinstance(rows, Index) else len(rows)
        acc = tiles.summed(rows, height, expert * panels + panel, vectors)
        store_tile(tiles.y, acc, pairs, panel, vectors, left)

    for first, count, vectors in panel_runs(s.outputs, tiles.lanes, tiles.width):
        left = s.outputs % tiles.lanes if first == s.outputs // tiles.lanes else 0
        if not in_order:
            with (
                k.loop("i", s.pairs, kind="parallel") as i,
                k.loop("j", count, kind="parallel") as j,
                k.bind("e", cast(chosen[i], I64), s.experts) as expert,
            ):
                tile(expert, j * vectors + first, vectors, i, i // s.shared, left)
            continue
        with (
            k.loop("j", count, kind="parallel") as j,
            k.loop("e", s.experts) as expert,
            k.bind("start", starts[expert], s.pairs + 1) as start,
            k.bind("n", starts[expert + 1] - starts[expert], s.pairs + 1 - start) as number,
        ):
            done, height = Index(), 1 << tiles.height.bit_length() - 1
            while height:
                with k.loop("t", s.pairs // height, (number - done) // height) as t, ExitStack() as stack:
                    places = [start + done + t * height + r for r in range(height)]
                    pairs = [stack.enter_context(k.bind("p", order[place], s.pairs)) for place in places]
                    tile(expert, j * vectors + first, vectors, pairs, [pair // s.shared for pair in pairs], left)
                done, height = number // height * height, height // 2
    return k.done()


def activations(k: Builder, s: ExpertProduct) -> list[Tensor]:
    """The parameters of activations."""
    if not s.format:
        return [k.param("x", s.rows, s.columns)]
    groups = s.columns // GROUP
    return [
        k.param("x", s.rows, s.columns // 4, dtype=DType.Q8),
        k.param("dx", s.rows, groups),
        k.param("sx", s.rows, 2 * groups, dtype=I32),
    ]


def _block_tiles(k: Builder, s: ExpertProduct, rows: int, x: list[Tensor], machine: Machine) -> ExpertTiles:
    """Tiles of weights in blocks: those of ``block_product``."""
    p = packing(s.format, machine)
    height, width = tile_of(BlockProduct(s.format, rows, s.columns, s.outputs), machine)
    every = s.block_product(rows, p.lanes)
    weights = BlockWeights.declared(k, every, p)
    at = BlockOperands(x[0], x[1], x[2], weights, k.param("y", s.pairs, s.outputs, out=True))
    product = BlockTiles(
        k, every, p, sum_unit(every, machine), at, by_blocks(machine), holds_rows(machine), machine.prefetch
    )

    def summed(row: TileRows, count: int, panel: Index, vectors: int) -> Tensor:
        return product.summed(row, count, panel, vectors, [] if rows == 1 else None)

    return ExpertTiles(p.lanes, height, width, summed, at.y)


def _float_tiles(k: Builder, s: ExpertProduct, rows: int, x: Tensor, machine: Machine) -> ExpertTiles:
    """Tiles of weights in floats, summed in f32 in the order of the columns."""
    lanes = machine.lanes
    panels = ceil(s.outputs / lanes)
    weights = k.param("w", s.experts * panels, s.columns, lanes, dtype=s.dtype)
    y = k.param("y", s.pairs, s.outputs, out=True)
    height = min(4 if machine.registers >= 32 else 2, rows)

    def summed(row: TileRows, rows: int, panel: Index, vectors: int) -> Tensor:
        acc = k.local("y", rows, vectors, lanes=lanes)
        for r, _ in each_row(k, row, rows):
            with k.unroll("v", vectors) as v:
                acc[r, v] = 0.0
        with k.loop("c", s.columns) as c, k.unroll("v", vectors) as v:
            own = k.let("w", as_f32(weights.vec(lanes)[panel + v, c, 0]))
            for r, at in each_row(k, row, rows):
                acc[r, v] = acc[r, v] + broadcast(x[at, c], lanes) * own
        return acc

    return ExpertTiles(lanes, height, min(_FLOAT_VECTORS, panels), summed, y)
