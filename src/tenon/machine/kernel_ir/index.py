"""Index arithmetic of the loop IR: quasi-affine integers over loop variables.

An index is kept canonical, ``sum(coefficient * atom) + const``, with atoms ordered from the outermost loop in.
Atoms are loop variables and floor-quotients or remainders by a constant.  Buffers are indexed per dimension,
never by a flattened address, so that a proof sees a missing halo *column* and not just a missing row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A loop variable or a symbolic size: an integer with 0 <= v < every entry of ``below``."""

    name: str
    below: tuple[Index, ...]
    depth: int

    @property
    def order(self) -> tuple[int, int, int]:
        return self.depth, 0, 0

    @property
    def vars(self) -> frozenset[Var]:
        return frozenset((self,))

    def most(self) -> int:
        """The maximum, considering each bound separately."""
        return min(b.span()[1] for b in self.below) - 1

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Quotient:
    """floor(of / by) or, when ``rest``, of mod by.  ``of`` is never negative wherever the value matters (the proof
    checks it), so that C's division, which truncates, gives the same."""

    of: Index
    by: int
    rest: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        depth, rank = max(a.order[:2] for a, _ in self.of.terms)
        return depth, rank + 1 + self.rest, self.by

    @property
    def depth(self) -> int:
        return self.order[0]

    @property
    def vars(self) -> frozenset[Var]:
        return frozenset().union(*(a.vars for a, _ in self.of.terms))

    def most(self) -> int:
        return self.by - 1 if self.rest else max(0, self.of.span()[1] // self.by)

    def __repr__(self) -> str:
        return f"({self.of}) {'%' if self.rest else '/'} {self.by}"


Atom = Var | Quotient


@dataclass(frozen=True, slots=True)
class Index:
    """sum(coefficient * atom) + const, atoms outermost first."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: IndexLike) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other)
        if not other.terms:
            return Index(self.terms, self.const + other.const)
        total = dict(self.terms)
        for atom, k in other.terms:
            total[atom] = total.get(atom, 0) + k
        terms = sorted(((a, k) for a, k in total.items() if k), key=lambda t: t[0].order)
        return Index(tuple(terms), self.const + other.const)

    def __mul__(self, k: int) -> Index:
        return Index(tuple((a, c * k) for a, c in self.terms) if k else (), self.const * k)

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + -other

    def __rsub__(self, other: IndexLike) -> Index:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def _split(self, by: int) -> tuple[Index, Index]:
        """self == by * whole + part, with every multiple of ``by`` moved into whole."""
        whole = Index(tuple((a, k // by) for a, k in self.terms if k % by == 0), self.const // by)
        return whole, Index(tuple((a, k) for a, k in self.terms if k % by), self.const % by)

    def span(self) -> tuple[int, int]:
        """(minimum, maximum), considering each atom separately: sufficient for folding, too weak for proofs."""
        low = high = self.const
        for atom, k in self.terms:
            most = atom.most()
            low, high = low + min(0, k * most), high + max(0, k * most)
        return low, high

    def __floordiv__(self, by: int) -> Index:
        if by == 1:
            return self
        whole, part = self._split(by)
        low, high = part.span()
        if low // by == high // by:
            return whole + low // by
        if (common := self._common(by)) > 1:
            return self._over(common) // (by // common)
        # Only constants are moved out of the quotient: a loop variable moved out would lose its relation to the rest.
        # For decreasing indices the dividend must not become negative, because C truncates towards zero.
        shift, least = self.const // by, self.span()[0]
        if low < 0 or least >= 0:
            shift = min(shift, least // by)
        return Index(((Quotient(self - shift * by, by), 1),)) + shift

    def __mod__(self, by: int) -> Index:
        _, part = self._split(by)
        low, high = part.span()
        if low // by == high // by:
            return part - low // by * by
        if (common := part._common(by)) > 1:
            return part._over(common) % (by // common) * common
        if low < 0:
            part = part - low // by * by
        return Index(((Quotient(part, by, True), 1),))

    def _common(self, by: int) -> int:
        """The greatest divisor that all coefficients, the constant and ``by`` have in common."""
        return math.gcd(by, self.const, *(k for _, k in self.terms))

    def _over(self, common: int) -> Index:
        return Index(tuple((a, k // common) for a, k in self.terms), self.const // common)

    def subst(self, env: dict[Var, int]) -> Index:
        """This index with some variables given values."""
        out = Index((), self.const)
        for atom, k in self.terms:
            if isinstance(atom, Var):
                out = out + (env[atom] * k if atom in env else Index(((atom, k),)))
            else:
                inner = atom.of.subst(env)
                out = out + (inner % atom.by if atom.rest else inner // atom.by) * k
        return out

    # Comparisons build facts: an index that is >= 0 exactly when the comparison holds.
    def __lt__(self, other: IndexLike) -> Index:
        return other - self - 1

    def __ge__(self, other: IndexLike) -> Index:
        return self - other

    def __le__(self, other: IndexLike) -> Index:
        return other - self

    def __gt__(self, other: IndexLike) -> Index:
        return self - other - 1

    def __repr__(self) -> str:
        terms = [f"{a!r}" if k == 1 else f"{k}*{a!r}" for a, k in self.terms]
        return " + ".join(terms + ([str(self.const)] if self.const or not terms else []))


IndexLike = Index | int


def index(i: IndexLike) -> Index:
    """``i`` as an Index."""
    return i if isinstance(i, Index) else Index((), i)
