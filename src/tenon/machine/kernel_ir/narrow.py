"""Tiles of fewer positions: a block of statements that stores positions of a result, for the first of them only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Expr, Instruction, Load, Loop, Outline, Stmt, Store
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.walk import statements, values

LEAST = 4
"""Positions of a tile of which narrower versions are made."""


def widths(width: int) -> list[int]:
    """The widths of narrower versions of a tile: powers of two."""
    return [1 << i for i in range(1, width.bit_length()) if 1 << i < width] if width >= LEAST else []


def positional_loops(s: Outline, stored: Mapping[int, Var]) -> frozenset[Var] | None:
    """The unrolled loops of a block over the positions that it stores: those of ``stored``, the variable of a position
    by the id of the store, and all loops over the same positions in registers.  None where others depend on one."""
    if any(isinstance(each, Instruction) for each in statements(s.body)):
        return None
    loops = {x.var: x for x in statements(s.body) if isinstance(x, Loop)}
    made = {x.buffer for x in statements(s.body) if isinstance(x, Alloc)}
    positional, dims = set(stored.values()), set[tuple[Buffer, int]]()
    extents = {v.below for v in positional}
    if len(extents) != 1 or any(v not in loops or loops[v].kind != "unroll" for v in positional):
        return None
    accesses = [(b, at) for b, at in _accesses(s.body) if b in made]
    while True:
        more = {
            (b, d) for b, at in accesses for d, i in enumerate(at) if any(a in positional for a, _ in i.terms)
        } - dims
        dims |= more
        alone = [_alone(at[d]) for b, at in accesses for d in range(len(at)) if (b, d) in dims]
        if any(v is None or v not in loops or loops[v].kind != "unroll" or v.below not in extents for v in alone):
            return None
        reached = {v for v in alone if v is not None} - positional
        if not reached and not more:
            return frozenset(positional)
        positional |= reached


def _alone(i: Index) -> Var | None:
    """The variable that an index is."""
    (atom, k), *more = i.terms or ((None, 0),)
    return atom if isinstance(atom, Var) and k == 1 and not more and not i.const else None


def _accesses(body: tuple[Stmt, ...]) -> Iterator[tuple[Buffer, tuple[Index, ...]]]:
    for e in values(body):
        if isinstance(e, Load):
            yield e.buffer, e.index
    for s in statements(body):
        if isinstance(s, Store):
            yield s.buffer, s.index


class Narrowed(Substitution):
    """A copy of a block with the loops of ``cut`` over ``width`` positions, and registers of its own."""

    def __init__(self, cut: frozenset[Var], width: int) -> None:
        super().__init__({})
        self.cut, self.width = cut, width
        self.buffers: dict[Buffer, Buffer] = {}

    def defined(self, var: Var) -> Var:
        new = replace(var, below=(Index((), self.width),) if var in self.cut else self.indices(var.below))
        self.env[var] = Index(((new, 1),))
        return new

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case Alloc():
                self.buffers[s.buffer] = replace(s.buffer)
                return Alloc(self.buffers[s.buffer])
            case Store():
                store = super().statement(s)
                assert isinstance(store, Store)
                return replace(store, buffer=self.buffers.get(s.buffer, s.buffer))
        return super().statement(s)

    def _value(self, e: Expr) -> Expr:
        if isinstance(e, Load):
            return Load(self.buffers.get(e.buffer, e.buffer), self.indices(e.index), e.type)
        return super()._value(e)
