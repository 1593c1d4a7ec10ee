"""Integers that only a run knows, as expressions: extents of tensors and the numbers that models compute from them.

An ``Expression`` is a sum of products of atoms with rational coefficients, in a normal form: equal ones compare equal.
Its bounds follow from the bounds of its symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np

Bound = float | int
"""An integer, or plus or minus infinity where nothing is known."""

MOST_POINTS = 1 << 12
"""The most combinations of symbols for which an expression is evaluated to find its bounds."""

MOST_TERMS = 64
"""The most terms of an expression: more are a number of their own."""


class UndecidedError(Exception):
    """A question about numbers that has no one answer for all runs, or that has no form as an expression."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """A number of a run, at least ``least`` and at most ``most``; another symbol is another number.

    The number that users know by this name is ``step`` times it plus ``offset``.
    """

    name: str
    least: Bound
    most: Bound
    step: int = 1
    offset: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FloorQuotient:
    """``numerator`` / ``divisor``, rounded down; the divisor is positive."""

    numerator: Expression
    divisor: Expression

    def __str__(self) -> str:
        return f"floor(({self.numerator})/({self.divisor}))"


@dataclass(frozen=True)
class Extreme:
    """The least or the greatest of several expressions."""

    greatest: bool
    parts: frozenset[Expression]

    def __str__(self) -> str:
        return f"{'max' if self.greatest else 'min'}({', '.join(sorted(map(str, self.parts)))})"


Atom = Symbol | FloorQuotient | Extreme
Monomial = frozenset[tuple[Atom, int]]
"""A product: atoms with their powers."""

ONE: Monomial = frozenset()


@dataclass(frozen=True, eq=False)
class Expression:
    """A sum of products, ``terms``: the coefficient of each product, none of them 0."""

    terms: frozenset[tuple[Monomial, Fraction]]

    # ------------------------------------------------------------------------------------ comparison
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and (self is other or self.terms == other.terms)

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    # ------------------------------------------------------------------------------------ arithmetic
    def __add__(self, other: Number) -> Expression:
        sums = dict(self.terms)
        for monomial, factor in expression(other).terms:
            sums[monomial] = sums.get(monomial, Fraction(0)) + factor
        return _of(sums)

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1

    def __sub__(self, other: Number) -> Expression:
        return self + -expression(other)

    def __rsub__(self, other: Number) -> Expression:
        return -self + other

    def __mul__(self, other: Number) -> Expression:
        sums: dict[Monomial, Fraction] = {}
        for a, x in self.terms:
            for b, y in expression(other).terms:
                both = _product(a, b)
                sums[both] = sums.get(both, Fraction(0)) + x * y
        return _of(sums)

    __rmul__ = __mul__

    # ---------------------------------------------------------------------------------------- reading
    @property
    def known(self) -> bool:
        """Whether it is a constant."""
        return all(not monomial for monomial, _ in self.terms)

    @property
    def constant(self) -> Fraction:
        """The term without symbols."""
        return dict(self.terms).get(ONE, Fraction(0))

    @property
    def number(self) -> int:
        """The integer that it is.  Raises UndecidedError if it is none."""
        if not self.known or self.constant.denominator != 1:
            raise UndecidedError(str(self))
        return int(self.constant)

    @property
    def integral(self) -> bool:
        """Whether all coefficients are integers."""
        return all(factor.denominator == 1 for _, factor in self.terms)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it depends on."""
        return frozenset(s for monomial, _ in self.terms for atom, _ in monomial for s in _symbols(atom))

    @cached_property
    def bounds(self) -> tuple[Bound, Bound]:
        """The least and the greatest number that it can be."""
        low, high = _sum_bounds(self.terms)
        if self.known or self.linear:
            return low, high
        values = self._values(self.symbols)
        if values is not None:
            return int(np.floor(values.min())), int(np.ceil(values.max()))
        near, far = _quotient_bounds(self)
        return max(low, near), min(high, far)

    @property
    def linear(self) -> bool:
        """Whether it is a sum of multiples of symbols."""
        return all(len(m) <= 1 and all(isinstance(a, Symbol) and power == 1 for a, power in m) for m, _ in self.terms)

    @property
    def least(self) -> Bound:
        """The least number that it can be."""
        return self.bounds[0]

    @property
    def most(self) -> Bound:
        """The greatest number that it can be."""
        return self.bounds[1]

    def evaluate(self, numbers: Mapping[Symbol, Any]) -> Any:
        """The value for these numbers of the symbols, which may be arrays."""
        total: Any = 0
        for monomial, factor in self.terms:
            part: Any = int(factor) if factor.denominator == 1 else float(factor)
            for atom, power in monomial:
                part = part * _evaluated(atom, numbers) ** power
            total = total + part
        return total

    def _values(self, symbols: frozenset[Symbol]) -> np.ndarray[Any, Any] | None:
        """The values for all combinations of symbols; None if these are too many."""
        counts = [s.most - s.least + 1 for s in symbols]
        if not counts or math.prod(counts) > MOST_POINTS:
            return None
        grids = np.meshgrid(*(np.arange(int(s.least), int(s.most) + 1) for s in symbols), indexing="ij")
        return np.asarray(self.evaluate(dict(zip(symbols, grids, strict=True))))

    def always(self, holds: Callable[[Any], Any], decided: bool | None) -> bool:
        """Whether ``holds`` is true of all its numbers: what the bounds say, else what all of them say.

        Raises UndecidedError where it is true of some of them.
        """
        if decided is not None:
            return decided
        values = self._values(self.symbols)
        if values is not None:
            truth = np.asarray(holds(values))
            if truth.all() or not truth.any():
                return bool(truth.all())
        raise UndecidedError(str(self))

    def __str__(self) -> str:
        units = {s: _by_users(s) for s in self.symbols if (s.step, s.offset) != (1, 0)}
        try:
            terms = replaced(self, units).terms
        except UndecidedError:
            terms = self.terms
        return " + ".join(sorted(_shown(m, f) for m, f in terms)).replace("+ -", "- ") or "0"

    __repr__ = __str__


