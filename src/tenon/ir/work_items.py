"""How the trips of a kernel's parallel loops are dealt out to threads.

The trips lie one after another on a line of work items, and a thread runs the items of a slice [from, to) of it.  A
parallel loop inside another has its items inside each trip of that one; a serial loop around them passes over the
same items again, so that a thread does the same part in every pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from tenon.errors import InternalError
from tenon.ir.index import Index, Var
from tenon.ir.loops import Bind, If, Kernel, Loop, Outline, Stmt


@dataclass
class WorkItems:
    """``first`` is where a parallel loop's first item lies (it moves with the parallel loops around), ``each`` how
    many items one trip of it has."""

    length: int = 0
    first: dict[Var, Index] = field(default_factory=dict)
    each: dict[Var, int] = field(default_factory=dict)


@lru_cache(maxsize=1024)
def linearise(kernel: Kernel) -> WorkItems | None:
    """None for a kernel without parallel loops.  Raises InternalError if one has no known number of trips."""
    items = WorkItems()
    items.length = _assign(kernel.body, Index(), items)
    return items if items.each else None


def _assign(body: tuple[Stmt, ...], start: Index, items: WorkItems) -> int:
    """Place the items of ``body`` from ``start`` on; returns how many there are."""
    count = 0
    for s in body:
        if isinstance(s, Loop) and s.kind == "parallel":
            inside = _count(s.body)
            items.first[s.var], items.each[s.var] = start + count, max(1, inside)
            _assign(s.body, start + count + Index(((s.var, inside),)), items)
            count += iterations(s) * max(1, inside)
        elif isinstance(s, Loop | Bind | If | Outline):
            count += _assign(s.body, start + count, items)
    return count


def _count(body: tuple[Stmt, ...]) -> int:
    return _assign(body, Index(), WorkItems())


def iterations(loop: Loop) -> int:
    """The most trips of a parallel loop."""
    known = [b.const for b in loop.var.below if not b.terms]
    if not known:
        raise InternalError(f"parallel loop {loop.var.name} has no constant extent: its trips cannot be dealt out")
    return min(known)
