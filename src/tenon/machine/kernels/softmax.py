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
from tenon.machine.kernels.group_rows import by_groups, keeps_terms, of_term, softmax_groups
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.rows import each, in_blocks, partial, total
from tenon.machine.kernels.storage_types import loaded, stored
from tenon.network.graph.types import F32, DType

_ROW = 4096
"""Most elements of a row of 16 bits whose exponentials are kept, in f32 on the stack; of others they are computed
twice."""


@dataclass(frozen=True)
class Softmax:
    """Over the middle axis of [outer, n, inner] of a type, which is computed in f32."""

    outer: int
    n: int
    inner: int
    log: bool = False
    dtype: DType = F32


@lru_cache(maxsize=256)
def softmax(s: Softmax, machine: Machine) -> Kernel:
    """Parameters: x, y."""
    k = Builder(
        f"{'log_' if s.log else ''}softmax_{s.outer}x{s.n}x{s.inner}",
        f"{'Log-softmax' if s.log else 'Softmax'} along the middle axis of [{s.outer}, {s.n}, {s.inner}]",
    )
    x, y = (k.param(name, s.outer, s.n, s.inner, dtype=s.dtype, out=out) for name, out in (("x", False), ("y", True)))
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
        top[0] = maximum(top[0], loaded(x[o, i, column]))
    for (i,), (sums,) in in_blocks(k, [("i", s.n)], [acc]):
        e = k.let("e", math.exp_of_negative(loaded(x[o, i, column]) - top[0]))
        if keeps_terms(s.log, s.dtype):
            y[o, i, column] = e
        sums[0] = sums[0] + e
    scale = k.let("s", math.log(acc[0]) if s.log else 1.0 / acc[0])
    with k.loop("i", s.n) as i:
        y[o, i, column] = of_term(s.log, x[o, i, column], y[o, i, column], top[0], scale)


@lru_cache(maxsize=256)
def softmax_rows(s: Softmax, machine: Machine) -> Kernel:
    """The same where ``inner`` is 1: along rows of n.  Parameters: x, y."""
    if by_groups(machine, s.outer, s.n):
        return softmax_groups(s.outer, s.n, s.log, machine, s.dtype)
    k = Builder(
        f"{'log_' if s.log else ''}softmax_{s.outer}x{s.n}",
        f"{'Log-softmax' if s.log else 'Softmax'} along the rows of [{s.outer}, {s.n}]",
    )
    x, y = k.param("x", s.outer, s.n, dtype=s.dtype), k.param("y", s.outer, s.n, dtype=s.dtype, out=True)
    apart = not s.log and not keeps_terms(s.log, s.dtype) and s.n <= _ROW
    with k.loop("o", s.outer, kind="parallel") as o:
        terms = k.local("t", s.n, space="stack") if apart else None
        top = total(k, "max", s.n, machine.lanes, F32, lambda at, lanes: loaded(x.vec(lanes)[o, at // lanes]))

        def exponential(at: Index, lanes: int) -> Expr:
            e = k.let("e", math.exp_of_negative(loaded(x.vec(lanes)[o, at // lanes]) - top))
            if keeps_terms(s.log, s.dtype):
                y.vec(lanes)[o, at // lanes] = e
            elif terms is not None:
                terms.vec(lanes)[at // lanes] = e
            return e

        whole = total(k, "add", s.n, machine.lanes, F32, exponential)
        scale = k.let("s", math.log(whole) if s.log else 1.0 / whole)

        def finish(at: Index, lanes: int) -> None:
            place = (o, at // lanes)
            if terms is not None:
                y.vec(lanes)[place] = stored(terms.vec(lanes)[at // lanes] * scale, s.dtype)
                return
            y.vec(lanes)[place] = of_term(s.log, x.vec(lanes)[place], y.vec(lanes)[place], top, scale)

        each(k, s.n, machine.lanes, finish)
    return k.done()
