"""Proof that the threads of a work group are free of data races, and that all of them reach its barriers.

Barriers cut what the threads of a block do into intervals: accesses of two threads may happen in any order only where
no barrier lies between.  So the accesses that a thread may have made since the last barrier are kept while its
statements are walked, and every access is compared with them as an access of another thread of the block.

A loop with barriers inside runs in step: its variable is the same in all threads.  Its body is walked as the first
iteration, which follows what stands before the loop; as any iteration by itself; and as the one after that, which
follows the tail of its last interval.  A barrier under a test, under a value from data or in a loop without a constant
number of iterations is refused, so that all threads reach it, and every iteration of a loop in step has one.

Blocks never meet, so that accesses of two of them to memory that the kernel writes are compared without intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from tenon.machine.kernel_ir.index import Atom, Index, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    Barrier,
    Bind,
    Buffer,
    Expr,
    Guarded,
    If,
    Let,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
)
from tenon.machine.kernel_ir.work_groups import WorkGroups
from tenon.machine.proofs.race_check import Side, Touch, apart

Facts = tuple[Index, ...]
Open = dict[Touch, None]
"""Accesses since the last barrier, in order."""


def group_conflict(groups: WorkGroups, same: Mapping[Buffer, Buffer]) -> str:
    """Empty, or a message that says which threads may touch one element at the same time, or miss a barrier."""
    proof = _Intervals(groups, same)
    try:
        proof.walk(groups.body, {}, (), {})
        proof.blocks_apart()
    except _AtFaultError as found:
        return str(found)
    return ""


class _AtFaultError(Exception):
    """A conflict, by its message."""


@dataclass
class _Intervals:
    groups: WorkGroups
    same: Mapping[Buffer, Buffer]
    uniform: set[Var] = field(default_factory=set)  # variables of loops with barriers inside
    everything: Open = field(default_factory=dict)  # accesses to memory that other blocks reach
    compared: set[tuple[Touch, Touch, frozenset[Var]]] = field(default_factory=set)

    @property
    def chain(self) -> tuple[Var, ...]:
        return (*self.groups.blocks, *self.groups.threads)

    # ------------------------------------------------------------------------------------- statements
    def walk(self, body: tuple[Stmt, ...], env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """The accesses since the last barrier at the end of ``body``, those ``before`` it being open where it begins;
        ``env`` says what variables of loops in step stand for."""
        pending = before
        for s in body:
            match s:
                case Barrier():
                    pending = {}
                case Let():
                    pending = self.value(s.value, env, guards, pending)
                case Store():
                    pending = self.value(s.value, env, guards, pending)
                    width = s.value.type.lanes // s.buffer.type.lanes
                    pending = self.touch(s.buffer, s.index, width, env, guards, pending, store=True)
                case Bind():
                    self.refuse_barrier(s.body, f"the value {s.var.name}, which data decide")
                    pending = self.value(s.value, env, guards, pending)
                    pending = self.walk(s.body, env, guards, pending)
                case If():
                    self.refuse_barrier(s.body, "a test, which may differ between threads")
                    facts = tuple(replaced(f, env) for f in s.facts)
                    pending = self.walk(s.body, env, (*guards, *facts), pending)
                case Loop() if has_barrier(s.body):
                    pending = self.in_step(s, env, guards, pending)
                case _ if isinstance(s, BLOCKS):
                    pending = self.walk(s.body, env, guards, pending)
        return pending

    def in_step(self, s: Loop, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """A loop with barriers inside."""
        if any(b.terms or b.const < 1 for b in s.var.below):
            raise _AtFaultError(f"a barrier stands in loop {s.var.name}, which has no constant number of iterations")
        tail = self.walk(s.body, {**env, s.var: Index()}, guards, before)
        if s.var.most():
            self.uniform.add(s.var)
            this = Index(((s.var, 1),))
            tail = self.walk(s.body, {**env, s.var: this}, guards, {})
            self.walk(s.body, {**env, s.var: this + 1}, guards, tail)
            self.uniform.discard(s.var)
        return _closed(tail, s.var)

    def refuse_barrier(self, body: tuple[Stmt, ...], under: str) -> None:
        if has_barrier(body):
            raise _AtFaultError(f"a barrier stands under {under}")

    # ----------------------------------------------------------------------------------------- values
    def value(self, e: Expr, env: Mapping[Var, Index], guards: Facts, pending: Open) -> Open:
        match e:
            case Load():
                width = e.type.lanes // e.buffer.type.lanes
                return self.touch(e.buffer, e.index, width, env, guards, pending, store=False)
            case Op():
                for a in e.args:
                    pending = self.value(a, env, guards, pending)
            case Guarded():
                inside = (*guards, *(replaced(f, env) for f in e.facts))
                pending = self.value(e.value, env, inside, pending)
                pending = self.value(e.other, env, guards, pending)
        return pending

    def touch(
        self,
        buffer: Buffer,
        idx: tuple[Index, ...],
        width: int,
        env: Mapping[Var, Index],
        guards: Facts,
        pending: Open,
        *,
        store: bool,
    ) -> Open:
        """Compare an access with those since the last barrier, and with the same access of another thread."""
        buffer = self.same.get(buffer, buffer)
        if buffer.space not in ("shared", "global"):
            return pending
        at = tuple(replaced(i, env) for i in idx)
        touch = Touch.of(self.chain, buffer, store, at, width, _limits(guards))
        if touch in pending:
            return pending
        for other in (*pending, touch):
            if other.buffer is buffer and (store or other.store):
                self.threads_apart(touch, other)
        if buffer.space == "global":
            self.everything[touch] = None
        return {**pending, touch: None}

    # -------------------------------------------------------------------------------------- conflicts
    def threads_apart(self, a: Touch, b: Touch) -> None:
        known = frozenset((*self.groups.blocks, *self.uniform))
        if (a, b, known) in self.compared:
            return
        self.compared.add((a, b, known))
        for i, var in enumerate(self.groups.threads):
            if _may_meet(a, b, known | frozenset(self.groups.threads[:i]), var):
                raise _AtFaultError(
                    f"two threads may {_doing(a, b)} one element of {a.buffer.name} between two barriers"
                )

    def blocks_apart(self) -> None:
        """Raise if two blocks may touch one element."""
        for a, b in combinations_with_replacement(self.everything, 2):
            if a.buffer is b.buffer and (a.store or b.store):
                for i, var in enumerate(self.groups.blocks):
                    if _may_meet(a, b, frozenset(self.groups.blocks[:i]), var):
                        raise _AtFaultError(f"two blocks may {_doing(a, b)} one element of {a.buffer.name}")


def _may_meet(a: Touch, b: Touch, agreed: frozenset[Var], var: Var) -> bool:
    """Whether two threads (or blocks) that agree in loops, but not in that over ``var``, may touch one element."""
    alone = _one_value(a, var) and _one_value(b, var)
    return not alone and not apart(a, b, agreed, var)


def _one_value(touch: Touch, var: Var) -> bool:
    """Whether a variable is 0 in all threads that make an access."""
    limits = (most for side in touch.sides[:1] for atom, most in side.most if atom is var)
    return min([var.most(), *limits]) < 1


def _doing(a: Touch, b: Touch) -> str:
    return "write" if a.store and b.store else "write and read"


def has_barrier(body: tuple[Stmt, ...]) -> bool:
    """Whether there is a barrier in ``body``."""
    return any(isinstance(s, Barrier) or (isinstance(s, BLOCKS) and has_barrier(s.body)) for s in body)


def _limits(guards: Facts) -> tuple[tuple[Atom, int], ...]:
    """The largest values of single atoms that tests allow."""
    limits: dict[Atom, int] = {}
    for g in guards:
        if len(g.terms) == 1 and g.terms[0][1] < 0:
            ((atom, k),) = g.terms
            limits[atom] = min(g.const // -k, limits.get(atom, g.const // -k))
    return tuple(limits.items())


def _closed(touches: Iterable[Touch], var: Var) -> Open:
    """The same accesses behind the loop over ``var``: with another variable in its place, because a later round of the
    loop has other values."""
    env = {var: Index(((Var(var.name, var.below, var.depth), 1),))}
    closed: Open = {}
    for t in touches:
        closed[dataclasses.replace(t, sides=tuple(_renamed(side, env) for side in t.sides))] = None
    return closed


def _renamed(side: Side, env: Mapping[Var, Index]) -> Side:
    index = replaced(Index(side.terms, side.low), env)
    moved = index.const - side.low
    return Side(index.terms, index.const, side.high + moved, side.most)


def replaced(i: Index, env: Mapping[Var, Index]) -> Index:
    """``i`` with indices in place of variables."""
    if not env or all(a.vars.isdisjoint(env) for a, _ in i.terms):
        return i
    out = Index((), i.const)
    for atom, k in i.terms:
        out = out + _atom(atom, env) * k
    return out


def _atom(atom: Atom, env: Mapping[Var, Index]) -> Index:
    if isinstance(atom, Var):
        return env.get(atom, Index(((atom, 1),)))
    of = replaced(atom.of, env)
    return of % atom.by if atom.rest else of // atom.by
