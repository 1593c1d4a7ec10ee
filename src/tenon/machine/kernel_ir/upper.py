"""Upper bounds of index expressions, from what is known of their variables.

Every atom comes with facts (expressions known to be >= 0), adding a positive multiple of a fact can only raise an
expression, so the multiple that cancels the innermost atom is added and the rest is bounded in the same way until a
constant is left.  The least constant found is the bound.  This is Fourier-Motzkin elimination cut down to one variable
at a time, innermost first.
"""

from __future__ import annotations

from tenon.machine.kernel_ir.index import Atom, Index, Quotient, Var
from tenon.network.graph.types import LARGEST_BUFFER

Facts = tuple[Index, ...]
"""Expressions that are >= 0."""

Memo = dict[tuple[object, ...], float]
"""Bounds known already, by expression and facts."""

_LIMIT = LARGEST_BUFFER


def _facts(atom: Atom, guards: Facts, memo: Memo) -> list[Index]:
    one = Index(((atom, 1),))
    if isinstance(atom, Var):
        return [one, *(b - 1 - one for b in atom.below)]
    if atom.rest:
        split = atom.of - Index(((Quotient(atom.of, atom.by), atom.by),))  # the remainder
        return [one, atom.by - 1 - one, split - one, one - split]
    return [
        atom.of - one * atom.by,
        one * atom.by - atom.of + (atom.by - 1),
        one * -1 + _floor(upper(atom.of, guards, memo), atom.by),
        one - _floor(-upper(-atom.of, guards, memo), atom.by),
    ]


def _floor(bound: float, by: int) -> int:
    if bound in (float("inf"), float("-inf")):
        return _LIMIT if bound > 0 else -_LIMIT
    return int(bound) // by


def upper(e: Index, guards: tuple[Index, ...] = (), memo: Memo | None = None) -> float:
    """An upper bound of ``e``: exact for most loop nests, infinity when nothing is known."""
    if not e.terms:
        return e.const
    memo = {} if memo is None else memo
    key = (e.terms, guards)
    if key not in memo:
        atom, k = e.terms[-1]
        memo[key] = float("inf")
        for fact in (*_facts(atom, guards, memo), *guards):
            c = next((c for a, c in fact.terms if a == atom), 0)
            if c * k < 0 and k % c == 0 and fact.terms[-1][0].order <= atom.order:
                rest = tuple(g for g in guards if g is not fact)
                memo[key] = min(memo[key], upper(Index(e.terms) + fact * (-k // c), rest, memo))
    return memo[key] + e.const
