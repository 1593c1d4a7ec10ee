"""Walks over all statements and expressions of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    Alloc,
    Bind,
    Expr,
    Guarded,
    If,
    Instruction,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Prefetch,
    Stmt,
    Store,
)
from tenon.network.graph.types import DType


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a body, an outer one before those in it."""
    for s in body:
        yield s
        if isinstance(s, BLOCKS):
            yield from statements(s.body)


def statements_under_tests(
    body: tuple[Stmt, ...], facts: tuple[Index, ...] = ()
) -> Iterator[tuple[Stmt, tuple[Index, ...]]]:
    """The same, with the tests around each."""
    for s in body:
        yield s, facts
        if isinstance(s, BLOCKS):
            yield from statements_under_tests(s.body, (*facts, *s.facts) if isinstance(s, If) else facts)


def indices(body: tuple[Stmt, ...]) -> Iterator[Index]:
    """All indices of a body: of loads and stores, bounds of loops, and tests."""
    for s in statements(body):
        match s:
            case Store() | Prefetch():
                yield from s.index
            case Loop() | Bind():
                yield from s.var.below
            case If():
                yield from s.facts
            case Instruction():
                for _, at in s.operands:
                    yield from at
    for e in values(body):
        if isinstance(e, Load):
            yield from e.index
        elif isinstance(e, Guarded):
            yield from e.facts


def run_time_iterations(kernel: Kernel) -> tuple[int, ...]:
    """The most iterations of loops, by the number of loops nested in them of which only a run knows how often they run:
    at ``n`` of any loop with at least ``n`` of them.  Empty where there are none."""
    known_in_a_run = {s.var for s in statements(kernel.body) if isinstance(s, Bind)} | set(kernel.sizes)
    most: list[int] = []

    def nested(body: tuple[Stmt, ...]) -> int:
        """The depth of such loops in a body."""
        depth = 0
        for s in body:
            inner = nested(s.body) if isinstance(s, BLOCKS) else 0
            if isinstance(s, Loop):
                most.extend([0] * (inner + 1 - len(most)))
                most[: inner + 1] = [max(n, s.var.most() + 1) for n in most[: inner + 1]]
                inner += any(index.terms for index in s.var.below)
            depth = max(depth, inner)
        return depth

    loops = [s.var for s in statements(kernel.body) if isinstance(s, Loop)]
    bounds = (atom.vars for var in loops for index in var.below for atom, _ in index.terms)
    if not any(own & known_in_a_run for own in bounds):
        return ()
    nested(kernel.body)
    return tuple(most)


def operations(kernel: Kernel) -> dict[str, Op]:
    """The operations that a kernel computes, by name: the first of each."""
    named: dict[str, Op] = {}
    for e in values(kernel.body):
        if isinstance(e, Op):
            named.setdefault(e.name, e)
    return named


def types(kernel: Kernel) -> set[DType]:
    """The types of the elements of its buffers, and of all values that it computes."""
    made = (s.buffer for s in statements(kernel.body) if isinstance(s, Alloc))
    return {b.type.dtype for b in (*kernel.params, *made)} | {e.type.dtype for e in values(kernel.body)}


def values(body: tuple[Stmt, ...]) -> Iterator[Expr]:
    """Every expression of a body, once."""
    seen: set[int] = set()
    waiting: list[Expr] = [s.value for s in statements(body) if isinstance(s, Let | Store | Bind)]
    while waiting:
        e = waiting.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        yield e
        if isinstance(e, Op):
            waiting += e.args
        elif isinstance(e, Guarded):
            waiting += (e.value, e.other)


def loads(body: tuple[Stmt, ...], facts: tuple[Index, ...] = ()) -> Iterator[tuple[Load, tuple[Index, ...]]]:
    """The loads of statements, with the tests around them."""
    for s, tests in statements_under_tests(body, facts):
        if isinstance(s, Let | Store | Bind):
            yield from loads_of(s.value, tests)


def loads_of(e: Expr, facts: tuple[Index, ...]) -> Iterator[tuple[Load, tuple[Index, ...]]]:
    """The loads of a value, with the tests around them."""
    if isinstance(e, Load):
        yield e, facts
    elif isinstance(e, Op):
        for a in e.args:
            yield from loads_of(a, facts)
    elif isinstance(e, Guarded):
        yield from loads_of(e.value, (*facts, *e.facts))
        yield from loads_of(e.other, facts)
