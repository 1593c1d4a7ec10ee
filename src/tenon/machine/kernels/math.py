"""Elementary functions on vectors of any number of lanes, as expressions: f32 here, f64 in ``math_f64``.

Built from additions, multiplications, selects and bit patterns alone, so no target needs a mathematical library.  They
tolerate contraction of a product and a sum to a fused multiply-add: products that must be exact are, because their
factors are truncated to few bits.  The errors stated are the largest measured over dense sweeps
(``tests/unit/test_math.py``), in units in the last place of the true result.

Sources: range reduction and polynomials of exp and log after Moshier, Cephes (expf, logf); the quotients of
polynomials for tanh and erf after Eigen; the split logarithm of pow after Sun's fdlibm (e_powf), with one interval
in place of its table.  NaN gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from operator import mul

from tenon.machine.kernel_ir.loops import Expr, bitcast, cast, less, maximum, minimum, op, select
from tenon.machine.kernels import math_f64
from tenon.machine.kernels.math_f64 import constant as constant
from tenon.network.graph.types import F32, I32, DType

Function = Callable[..., Expr]

_INFINITY = math.inf
_ROUNDING = 12582912.0  # 1.5 * 2**23: adding it leaves the nearest integer in the low bits
_BIAS = 127  # of exponents in the bits of floats
LOG2E = 1.44269504088896341
_LEAST_NORMAL = 0x00800000  # bits of the least float that is not subnormal
SQRT_HALF = 0x3F3504F3  # bits of the float nearest to sqrt(1/2)


def by_width(wide: Function) -> Callable[[Function], Function]:
    """A decorator: f64 arguments go to ``wide``."""

    def choose(single: Function) -> Function:
        @wraps(single)
        def either(x: Expr, *rest: Expr) -> Expr:
            return wide(x, *rest) if x.type.dtype is DType.F64 else single(x, *rest)

        return either

    return choose


def through_double(wide: Function) -> Function:
    """The function of f32 that computes in f64, and of f64."""

    @wraps(wide)
    def either(x: Expr) -> Expr:
        return cast(wide(cast(x, DType.F64)), x.type.dtype)

    return either


def polynomial(x: Expr, coefficients: Sequence[float], times: Function = mul) -> Expr:
    """Horner's rule; the highest power first."""
    total: Expr | float = coefficients[0]
    for c in coefficients[1:]:
        total = times(x, total) + c
    assert isinstance(total, Expr)
    return total


def clamp(x: Expr, low: float, high: float) -> Expr:
    """NaN stays NaN (see ``maximum``)."""
    return minimum(high, maximum(low, x))


def _nearest(x: Expr) -> tuple[Expr, Expr]:
    """The nearest integer to |x| < 2**22, as f32, and twice the bias of exponents more, as the lowest 23 bits of an
    i32."""
    scale = _ROUNDING + 2 * _BIAS
    shifted = x + scale
    return shifted - scale, bitcast(shifted, I32)


def _scaled(x: Expr, n: Expr) -> Expr:
    """x * 2**m for -252 <= m <= 254, in two steps so that neither factor leaves the range of f32.  The lowest bits of
    ``n`` are m + 254, those above leave the word with ``_nearest``'s."""
    half = n >> 1
    rest = n - half
    return x * bitcast(half << 23, F32) * bitcast(rest << 23, F32)


def _top(x: Expr) -> Expr:
    """x without its 12 lowest bits: the product of two such numbers is exact."""
    return bitcast(op("and", bitcast(x, I32), -4096), F32)


@by_width(math_f64.exp)
def exp(x: Expr) -> Expr:
    """At most 1 ulp, subnormal results included; infinite above 88.73."""
    x = clamp(x, -104.0, 89.0)
    whole, n = _nearest(x * LOG2E)
    r = x - whole * LOG_2[0] - whole * LOG_2[1]
    return _scaled(polynomial(r, _EXP[:-2]) * (r * r) + r + 1.0, n)


_EXP = (1.38214685e-3, 8.36866256e-3, 4.16682549e-2, 1.66665211e-1, 4.99999940e-1, 1.0, 1.0)
"""exp(r) of |r| <= log(2) / 2 as a polynomial, with a relative error of at most 3.2e-9 (weighted least squares, each
coefficient rounded before the next ones are fitted)."""
_SHORT_EXP = (8.31269659e-3, 4.18901928e-2, 1.66671127e-1, 4.99992311e-1, 1.0, 1.0)
"""The same with 1.1e-7."""


