"""Rows of a matrix, each moved by another number of places, from a position on that is known at run time."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, guarded
from tenon.machine.kernel_ir.loops import Kernel, cast
from tenon.network.graph.types import I64, DType


@lru_cache(maxsize=256)
def skew(outer: int, rows: int, width: int, columns: int, step: int, dtype: DType) -> Kernel:
    """y[o, i, j] = x[o, i, step * i + j + offset] where that lies in range(count), else 0, for ``columns`` columns.

    Parameters: x [outer, rows, width], offset and count (i64 [1] each), y [outer, rows, columns].
    """
    k = Builder(f"skew_{outer}x{rows}x{columns}", "Rows moved by a number of places that grows from row to row")
    x = k.param("x", outer, rows, width, dtype=dtype)
    offset, count = (k.param(name, 1, dtype=I64) for name in ("offset", "count"))
    y = k.param("y", outer, rows, columns, dtype=dtype, out=True)
    farthest = abs(step) * rows + max(width, columns)  # from there on, every place lies outside
    with (
        k.bind("first", cast(offset[0], I64) + farthest, 2 * farthest + 1) as first,
        k.bind("n", cast(count[0], I64), width + 1) as n,
        k.loop("o", outer) as o,
        k.loop("i", rows) as i,
        k.loop("j", columns) as j,
    ):
        at = i * step + j + first - farthest
        y[o, i, j] = guarded((at, n - 1 - at), x[o, i, at], 0)
    return k.done()
