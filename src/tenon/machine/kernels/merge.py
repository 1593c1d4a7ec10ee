"""Argsort by bottom-up merge sort (Knuth, The Art of Computer Programming 3, 5.2.4).

For lists compared by more than one number: a ``Tournament`` keeps copies of its keys.
"""

from __future__ import annotations

from collections.abc import Callable

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, less, minimum, op, select
from tenon.network.graph.types import I32

Order = Callable[[Index, Index], Expr]
"""Whether the element at the second index sorts before the one at the first, as an i64 of 0 or 1."""


def sort(k: Builder, n: int, places: Tensor, spare: Tensor, after: Order) -> None:
    """Store 0 .. n - 1 in ``places`` (n of i32; ``spare`` is as long) in ascending order of their elements; stable."""
    one = Const(1, Type(I32))
    counter, width = k.local("counter", 1, dtype=I32), k.local("width", 1, dtype=I32)
    counter[0] = Const(0, Type(I32))
    with k.loop("i", n) as i:
        places[i] = counter[0]
        counter[0] = counter[0] + one
    width[0] = one
    with k.loop("level", (n - 1).bit_length()):
        _merge(k, n, places, spare, width[0], after)
        width[0] = width[0] + width[0]
        with k.loop("i", n) as i:
            places[i] = spare[i]


def _merge(k: Builder, n: int, places: Tensor, spare: Tensor, width: Expr, after: Order) -> None:
    """Merge neighbouring runs of ``width``."""
    zero, one, all_ = (Const(value, Type(I32)) for value in (0, 1, n))
    left, middle, right, end, counter = (k.local(name, 1, dtype=I32) for name in ("left", "mid", "right", "end", "at"))
    for register in (left, middle, right, end, counter):
        register[0] = zero
    with k.loop("t", n) as t:
        fresh = k.let("fresh", op("equal", counter[0], end[0]))
        left[0] = select(fresh, counter[0], left[0])
        middle[0] = select(fresh, minimum(all_ - width, counter[0]) + width, middle[0])
        right[0] = select(fresh, middle[0], right[0])
        end[0] = select(fresh, minimum(all_ - width, middle[0]) + width, end[0])
        with (
            k.bind("a", left[0], n) as a,
            k.bind("b", right[0], n) as b,
            k.bind("p", places[a], n) as p,
            k.bind("q", places[b], n) as q,
        ):
            ready = op("and", less(right[0], end[0]), one)
            done = op("and", op("equal", left[0], middle[0]), one)
            taken = k.let("taken", op("and", ready, op("or", done, cast(after(p, q), I32))))
            spare[t] = select(op("equal", taken, one), places[b], places[a])
            right[0] = right[0] + taken
            left[0] = left[0] + (one - taken)
        counter[0] = counter[0] + one
