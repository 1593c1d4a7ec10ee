"""Elementary functions of f64, for any number of lanes; f32 functions without a form of their own go through them.

Built from additions, multiplications, divisions, square roots, selects and bit patterns, as ``kernels.math`` is, so no
target needs a mathematical library.  Series are Taylor's, cut where the next term is below 2**-56 of the sum; results
are within a few units in the last place except where said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenon.ir.loops import Const, Expr, Type, bitcast, broadcast, cast, less, maximum, minimum, op, select
from tenon.ir.types import I64, DType

F64 = DType.F64
_LN2_HIGH = 6.93147180369123816490e-01  # 33 bits: its product with a small integer is exact
_LN2_LOW = 1.90821492927058770002e-10
_HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
_SQRT_HALF = 0x3FE6A09E667F3BCD


def constant(value: float, x: Expr) -> Expr:
    """``value`` in the type of ``x``."""
    return broadcast(Const(value, Type(x.type.dtype)), x.type.lanes)


def _series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; the constant term first."""
    total: Expr | float = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = x * total + c
    assert isinstance(total, Expr)
    return total


def _absolute(x: Expr) -> Expr:
    return op("abs", x)


def _signed(size: Expr, like: Expr) -> Expr:
    """``size`` with the sign of ``like``, zeros included."""
    sign = op("and", bitcast(like, I64), -(2**63))
    return bitcast(op("or", bitcast(size, I64), sign), F64)


def _power_of_two(n: Expr) -> Expr:
    """2**n for an i64 in -1022 .. 1023."""
    return bitcast((n + 1023) << 52, F64)


def exp(x: Expr) -> Expr:
    c = maximum(minimum(x, 710.0), -746.0)
    whole = op("round", c * 1.44269504088896340736)
    r = (c - whole * _LN2_HIGH) - whole * _LN2_LOW
    p = _series(r, [1 / math.factorial(k) for k in range(14)])
    n = cast(whole, I64)
    half = n >> 1
    result = p * _power_of_two(half) * _power_of_two(n - half)
    return select(op("equal", x, x), result, x)


def log(x: Expr) -> Expr:
    """-infinity of 0, NaN of negative numbers."""
    tiny = less(x, 2.2250738585072014e-308)
    bits = bitcast(select(tiny, x * 2.0**54, x), I64)
    exponent = (bits - _SQRT_HALF) >> 52
    f = bitcast(bits - (exponent << 52), F64) - 1.0
    e = cast(exponent, F64) - select(tiny, constant(54.0, x), 0.0)
    s = f / (2.0 + f)
    rest = s * _series(s * s, [2 / (2 * k + 3) for k in range(12)]) * (s * s)
    finite = e * _LN2_HIGH + (2.0 * s + (rest + e * _LN2_LOW))
    result = select(less(x, math.inf), finite, x)
    edge = select(op("equal", x, 0.0), constant(-math.inf, x), math.nan)
    return select(less(0.0, x), result, edge)


def log1p(u: Expr) -> Expr:
    w = 1.0 + u
    corrected = log(w) + (u - (w - 1.0)) / w
    return select(less(w, math.inf), select(op("equal", w, 0.0), constant(-math.inf, u), corrected), w)


def expm1(x: Expr) -> Expr:
    near = x * _series(x, [1 / math.factorial(k) for k in range(1, 16)])
    return select(less(_absolute(x), 0.4), near, exp(x) - 1.0)


# -------------------------------------------------------------------------------------------- circular
def _quarter(x: Expr) -> tuple[Expr, Expr]:
    """x - n * pi / 2 with the nearest n, and n modulo 4; precise up to |x| of a million, and small beyond."""
    whole = op("round", x * (2 / math.pi))
    r = x
    for part in _HALF_PI:
        r = r - whole * part
    small = select(less(_absolute(whole), 2.0**62), whole, 0.0)
    return minimum(0.8, maximum(-0.8, r)), op("and", cast(small, I64), 3)


def _sine_and_cosine(r: Expr) -> tuple[Expr, Expr]:
    square = r * r
    sine = r * _series(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(10)])
    cosine = _series(square, [(-1) ** k / math.factorial(2 * k) for k in range(10)])
    return sine, cosine


def _turned(x: Expr, quarters: int) -> Expr:
    r, n = _quarter(x)
    sine, cosine = _sine_and_cosine(r)
    n = op("and", n + quarters, 3)
    value = select(op("equal", op("and", n, 1), 0), sine, cosine)
    return select(less(1, n), -value, value)


