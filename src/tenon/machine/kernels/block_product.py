"""Products of activations in bytes by weights in blocks (``kernels.block_formats``), which stay of a few bits.

The arithmetic is named "blocks" (docs/design/block-weights.md).  Activations are quantised for every 32 elements of a
row: their scale is the largest magnitude over 127.  The products of a group are summed in integers; then, in f32 and
rounded after every operation, ``term = scale * sum`` (and ``+ shift * (sum of the group)`` where the format has
shifts) and ``y = y + term * activation scale``, in the order of the groups.  So every processor computes the same
bits.

A tile of rows by panels of outputs is summed in registers; the words of weights are unpacked once for all its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tenon.machine.isa.neon_groups import BLOCKS, DOTS, PanelGroups, fits
from tenon.machine.kernel_ir.build import Builder, Operand, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_sums import (
    HALF,
    BlockOperands,
    BlockProduct,
    BlockSums,
    TileRows,
    by_blocks,
    by_pairs,
    each_row,
    holds_rows,
    packing,
    row_at,
    sum_unit,
)
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import enough

LINE = 64
"""Bytes of a line of the cache."""


def tile_of(s: BlockProduct, machine: Machine) -> tuple[int, int]:
    """Rows and panels of a tile."""
    panels = packing(s.format, machine).panels(s.outputs)
    wide = machine.registers >= 32
    narrow = wide and machine.lanes == 4  # a vector of sums takes a broadcast for four results only
    if s.rows == 1:
        width = 4 if narrow else 3 if by_pairs(machine) else 2
        rows, vectors = 1, balanced(panels, width, machine.threads)
    elif wide and not narrow and s.weights.fine == HALF:
        rows, vectors = 5, 1  # as there are two sums for each result
    else:
        rows, vectors = 4 if wide else 2, 4 if narrow else 2
        if in_panels(s, machine):
            vectors = 3
    return min(rows, s.rows), min(vectors, panels)


def in_panels(s: BlockProduct, machine: Machine) -> bool:
    """Whether there are instructions for whole tiles (``isa.neon_groups``): of codes in bytes with a sign, and
    scales of groups in f16."""
    return holds_rows(machine) and packing(s.format, machine).plain


def balanced(panels: int, most: int, threads: int) -> int:
    """How many panels a tile has, at most ``most``, so that the thread with the most of them has as few as possible."""
    if threads == 1:
        return most

    def heaviest(vectors: int) -> int:
        tiles = ceil(panels / vectors)
        return ceil(tiles / threads) * vectors

    return min(range(most, 0, -1), key=heaviest)


@lru_cache(maxsize=256)
def block_product(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: x in words, its scales f32 [rows, groups] and sums of 16 i32 [rows, 2 groups], the arrays of
    ``BlockPacking.pack``, y f32 [rows, outputs]."""
    p = packing(s.format, machine)
    k = Builder(
        f"block_product_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format})",
    )
    operands = BlockOperands.declared(k, s, p)
    product = BlockTiles(
        k,
        s,
        p,
        sum_unit(s, machine),
        operands,
        by_blocks(machine),
        holds_rows(machine),
        machine.prefetch,
        in_panels(s, machine),
    )
    height, width = tile_of(s, machine)
    for first, count, vectors in panel_runs(s.outputs, p.lanes, width):
        with k.loop("j", count, kind="parallel") as j:
            panel, left = j * vectors + first, s.outputs % p.lanes if first == s.outputs // p.lanes else 0
            few = machine.threads > 1 and count < enough(machine.threads)
            most = next(n for n in range(height, 0, -1) if s.rows % n == 0 or not few)
            for top, times, rows in _segments(s.rows, most):
                shared = few and times > 1
                with k.loop("i", times, kind="parallel" if shared else "serial") as i:
                    row, fetching = i * rows + top, [-i] if top == 0 and not shared else None
                    with product.instruction(row, rows, panel, 0 if left else vectors, ahead=times == 1):
                        acc = product.summed(row, rows, panel, vectors, fetching)
                        store_tile(operands.y, acc, row, panel, vectors, left)
    return k.done()


