"""Softmax of 8-bit integers and its logarithm in f32, by a table of exponentials: see ``ops.lookup_softmax`` for the
arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, maximum, op
from tenon.machine.kernels import math
from tenon.machine.kernels.lookup import CODES, lowest
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import total
from tenon.network.graph.types import F32, I32, DType


@dataclass(frozen=True)
class LookupSoftmax:
    """Over the middle axis of [outer, n, inner], of elements of ``dtype``; with ``log`` its logarithm, where ``scale``
    is that of x."""

    outer: int
    n: int
    inner: int
    dtype: DType
    log: bool = False
    scale: float = 1.0


@lru_cache(maxsize=256)
def lookup_softmax(s: LookupSoftmax, machine: Machine) -> Kernel:
    """Parameters: x, the table f32 [256] of exp by the distance from the greatest element, y.

    Exponentials are added up element by element on every machine, as the order of additions is part of the result.
    """
    dims = (s.outer, s.n) if s.inner == 1 else (s.outer, s.n, s.inner)
    shape, shown = "x".join(map(str, dims)), ", ".join(map(str, dims))
    name, what = ("lookup_log_softmax", "Log-softmax") if s.log else ("lookup_softmax", "Softmax")
    k = Builder(f"{name}_{shape}", f"{what} along axis 1 of [{shown}], by a table of exp")
    x, t = k.param("x", *dims, dtype=s.dtype), k.param("t", CODES)
    y = k.param("y", *dims, out=True)
    (kind,), inside = deal(s.outer)
    with k.loop("o", s.outer, kind=kind) as o, k.loop("j", s.inner, kind=inside) as j:

        def place(at: Index) -> tuple[Index, ...]:
            return (o, at) if s.inner == 1 else (o, at, j)

        def integer(at: Index, lanes: int = 1) -> Expr:
            return cast(x.vec(lanes)[place(at)], I32)

        greatest = k.local("m", 1, dtype=I32)
        greatest[0] = lowest(s.dtype)
        with k.loop("i", s.n) as i:
            greatest[0] = maximum(greatest[0], integer(i))
        most = k.let("most", greatest[0])

        def exponential(at: Index, lanes: int) -> Expr:
            distance = op("and", most - integer(at), CODES - 1)  # which compilers see the range of
            with k.bind("d", distance, CODES) as d:
                y[place(at)] = t[d]
            return y[place(at)]

        whole = total(k, "add", s.n, 1, F32, exponential)
        last = k.let("s", math.rounded_log(whole) if s.log else 1.0 / whole)
        for start, iterations, lanes in lane_segments(s.n, machine.lanes if s.inner == 1 else 1):
            with k.loop("i", iterations) as i:
                at, target = place(i + start // lanes), y.vec(lanes)
                if s.log:
                    real = op("mul_rounded", cast(integer(i + start // lanes, lanes) - most, F32), s.scale)
                    target[at] = real - last
                else:
                    target[at] = target[at] * last
    return k.done()
