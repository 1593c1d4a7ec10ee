"""Products of rows by matrices chosen at run time in work groups: one row at a time (``kernels.expert_product``)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import ceil

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_sums import SIDE, BlockOperands, BlockSums, BlockWeights, packing, sum_unit
from tenon.machine.kernels.expert_product import ExpertProduct, activations
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.storage_types import as_f32
from tenon.network.graph.types import I64, DType

_SLICES = 16
"""Most threads of an output."""


def float_lanes(machine: Machine) -> int:
    """Rows of a panel of weights in floats."""
    return machine.lanes if machine.launch is None else SIDE


@lru_cache(maxsize=256)
def expert_items(s: ExpertProduct, dtype: DType, machine: Machine) -> Kernel:
    """Parameters: those of ``kernels.expert_product.expert_product``, not in order.

    A block has the outputs of a panel for one pair; its threads, a few for each output, share the groups of blocks, or
    as many parts of the columns.  One thread adds up what they give, of blocks in the order of the groups, so that the
    bits are those of processors.
    """
    assert machine.launch is not None
    steps = s.columns // GROUP if s.format else s.columns
    slices = next(n for n in range(min(_SLICES, machine.launch.group // SIDE), 0, -1) if steps % n == 0)
    k = Builder(
        f"expert_items_{s.kind}_{s.pairs}x{s.columns}x{s.outputs}_{s.experts}",
        f"{s.pairs} rows of [{s.rows}, {s.columns}] times the {s.outputs} rows of one of {s.experts} matrices of "
        f"weights ({s.kind}) each; {SIDE} results of a block, each by {slices} threads",
    )
    x, chosen = activations(k, s), k.param("experts", s.pairs, dtype=dtype)
    panels = ceil(s.outputs / SIDE)
    if s.format:
        p, every = packing(s.format, machine), s.block_product(s.rows, SIDE)
        weights = BlockWeights.declared(k, every, p)
        y = k.param("y", s.pairs, s.outputs, out=True)
        at = BlockOperands(x[0], x[1], x[2], weights, y)
    else:
        floats = k.param("w", s.experts * panels, s.columns, SIDE, dtype=s.dtype)
        y = k.param("y", s.pairs, s.outputs, out=True)
    with k.loop("i", s.pairs, kind="block") as i, k.loop("j", panels, kind="block") as j:
        cells = k.local("c", slices, SIDE, space="shared")
        with k.loop("slice", slices, kind="thread") as part, k.loop("out", SIDE, kind="thread") as out:
            acc = k.local("y", 1)
            acc[0] = 0.0
            row = i // s.shared

            def term(step: Index) -> Expr:
                """The term that a group of blocks adds to a result."""
                panel, block = expert * panels + j, step // (every.weights.span // GROUP)
                sums = BlockSums(k, every, p, sum_unit(every, machine), replace(at, weights=weights.of_lane(out)))
                total = sums.sums(row, 1, panel, 1, step, block)
                return sums.added(total[0, 0], row, step, sums.at.weights.scales(k, panel, block, step))

            def joined() -> None:
                """Add what the threads of an output gave, in order, in one of them."""
                k.barrier()
                with k.when(-part), k.loop("g", slices) as g:
                    acc[0] = acc[0] + cells[g, out]

            expert_of_pair = (cast(chosen[i], I64), s.experts)
            if s.format:
                with k.loop("t", steps // slices) as turn:
                    with k.bind("e", *expert_of_pair) as expert:
                        cells[part, out] = term(turn * slices + part)
                    joined()
                    k.barrier()
            else:
                with k.bind("e", *expert_of_pair) as expert, k.loop("t", steps // slices) as turn:
                    column = turn * slices + part
                    own = as_f32(floats[expert * panels + j, column, out])
                    acc[0] = acc[0] + x[0][row, column] * own
                cells[part, out] = acc[0]
                acc[0] = 0.0
                joined()
            result = j * SIDE + out
            past = [s.outputs - 1 - result] if s.outputs % SIDE else []
            with k.when(*past, -part):
                y[i, result] = acc[0]
    return k.done()
