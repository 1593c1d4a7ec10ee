"""Softmax of 8-bit integers and its logarithm in f32, by a table of exponentials: see ``ops.lookup_softmax`` for the
arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, lane_segments, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, maximum, op
from tenon.machine.kernels import math
from tenon.machine.kernels.group_rows import GroupRow, by_groups, threads_of
from tenon.machine.kernels.lookup import CODES, lowest
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import CHAINS, joined, total
from tenon.network.graph.types import F32, I32, DType

_SHARED = 4096
"""Exponentials of a row that shared memory holds: those of longer rows are added up by one thread from memory."""


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

    @property
    def described(self) -> tuple[str, str]:
        """The name of its kernel and a sentence about it."""
        dims = (self.outer, self.n) if self.inner == 1 else (self.outer, self.n, self.inner)
        shape, shown = "x".join(map(str, dims)), ", ".join(map(str, dims))
        name, what = ("lookup_log_softmax", "Log-softmax") if self.log else ("lookup_softmax", "Softmax")
        return f"{name}_{shape}", f"{what} along axis 1 of [{shown}], by a table of exp"


@lru_cache(maxsize=256)
def lookup_softmax(s: LookupSoftmax, machine: Machine) -> Kernel:
    """Parameters: x, the table f32 [256] of exp by the distance from the greatest element, y.

    Exponentials are added up element by element on every machine, as the order of additions is part of the result.
    """
    if s.inner == 1 and s.n <= _SHARED and by_groups(machine, s.outer, s.n):
        return _groups(s, machine)
    dims = (s.outer, s.n) if s.inner == 1 else (s.outer, s.n, s.inner)
    k = Builder(*s.described)
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


def _groups(s: LookupSoftmax, machine: Machine) -> Kernel:
    """A block for each row: its threads share the elements, and one for each chain of additions adds up exponentials in
    shared memory, in the order of ``rows.total`` for one lane."""
    k = Builder(*s.described)
    x, t = k.param("x", s.outer, s.n, dtype=s.dtype), k.param("t", CODES)
    y = k.param("y", s.outer, s.n, out=True)
    row = GroupRow(k, s.n, threads_of(machine, s.n))
    chains = segments(s.n, CHAINS)
    with k.loop("o", s.outer, kind="block") as o:
        tops = row.cells(I32)
        terms, sums = k.local("e", s.n, space="shared"), k.local("c", len(chains), CHAINS, space="shared")
        with row.running():
            most = row.total(tops, "max", I32, lambda at, _: cast(x[o, at], I32))

            def exponential(at: Index, _: Index) -> None:
                distance = op("and", most - cast(x[o, at], I32), CODES - 1)
                with k.bind("d", distance, CODES) as d:
                    terms[at] = t[d]

            row.elements(exponential)
            k.barrier()
            for part, (start, count, side) in enumerate(chains):
                with k.when(*row.first(side)):
                    acc = k.local("a", 1)
                    acc[0] = 0.0
                    with k.loop("i", count) as i:
                        acc[0] = acc[0] + terms[row.lane + i * side + start]
                    sums[part, row.lane] = acc[0]
            k.barrier()
            parts = [joined("add", [sums[part, i] for i in range(side)]) for part, (_, _, side) in enumerate(chains)]
            whole = k.let("s", joined("add", parts))
            last = k.let("l", math.rounded_log(whole) if s.log else 1.0 / whole)

            def finish(at: Index, _: Index) -> None:
                if s.log:
                    real = op("mul_rounded", cast(cast(x[o, at], I32) - most, F32), s.scale)
                    y[o, at] = real - last
                else:
                    y[o, at] = terms[at] * last

            row.elements(finish)
    return k.done()
