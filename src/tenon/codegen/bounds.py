"""Proof, before anything is printed, that a kernel touches only what it may.

For every load and store, each index is shown to stay inside its own dimension.  The proof asks for the largest
value of an index expression: every atom comes with facts (expressions known to be >= 0), adding a positive
multiple of a fact can only raise an expression, so the multiple that cancels the innermost atom is added and the
rest is bounded in the same way until a constant is left.  The least constant found is the bound.  This is
Fourier-Motzkin elimination cut down to one variable at a time, innermost first.

Also shown: offsets fit 31 bits, register tiles are indexed by constants and written before they are read, and
what threads do at the same time does not meet (see ``codegen.disjoint``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tenon.codegen.disjoint import Touch, conflict
from tenon.errors import InternalError
from tenon.ir.index import Atom, Index, Quotient, Var
from tenon.ir.loops import Alloc, Bind, Buffer, Expr, Guarded, If, Kernel, Let, Load, Loop, Op, Outline, Stmt, Store

_LIMIT = 2**31
_Memo = dict[tuple[object, ...], float]
_BLOCKS = Loop | Bind | Outline | If


class OutOfRangeError(InternalError):
    """A kernel would touch memory that is not its own.  Names the buffer, the dimension and the distance."""


def _facts(atom: Atom, memo: _Memo) -> list[Index]:
    one = Index(((atom, 1),))
    if isinstance(atom, Var):
        return [one, *(b - 1 - one for b in atom.below)]
    if atom.rest:
        split = atom.of - Index(((Quotient(atom.of, atom.by), atom.by),))  # the remainder, spelled out
        return [one, atom.by - 1 - one, split - one, one - split]
    return [
        atom.of - one * atom.by,
        one * atom.by - atom.of + (atom.by - 1),
        one * -1 + _floor(upper(atom.of, (), memo), atom.by),
        one + _floor(upper(-atom.of, (), memo), atom.by),
    ]


def _floor(bound: float, by: int) -> int:
    return _LIMIT if bound == float("inf") else int(bound) // by


def upper(e: Index, guards: tuple[Index, ...] = (), memo: _Memo | None = None) -> float:
    """An upper bound of ``e``: exact for most loop nests, infinity when nothing is known."""
    if not e.terms:
        return e.const
    memo = {} if memo is None else memo
    key = (e.terms, guards)
    if key not in memo:
        atom, k = e.terms[-1]
        memo[key] = float("inf")
        for fact in (*_facts(atom, memo), *guards):
            c = next((c for a, c in fact.terms if a == atom), 0)
            if c * k < 0 and k % c == 0 and fact.terms[-1][0].order <= atom.order:
                rest = tuple(g for g in guards if g is not fact)
                memo[key] = min(memo[key], upper(Index(e.terms) + fact * (-k // c), rest, memo))
    return memo[key] + e.const


class ConflictError(OutOfRangeError):
    """Two threads would touch one element.  Names the buffer and the loops."""


def prove(kernel: Kernel, same: Mapping[Buffer, Buffer] | None = None) -> int:
    """Raise OutOfRangeError unless every access is proved; returns how many accesses there are.

    ``same`` maps parameters to others of their shape that the caller gives the same memory.  Raises ConflictError
    where only the parallel loops are at fault.
    """
    proof = _Proof(kernel, same or {})
    proof.visit(kernel.body, (), _Trip())
    if proof.parallel and (what := conflict(proof.touches)):
        raise ConflictError(f"{kernel.name}: {what}")
    return proof.accesses


@dataclass(frozen=True)
class _Trip:
    """Where a statement stands: the parallel loops around it, and whether none of them holds another beside it."""

    loops: tuple[Var, ...] = ()
    leaf: bool = False

    @property
    def chain(self) -> tuple[Var, ...]:
        """Empty where every thread comes by."""
        return self.loops if self.leaf else ()


def has_parallel(body: tuple[Stmt, ...]) -> bool:
    """Whether any loop in ``body`` is parallel."""
    return any(
        (isinstance(s, Loop) and s.kind == "parallel") or (isinstance(s, _BLOCKS) and has_parallel(s.body))
        for s in body
    )


class _Proof:
    def __init__(self, kernel: Kernel, same: Mapping[Buffer, Buffer]) -> None:
        self.kernel = kernel
        self.same = same
        self.parallel = has_parallel(kernel.body)
        self.touches: list[Touch] = []
        self.homes: dict[Buffer, tuple[Var, ...]] = {}  # the parallel loops around each buffer that a thread makes
        self.memo: _Memo = {}
        self.accesses = 0
        self.written: set[Buffer] = set()

    def visit(self, body: tuple[Stmt, ...], guards: tuple[Index, ...], trip: _Trip) -> None:
        for s in body:
            if isinstance(s, Let | Store | Bind):
                for load, g in loads(s.value, guards):
                    self.access("load", load.buffer, load.index, load.type.lanes, g)
                    self.touch(trip, load.buffer, load.index, load.type.lanes)
                    if load.buffer.space == "register" and load.buffer not in self.written:
                        raise OutOfRangeError(
                            f"{self.kernel.name}: register {load.buffer.name} is read before it is written"
                        )
            if isinstance(s, Store):
                self.store(s, guards, trip)
            elif isinstance(s, Alloc):
                self.written.discard(s.buffer)
                self.homes[s.buffer] = trip.loops
            elif isinstance(s, Loop) and not any(upper(b, guards, self.memo) <= 0 for b in s.var.below):
                inside = _Trip((*trip.loops, s.var), not has_parallel(s.body)) if s.kind == "parallel" else trip
                self.visit(s.body, guards, inside)
            elif isinstance(s, Bind):
                if any(upper(1 - b, guards, self.memo) > 0 for b in s.var.below):
                    raise OutOfRangeError(f"{self.kernel.name}: the range of {s.var.name} may be empty")
                self.visit(s.body, guards, trip)
            elif isinstance(s, Outline):
                self.visit(s.body, guards, trip)
            elif isinstance(s, If):
                self.visit(s.body, guards + s.facts, trip)

    def store(self, s: Store, guards: tuple[Index, ...], trip: _Trip) -> None:
        if s.buffer.space == "const":
            raise OutOfRangeError(f"{self.kernel.name}: stores to the read-only {s.buffer.name}")
        lanes = s.value.type.lanes
        self.access("store", s.buffer, s.index, lanes, guards)
        self.touch(trip, s.buffer, s.index, lanes, store=True)
        self.written.add(s.buffer)
        if self.homes.get(s.buffer, trip.loops) != trip.loops:
            what = f"{s.buffer.name} carries a value from one trip of parallel {trip.loops[-1].name} to another"
            raise ConflictError(f"{self.kernel.name}: {what}")

    def touch(self, trip: _Trip, buffer: Buffer, idx: tuple[Index, ...], lanes: int, *, store: bool = False) -> None:
        """Note an access that another thread's could meet; what nobody writes is no concern."""
        buffer = self.same.get(buffer, buffer)
        if self.parallel and buffer.space == "global":
            self.touches.append(Touch.of(trip.chain, buffer, store, idx, lanes // buffer.type.lanes))

    def access(self, what: str, b: Buffer, idx: tuple[Index, ...], lanes: int, guards: tuple[Index, ...]) -> None:
        self.accesses += 1
        where = f"{self.kernel.name}: {what} of {b.name}"
        if len(idx) != len(b.shape):
            raise OutOfRangeError(f"{where}: {len(idx)} indices for {len(b.shape)} dimensions")
        width = lanes // b.type.lanes
        for d, (i, extent) in enumerate(zip(idx, b.shape, strict=True)):
            if any(isinstance(a, Quotient) and upper(-a.of, guards, self.memo) > 0 for a, _ in i.terms):
                raise OutOfRangeError(f"{where}, dimension {d}: divides a negative number")
            w = width if d == len(idx) - 1 else 1
            if (over := upper(i + w - extent, guards, self.memo)) > 0:
                raise OutOfRangeError(f"{where}, dimension {d}: passes the end by {over}")
            if (under := upper(-i, guards, self.memo)) > 0:
                raise OutOfRangeError(f"{where}, dimension {d}: starts {under} before 0")
        if b.space != "register" and upper(b.flat(idx), guards, self.memo) >= _LIMIT // b.type.bytes:
            raise OutOfRangeError(f"{where}: offsets need more than 31 bits")


def loads(e: Expr, guards: tuple[Index, ...] = ()) -> Iterator[tuple[Load, tuple[Index, ...]]]:
    """Every load under ``e`` with the guards that protect it."""
    if isinstance(e, Load):
        yield e, guards
    elif isinstance(e, Op):
        for a in e.args:
            yield from loads(a, guards)
    elif isinstance(e, Guarded):
        yield from loads(e.value, guards + e.facts)
        yield from loads(e.other, guards)
