"""Activations in bf16 as tiles in registers read them: 16 rows side by side, 32 elements of each at a time."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.block_tiles import LANES, ROWS
from tenon.network.graph.types import F32, DType


def rounded_shape(rows: int, columns: int) -> tuple[int, int, int, int]:
    """The extents of activations as ``rounded_rows`` writes them."""
    return -(-rows // ROWS), columns // GROUP, ROWS, GROUP


def rounded_place(row: Index, column: Index, lanes: int) -> tuple[Index, ...]:
    """Where ``lanes`` elements of a row lie, from a column on that is a multiple of so many."""
    return row // ROWS, column // GROUP, row % ROWS, column % GROUP // lanes


@lru_cache(maxsize=128)
def rounded_rows(rows: int, columns: int) -> Kernel:
    """Parameters: x f32 [rows, columns], and the same in bf16 [tiles of rows][groups][rows][32], zeros beyond the
    rows."""
    k = Builder(f"rounded_rows_{rows}x{columns}", f"[{rows}, {columns}] in bf16, {ROWS} rows side by side")
    x = k.param("x", rows, columns)
    y = k.param("y", *rounded_shape(rows, columns), dtype=DType.BF16, out=True)
    for start, count, present in segments(rows, ROWS):
        with k.loop("i", count, kind="parallel") as i, k.loop("g", columns // GROUP, kind="parallel") as group:
            tile = i + start // ROWS
            with k.loop("r", present) as r:
                for half in range(GROUP // LANES):
                    value = x.vec(LANES)[tile * ROWS + r, group * (GROUP // LANES) + half]
                    y.vec(LANES)[tile, group, r, half] = cast(value, DType.BF16)
            with k.loop("z", ROWS - present) as beyond, k.loop("h", GROUP // LANES) as part:
                zero = cast(broadcast(Const(0.0, Type(F32)), LANES), DType.BF16)
                y.vec(LANES)[tile, group, beyond + present, part] = zero
    return k.done()
