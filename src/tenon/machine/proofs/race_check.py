"""Proof that kernels are free of data races.

The iterations of a kernel's parallel loops are distributed to threads and not ordered, not even by the serial loops
around them, because threads do not synchronise inside a kernel.  So for every two accesses to one buffer of which at
least one is a store, made by two different iterations, this proves that they never access the same element.

Suppose they did.  Then the indices are equal in every dimension, which makes a list of equations ``a = b`` between an
index of the one iteration and an index of the other.  From them others follow:

    k * x + r = k * y + s                        gives  x = y + (s - r) / k,  and  r = s  where that says x = y
    e // n = f // n  and  e mod n = f mod n      gives  e = f

until one is contradictory: the ranges of its sides do not overlap, or it is ``v = v`` for the loop variable in which
the two iterations differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

from tenon.machine.kernel_ir.index import Atom, Index, Quotient, Var
from tenon.machine.kernel_ir.loops import Buffer

_ROUNDS = 6  # of deriving equations: two per nested quotient, and no generator nests three

Terms = tuple[tuple[Atom, int], ...]


@dataclass(frozen=True)
class Side:
    """A set of values: the terms plus any number of low..high."""

    terms: Terms
    low: int
    high: int
    most: tuple[tuple[Atom, int], ...] = ()  # what tests say of variables: they are at most that

    def reach(self) -> tuple[int, int]:
        """(least, greatest) value, with independent terms."""
        if not self.most:
            low, high = Index(self.terms).span()
            return self.low + low, self.high + high
        known, low, high = dict(self.most), self.low, self.high
        for atom, k in self.terms:
            end = k * min(atom.most(), known.get(atom, atom.most()))
            low, high = low + min(0, end), high + max(0, end)
        return low, high

    def split(self, k: int) -> tuple[Side, Side]:
        """(x, r) with this = k * x + r."""
        x = Side(tuple((a, c // k) for a, c in self.terms if c % k == 0), 0, 0, self.most)
        return x, Side(tuple((a, c) for a, c in self.terms if c % k), self.low, self.high, self.most)

    def negated(self) -> Side:
        return Side(tuple((a, -c) for a, c in self.terms), -self.high, -self.low, self.most)

    def without(self, fixed: dict[Atom, int]) -> Side:
        return Side(tuple(t for t in self.terms if t[0] not in fixed), self.low, self.high, self.most)

    @property
    def alone(self) -> Atom | None:
        """The only atom, if this is an atom plus a constant."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 and self.low == self.high else None

    @property
    def quotient(self) -> Quotient | None:
        return self.alone if isinstance(self.alone, Quotient) else None


Equation = tuple[Side, Side]


@dataclass(frozen=True)
class Touch:
    """An access to memory inside the parallel loops ``chain``, outermost first."""

    chain: tuple[Var, ...]
    buffer: Buffer
    store: bool
    sides: tuple[Side, ...]

    @classmethod
    def of(
        cls,
        chain: tuple[Var, ...],
        buffer: Buffer,
        store: bool,
        idx: tuple[Index, ...],
        width: int,
        most: tuple[tuple[Atom, int], ...] = (),
    ) -> Touch:
        wide = [0] * (len(idx) - 1) + [width - 1]
        moving = (tuple(t for t in i.terms if t[0].most()) for i in idx)  # the variable of a loop of one iteration is 0
        sides = tuple(Side(t, i.const, i.const + w, most) for t, i, w in zip(moving, idx, wide, strict=True))
        return cls(chain, buffer, store, sides)


def conflict(touches: Iterable[Touch], common: frozenset[Var] = frozenset()) -> str:
    """Empty, or a message that names two iterations that may access the same element.  ``common`` are variables that
    are the same number in all iterations."""
    merged = _merged(touches)
    for a, b in combinations_with_replacement(merged, 2):
        if a.buffer is b.buffer and (a.store or b.store):
            for fixed, differs in _cases(a.chain, b.chain):
                if not apart(a, b, fixed | common, differs):
                    names = " and ".join(dict.fromkeys(t.chain[-1].name if t.chain else "no loop" for t in (a, b)))
                    doing = "write" if a.store and b.store else "write and read"
                    return f"two iterations of parallel {names} may {doing} one element of {a.buffer.name}"
    return ""


def _merged(touches: Iterable[Touch]) -> list[Touch]:
    """Accesses of one loop that differ in constants only, merged to one that covers all of them."""
    merged: dict[tuple[object, ...], Touch] = {}
    for t in touches:
        key = (t.chain, t.buffer, t.store, tuple(s.terms for s in t.sides))
        if key in merged:
            pairs = zip(merged[key].sides, t.sides, strict=True)
            sides = tuple(Side(a.terms, min(a.low, b.low), max(a.high, b.high)) for a, b in pairs)
            t = Touch(t.chain, t.buffer, t.store, sides)
        merged[key] = t
    return list(merged.values())