@by_width(math_f64.exp)
def exp_of_negative(x: Expr) -> Expr:
    """exp(x) of x <= 0, at most 1.2 ulp; 0 below -86.99, where results would be subnormal soon."""
    # Twice the polynomial times half the power of two: that has the bits of 0 where x / log(2) is nearest to -126.
    scale = _ROUNDING + _BIAS - 1
    x = maximum(-87.5, x)
    shifted = x * LOG2E + scale
    whole = shifted - scale
    r = x - whole * LOG_2[0] - whole * LOG_2[1]
    return polynomial(r, [2 * c for c in _EXP]) * bitcast(bitcast(shifted, I32) << 23, F32)


LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
"""(log(1 + f) - f + f**2 / 2) / f**3 for 1 + f from sqrt(1/2) to sqrt(2), as a polynomial."""
LOG_2 = (0.693359375, -2.12194440e-4)
"""log(2): a number of few bits, and the rest."""


_EXP2 = (1.5353362e-4, 1.3398875e-3, 9.6184369e-3, 5.5503324e-2, 2.4022648e-1, 6.9314718e-1, 1.0)
"""2**r of |r| <= 1/2 as a polynomial, with a relative error of at most 2e-9 (weighted least squares)."""


def exp2_of_negative(x: Expr) -> Expr:
    """2**x of x <= 0 in f32, at most 2 ulp; 0 below -126, where results would be subnormal."""
    least = -126.0
    return select(less(x, least), constant(0.0, x), power_of_two(maximum(least, x), _EXP2))


EXP2_OF_16_BITS = (5.517167e-2, 2.4261112e-1, 6.9326099e-1, 9.9992807e-1)
"""For ``power_of_two``, with a relative error of at most 7.5e-5: a third of the rounding to f16."""


def power_of_two(x: Expr, coefficients: Sequence[float]) -> Expr:
    """2**x of -126 <= x < 127 by a polynomial for 2**r of |r| <= 1/2, the highest power first."""
    shifted = x + _ROUNDING
    p = polynomial(x - (shifted - _ROUNDING), coefficients)
    return bitcast(bitcast(p, I32) + (bitcast(shifted, I32) << 23), F32)


@by_width(math_f64.log)
def log(x: Expr) -> Expr:
    """At most 1 ulp; -infinity of 0, NaN of negative numbers.

    Subnormal numbers are multiples of 2**-149 and are recognised by their bits: comparisons of floats on some GPUs take
    them for zero.
    """
    bits = bitcast(x, I32)
    tiny = less(bits, _LEAST_NORMAL)
    finite = _log_of_normal(select(tiny, cast(bits, F32), x), select(tiny, constant(149.0, x), 0.0), mul)
    result = select(less(x, _INFINITY), finite, x)
    edge = select(op("equal", bits << 1, 0), constant(-_INFINITY, x), math.nan)
    return select(less(0, bits), result, edge)


def rounded_log(x: Expr) -> Expr:
    """log of 1 <= x < infinity, at most 1 ulp.  Every operation rounds by itself: the same bits on every machine."""
    return _log_of_normal(x, None, lambda a, b: op("mul_rounded", a, b))


def _log_of_normal(x: Expr, less_by: Expr | None, times: Function) -> Expr:
    """log(x * 2**-less_by) of a normal x > 0."""
    bits = bitcast(x, I32)
    exponent = (bits - SQRT_HALF) >> 23
    f = bitcast(bits - (exponent << 23), F32) - 1.0
    e = cast(exponent, F32)
    if less_by is not None:
        e = e - less_by
    p = polynomial(f, LOG, times)
    square = times(f, f)
    y = times(times(f, square), p) + times(e, LOG_2[1]) - times(square, 0.5)
    return f + y + times(e, LOG_2[0])


@by_width(math_f64.log1p)
def log1p(u: Expr) -> Expr:
    """log(1 + u) for u >= 0, at most 2 ulp: what 1 + u rounds away comes back as the derivative times it."""
    w = 1.0 + u
    return log(w) + (u - (w - 1.0)) / w


@by_width(math_f64.sigmoid)
def sigmoid(x: Expr) -> Expr:
    """1 / (1 + exp(-x)), at most 3 ulp; 0 below -86.99, where results would be subnormal soon."""
    # A quarter of the polynomial times four times the power of two, with the bits of infinity from 2**126 on.
    scale = _ROUNDING + _BIAS + 2
    x = clamp(x, -87.5, 60.0)
    shifted = x * -LOG2E + scale
    whole = shifted - scale
    r = x + whole * LOG_2[0] + whole * LOG_2[1]  # of -x, with the other sign
    signs = [(-1) ** k / 4 for k in range(len(_SHORT_EXP) - 1, -1, -1)]
    p = polynomial(r, [c * sign for c, sign in zip(_SHORT_EXP, signs, strict=True)])
    return 1.0 / (1.0 + p * bitcast(bitcast(shifted, I32) << 23, F32))


