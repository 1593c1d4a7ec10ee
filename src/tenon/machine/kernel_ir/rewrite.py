"""The same statements over other variables: loop variables replaced by expressions in all indices."""

from __future__ import annotations

from dataclasses import replace

from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import (
    Bind,
    Expr,
    Guarded,
    If,
    Instruction,
    Let,
    Load,
    Loop,
    Op,
    Outline,
    Prefetch,
    Stmt,
    Store,
)


class Substitution:
    """Replaces variables by indices.  An expression that is used twice is rewritten once, so that it stays shared."""

    def __init__(self, env: dict[Var, Index]) -> None:
        self.env = env
        self._indices: dict[Index, Index] = {}
        self._values: dict[int, tuple[Expr, Expr]] = {}  # with the old one, which keeps its id from being used again

    def index(self, i: Index) -> Index:
        """The index with all variables replaced."""
        if not i.terms:
            return i
        if i not in self._indices:
            total = Index((), i.const)
            for atom, k in i.terms:
                if isinstance(atom, Quotient):
                    of = self.index(atom.of)
                    total = total + (of % atom.by if atom.rest else of // atom.by) * k
                else:
                    total = total + self.env.get(atom, Index(((atom, 1),))) * k
            self._indices[i] = total
        return self._indices[i]

    def indices(self, at: tuple[Index, ...]) -> tuple[Index, ...]:
        """Each of several indices with all variables replaced."""
        return tuple(map(self.index, at))

    def value(self, e: Expr) -> Expr:
        """The expression with all variables replaced."""
        if id(e) not in self._values:
            self._values[id(e)] = e, self._value(e)
        return self._values[id(e)][1]

    def _value(self, e: Expr) -> Expr:
        match e:
            case Load():
                return replace(e, index=self.indices(e.index))
            case Op():
                return Op(e.name, tuple(map(self.value, e.args)), e.type)
            case Guarded():
                return Guarded(self.indices(e.facts), self.value(e.value), self.value(e.other))
        return e

    def body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements with all variables replaced, but for those that they define, whose bounds are rewritten."""
        return tuple(map(self.statement, body))

    def defined(self, var: Var) -> Var:
        """A new variable for one that a loop or a Bind defines."""
        new = replace(var, below=self.indices(var.below))
        self.env[var] = Index(((new, 1),))
        return new

    def statement(self, s: Stmt) -> Stmt:
        """A statement with all variables replaced."""
        match s:
            case Let():
                return Let(s.ref, self.value(s.value))
            case Store():
                return Store(s.buffer, self.indices(s.index), self.value(s.value))
            case Prefetch():
                return Prefetch(s.buffer, self.indices(s.index))
            case Loop():
                return Loop(self.defined(s.var), self.body(s.body), s.kind)
            case Bind():
                value = self.value(s.value)
                return Bind(self.defined(s.var), value, self.body(s.body))
            case If():
                return If(self.indices(s.facts), self.body(s.body))
            case Outline():
                return replace(s, body=self.body(s.body))
            case Instruction():
                operands = tuple((b, self.indices(at)) for b, at in s.operands)
                return replace(s, operands=operands, body=self.body(s.body))
        return s
