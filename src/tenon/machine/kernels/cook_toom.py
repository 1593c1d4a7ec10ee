"""Short convolutions with few multiplications: m sums of r products each by m + r - 1 multiplications.

y = A^T [(G g) * (B^T d)] for the taps g and m + r - 1 neighbouring inputs d.  Both sides are seen as polynomials, which
are multiplied by their values at m + r - 2 points and their leading coefficients (Toom 1963, Cook 1966; as
correlations, Winograd, "Arithmetic Complexity of Computations", 1980).  The points decide how exact that is: small
fractions and their inverses, with both signs, so that the sums over even and over odd powers serve two points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import cast

import numpy as np

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr
from tenon.network.graph.graph import Array

_MAGNITUDES = (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(4, 3))
"""Points besides zero and infinity, each with both signs, in the order in which longer transforms add them.  Of 4, 3,
3/2, 4/3 and their inverses, as additions to 2 and 1/2, 4/3 has the least error at 10 points."""


@dataclass(frozen=True)
class Short:
    """F(m, r), for r of at least 2; F(1, 1) is the identity.  The points are 0, pairs of both signs, and infinity."""

    m: int
    r: int

    @property
    def side(self) -> int:
        """The number of inputs, which is that of multiplications."""
        return self.m + self.r - 1

    @property
    def pairs(self) -> tuple[Fraction, ...]:
        """The magnitudes of the points: the i-th belongs to elements 1 + 2 i and 2 + 2 i, with plus and minus."""
        return _MAGNITUDES[: (self.side - 2) // 2]

    @property
    def trivial(self) -> bool:
        return self.side == 1

    def taps(self) -> Array:
        """G, f64 [side, r], not to be changed."""
        return _taps(self)

    def forward(self, k: Builder, d: Sequence[Expr]) -> list[Expr]:
        """B^T d."""
        if self.trivial:
            return list(d)
        points = self._points()
        rows = [_polynomial([q for q in points if q != p]) for p in points]
        out = [_dot(rows[0], d)]
        for row in rows[1::2]:
            even, odd = (k.let(name, _dot(_every_other(row, i), d)) for i, name in enumerate("eo"))
            out += [even + odd, even - odd]
        return [*out, _dot(_polynomial(points), d)]

    def backward(self, k: Builder, products: Sequence[Expr]) -> list[Expr]:
        """A^T of the products."""
        if self.trivial:
            return list(products)
        both = [
            (k.let("p", products[i] + products[i + 1]), k.let("q", products[i] - products[i + 1]))
            for i in range(1, self.side - 1, 2)
        ]
        out = []
        for j in range(self.m):
            terms = [pair[j % 2] for pair in both]
            powers = [magnitude**j for magnitude in self.pairs]
            ends = ([products[0]] if j == 0 else []) + ([products[-1]] if j == self.m - 1 else [])
            out.append(_dot([*powers, *(Fraction(1) for _ in ends)], [*terms, *ends]))
        return out

    def input_power(self) -> Array:
        """The sum of squares of each row of B^T, f64 [side]: the mean square of a transformed input over an input's."""
        if self.trivial:
            return np.ones(1)
        points = self._points()
        rows = [*(_polynomial([q for q in points if q != p]) for p in points), _polynomial(points)]
        return np.array([sum(float(c) ** 2 for c in row) for row in rows])

    def output_power(self) -> Array:
        """The squares of A^T, f64 [m, side]: the factors from the products' mean squares to the outputs'."""
        if self.trivial:
            return np.ones((1, 1))
        points = [float(p) for p in self._points()]
        rows = [[*(p**j for p in points), float(j == self.m - 1)] for j in range(self.m)]
        return np.array(rows, np.float64) ** 2

    def _points(self) -> list[Fraction]:
        return [Fraction(0), *(sign * p for p in self.pairs for sign in (1, -1))]


@cache
def _taps(short: Short) -> Array:
    if short.trivial:
        return np.ones((1, 1))
    points = short._points()
    rows = [[p**k / _product([p - q for q in points if q != p]) for k in range(short.r)] for p in points]
    return np.array([*rows, [0] * (short.r - 1) + [1]], np.float64)


def _product(factors: Sequence[Fraction]) -> Fraction:
    return cast("Fraction", np.prod(np.array(factors, object))) if factors else Fraction(1)


@cache
def _coefficients(roots: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    coefficients = [Fraction(1)]
    for root in roots:
        coefficients = [
            a - root * b for a, b in zip([Fraction(0), *coefficients], [*coefficients, Fraction(0)], strict=True)
        ]
    return tuple(coefficients)


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of x - root, the constant one first."""
    return _coefficients(tuple(roots))


def _every_other(row: Sequence[Fraction], first: int) -> list[Fraction]:
    return [c if i % 2 == first else Fraction(0) for i, c in enumerate(row)]


def _dot(coefficients: Sequence[Fraction], values: Sequence[Expr]) -> Expr:
    """The sum of coefficient * value; terms with coefficient 1 come first, which need no multiplication."""
    terms = [(c, v) for c, v in zip(coefficients, values, strict=False) if c]
    total: Expr | None = None
    for c, v in sorted(terms, key=lambda term: term[0] != 1):
        if total is None:
            total = v if c == 1 else v * float(c)
        elif c == -1:
            total = total - v
        else:
            total = total + v if c == 1 else total + v * float(c)
    assert total is not None
    return total
