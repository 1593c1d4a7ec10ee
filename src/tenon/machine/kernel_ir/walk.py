"""Walks over all statements and expressions of a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.kernel_ir.loops import BLOCKS, Alloc, Bind, Expr, Guarded, Kernel, Let, Op, Stmt, Store
from tenon.network.graph.types import DType


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a body, an outer one before those in it."""
    for s in body:
        yield s
        if isinstance(s, BLOCKS):
            yield from statements(s.body)


def operations(kernel: Kernel) -> dict[str, Op]:
    """The operations that a kernel computes, by name: the first of each."""
    named: dict[str, Op] = {}
    for e in _values(kernel):
        if isinstance(e, Op):
            named.setdefault(e.name, e)
    return named


def types(kernel: Kernel) -> set[DType]:
    """The types of the elements of its buffers, and of all values that it computes."""
    made = (s.buffer for s in statements(kernel.body) if isinstance(s, Alloc))
    return {b.type.dtype for b in (*kernel.params, *made)} | {e.type.dtype for e in _values(kernel)}


def _values(kernel: Kernel) -> Iterator[Expr]:
    """Every expression of a kernel, once."""
    seen: set[int] = set()
    waiting: list[Expr] = [s.value for s in statements(kernel.body) if isinstance(s, Let | Store | Bind)]
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
