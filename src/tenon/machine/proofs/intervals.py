"""Proof that the threads of a work group are free of data races, and that all of them reach its barriers.

Barriers cut what the threads of a block do into intervals: accesses of two threads may happen in any order only where
no barrier lies between.  So the accesses that a thread may have made since the last barrier are kept while its
statements are walked, and every access is compared with them as an access of another thread of the block.

A loop with barriers inside runs in step: its variable is the same in all threads.  Its body is walked as the first
iteration, which follows what stands before the loop; as any iteration by itself; and as the one after that, which
follows the tail of its last interval.  A barrier under a test, under a value from data or in a loop without a constant
number of iterations is refused, so that all threads reach it, and every iteration of a loop in step has one; a test
that depends on the block and on loops in step alone is the same in all threads.  A barrier inside of an instruction
orders the accesses of that instruction alone: what is open before it stays open.

Blocks never meet, so that accesses of two of them to memory that the kernel writes are compared without intervals.
Those of a cluster meet at its barriers alone, between which accesses to memory of the cluster are compared; a block
writes its own part of that, and does not end while another may read it.

Asynchronous copies are pending from where they are issued to the wait for their group (``proofs.arrivals``): until then
no thread, that of the copy included, touches what they write; then they are stores of an interval.  A loop with a wait
inside is walked once for each of its first iterations, as many as a copy takes to arrive, then any iterations one after
the other, and its last ones: so the copies of earlier iterations are known wherever an iteration may begin. Memory that
is copied to is read only where all that is read has arrived and a barrier has been passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

from tenon.machine.kernel_ir.index import Atom, Index, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    AsyncCopy,
    Barrier,
    Bind,
    Buffer,
    Commit,
    Expr,
    Guarded,
    If,
    Instruction,
    Let,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Wait,
)
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.kernel_ir.work_groups import WorkGroups
from tenon.machine.proofs.arrivals import Arrival, Arrivals
from tenon.machine.proofs.race_check import Side, Touch, apart
from tenon.machine.proofs.written import Record

Facts = tuple[Index, ...]
Open = dict[Touch, None]
"""Accesses since the last barrier, in order."""


def group_conflict(groups: WorkGroups, same: Mapping[Buffer, Buffer]) -> str:
    """Empty, or a message that says which threads may touch one element at the same time, or miss a barrier."""
    proof = _Intervals(groups, same)
    try:
        proof.ended(proof.walk(groups.body, {}, (), {}))
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
    arrivals: Arrivals = field(default_factory=Arrivals)  # at the statement that is walked
    inside: list[Var] = field(default_factory=list)  # variables of the loops around that are not in step
    complete: bool = True  # whether all copies that may have been issued before are known
    copied: frozenset[Buffer] = frozenset()
    held: Open = field(default_factory=dict)  # accesses before the instruction around, which its barriers do not order

    def __post_init__(self) -> None:
        self.copied = frozenset(s.buffer for s in statements(self.groups.body) if isinstance(s, AsyncCopy))

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
                    pending = self.barrier(s, pending)
                case Commit():
                    self.arrivals = self.arrivals.commit()
                case Wait():
                    self.arrivals, arrived = self.arrivals.wait(s.groups)
                    pending = {**pending, **dict.fromkeys(a.touch for a in arrived)}
                case Let():
                    pending = self.value(s.value, env, guards, pending)
                case Store():
                    pending = self.value(s.value, env, guards, pending)
                    width = s.value.type.lanes // s.buffer.type.lanes
                    if isinstance(s, AsyncCopy):
                        self.copy(s, width, env, guards, pending)
                    else:
                        pending = self.touch(s.buffer, s.index, width, env, guards, pending, store=True)
                case Bind():
                    self.refuse_barrier(s.body, f"the value {s.var.name}, which data decide")
                    if any(isinstance(c, AsyncCopy) for c in statements(s.body)):
                        raise _AtFaultError(f"a copy stands under the value {s.var.name}, which data decide")
                    pending = self.value(s.value, env, guards, pending)
                    pending = self.walk(s.body, env, guards, pending)
                case If() if has_barrier(s.body) and self.agreed(s.facts, env):
                    pending = self.together(s, env, guards, pending)
                case If():
                    self.refuse_barrier(s.body, "a test, which may differ between threads")
                    facts = tuple(f for f in (replaced(f, env) for f in s.facts) if f.span()[0] < 0)
                    if all(f.span()[1] >= 0 for f in facts):
                        pending = self.walk(s.body, env, (*guards, *facts), pending)
                case Instruction() if has_barrier(s.body):
                    pending = self.exchange(s, env, guards, pending)
                case Loop() if any(isinstance(inner, Wait | Commit) for inner in statements(s.body)):
                    pending = self.in_flight(s, env, guards, pending)
                case Loop() if has_barrier(s.body):
                    pending = self.in_step(s, env, guards, pending)
                case Loop():
                    pending = self.loop(s, env, guards, pending)
                case _ if isinstance(s, BLOCKS):
                    pending = self.walk(s.body, env, guards, pending)
        return pending

    def agreed(self, facts: Facts, env: Mapping[Var, Index]) -> bool:
        """Whether tests hold for all threads of a block or for none: they depend on the block and on loops in step."""
        moving = frozenset().union(*(a.vars for f in facts for a, _ in replaced(f, env).terms))
        return moving <= {*self.groups.blocks, *self.uniform}

    def together(self, s: If, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """A test with barriers inside, which all threads of a block make alike: what was open before it stays open, for
        where it fails."""
        for inner in statements(s.body):
            if isinstance(inner, Commit | Wait | AsyncCopy) or (isinstance(inner, Barrier) and inner.cluster):
                raise _AtFaultError("a copy, a wait for it or a barrier of a cluster stands under a test with barriers")
        arrivals = self.arrivals
        after = self.walk(s.body, env, (*guards, *(replaced(f, env) for f in s.facts)), before)
        self.arrivals = arrivals
        return {**before, **after}

    def exchange(self, s: Instruction, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """An instruction with barriers, which order nothing but its own accesses: devices may do without them."""
        arrivals, held = self.arrivals, self.held
        self.held = before
        after = self.walk(s.body, env, guards, before)
        self.arrivals, self.held = arrivals, held
        return after

    def loop(self, s: Loop, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """A loop without barriers, whose iterations differ between threads."""
        own = len(self.arrivals.issued)
        self.inside.append(s.var)
        pending = self.walk(s.body, env, guards, before)
        self.inside.pop()
        *older, newer = self.arrivals.issued[:own], self.arrivals.issued[own:]
        if newer:
            if any(b.terms for b in s.var.below):
                raise _AtFaultError(f"a copy stands in loop {s.var.name}, which has no constant number of iterations")
            closed = (a.closed(s.var, s.var.most() + 1) for a in newer)
            self.arrivals = dataclasses.replace(self.arrivals, issued=(*older[0], *closed))
        return pending

    def in_flight(self, s: Loop, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """A loop with copies on their way from one iteration to another."""
        count, window = self.iterations(s), self.window(s)

        def iteration(at: Index, pending: Open) -> Open:
            pending = self.walk(s.body, {**env, s.var: at}, guards, pending)
            if self.arrivals.issued:
                raise _AtFaultError(f"copies of loop {s.var.name} are in no group at the end of an iteration")
            return pending

        pending, short = (
            before,
            count <= 3 * window,
        )  # the remainder of so short a variable would be the variable itself
        for i in range(count if short else window):
            pending = iteration(Index((), i), pending)
        if short:
            return pending
        seen, whole = self.arrivals.seen, self.complete
        any_start = Var(s.var.name, (Index((), count - window),), s.var.depth)
        self.uniform.add(any_start)
        for first in (Index(((any_start, 1),)), Index((), count - window - 1)):
            pending, self.arrivals = {}, Arrivals(seen=seen)
            for i in range(window + 1):
                self.complete = whole and i == window
                pending = iteration(first + i, pending)
        self.uniform.discard(any_start)
        self.complete = whole
        return pending

    def window(self, s: Loop) -> int:
        """Iterations after which no copy from before a loop is pending."""
        waits = [inner.groups for inner in statements(s.body) if isinstance(inner, Wait)]
        commits = [inner for inner in s.body if isinstance(inner, Commit)]
        if not waits or not commits:
            raise _AtFaultError(f"loop {s.var.name} has copies, and no wait for them or no end of their group")
        return max(waits) + 2

    def iterations(self, s: Loop) -> int:
        """The number of iterations of a loop in step."""
        if any(b.terms or b.const < 1 for b in s.var.below):
            raise _AtFaultError(f"a barrier stands in loop {s.var.name}, which has no constant number of iterations")
        return s.var.most() + 1

    def in_step(self, s: Loop, env: Mapping[Var, Index], guards: Facts, before: Open) -> Open:
        """A loop with barriers inside."""
        tail = self.walk(s.body, {**env, s.var: Index()}, guards, before)
        if self.iterations(s) > 1:
            self.uniform.add(s.var)
            this = Index(((s.var, 1),))
            tail = self.walk(s.body, {**env, s.var: this}, guards, {})
            self.walk(s.body, {**env, s.var: this + 1}, guards, tail)
            self.uniform.discard(s.var)
        return _closed(tail, s.var)

    def refuse_barrier(self, body: tuple[Stmt, ...], under: str) -> None:
        for s in statements(body):
            if isinstance(s, Barrier | Commit | Wait):
                what = "a barrier" if isinstance(s, Barrier) else "the end of a group of copies, or a wait,"
                raise _AtFaultError(f"{what} stands under {under}")

    def barrier(self, s: Barrier, pending: Open) -> Open:
        """The accesses that are open behind a barrier: of one of a block, those to the memory of other blocks."""
        if s.cluster and self.groups.cluster is None:
            raise _AtFaultError("a barrier of a cluster stands outside of one")
        self.arrivals = self.arrivals.barrier()
        others = {} if s.cluster else {touch: None for touch in pending if touch.buffer.space == "cluster"}
        return {**self.held, **others}

    def ended(self, pending: Open) -> None:
        """Raise if a block may end too early."""
        if self.arrivals.pending:
            raise _AtFaultError(f"copies to {self.arrivals.pending[0].touch.buffer.name} are pending at the end")
        for touch in pending:
            if touch.buffer.space == "cluster":
                raise _AtFaultError(
                    f"a block may end while others touch its part of {touch.buffer.name}: a barrier of the cluster is "
                    "missing"
                )

    # ----------------------------------------------------------------------------------------- copies
    def copy(self, s: AsyncCopy, width: int, env: Mapping[Var, Index], guards: Facts, pending: Open) -> None:
        """Issue a copy: a store from now to the wait for it."""
        at = tuple(replaced(i, env) for i in s.index)
        touch = Touch.of(self.chain, s.buffer, True, at, width, _limits(guards))
        for other in pending:
            if other.buffer is s.buffer:
                self.threads_apart(touch, other)
        self.not_pending(touch)
        self.threads_apart(touch, touch)
        agreed = frozenset((*self.chain, *self.uniform))
        for i, var in enumerate(self.inside):
            if var.most() and not apart(touch, touch, agreed | frozenset(self.inside[:i]), var):
                raise _AtFaultError(f"a thread copies twice to one element of {s.buffer.name}")
        moving = frozenset().union(*(a.vars for i in (*at, *guards) for a, _ in i.terms))
        closed = tuple((v, v.most() + 1) for v in self.groups.threads if v in moving)
        self.arrivals = self.arrivals.issue(Arrival(touch, Record(at, width, frozenset(guards), closed)))

    def not_pending(self, touch: Touch) -> None:
        """Raise if an access may be to what a copy of any thread is going to write."""
        agreed = frozenset((*self.chain, *self.uniform))
        for arrival in self.arrivals.pending:
            if arrival.touch.buffer is touch.buffer:
                if not apart(touch, arrival.touch, agreed, None):
                    raise _AtFaultError(f"an element of {touch.buffer.name} is touched before its copy has arrived")
                self.threads_apart(touch, arrival.touch)

    def copied_to(self, touch: Touch, at: tuple[Index, ...], width: int, guards: Facts) -> None:
        """Raise unless an access to memory that is copied to is a load of what has arrived."""
        if touch.store:
            raise _AtFaultError(f"{touch.buffer.name} is copied to asynchronously, and stored to as well")
        self.not_pending(touch)
        if self.complete and not self.arrivals.written(touch.buffer).covers(touch.buffer, at, width, guards):
            raise _AtFaultError(f"an element of {touch.buffer.name} is read before its copy has arrived")

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
        if buffer.space not in ("shared", "cluster", "global"):
            return pending
        at = tuple(replaced(i, env) for i in idx)
        touch = Touch.of(self.chain, buffer, store, at, width, _limits(guards))
        if buffer in self.copied:
            self.copied_to(touch, at, width, guards)
        if store and buffer.space == "cluster" and at[0] != Index(((self.groups.cluster, 1),)):  # type: ignore[arg-type]
            raise _AtFaultError(f"a block stores in another's part of {buffer.name}")
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
        groups, cluster = self.groups, self.groups.cluster
        several = (cluster,) if cluster and a.buffer.space == "cluster" else ()
        known = frozenset((*groups.blocks, *self.uniform)) - frozenset(several)
        if (a, b, known) in self.compared:
            return
        self.compared.add((a, b, known))
        nest = (*several, *groups.threads)
        for i, var in enumerate(nest):
            if _may_meet(a, b, known | frozenset(nest[:i]), var):
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
