"""Sums of quantised integers over windows, averaged or requantised.  Windows are clipped as in ``kernels.pool``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, cast, maximum, minimum, op, select
from tenon.machine.kernels.group_rows import GroupRow, by_groups, threads_of
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.pool import UNROLLED, Segment
from tenon.machine.kernels.requantize import Requantize, in_integers
from tenon.network.graph.types import F32, I32, DType


@dataclass(frozen=True)
class IntegerPool:
    """The function of the sum over every window of ``count`` elements (the product of its segments' weights).

    Without ``requantize`` it is divided by the count, halves away from zero, and clamped between ``low`` and ``high``.
    With it, ``x_zero`` is subtracted from every element, and the sum times the factor that ``factors`` are the rows of,
    for "float" divided by the count, is requantised.  ``epilogue`` is applied to the integer of type ``dtype``.
    """

    x: Image
    y: Image
    rows: tuple[Segment, ...]
    cols: tuple[Segment, ...]
    dilation: tuple[int, int]
    low: int
    high: int
    dtype: DType
    x_zero: int = 0
    requantize: Requantize | None = None
    factors: tuple[float | int, ...] = ()
    clear: bool = False
    epilogue: Epilogue = identity

    @property
    def whole(self) -> bool:
        """Whether one window is the whole plane."""
        sides = (self.rows, self.x.h), (self.cols, self.x.w)
        return self.dilation == (1, 1) and all(
            len(parts) == parts[0].count == 1 and parts[0].taps == size and parts[0].start == 0 for parts, size in sides
        )

    def result(self, total: Expr, taps: int, count: int, machine: Machine) -> Expr:
        """An element of y from the sum of ``taps`` elements of x."""
        return self.epilogue(self.integer(total, taps, count, machine))

    def cleared(self, value: Expr, mask: Expr) -> Expr:
        """An element of y, zero where ``mask`` is."""
        if value.type.dtype.is_float:
            return select(mask, value, 0.0)
        return cast(select(mask, cast(value, I32), 0), value.type.dtype)

    def integer(self, total: Expr, taps: int, count: int, machine: Machine) -> Expr:
        """The operand of ``epilogue``, from the sum of ``taps`` elements of x."""
        if self.requantize is None:
            half = select(op("less", total, 0), -(count // 2), count // 2)
            mean = op("div", total + half, count)
            return cast(minimum(maximum(mean, self.low), self.high), self.dtype)
        total = total - self.x_zero * taps
        if machine.rounds_in_integers and self.requantize.rounding == "float":
            factor = np.array([self.factors[0] / count], np.float32)
            even = in_integers(self.requantize, factor, np.array([taps * _FARTHEST[self.x.dtype]]))
            if even is not None:
                return even[0](total, [Const(int(number), Type(I32)) for (number,) in even[1]])
        types = [F32 if name == "factor" else I32 for name in self.requantize.rows]
        values = [f / count if t is F32 else f for f, t in zip(self.factors, types, strict=True)]
        rows = [Const(v, Type(t)) for v, t in zip(values, types, strict=True)]
        return self.requantize(total, rows)


_FARTHEST = {DType.I8: 255, DType.U8: 255, DType.I16: 65535}
"""The largest distance of an element from its zero point."""


@lru_cache(maxsize=256)
def integer_pool(s: IntegerPool, machine: Machine) -> Kernel:
    """Parameters: x, mask when ``clear``, y.  Blocks are whole vectors, or vectors one lane wide."""
    if s.whole and by_groups(machine, s.x.n * s.x.blocks, s.x.h * s.x.w * s.x.block) and s.x.block in (1, 2, 4, 8):
        return _plane_groups(s, machine)
    k = Builder(f"integer_pool_{s.y.shown}", f"Average pooling of {s.x.shown} to {s.y.shown}, in integers")
    lanes = machine.lanes if s.x.block % machine.lanes == 0 else 1
    padded = s.y.blocks * s.y.block
    x = k.param("x", *s.x.shape, dtype=s.x.dtype)
    m = k.param("m", padded, dtype=I32) if s.clear else None
    y = k.param("y", *s.y.shape, dtype=s.y.dtype, out=True)
    (kind,), inside = deal(padded // lanes)
    with k.loop("n", s.y.n) as n, k.loop("c", padded // lanes, kind=kind) as c:
        channel = c * lanes
        for rows in s.rows:
            for cols in s.cols:
                with k.loop("i", rows.count, kind=inside) as i, k.loop("j", cols.count) as j:
                    acc = k.local("a", 1, dtype=I32, lanes=lanes)
                    acc[0] = 0
                    unroll = "unroll" if rows.taps * cols.taps <= UNROLLED // 4 else "serial"
                    with k.loop("ky", rows.taps, kind=unroll) as ky, k.loop("kx", cols.taps, kind=unroll) as kx:
                        row = i * rows.step + ky * s.dilation[0] + rows.start
                        col = j * cols.step + kx * s.dilation[1] + cols.start
                        acc[0] = acc[0] + cast(x.vec(lanes)[s.x.place(n, channel, row, col, lanes)], I32)
                    value = s.result(acc[0], rows.taps * cols.taps, int(rows.weight * cols.weight), machine)
                    if m is not None:
                        value = s.cleared(value, m.vec(lanes)[c])
                    y.vec(lanes)[s.y.place(n, channel, i + rows.first, j + cols.first, lanes)] = value
    return k.done()


def _plane_groups(s: IntegerPool, machine: Machine) -> Kernel:
    """The same of one window that is the plane, a block for each group of channels; sums are exact in any order."""
    x, y = s.x, s.y
    k = Builder(
        f"integer_pool_{y.shown}",
        f"Average pooling of {x.shown} to {y.shown}, in integers, a block for {x.block}",
    )
    source = k.param("x", *x.shape, dtype=x.dtype)
    m = k.param("m", y.blocks * y.block, dtype=I32) if s.clear else None
    target = k.param("y", *y.shape, dtype=y.dtype, out=True)
    size = x.h * x.w * x.block
    row = GroupRow(k, size, threads_of(machine, size), x.block)
    (rows,), (cols,) = s.rows, s.cols
    with k.loop("n", x.n, kind="block") as n, k.loop("b", x.blocks, kind="block") as b:
        cells = row.cells(I32)
        with row.running():
            channel = row.lane % x.block

            def element(at: Index, _: Index) -> Expr:
                position = at // x.block
                return cast(source[n, b, position // x.w + x.top, position % x.w + x.left, channel], I32)

            total = row.total(cells, "add", I32, element)
            with k.when(*row.first(x.block)):
                value = s.result(total, rows.taps * cols.taps, int(rows.weight * cols.weight), machine)
                if m is not None:
                    value = s.cleared(value, m[b * y.block + row.lane])
                target[n, b, y.top, y.left, row.lane] = value
    return k.done()
