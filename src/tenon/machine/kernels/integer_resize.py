"""Bilinear resampling of 8-bit and 16-bit integers with positions of 10 fraction bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, broadcast, cast, op, select
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I32, I64, DType

FRACTION = 10
"""Bits behind the point of a position."""


@dataclass(frozen=True)
class IntegerResize:
    """Resampling: every element from two rows and two columns of x, whose weights add up to 2**FRACTION each."""

    x: Image
    y: Image


@lru_cache(maxsize=64)
def integer_resize(s: IntegerResize, machine: Machine) -> Kernel:
    """Parameters: x; for the rows of y, i32 [3, rows] each first row, last row and the last one's weight; the same for
    columns; y.  Blocks are whole vectors, or vectors one lane wide."""
    k = Builder(f"integer_resize_{s.y.shown}", f"Bilinear resampling of {s.x.shown} to {s.y.shown}, in integers")
    sums = I64 if s.x.dtype is DType.I16 else I32
    lanes = machine.lanes if s.x.block % machine.lanes == 0 and sums is I32 else 1
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    rows = k.param("rows", 3, s.y.h, dtype=I32)
    cols = k.param("cols", 3, s.y.w, dtype=I32)
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    groups = s.y.blocks * s.y.block // lanes
    (kind,), inside = deal(groups)
    one = 1 << FRACTION
    with (
        k.loop("n", s.y.n) as n,
        k.loop("c", groups, kind=kind) as c,
        k.loop("i", s.y.h, kind=inside) as i,
        k.bind("top", rows[0, i], s.x.h) as top,
        k.bind("bottom", rows[1, i], s.x.h) as bottom,
        k.loop("j", s.y.w) as j,
        k.bind("left", cols[0, j], s.x.w) as left,
        k.bind("right", cols[1, j], s.x.w) as right,
    ):
        channel = c * lanes
        down, across = k.let("down", rows[2, i]), k.let("across", cols[2, j])
        total = None
        for row, row_weight in ((top, one - down), (bottom, down)):
            for col, col_weight in ((left, one - across), (right, across)):
                weight = k.let("w", broadcast(row_weight * col_weight, lanes))
                value = cast(x.vec(lanes)[s.x.place(n, channel, row, col, lanes)], sums) * cast(weight, sums)
                total = value if total is None else total + value
        assert total is not None
        total = k.let("total", total)
        half = select(op("less", 0, total), 1 << (2 * FRACTION - 1), -(1 << (2 * FRACTION - 1)))
        mean = op("div", total + half, 1 << (2 * FRACTION))
        y.vec(lanes)[s.y.place(n, channel, i, j, lanes)] = cast(mean, s.y.dtype)
    return k.done()
