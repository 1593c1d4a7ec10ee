"""Products by weights in blocks in work groups.

A block has the outputs of a panel and some rows; its threads, a few for each output, share the groups.  What a group
adds to the results goes through shared memory, so that one thread adds up each result in the order of the groups: the
bits are those of ``kernels.block_product``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_sums import SIDE, BlockOperands, BlockProduct, BlockSums, packing, sum_unit
from tenon.machine.kernels.machine import Machine

_ROWS = 8
"""Most rows of a block, by which unpacked words are multiplied."""

_SLICES = 16
"""Most threads of an output."""


@lru_cache(maxsize=256)
def block_items(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: those of ``kernels.block_product.block_product``."""
    assert machine.launch is not None
    p = packing(s.format, machine)
    rows = next(n for n in range(_ROWS, 0, -1) if s.rows % n == 0)
    most = min(_SLICES if rows == 1 else _ROWS, machine.launch.group // SIDE)
    slices = next(n for n in range(most, 0, -1) if s.groups % n == 0)
    k = Builder(
        f"block_items_{s.format}_{s.rows}x{s.columns}x{s.outputs}",
        f"[{s.rows}, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format}); {rows} x {SIDE} "
        f"results of a block, each by {slices} threads",
    )
    at = BlockOperands.declared(k, s, p)
    with k.loop("i", s.rows // rows, kind="block") as i, k.loop("j", p.panels(s.outputs), kind="block") as panel:
        cells = k.local("c", slices, rows, SIDE, space="shared")
        with k.loop("slice", slices, kind="thread") as part, k.loop("out", SIDE, kind="thread") as out:
            sums = BlockSums(k, s, p, sum_unit(s, machine), replace(at, weights=at.weights.of_lane(out)))
            own = [part + r * slices for r in range(-(-rows // slices))]
            exist = [[rows - 1 - row] if row.span()[1] >= rows else [] for row in own]
            acc = k.local("y", len(own))
            for r in range(len(own)):
                acc[r] = 0.0
            with k.loop("t", s.groups // slices) as turn:
                _terms(sums, (i * rows, rows), panel, turn * slices + part, (cells, part, out))
                k.barrier()
                for r, (row, facts) in enumerate(zip(own, exist, strict=True)):
                    with k.when(*facts), k.loop("g", slices) as g:
                        acc[r] = acc[r] + cells[g, row, out]
                k.barrier()
            result = panel * SIDE + out
            past = [s.outputs - 1 - result] if s.outputs % SIDE else []
            for r, (row, facts) in enumerate(zip(own, exist, strict=True)):
                with k.when(*past, *facts):
                    at.y[i * rows + row, result] = acc[r]
    return k.done()


def _terms(
    p: BlockSums, rows: tuple[Index, int], panel: Index, group: Index, into: tuple[Tensor, Index, Index]
) -> None:
    """Store what a group adds to the results of some rows."""
    (first, count), (cells, part, out), k = rows, into, p.k
    block = group // (p.s.weights.span // GROUP)
    sums = p.sums(first, count, panel, 1, group, block)
    scales = p.at.weights.scales(k, panel, block, group)
    with k.unroll("r", count) as r:
        cells[part, r, out] = p.added(sums[r, 0], first + r, group, scales)