@by_width(math_f64.softplus)
def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), at most 2 ulp."""
    return maximum(0.0, x) + log1p(exp(-op("abs", x)))


@by_width(math_f64.tanh)
def tanh(x: Expr) -> Expr:
    """At most 6 ulp, never beyond 1."""
    c = clamp(x, -7.90531110763549805, 7.90531110763549805)
    square = c * c
    p = polynomial(
        square,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
    )
    q = polynomial(square, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03))
    return c * (p / q)  # the quotient first: c * p may be subnormal


@by_width(math_f64.erf)
def erf(x: Expr) -> Expr:
    """At most 7 ulp, never beyond 1."""
    c = clamp(x, -4.0, 4.0)
    square = c * c
    p = polynomial(
        square,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
    )
    q = polynomial(
        square,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )
    return clamp(c * p / q, -1.0, 1.0)


sin, cos, tan = (through_double(f) for f in (math_f64.sin, math_f64.cos, math_f64.tan))
asin, acos, atan = (through_double(f) for f in (math_f64.asin, math_f64.acos, math_f64.atan))
sinh, cosh = (through_double(f) for f in (math_f64.sinh, math_f64.cosh))
asinh, acosh, atanh = (through_double(f) for f in (math_f64.asinh, math_f64.acosh, math_f64.atanh))


# ------------------------------------------------------------------------------------------------ pow
def _log2_split(x: Expr) -> tuple[Expr, Expr]:
    """log2(x) of a positive normal x as the sum of a number of 12 bits and a small one."""
    bits = bitcast(x, I32)
    exponent = (bits - SQRT_HALF) >> 23
    m = bitcast(bits - (exponent << 23), F32)
    e = cast(exponent, F32)
    # log(m) = 2 atanh(s) = 2 s + s**3 (...), s = (m - 1) / (m + 1) = top + low
    u, v = m - 1.0, 1.0 / (m + 1.0)
    s = u * v
    top = _top(s)
    high = _top(m + 1.0)
    low = v * ((u - top * high) - top * (m - (high - 1.0)))
    s2 = s * s
    series = polynomial(s2, (3 / 15, 3 / 13, 3 / 11, 3 / 9, 3 / 7, 3 / 5)) * (s2 * s2) + low * (top + s)
    t2 = top * top
    three = _top(t2 + 3.0 + series)
    rest = series - ((three - 3.0) - t2)
    u, v = top * three, low * three + rest * s
    p = _top(u + v)
    p_low = v - (p - u)
    # times 2 / (3 log 2), split into 0.96191406 and the rest
    z = p * 0.9619140625
    z_low = p * -1.1736857402e-04 + p_low * 0.96179670095
    result = _top(z + z_low + e)
    return result, z_low - ((result - e) - z)


def _pow_of_positive(x: Expr, y: Expr) -> Expr:
    """x ** y for x > 0."""
    tiny = less(x, 1.17549435e-38)
    high, low = _log2_split(select(tiny, x * 8388608.0, x))
    high = high - select(tiny, constant(23.0, x), 0.0)  # both have few bits: exact
    y = clamp(y, -1e10, 1e10)  # beyond, the result is 0, 1 or infinite all the same
    y_top = _top(y)
    rest = (y - y_top) * high + y * low
    z = clamp(y_top * high, -300.0, 300.0)
    total = clamp(z + rest, -152.0, 130.0)
    whole, n = _nearest(total)
    r = clamp((z - whole) + rest, -1.0, 1.0)
    # Taylor's series of 2**r; |r| <= 1/2
    coefficients = [math.log(2) ** k / math.factorial(k) for k in range(7, -1, -1)]
    return _scaled(polynomial(r, coefficients), n)


@by_width(math_f64.pow)
def pow(x: Expr, y: Expr) -> Expr:
    """x ** y, at most 2 ulp; a negative base for integer exponents only, NaN for others, as C's powf.

    Unlike powf, a zero base has no sign; as with powf, y = 0 and x = 1 give 1 even if the other is NaN.
    """
    size = math_f64.size_of_power(_pow_of_positive(op("abs", x), y), x, y)
    return math_f64.power_of_any_base(size, x, y)