def _cases(a: tuple[Var, ...], b: tuple[Var, ...]) -> Iterator[tuple[frozenset[Var], Var | None]]:
    """Cases of two different iterations: (loops in which they agree, the outermost loop in which they differ)."""
    shared = [v for v, w in zip(a, b, strict=False) if v is w]
    for i, var in enumerate(shared):
        if var.most():
            yield frozenset(shared[:i]), var
    if a != b or not a:
        yield frozenset(shared), None


def apart(a: Touch, b: Touch, fixed: frozenset[Var], differs: Var | None) -> bool:
    """Whether the accesses are disjoint, given the loops in which the iterations agree and one in which they differ."""
    known: dict[Equation, None] = {}
    new = list(zip(a.sides, b.sides, strict=True))
    for _ in range(_ROUNDS):
        cancelled = [_cancelled(e, fixed) for e in new]
        if any(_absurd(e, differs) or _apart_by(e, fixed) for e in cancelled):
            return True
        fresh = [e for e in dict.fromkeys([*new, *cancelled]) if e not in known]
        known.update(dict.fromkeys(fresh))
        new = [d for e in fresh for d in _digits(e)] + list(_rejoined(list(known)))
        if not fresh:
            return False
    return False


def _cancelled(e: Equation, fixed: frozenset[Var]) -> Equation:
    """Without the terms that are the same number on both sides."""
    a, b = e
    same = {x: k for x, k in a.terms if x.vars <= fixed and (x, k) in b.terms}
    return (a.without(same), b.without(same)) if same else e


def _absurd(e: Equation, differs: Var | None) -> bool:
    (low_a, high_a), (low_b, high_b) = e[0].reach(), e[1].reach()
    if high_a < low_b or high_b < low_a or any(side.low > side.high for side in e):
        return True
    return differs is not None and e[0].alone is e[1].alone is differs and e[0].low == e[1].low


def _apart_by(e: Equation, fixed: frozenset[Var]) -> bool:
    """Whether both sides are remainders, by one number, of the same and another constant: they differ."""
    x, y = e[0].quotient, e[1].quotient
    if x is None or y is None or not (x.rest and y.rest and x.by == y.by) or e[0].low or e[1].low:
        return False
    between = x.of - y.of
    return x.vars <= fixed and not between.terms and between.const % x.by != 0


def _digits(e: Equation) -> Iterator[Equation]:
    """k * x + r = k * y + s gives x - y = (s - r) / k, one of a few numbers; where it is one, r and s are known too."""
    a, b = e
    for k in {abs(c) for _, c in (*a.terms, *b.terms)}:
        (x, r), (y, s) = a.split(k), b.split(k)
        (low_r, high_r), (low_s, high_s) = r.reach(), s.reach()
        low, high = -((high_r - low_s) // k), (high_s - low_r) // k
        other = Side(y.terms, low, high, y.most)
        yield x, other
        if x.terms and all(c < 0 for _, c in (*x.terms, *y.terms)):
            yield x.negated(), other.negated()
        if low == high:
            yield r, Side(s.terms, s.low - low * k, s.high - low * k, s.most)


def _rejoined(known: list[Equation]) -> Iterator[Equation]:
    """Wherever one side is a quotient and its remainder: both sides put together again."""
    whole = [e for e in known if any(s.quotient and not s.quotient.rest for s in e)]
    rests = [e for e in known if any(s.quotient and s.quotient.rest for s in e)]
    for q in whole:
        for r in rests:
            joined = [_joined(x, y) for x, y in zip(q, r, strict=True)]
            by = next((quotient[1] for quotient in joined if quotient), 0)
            if by and all(quotient is None or quotient[1] == by for quotient in joined):
                left, right = (
                    quotient[0] if quotient else _sum(x, by, y) for quotient, x, y in zip(joined, q, r, strict=True)
                )
                yield left, right


def _joined(x: Side, y: Side) -> tuple[Side, int] | None:
    """(e, n) where ``x`` is e // n, or that and a constant, and ``y`` is e mod n."""
    q, r = x.quotient, y.quotient
    if q and r and not q.rest and r.rest and r.by == q.by and r.of == _part(q) and y.low == 0:
        start = q.of.const + x.low * q.by
        return Side(q.of.terms, start, start), q.by
    return None


def _sum(x: Side, by: int, y: Side) -> Side:
    """by * x + y."""
    terms = (Index(x.terms) * by + Index(y.terms)).terms
    return Side(terms, by * x.low + y.low, by * x.high + y.high)


def _part(q: Quotient) -> Index:
    """``q.of`` modulo ``q.by``, in the form of ``Index.__mod__``."""
    return Index(tuple((x, k) for x, k in q.of.terms if k % q.by), q.of.const % q.by)
