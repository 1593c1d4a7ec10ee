"""Softmax and its logarithm along one axis: the greatest element, the sum of exponentials, the result.

The result may overwrite the input: no element is read after it has been overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, maximum
from tenon.machine.kernels import math
from tenon.machine.kernels.group_rows import by_groups, softmax_groups
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import each, in_blocks, partial, total
from tenon.network.graph.types import F32


@dataclass(frozen=True)
class Softmax:
    """Over the middle axis of [outer, n, inner]."""

    outer: int
    n: int
    inner: int
    log: bool = False


@lru_cache(maxsize=256)
def softmax(s: Softmax, machine: Machine) -> Kernel:
    """Parameters: x, y."""
    k = Builder(
        f"{'log_' if s.log else ''}softmax_{s.outer}x{s.n}x{s.inner}",
        f"{'Log-softmax' if s.log else 'Softmax'} along the middle axis of [{s.outer}, {s.n}, {s.inner}]",
    )
    x, y = k.param("x", s.outer, s.n, s.inner), k.param("y", s.outer, s.n, s.inner, out=True)
    (kind,), inside = deal(s.outer)
    with k.loop("o", s.outer, kind=kind) as o:
        for start, iterations, lanes in lane_segments(s.inner, machine.lanes):
            with k.loop("j", iterations, kind=inside) as j:
                _columns(k, s, x.vec(lanes), y.vec(lanes), o, j + start // lanes)
    return k.done()


def _columns(k: Builder, s: Softmax, x: Tensor, y: Tensor, o: Index, column: Index) -> None:
    """Softmax down a vector of neighbouring columns."""
    top, acc = (partial(k, how, 1, F32, x.lanes) for how in ("max", "add"))
    with k.loop("i", s.n) as i:
        top[0] = maximum(top[0], x[o, i, column])
    for (i,), (sums,) in in_blocks(k, [("i", s.n)], [acc]):
        e = k.let("e", math.exp(x[o, i, column] - top[0]))
        if not s.log:
            y[o, i, column] = e
        sums[0] = sums[0] + e
    scale = k.let("s", math.log(acc[0]) if s.log else 1.0 / acc[0])
    with k.loop("i", s.n) as i:
        y[o, i, column] = (x[o, i, column] - top[0]) - scale if s.log else y[o, i, column] * scale


@lru_cache(maxsize=256)
def softmax_rows(s: Softmax, machine: Machine) -> Kernel:
    """The same where ``inner`` is 1: along rows of n.  Parameters: x, y."""
    if by_groups(machine, s.outer, s.n):
        return softmax_groups(s.outer, s.n, s.log, machine)
    k = Builder(
        f"{'log_' if s.log else ''}softmax_{s.outer}x{s.n}",
        f"{'Log-softmax' if s.log else 'Softmax'} along the rows of [{s.outer}, {s.n}]",
    )
    x, y = k.param("x", s.outer, s.n), k.param("y", s.outer, s.n, out=True)
    with k.loop("o", s.outer, kind="parallel") as o:
        top = total(k, "max", s.n, machine.lanes, F32, lambda at, lanes: x.vec(lanes)[o, at // lanes])

        def exponential(at: Index, lanes: int) -> Expr:
            e = k.let("e", math.exp(x.vec(lanes)[o, at // lanes] - top))
            if not s.log:
                y.vec(lanes)[o, at // lanes] = e
            return e

        whole = total(k, "add", s.n, machine.lanes, F32, exponential)
        scale = k.let("s", math.log(whole) if s.log else 1.0 / whole)

        def finish(at: Index, lanes: int) -> None:
            place = (o, at // lanes)
            y.vec(lanes)[place] = (x.vec(lanes)[place] - top) - scale if s.log else y.vec(lanes)[place] * scale

        each(k, s.n, machine.lanes, finish)
    return k.done()
