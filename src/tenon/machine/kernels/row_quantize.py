"""Rows of floats as bytes with a scale for each row."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast, less, op, select
from tenon.machine.kernels.block_quantize import LEAST
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.rows import each, total
from tenon.network.graph.types import F32, I32, DType


@lru_cache(maxsize=256)
def row_quantize(rows: int, columns: int, machine: Machine) -> Kernel:
    """Parameters: x f32 [rows, columns], y i8 [rows, columns], scales f32 [rows]."""
    k = Builder(f"row_quantize_{rows}x{columns}", f"[{rows}, {columns}] to bytes with a scale for a row")
    x = k.param("x", rows, columns)
    y = k.param("y", rows, columns, dtype=DType.I8, out=True)
    scales = k.param("d", rows, out=True)
    with k.loop("r", rows, kind="parallel") as r:
        top = total(k, "max", columns, machine.lanes, F32, lambda at, lanes: op("abs", x.vec(lanes)[r, at // lanes]))
        scale = k.let("d", op("div", top, Const(127.0, Type(F32))))
        small = k.let("z", less(scale, LEAST))
        scales[r] = select(small, 0.0, scale)
        inverse = k.let("q", select(small, 0.0, op("div", Const(1.0, Type(F32)), select(small, 1.0, scale))))

        def store(at: Index, lanes: int) -> None:
            number = op("mul_rounded", x.vec(lanes)[r, at // lanes], broadcast(inverse, lanes))
            y.vec(lanes)[r, at // lanes] = cast(cast(op("round", number), I32), DType.I8)

        each(k, columns, machine.lanes, store)
    return k.done()