Number = Expression | int | Fraction


def expression(number: Number) -> Expression:
    """A number as an expression."""
    return number if isinstance(number, Expression) else _of({ONE: Fraction(number)})


def symbol(name: str, least: Bound, most: Bound, *, step: int = 1, offset: int = 0) -> Expression:
    """A number of a run that is not known otherwise; what users call by this name is ``step`` times it + ``offset``."""
    return expression(int(least)) if least == most else _atom(Symbol(name, least, most, step, offset))


def _by_users(number: Symbol) -> Expression:
    """A number as an expression of the one that users know by its name."""
    least, most = (n * number.step + number.offset for n in (number.least, number.most))
    return (_atom(Symbol(number.name, least, most)) - number.offset) * Fraction(1, number.step)


def _of(terms: Mapping[Monomial, Fraction]) -> Expression:
    made = Expression(frozenset((m, f) for m, f in terms.items() if f))
    if len(made.terms) > MOST_TERMS:
        raise UndecidedError("too many terms")
    return made


def _atom(atom: Atom) -> Expression:
    return _of({frozenset({(atom, 1)}): Fraction(1)})


def _product(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return frozenset(powers.items())


def _shown(monomial: Monomial, factor: Fraction) -> str:
    atoms = [f"{atom}^{power}" if power > 1 else str(atom) for atom, power in monomial]
    above = [] if factor.numerator == 1 and atoms else [str(factor.numerator)]
    shown = "*".join([*above, *sorted(atoms)])
    return shown if factor.denominator == 1 else f"{shown}/{factor.denominator}"


def _symbols(atom: Atom) -> Iterable[Symbol]:
    match atom:
        case Symbol():
            return [atom]
        case FloorQuotient():
            return atom.numerator.symbols | atom.divisor.symbols
        case Extreme():
            return frozenset(s for part in atom.parts for s in part.symbols)


def _evaluated(atom: Atom, numbers: Mapping[Symbol, Any]) -> Any:
    match atom:
        case Symbol():
            return numbers[atom]
        case FloorQuotient():
            return np.floor_divide(atom.numerator.evaluate(numbers), atom.divisor.evaluate(numbers))
        case Extreme():
            return reduce(np.maximum if atom.greatest else np.minimum, [p.evaluate(numbers) for p in atom.parts])


# ---------------------------------------------------------------------------------------------- bounds
def _sum_bounds(terms: Iterable[tuple[Monomial, Fraction]]) -> tuple[Bound, Bound]:
    low, high = _exact_bounds(terms)
    return _whole(low, math.floor), _whole(high, math.ceil)


def _exact_bounds(terms: Iterable[tuple[Monomial, Fraction]]) -> tuple[Bound | Fraction, Bound | Fraction]:
    low: Bound | Fraction = 0
    high: Bound | Fraction = 0
    for monomial, factor in terms:
        ends = _monomial_bounds(monomial)
        parts: list[Any] = sorted(_times(factor, end) for end in ends)
        low, high = low + parts[0], high + parts[1]
    return low, high


def _quotient_bounds(number: Expression) -> tuple[Bound, Bound]:
    """Bounds of a sum by floor(p/d) = p/d - r/d with 0 <= r < d, which cancels what a quotient shares with other terms.

    So n - floor(383 n/384), which is n/384 rounded up, is known to be about as small as n/384.
    """
    low, high, whole = Fraction(0), Fraction(0), number.integral
    for _ in range(MOST_TERMS):
        quotients = [
            (monomial, factor, atom)
            for monomial, factor in number.terms
            for atom, power in monomial
            if len(monomial) == 1 and power == 1 and isinstance(atom, FloorQuotient) and atom.divisor.known
        ]
        if not quotients:
            break
        for monomial, factor, atom in quotients:
            by = atom.divisor.number
            number = number - _of({monomial: factor}) + atom.numerator * (factor / by)
            rest = -factor * Fraction(by - 1, by)
            low, high = (low + rest, high) if rest < 0 else (low, high + rest)
    least, most = _exact_bounds(number.terms)
    return _whole(least + low, math.ceil if whole else math.floor), _whole(
        most + high, math.floor if whole else math.ceil
    )


def _whole(number: Bound | Fraction, rounded: Callable[[Any], int]) -> Bound:
    return float(number) if number in (math.inf, -math.inf) else rounded(number)


def _times(a: Any, b: Any) -> Any:
    return 0 if not a or not b else (a * b if abs(b) != math.inf else math.copysign(math.inf, a) * b)


def _monomial_bounds(monomial: Monomial) -> tuple[Bound, Bound]:
    low: Any = 1
    high: Any = 1
    for atom, power in monomial:
        a, b = atom_bounds(atom)
        if power % 2 == 0:
            ends = sorted((abs(a), abs(b)))
            a, b = (0 if a <= 0 <= b else ends[0]), ends[1]
        factors = _power(a, power), _power(b, power)
        products = [_times_bounds(x, y) for x in (low, high) for y in factors]
        low, high = min(products), max(products)
    return low, high


def _power(a: Bound, power: int) -> Bound:
    return a**power


def _times_bounds(a: Bound, b: Bound) -> Bound:
    return 0 if not a or not b else a * b


def atom_bounds(atom: Atom) -> tuple[Bound, Bound]:
    """The least and the greatest number that an atom can be."""
    match atom:
        case Symbol():
            return atom.least, atom.most
        case FloorQuotient():
            ends = [_floor(n, d) for n in atom.numerator.bounds for d in atom.divisor.bounds]
            return min(ends), max(ends)
        case Extreme():
            pick = max if atom.greatest else min
            return pick(p.least for p in atom.parts), pick(p.most for p in atom.parts)


def _floor(n: Bound, d: Bound) -> Bound:
    if abs(n) == math.inf:
        return n
    if d == math.inf:
        return -1 if n < 0 else 0
    return n // max(d, 1)


# ------------------------------------------------------------------------------- quotients and extremes
def quotient(a: Number, b: Number) -> Expression:
    """``a`` / ``b``, rounded down.  Raises UndecidedError unless ``b`` is positive."""
    n, d = expression(a), expression(b)
    if d.least <= 0:
        raise UndecidedError(f"{n} / {d}")
    scale = math.lcm(*(f.denominator for _, f in (*n.terms, *d.terms)), 1)
    n, d = n * scale, d * scale
    if d.known:
        return _by_constant(n, d.number)
    whole, rest = _divided(n, d)
    return whole if not rest.terms else whole + _rounded_down(rest, d)


def exact(a: Number, b: Number) -> Expression:
    """``a`` / ``b``, of which nothing may remain.  Raises UndecidedError."""
    n, d = expression(a), expression(b)
    result = quotient(n, d)
    if result * d != n:
        raise UndecidedError(f"{n} / {d}")
    return result


def trunc(a: Number, b: Number) -> Expression:
    """``a`` / ``b``, rounded towards zero.  Raises UndecidedError where signs are not known."""
    n, d = expression(a), expression(b)
    if d.most < 0:
        n, d = -n, -d
    if n.least >= 0:
        return quotient(n, d)
    if n.most <= 0:
        return -quotient(-n, d)
    raise UndecidedError(f"{n} / {d}")


def remainder(a: Number, b: Number) -> Expression:
    """``a`` modulo ``b``, between 0 and ``b``."""
    return expression(a) - quotient(a, b) * b


def _divided(n: Expression, d: Expression) -> tuple[Expression, Expression]:
    """The polynomial quotient and the rest; the coefficients of the quotient are integers."""
    whole = expression(0)
    lead, factor = max(d.terms, key=lambda term: _order(term[0]))
    for _ in range(MOST_TERMS):
        fitting = [(m, f) for m, f in n.terms if _divides(lead, m) is not None and (f / factor).denominator == 1]
        if not fitting:
            break
        monomial, own = max(fitting, key=lambda term: _order(term[0]))
        rest = _divides(lead, monomial)
        assert rest is not None
        part = _of({rest: own / factor})
        whole, n = whole + part, n - part * d
    return whole, n


def _order(monomial: Monomial) -> tuple[int, str]:
    return sum(power for _, power in monomial), _shown(monomial, Fraction(1))


def _divides(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(b)
    for atom, power in a:
        left = powers.get(atom, 0) - power
        if left < 0:
            return None
        powers[atom] = left
    return frozenset((atom, power) for atom, power in powers.items() if power)


def _rounded_down(n: Expression, d: Expression) -> Expression:
    if n.least >= 0 and (d - n).least > 0:
        return expression(0)
    return _atom(FloorQuotient(n, d))


def _by_constant(n: Expression, d: int) -> Expression:
    """A sum of integers divided by ``d``, rounded down: multiples of ``d`` are divided exactly."""
    whole: dict[Monomial, Fraction] = {}
    rest: dict[Monomial, Fraction] = {}
    for monomial, factor in n.terms:
        part = factor // d
        whole[monomial] = Fraction(part)
        rest[monomial] = factor - part * d
    outside, inside = _of(whole), _of(rest)
    if inside.most < d and inside.least >= 0:
        return outside
    common = math.gcd(d, *(int(f) for m, f in inside.terms if m))
    if common > 1:
        c = math.floor(inside.constant / common)
        inside, d = (inside - inside.constant) * Fraction(1, common) + c, d // common
        return outside + _by_constant(inside, d) if d > 1 else outside + inside
    (first, *more) = [(m, f) for m, f in inside.terms if m] or [(ONE, Fraction(0))]
    atoms = list(first[0])
    if not more and first[1] == 1 and len(atoms) == 1 and atoms[0][1] == 1 and isinstance(atoms[0][0], FloorQuotient):
        inner = atoms[0][0]
        if inner.divisor.known:
            by = inner.divisor.number
            return outside + _by_constant(inner.numerator + inside.constant * by, by * d)
    low, high = inside.least, inside.most
    if abs(low) != math.inf and abs(high) != math.inf and low // d == high // d:
        return outside + int(low // d)
    return outside + _atom(FloorQuotient(inside, expression(d)))


def extreme(numbers: Sequence[Number], *, greatest: bool) -> Expression:
    """The greatest of some numbers, or the least."""
    parts: list[Expression] = []
    for number in map(expression, numbers):
        parts = _with_part(parts, number, greatest)
    return parts[0] if len(parts) == 1 else _atom(Extreme(greatest, frozenset(parts)))


def _with_part(parts: list[Expression], new: Expression, greatest: bool) -> list[Expression]:
    for i, part in enumerate(parts):
        above = _at_least(new, part)
        if above is not None:
            return [*parts[:i], new if above == greatest else part, *parts[i + 1 :]]
    return [*parts, new]


def _at_least(a: Expression, b: Expression) -> bool | None:
    """Whether a >= b in all runs; False: a <= b in all; None: that depends."""
    difference = a - b
    if difference.least >= 0:
        return True
    return False if difference.most <= 0 else None


def replaced(number: Expression, numbers: Mapping[Symbol, Expression]) -> Expression:
    """``number`` with other expressions in place of some symbols.  Raises UndecidedError where it has no form."""
    if not number.symbols & numbers.keys():
        return number
    total = expression(0)
    for monomial, factor in number.terms:
        part = expression(factor)
        for atom, power in monomial:
            for _ in range(power):
                part = part * _replaced_atom(atom, numbers)
        total = total + part
    return total


def _replaced_atom(atom: Atom, numbers: Mapping[Symbol, Expression]) -> Expression:
    match atom:
        case Symbol():
            return numbers.get(atom, _atom(atom))
        case FloorQuotient():
            return quotient(replaced(atom.numerator, numbers), replaced(atom.divisor, numbers))
        case Extreme():
            return extreme([replaced(part, numbers) for part in atom.parts], greatest=atom.greatest)


# ----------------------------------------------------------------------------------------- comparisons
def equal(a: Number, b: Number) -> bool:
    """Whether two numbers are equal in all runs.  Raises UndecidedError if they are in some."""
    difference = expression(a) - expression(b)
    if not difference.terms:
        return True
    apart = difference.least > 0 or difference.most < 0
    return difference.always(lambda v: v == 0, False if apart else None)


def below(a: Number, b: Number) -> bool:
    """Whether ``a`` is less than ``b`` in all runs.  Raises UndecidedError if it is in some."""
    difference = expression(b) - expression(a)
    decided = True if difference.least > 0 else False if difference.most <= 0 else None
    return difference.always(lambda v: v > 0, decided)


@lru_cache(1 << 14)
def same(a: Number, b: Number) -> bool:
    """Whether two numbers are known to be equal in all runs."""
    try:
        return equal(a, b)
    except UndecidedError:
        return False
