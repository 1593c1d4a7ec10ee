"""Products of one row by weights in blocks, by vectors of a processor's streaming mode (``isa.stream_rows``).

The weights of layers lie in panels of sixteen outputs, a long vector; an instruction multiplies all groups of up to
four panels.  Its meaning, which is computed where the processor has no such vectors, is that of
``kernels.block_product`` for each quarter of the panels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tenon.machine.isa.sme import OUTER_I8
from tenon.machine.isa.stream_rows import MULTI_ROW, PANELS, ROW, StreamRow
from tenon.machine.kernel_ir.build import Builder, Operand
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.block_product import BlockTiles, balanced, panel_runs, store_tile
from tenon.machine.kernels.block_sums import (
    STREAMED,
    BlockOperands,
    BlockProduct,
    holds_rows,
    layer_packing,
    streams,
    sum_unit,
)
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import DType

_LANES = 4
"""Outputs of a vector outside of the streaming mode."""


def supported(s: BlockProduct, machine: Machine) -> bool:
    """Whether there is a kernel: for one row, and weights that lie in panels of long vectors."""
    return s.rows == 1 and streams(s.format, machine)


@lru_cache(maxsize=256)
def stream_row(s: BlockProduct, machine: Machine) -> Kernel:
    """Parameters: those of ``block_product``, with weights in panels of long vectors."""
    p = layer_packing(s.format, machine)
    k = Builder(
        f"stream_row_{s.format}_{s.columns}x{s.outputs}",
        f"[1, {s.columns}] in bytes times {s.outputs} rows of weights in blocks ({s.format}), by long vectors",
    )
    at, name = BlockOperands.declared(k, s, p), ROW if machine.outer(DType.I8) is OUTER_I8 else MULTI_ROW
    width = balanced(p.panels(s.outputs), PANELS, machine.threads)
    for first, count, panels in panel_runs(s.outputs, STREAMED, width):
        left = s.outputs % STREAMED if first == s.outputs // STREAMED else STREAMED
        with k.loop("j", count, kind="parallel") as j:
            panel = j * panels + first
            numbers = StreamRow(panels, left, s.groups, s.weights.bits).numbers
            operands: list[Operand] = [(at.weights.codes, (panel, 0, 0, 0)), (at.x, (0, 0))]
            operands += [(at.weights.scale, (panel, 0, 0)), (at.x_scale, (0, 0)), (at.y, (0, panel * STREAMED))]
            with k.instruction(name, operands, *numbers):
                for start, quarters, lanes in ((0, left // _LANES, 0), (left // _LANES, 1, left % _LANES)):
                    if start == 0 or lanes:
                        with k.loop("c", quarters) as c:
                            _quarter(k, s, machine, at, (panel, c + start), panels, lanes)
    return k.done()


def _quarter(
    k: Builder,
    s: BlockProduct,
    machine: Machine,
    at: BlockOperands,
    place: tuple[Index, Index],
    panels: int,
    left: int,
) -> None:
    """The results of four outputs of each panel, or of ``left`` of them."""
    panel, quarter = place
    own = replace(at, weights=replace(at.weights, lanes=_LANES, lane=quarter))
    tiles = BlockTiles(k, s, layer_packing(s.format, machine), sum_unit(s, machine), own, held=holds_rows(machine))
    acc = tiles.summed(Index(), 1, panel, panels, None)
    first = panel * (STREAMED // _LANES) + quarter
    if left:
        store_tile(at.y, acc, Index(), first, panels, left)
        return
    with k.unroll("v", panels) as v:
        at.y.vec(_LANES)[0, first + v * (STREAMED // _LANES)] = acc[0, v]
