"""Elementary functions of f64, for any number of lanes; f32 functions without a form of their own go through them.

Built from additions, multiplications, divisions, square roots, selects and bit patterns, as ``kernels.math`` is, so no
target needs a mathematical library.  Series are Taylor's, cut where the next term is below 2**-56 of the sum; results
are within a few units in the last place except where said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenon.machine.kernel_ir.loops import (
    Const,
    Expr,
    Type,
    bitcast,
    broadcast,
    cast,
    less,
    maximum,
    minimum,
    op,
    select,
)
from tenon.network.graph.types import I64, DType

F64 = DType.F64
_LN2_HIGH = 6.93147180369123816490e-01  # 33 bits: its product with a small integer is exact
_LN2_LOW = 1.90821492927058770002e-10
_HALF_PI = (1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
_SQRT_HALF = 0x3FE6A09E667F3BCD
_LN2 = (float.fromhex("0x1.62e42f8p-1"), float.fromhex("0x1.be8e7bcd5e4f2p-27"))
_LOG2_THIRDS = (float.fromhex("0x1.ec709d8p-1"), float.fromhex("0x1.0e80ff5d27f05p-27"))
"""log(2) and 2 / (3 log(2)), each as a number of 26 bits and the rest."""


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


def _top(x: Expr) -> Expr:
    """x without its 27 lowest bits: the product of two such numbers is exact."""
    return bitcast(op("and", bitcast(x, I64), -(2**27)), F64)


def _log2_split(x: Expr) -> tuple[Expr, Expr]:
    """log2(x) of a positive normal x as the sum of a number of 26 bits and a small one, to about 2**-66."""
    bits = bitcast(x, I64)
    exponent = (bits - _SQRT_HALF) >> 52
    m = bitcast(bits - (exponent << 52), F64)
    e = cast(exponent, F64)
    # log(m) = 2 atanh(s) = 2 s + s**3 (...), s = (m - 1) / (m + 1) = top + low
    u, v = m - 1.0, 1.0 / (m + 1.0)
    s = u * v
    top = _top(s)
    high = _top(m + 1.0)
    low = v * ((u - top * high) - top * (m - (high - 1.0)))
    s2 = s * s
    series = s2 * s2 * _series(s2, [3 / (2 * k + 5) for k in range(13)]) + low * (top + s)
    t2 = top * top
    three = _top(t2 + 3.0 + series)
    rest = series - ((three - 3.0) - t2)
    u, v = top * three, low * three + rest * s
    p = _top(u + v)
    p_low = v - (p - u)
    z, z_low = p * _LOG2_THIRDS[0], p * _LOG2_THIRDS[1] + p_low * (2 / (3 * math.log(2)))
    result = _top(z + z_low + e)
    return result, z_low - ((result - e) - z)


def _power_of_two_of_sum(high: Expr, low: Expr) -> Expr:
    """2**(high + low) of a high of at most 52 bits and a small low, of which the sum is in -1080 .. 1030."""
    whole = op("round", high + low)
    r = high - whole
    top = _top(r + low)
    u, v = top * _LN2[0], (low - (top - r)) * math.log(2) + top * _LN2[1]
    z = u + v
    tail = (v - (z - u)) + z * z * _series(z, [1 / math.factorial(k) for k in range(2, 15)])
    one = z + 1.0
    p = one + ((z - (one - 1.0)) + tail)
    n = cast(whole, I64)
    half = n >> 1
    return p * _power_of_two(half) * _power_of_two(n - half)


def _pow_of_positive(x: Expr, y: Expr) -> Expr:
    """x ** y for x > 0."""
    tiny = less(x, 2.2250738585072014e-308)
    high, low = _log2_split(select(tiny, x * 2.0**54, x))
    high = high - select(tiny, constant(54.0, x), 0.0)  # both have few bits: exact
    y = maximum(-1e25, minimum(1e25, y))  # beyond, the result is 0, 1 or infinite all the same
    y = select(op("equal", y, y), y, 0.0)  # what is cast to an integer is a number
    y_top = _top(y)
    rest = (y - y_top) * high + y * low
    z = maximum(-1100.0, minimum(1100.0, y_top * high))
    return _power_of_two_of_sum(z, maximum(-1080.0 - z, minimum(1030.0 - z, rest)))


def pow(x: Expr, y: Expr) -> Expr:
    """x ** y as C's pow, at most 0.6 ulp: a power that an f64 can hold is exact.  A zero base has no sign."""
    return power_of_any_base(size_of_power(_pow_of_positive(_absolute(x), y), x, y), x, y)


def size_of_power(size: Expr, x: Expr, y: Expr) -> Expr:
    """|x| ** y, given ``size`` for finite |x| > 0: the limits at zero and infinity, NaN for NaN.  Of f32 or f64."""
    positive, zero, nothing = op("abs", x), constant(0.0, x), constant(math.inf, x)
    size = select(op("equal", positive, 0.0), select(less(y, 0.0), nothing, zero), size)
    size = select(op("equal", positive, math.inf), select(less(y, 0.0), zero, nothing), size)
    numbers = op("and", op("equal", x, x), op("equal", y, y))
    return select(numbers, size, math.nan)  # the bits of a NaN look like a number's


def power_of_any_base(size: Expr, x: Expr, y: Expr) -> Expr:
    """x ** y, given ``size`` = |x| ** y: the sign of negative bases, NaN where the exponent is no integer, and 1 for
    y = 0 and x = 1.  Of f32 or f64."""
    half = y * 0.5
    whole, even = op("equal", op("floor", y), y), op("equal", op("floor", half), half)
    negative = select(whole, select(even, size, -size), select(op("equal", x, 0.0), size, math.nan))
    result = select(less(x, 0.0), negative, size)
    one = op("or", op("equal", y, 0.0), op("equal", x, 1.0))
    return select(one, constant(1.0, x), result)