def sin(x: Expr) -> Expr:
    return select(op("equal", x, 0.0), x, _turned(x, 0))


def cos(x: Expr) -> Expr:
    return _turned(x, 1)


def tan(x: Expr) -> Expr:
    return select(op("equal", x, 0.0), x, _turned(x, 0) / _turned(x, 1))


def atan(x: Expr) -> Expr:
    size = _absolute(x)
    big = less(1.0, size)
    t = select(big, 1.0 / size, size)
    for _ in range(2):  # the tangent of half the angle, twice
        t = t / (1.0 + op("sqrt", 1.0 + t * t))
    angle = 4.0 * t * _series(t * t, [(-1) ** k / (2 * k + 1) for k in range(13)])
    return _signed(select(big, math.pi / 2 - angle, angle), x)


def asin(x: Expr) -> Expr:
    return atan(x / op("sqrt", (1.0 - x) * (1.0 + x)))


def acos(x: Expr) -> Expr:
    return 2.0 * atan(op("sqrt", (1.0 - x) / (1.0 + x)))


# ------------------------------------------------------------------------------------------ hyperbolic
def sinh(x: Expr) -> Expr:
    near = x * _series(x * x, [1 / math.factorial(2 * k + 1) for k in range(9)])
    half = exp(_absolute(x) * 0.5)  # squared last, so that only the result overflows
    size = half * (half * 0.5) - 0.5 / (half * half)
    return select(less(_absolute(x), 0.7), near, _signed(size, x))


def cosh(x: Expr) -> Expr:
    half = exp(_absolute(x) * 0.5)
    return half * (half * 0.5) + 0.5 / (half * half)


def tanh(x: Expr) -> Expr:
    double = expm1(_absolute(x) * 2.0)
    return _signed(select(op("equal", double, math.inf), constant(1.0, x), double / (double + 2.0)), x)


def asinh(x: Expr) -> Expr:
    size = _absolute(x)
    square = size * size
    near = log1p(size + square / (1.0 + op("sqrt", 1.0 + square)))
    return _signed(select(less(size, 1e150), near, log(size) + math.log(2)), x)


def acosh(x: Expr) -> Expr:
    t = x - 1.0
    near = log1p(t + op("sqrt", 2.0 * t + t * t))
    result = select(less(x, 1e150), near, log(x) + math.log(2))
    return select(less(x, 1.0), math.nan, result)


def atanh(x: Expr) -> Expr:
    size = _absolute(x)
    return _signed(0.5 * log1p(2.0 * size / (1.0 - size)), x)


# ------------------------------------------------------------------------------------- erf, pow, logistic
def erf(x: Expr) -> Expr:
    """By the series around 0 up to 2.5 and the continued fraction of its complement beyond."""
    size = _absolute(x)
    square = size * size
    scaled = exp(-square)
    terms = [1.0]
    for k in range(1, 46):
        terms.append(terms[-1] * 2 / (2 * k + 1))
    near = (2 / math.sqrt(math.pi)) * scaled * size * _series(minimum(square, 6.25), terms)
    far = maximum(size, 2.0)
    fraction = far
    for k in range(40, 0, -1):
        fraction = far + (k / 2) / fraction
    tail = 1.0 - scaled / (fraction * math.sqrt(math.pi))
    result = _signed(select(less(size, 2.5), near, tail), x)
    return select(op("equal", x, x), result, x)


def sigmoid(x: Expr) -> Expr:
    return 1.0 / (1.0 + exp(-x))


def softplus(x: Expr) -> Expr:
    return maximum(0.0, x) + log1p(exp(-_absolute(x)))


def pow(x: Expr, y: Expr) -> Expr:
    """x ** y as C's pow, but that a zero base has no sign; the relative error grows with |y log x|, to 1e-13."""
    return power_of_any_base(exp(y * log(_absolute(x))), x, y)


def power_of_any_base(size: Expr, x: Expr, y: Expr) -> Expr:
    """x ** y, given ``size`` = |x| ** y: the sign of negative bases, NaN where the exponent is no integer, and 1 for
    y = 0 and x = 1.  Of f32 or f64."""
    half = y * 0.5
    whole, even = op("equal", op("floor", y), y), op("equal", op("floor", half), half)
    negative = select(whole, select(even, size, -size), select(op("equal", x, 0.0), size, math.nan))
    result = select(less(x, 0.0), negative, size)
    one = op("or", op("equal", y, 0.0), op("equal", x, 1.0))
    return select(one, constant(1.0, x), result)
