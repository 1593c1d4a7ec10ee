"""Logarithm of a softmax of rows of 8-bit integers: see ``ops.integer_log_softmax`` for the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, minimum, op, select, sqrdmulh
from tenon.machine.kernels.integer_softmax import ACCUMULATED, CODES, reciprocal, saturated_shift, top_bit
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import I32, DType

INPUT_BITS = 5
"""Integer bits of differences, and of the logarithm."""
OUTPUT_BITS = 4
LOG_2, SQRT_HALF, FOURTH_ROOT_HALF = 1488522236, 1518500250, 1805811301
"""ln 2, and the square root and the fourth root of 1/2, without integer bits."""
ALPHA_N, ALPHA_D, ALPHA_I, ALPHA_F = 117049297, 127690142, 1057819769, 638450708
"""Coefficients of the rational approximation of the logarithm."""
QUARTER = 1 << 23
"""1/4 with six integer bits."""


@dataclass(frozen=True)
class LogSoftmax:
    """``least`` is the smallest difference that counts, and ``inverse`` the fixed-point multiplier and the shift to the
    left of differences of INPUT_BITS integer bits to steps of x."""

    rows: int
    length: int
    dtype: DType
    least: int
    inverse: tuple[int, int]


def logarithm(k: Builder, x: Expr) -> Expr:
    """ln x with INPUT_BITS integer bits, of x >= 1 with ACCUMULATED integer bits."""
    top = k.let("top", top_bit(x))
    high = k.let("high", sqrdmulh(x << (30 - top), SQRT_HALF))
    other = k.let("other", sqrdmulh(x, SQRT_HALF))
    second = k.let("second", top_bit(other))
    power = maximum(((top + (ACCUMULATED - 31)) << 25) + QUARTER, ((second + (ACCUMULATED - 30)) << 25) - QUARTER)
    # the second candidate of the argument is x itself, as far up as its product with the root would go
    room = 30 - second
    limit = k.let("limit", (x * 0 + (2**31 - 1)) >> room)
    raised = select(less(limit, x), 2**31 - 1, x << room)
    r = k.let("r", minimum(saturated_shift(high, 1), raised))
    p = k.let("p", (r >> 1) + (FOURTH_ROOT_HALF >> 1) + ((op("and", r, 1) + (FOURTH_ROOT_HALF & 1) + 1) >> 1))
    q = k.let("q", (r - FOURTH_ROOT_HALF) << 1)
    square = k.let("square", sqrdmulh(q, q))
    numerator = sqrdmulh(q, r) + sqrdmulh(sqrdmulh(q, square), ALPHA_N)
    inner = q + ALPHA_I + sqrdmulh(square, ALPHA_D)
    denominator = k.let("denominator", sqrdmulh(p, inner) + sqrdmulh(q, ALPHA_F))
    over = reciprocal(denominator)
    numerator = k.let("numerator", numerator)
    scaled = (((numerator + (numerator >> 31)) >> 5) + 1) >> 1
    return k.let("log", saturated_shift(sqrdmulh(power, LOG_2) + sqrdmulh(scaled, over), 1))


@lru_cache(maxsize=64)
def integer_log_softmax(s: LogSoftmax) -> Kernel:
    """Parameters: x [rows, length], the tables i32 [256] of exp by the distance from a row's maximum and of that
    distance with INPUT_BITS integer bits, y."""
    name = f"integer_log_softmax_{s.rows}x{s.length}"
    k = Builder(name, f"Logarithm of softmax of {s.rows} rows of {s.length}, in integers")
    x = k.param("x", s.rows, s.length, dtype=s.dtype)
    exps = k.param("t", CODES, dtype=I32)
    distances = k.param("r", CODES, dtype=I32)
    y = k.param("y", s.rows, s.length, dtype=s.dtype, out=True)
    least = -128 if s.dtype.is_signed else 0
    multiplier, shift = s.inverse
    (kind,), _ = deal(s.rows)
    with k.loop("i", s.rows, kind=kind) as i:
        most = k.local("m", 1, dtype=I32)
        total = k.local("s", 1, dtype=I32)
        most[0] = least
        total[0] = 0
        with k.loop("j", s.length) as j:
            most[0] = maximum(most[0], cast(x[i, j], I32))
        with k.loop("j", s.length) as j, k.bind("d", most[0] - cast(x[i, j], I32), CODES) as d:
            total[0] = total[0] + (((exps[d] >> (ACCUMULATED - 1)) + 1) >> 1)
        log = logarithm(k, k.let("sum", total[0]))
        limit = sqrdmulh(op("xor", log, -(2**31)), multiplier)
        if shift:
            limit = (((limit + (limit >> 31)) >> (-shift - 1)) + 1) >> 1
        limit = k.let("limit", maximum(limit, s.least - 1))
        with k.loop("j", s.length) as j:
            difference = k.let("difference", cast(x[i, j], I32) - most[0])
            with k.bind("d", 0 - difference, CODES) as d:
                far = k.let("far", distances[d] - log)
                bits = 31 - INPUT_BITS - OUTPUT_BITS
                value = ((((far + (far >> 31)) >> (bits - 1)) + 1) >> 1) + (least + CODES - 1)
                value = minimum(maximum(value, least), least + CODES - 1)
                y[i, j] = cast(select(less(limit, difference), value, least), s.dtype)
    return k.done()
