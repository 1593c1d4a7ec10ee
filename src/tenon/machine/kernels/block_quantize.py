"""Activations as bytes with a scale for every 32 elements of a row, and the sums of every 16 bytes."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Kernel,
    Type,
    broadcast,
    cast,
    less,
    maximum,
    op,
    reduce_lanes,
    select,
)
from tenon.machine.kernels.block_formats import GROUP
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.types import F32, I32, DType

LEAST = 2.0**-126
"""The least scale: groups of smaller numbers become zeros."""


@lru_cache(maxsize=256)
def block_quantize(rows: int, columns: int, machine: Machine) -> Kernel:
    """Parameters: x f32 [rows, columns], y i8 [rows, columns], scales f32 [rows, groups], sums i32 [rows, 2 groups]."""
    groups = columns // GROUP
    k = Builder(f"block_quantize_{rows}x{columns}", f"[{rows}, {columns}] to bytes with a scale for {GROUP} of them")
    x = k.param("x", rows, columns)
    y = k.param("y", rows, columns, dtype=DType.I8, out=True)
    scales = k.param("d", rows, groups, out=True)
    sums = k.param("s", rows, 2 * groups, dtype=I32, out=True)
    lanes = min(machine.lanes, GROUP // 2)
    vectors = GROUP // lanes
    with k.loop("r", rows, kind="parallel") as r, k.loop("g", groups) as g:

        def vector(i: Index | int, r: Index = r, g: Index = g) -> Expr:
            return x.vec(lanes)[r, g * vectors + i]

        top = k.local("a", 1, lanes=lanes)
        top[0] = op("abs", vector(0))
        with k.loop("i", vectors - 1) as i:
            top[0] = maximum(top[0], op("abs", vector(i + 1)))
        scale = k.let("d", op("div", reduce_lanes("max", top[0]), Const(127.0, Type(F32))))
        small = k.let("z", less(scale, LEAST))
        scale = k.let("d", select(small, 0.0, scale))
        inverse = k.let("q", select(small, 0.0, op("div", Const(1.0, Type(F32)), select(small, 1.0, scale))))
        scales[r, g] = scale
        for half in (0, 1):
            total = k.local("t", 1, dtype=I32, lanes=lanes)
            total[0] = 0
            with k.loop("i", vectors // 2) as i:
                at = i + half * (vectors // 2)
                whole = k.let("w", cast(op("round", op("mul_rounded", vector(at), broadcast(inverse, lanes))), I32))
                total[0] = total[0] + whole
                y.vec(lanes)[r, g * vectors + at] = cast(whole, DType.I8)
            sums[r, g * 2 + half] = reduce_lanes("add", total[0])
    return k.done()
