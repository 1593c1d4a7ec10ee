"""Distribution of a kernel's parallel iterations to threads.

Iterations are linearised into work items, and a thread runs the items of a slice [from, to).  The items of a nested
parallel loop are inside each iteration of the outer one; a serial loop around them runs over the same items again, so
that a thread computes the same part in every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tenon.errors import InternalError
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import BLOCKS, Kernel, Loop, Stmt


@dataclass
class WorkItems:
    """``length`` is the number of items; by loop variable, ``first`` is the number of a parallel loop's first item (it
    depends on the enclosing parallel loops) and ``each`` the number of items of one iteration."""

    length: int = 0
    first: dict[Var, Index] = field(default_factory=dict)
    each: dict[Var, int] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def linearise(kernel: Kernel) -> WorkItems | None:
    """The work items of a kernel; None without parallel loops.  Raises InternalError for a loop without a constant
    bound."""
    items = WorkItems()
    items.length = _assign(kernel.body, Index(), items)
    return items if items.each else None


def _assign(body: tuple[Stmt, ...], start: Index, items: WorkItems) -> int:
    """Number the items of ``body`` from ``start`` on; returns their number."""
    count = 0
    for s in body:
        if isinstance(s, Loop) and s.kind == "parallel":
            inside = _count(s.body)
            items.first[s.var], items.each[s.var] = start + count, max(1, inside)
            _assign(s.body, start + count + Index(((s.var, inside),)), items)
            count += iterations(s) * max(1, inside)
        elif isinstance(s, BLOCKS):
            count += _assign(s.body, start + count, items)
    return count


def _count(body: tuple[Stmt, ...]) -> int:
    return _assign(body, Index(), WorkItems())


def iterations(loop: Loop) -> int:
    """The maximum number of iterations of a parallel loop."""
    known = [b.const for b in loop.var.below if not b.terms]
    if not known:
        raise InternalError(
            f"parallel loop {loop.var.name} has no constant extent: its iterations cannot be distributed"
        )
    return min(known)