def _segments(n: int, step: int) -> list[tuple[int, int, int]]:
    """Split range(n) into whole steps and the rest: (start, iterations, step)."""
    rest = [(n - n % step, 1, n % step)] if n % step else []
    return [*([(0, n // step, step)] if n >= step else []), *rest]


def panel_runs(outputs: int, lanes: int, width: int) -> list[tuple[int, int, int]]:
    """Tiles along the panels: (first panel, tiles, panels of each); a panel that is not full is one of its own."""
    whole = outputs // lanes
    runs = _segments(whole, width) if whole else []
    return [*runs, *([(whole, 1, 1)] if outputs % lanes else [])]


@dataclass(frozen=True, eq=False)
class BlockTiles(BlockSums):
    """Sums of tiles; ``ahead``: weights of the next tile may be prefetched."""

    ahead: bool = False
    whole: bool = False  # there are instructions for tiles

    def instruction(
        self, row: Index, rows: int, panel: Index, vectors: int, *, ahead: bool
    ) -> AbstractContextManager[None]:
        """The instruction for a tile whose meaning is the block that follows, if there is one.

        ``ahead``: no further rows are multiplied by the same weights, so that the next ones may be prefetched.
        """
        blocks = self.in_blocks(rows)
        if not self.whole or not fits(rows, vectors, blocks=blocks):
            return nullcontext()
        x, weights, y = self.at.x, self.at.weights, self.at.y
        bits, pitch = self.s.weights.bits, 4 * self.s.outputs
        numbers = PanelGroups(rows, vectors, self.s.groups, bits, pitch, int(ahead and self.ahead and rows == 1))
        operands: list[Operand] = [(weights.codes, (panel, 0, 0, 0)), (x, (row, 0)), (weights.scale, (panel, 0, 0))]
        operands += [(self.at.x_scale, (row, 0)), (y, (row, panel * self.lanes))]
        return self.k.instruction(BLOCKS if blocks else DOTS, operands, *numbers.numbers)

    def summed(self, row: TileRows, rows: int, panel: Index, vectors: int, fetching: Sequence[Index] | None) -> Tensor:
        """The results of a tile, all groups of its rows by its panels, in registers [rows, vectors].

        The weights of the next panels are prefetched where the facts ``fetching`` hold, unless that is None.
        """
        k, f, lanes = self.k, self.s.weights, self.lanes
        acc = k.local("y", rows, vectors, lanes=lanes)
        for r, _ in each_row(k, row, rows):
            with k.unroll("v", vectors) as v:
                acc[r, v] = 0.0
        with k.loop("b", self.s.columns // f.span) as block, k.loop("g", f.span // GROUP) as part:
            group = block * (f.span // GROUP) + part
            if self.ahead and fetching is not None:
                with k.when(*fetching):
                    self._prefetch(panel + vectors, vectors, block, group)
            if self.held:
                self._by_panels(acc, row, panel, group, block)
            else:
                sums = self.sums(row, rows, panel, vectors, group, block)
                with k.unroll("v", vectors) as v:
                    scales = self.at.weights.scales(k, panel + v, block, group)
                    for r, at in each_row(k, row, rows):
                        acc[r, v] = acc[r, v] + self.added(sums[r, v], at, group, scales)
        return acc

    def _by_panels(self, acc: Tensor, row: TileRows, panel: Index, group: Index, block: Index) -> None:
        """Add a group of all rows of a tile to its results, panel by panel: the sums of one are in registers."""
        k, rows, vectors = self.k, acc.buffer.shape[0].const, acc.buffer.shape[1].const
        lines = self.lines(row, rows, group)
        scale = self.scales_of_rows(row, rows, group)
        with k.unroll("v", vectors) as v:
            sums = self.sums(row, rows, panel + v, 1, group, block, lines)
            scales = self.at.weights.scales(k, panel + v, block, group)
            for r in range(rows):
                acc[r, v] = acc[r, v] + self.added(sums[r, 0], row_at(row, r), group, scales, scale[r])

    def _prefetch(self, panel: Index, vectors: int, block: Index, group: Index) -> None:
        """Fetch a group of the next tile: the first rows read every weight, in runs too short to be foreseen."""
        with self.k.unroll("v", vectors) as v:
            for line in range(0, self.p.stored_words * self.p.lanes, LINE // 4):
                word, lane = divmod(line, self.p.lanes)
                self.k.prefetch(self.at.weights.codes, panel + v, group, word, lane)
            self.k.prefetch(self.at.weights.scale, panel + v, block, 0)


def store_tile(y: Tensor, acc: Tensor, row: TileRows, panel: Index, vectors: int, left: int) -> None:
    """Store the results of a tile, [rows, vectors]; with ``left`` only so many of the lanes of its only panel."""
    k, rows, lanes = y.build, acc.buffer.shape[0].const, acc.lanes
    if not left:
        for r, at in each_row(k, row, rows):
            with k.unroll("v", vectors) as v:
                y.vec(lanes)[at, panel + v] = acc[r, v]
        return
    line = k.local("t", rows, lanes, space="stack")
    for r, _ in each_row(k, row, rows):
        line.vec(lanes)[r, 0] = acc[r, 0]
    for r, at in each_row(k, row, rows):
        with k.loop("l", left) as lane:
            y[at, panel * lanes + lane] = line[r, lane]
