"""The elements of a kernel's results that anything reads: those below extents that are known at run time.

A kernel may leave out every store to another element (``kernel_ir.clip``), and ``proofs.needed`` shows that it leaves
out no more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Kernel, Load, Store
from tenon.machine.kernel_ir.upper import Facts, upper


@dataclass(frozen=True)
class NeededCount:
    """ceil((factor * number + offset) / divisor), where the number is the i64 that parameter ``param`` of a kernel
    holds."""

    param: int
    factor: int = 1
    offset: int = 0
    divisor: int = 1


@dataclass(frozen=True)
class NeededAxis:
    """The positions along one dimension of the buffer of parameter ``param`` that are needed.

    The dimension has ``extent`` positions, ``stride`` elements apart.  The content is in ``count`` of them, from
    ``start`` on, and of these the first ones are needed: as many as the largest of ``bounds`` says.  What lies beside
    the content, a halo, is needed.
    """

    param: int
    stride: int
    extent: int
    start: int
    count: int
    bounds: tuple[NeededCount, ...]

    def place(self, store: Store | Load, facts: Facts = ()) -> StorePosition | None:
        """Where a store or a load goes along this dimension where facts hold; None where it is not known to stay within
        its content, not in the halo, and within one row of the dimensions outside of this one, while variables run."""
        period, first = self.stride * self.extent, self.start * self.stride
        flat = store.buffer.flat(store.index)
        type = store.type if isinstance(store, Load) else store.value.type
        at, more = _rest(flat, period), type.lanes - 1  # elements behind the first one
        if upper(first - at, facts) > 0 or upper(at, facts) + more >= first + self.count * self.stride:
            return None
        inner = _rest(at, self.stride)
        if upper(-inner, facts) > 0 or upper(inner, facts) + more >= self.stride:
            return StorePosition(at, self.stride)
        outer = at - inner
        return StorePosition(Index(tuple((a, k // self.stride) for a, k in outer.terms), outer.const // self.stride), 1)


@dataclass(frozen=True)
class CutShort:
    """The bounds by which a kernel is cut short: it does as much of ``whole`` as ``needed`` says.

    Elements of operands beyond what ``absorbed`` says change no sum that the kernel adds them to, or product or extreme
    (``ops.reach.Absorbed``); ``spare`` of them may be read.
    """

    whole: Kernel
    needed: tuple[NeededAxis, ...]
    absorbed: tuple[NeededAxis, ...] = ()
    spare: int = 0


@dataclass(frozen=True)
class StorePosition:
    """A position along a dimension, in parts of which each position has ``parts``: single positions, or elements where
    a loop runs over elements of several positions."""

    at: Index
    parts: int


def _rest(i: Index, by: int) -> Index:
    """The terms that are no multiples of a number."""
    return Index(tuple((a, k) for a, k in i.terms if k % by), i.const % by)
