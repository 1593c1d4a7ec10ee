"""Proof that a kernel which is cut short at run time (``kernel_ir.clip``) leaves out only what nothing reads.

Bounds of loops and tests of statements may depend on the numbers of needed positions, which the kernel reads at its
start.  For every such bound, the iterations that it leaves out are considered: whatever the other loops do, each store
of theirs goes to a position along a needed axis from the number of needed positions on, and not to a halo.  The same
is shown of statements whose test fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenon.errors import InternalError
from tenon.machine.kernel_ir.clip import largest, outliving
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Bind, If, Kernel, Load, Loop, Stmt, Store
from tenon.machine.kernel_ir.needed import NeededAxis
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.text import show_expr
from tenon.machine.kernel_ir.upper import Facts, upper
from tenon.machine.kernel_ir.walk import indices, values


class LeftOutError(InternalError):
    """A kernel that is cut short may leave out a result that is needed.  Names the kernel and the loop or test."""


@dataclass(frozen=True)
class _LeftOut:
    """Statements that do not run where ``facts`` hold."""

    what: str
    facts: Facts
    body: tuple[Stmt, ...]


def prove_needed(kernel: Kernel, needed: Sequence[NeededAxis]) -> int:
    """Raise LeftOutError unless everything that is needed is stored; returns how many bounds and tests were shown to
    leave out nothing else."""
    body, numbers = _numbers(kernel, needed)
    walk = _WithoutCuts(frozenset(numbers))
    whole = walk.body(body)
    if used := {v for i in indices(whole) for a, _ in i.terms for v in a.vars} & numbers.keys():
        names = ", ".join(sorted(v.name for v in used))
        raise LeftOutError(f"{kernel.name}: {names} is used for more than bounds and tests")
    extents = {kernel.params[bound.param] for axis in needed for bound in axis.bounds}
    if any(isinstance(e, Load) and e.buffer in extents for e in values(whole)):
        raise LeftOutError(f"{kernel.name}: reads an extent for something else than the positions that are needed")
    for left in walk.left:
        for store in _stores(kernel, left):
            if not any(_beyond(kernel, store, a, v, left.facts) for v, axes in numbers.items() for a in axes):
                raise LeftOutError(f"{kernel.name}: {left.what} may leave out a store to {store.buffer.name}")
    return len(walk.left)


def _numbers(kernel: Kernel, needed: Sequence[NeededAxis]) -> tuple[tuple[Stmt, ...], dict[Var, list[NeededAxis]]]:
    """The statements inside of the numbers of needed positions, and the axes of each."""
    body, numbers = kernel.body, dict[Var, list[NeededAxis]]()
    axes: dict[tuple[str, int], list[NeededAxis]] = {}
    for axis in needed:
        key = show_expr(largest(axis.bounds, kernel.params)), axis.count + 1
        axes.setdefault(key, []).append(axis)
    while len(body) == 1 and isinstance(s := body[0], Bind):
        (extent, *more), value = s.var.below, show_expr(s.value)
        if more or extent.terms or (value, extent.const) not in axes:
            break
        numbers[s.var], body = axes[value, extent.const], s.body
    return body, numbers


def _stores(kernel: Kernel, left: _LeftOut) -> list[Store]:
    stores = outliving(left.body)
    if stores is None:
        raise LeftOutError(f"{kernel.name}: {left.what} may leave out more than stores")
    return stores


def _beyond(kernel: Kernel, store: Store, axis: NeededAxis, number: Var, facts: Facts) -> bool:
    """Whether a store goes beyond what is needed along an axis, where ``facts`` hold."""
    if store.buffer is not kernel.params[axis.param]:
        return False
    place = axis.place(store)
    return place is not None and upper((Index(((number, 1),)) + axis.start) * place.parts - place.at, facts) <= 0


class _WithoutCuts(Substitution):
    """The same statements without the bounds and tests that depend on ``numbers``; ``left`` are those left out."""

    def __init__(self, numbers: frozenset[Var]) -> None:
        super().__init__({})
        self.numbers = numbers
        self.left: list[_LeftOut] = []

    def cuts(self, i: Index) -> bool:
        """Whether an index depends on one of the numbers."""
        return any(a.vars & self.numbers for a, _ in i.terms)

    def statement(self, s: Stmt) -> Stmt:
        if isinstance(s, Loop) and (cut := [b for b in s.var.below if self.cuts(b)]):
            bounds = self.indices(tuple(cut))
            whole = replace(s.var, below=tuple(b for b in s.var.below if not self.cuts(b)))
            if not whole.below:
                raise LeftOutError(f"loop {s.var.name} ends only where an extent says")
            new = self.defined_as(s.var, whole)
            body = self.body(s.body)
            self.left += [_LeftOut(f"loop {s.var.name}", (Index(((new, 1),)) - b,), body) for b in bounds]
            return Loop(new, body, s.kind)
        if isinstance(s, If) and (cut := [f for f in s.facts if self.cuts(f)]):
            facts = self.indices(tuple(cut))
            body = self.body(s.body)
            self.left += [_LeftOut("a test", (-f - 1,), body) for f in facts]
            return If(self.indices(tuple(f for f in s.facts if not self.cuts(f))), body)
        return super().statement(s)

    def defined_as(self, var: Var, new: Var) -> Var:
        """``new`` with its bounds rewritten, which takes the place of ``var``."""
        new = replace(new, below=self.indices(new.below))
        self.env[var] = Index(((new, 1),))
        return new
