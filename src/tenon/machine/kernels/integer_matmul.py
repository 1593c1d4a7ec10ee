"""Products of two matrices of quantised integers that are both computed at run time, requantised."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.index import Index, index
from tenon.machine.kernel_ir.loops import Const, Kernel, Type, broadcast, cast
from tenon.machine.kernels.integer_wide import from_wide_sum
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.types import I32, I64, DType


@dataclass(frozen=True)
class IntegerMatMul:
    """``size`` is (M, K, N); ``batch`` has for each outer axis its extent and the steps of both operands, in matrices.

    ``zeros`` are subtracted from the operands, of ``dtypes``; ``factors`` is one number of a type for each row of
    ``requantize``.
    """

    size: tuple[int, int, int]
    batch: tuple[tuple[int, int, int], ...]
    zeros: tuple[int, int]
    dtypes: tuple[DType, DType]
    requantize: Requantize
    factors: tuple[tuple[float | int, DType], ...]


@lru_cache(maxsize=256)
def integer_matmul(s: IntegerMatMul, machine: Machine) -> Kernel:
    """Parameters: a [matrices, M, K], b [matrices, K, N], y [matrices, M, N]."""
    m, deep, n = s.size
    k = Builder(f"integer_matmul_{m}x{deep}x{n}", f"[{m}, {deep}] times [{deep}, {n}], in integers")
    lefts, rights = (1 + sum((extent - 1) * steps[side] for extent, *steps in s.batch) for side in (0, 1))
    a = k.param("a", lefts, m, deep, dtype=s.dtypes[0])
    b = k.param("b", rights, deep, n, dtype=s.dtypes[1])
    y = k.param("y", math.prod(extent for extent, _, _ in s.batch), m, n, dtype=s.requantize.dtype, out=True)
    factors = [Const(value, Type(dtype)) for value, dtype in s.factors]
    kinds, _ = deal(*(extent for extent, _, _ in s.batch), m)
    with ExitStack() as stack:
        at: list[Index] = [index(0)] * 3
        for (extent, step_a, step_b), kind in zip(s.batch, kinds, strict=False):
            i = stack.enter_context(k.loop("i", extent, kind=kind))
            at = [at[0] + i * step_a, at[1] + i * step_b, at[2] * extent + i]
        row = stack.enter_context(k.loop("r", m, kind=kinds[-1]))
        wide = DType.I16 in s.dtypes  # sums of 64 bits
        for start, count, lanes in lane_segments(n, 1 if wide else machine.lanes):
            with k.loop("j", count) as j:
                col = j + start // lanes
                total = k.local("t", 1, dtype=I64 if wide else I32, lanes=lanes)
                total[0] = 0
                with k.loop("d", deep) as d:
                    left = cast(a[at[0], row, d], I32) - s.zeros[0]
                    right = cast(b.vec(lanes)[at[1], d, col], I32) - s.zeros[1]
                    total[0] = total[0] + cast(broadcast(left, lanes) * right, I64 if wide else I32)
                result = from_wide_sum(s.requantize, total[0], factors) if wide else s.requantize(total[0], factors)
                y.vec(lanes)[at[2], row, col] = result
    return k.done()
