"""Normalisation of rows of integers by their length or their standard deviation, in fixed-point arithmetic.

See ``ops.integer_normalize`` for the arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, minimum, op, select, sqrdmulh
from tenon.machine.kernels.integer_softmax import saturated_shift, top_bit
from tenon.machine.kernels.parallel import deal
from tenon.machine.kernels.requantize import Requantize
from tenon.network.graph.types import I32, I64, DType

LARGEST = 2**31 - 1
HALF_SQRT_2 = 1518500250
"""The square root of 1/2, without integer bits."""
MEAN_BITS = 10
"""Fraction bits of a mean."""


def inverse_square_root(k: Builder, x: Expr) -> tuple[Expr, Expr]:
    """(multiplier, right shift) of 1 / sqrt(x) for i32 x >= 0, where 0 counts as 1, by five steps of Newton's method
    from 1 with three integer bits."""
    given = k.let("x", maximum(x, 2))
    top = k.let("top", top_bit(given))
    large = k.let("large", select(less(28, top), top * 0 + 1, 0))  # 2**29 and more are divided by 4
    pairs = k.let("pairs", ((30 - (top - 2 * large)) >> 1) - 1)
    whole = (given >> (2 * large)) << (2 * pairs)
    half = k.let("half", ((whole >> 1) + 1) >> 1)
    root = k.let("root", given * 0 + (1 << 28))
    for _ in range(5):
        cube = saturated_shift(sqrdmulh(sqrdmulh(root, root), root), 6)
        root = k.let("root", saturated_shift(sqrdmulh(root, (1 << 28) + (1 << 27)) - sqrdmulh(half, cube), 3))
    shift = k.let("shift", 11 + large - pairs)
    up = maximum(0 - shift, 0)
    tiny = less(x, 2)
    multiplier = k.let("multiplier", select(tiny, LARGEST, sqrdmulh(root, HALF_SQRT_2) << up))
    return multiplier, k.let("right", select(tiny, 0, maximum(shift, 0)))


def scaled_by(x: Expr, multiplier: Expr, right: Expr) -> Expr:
    """``x`` times a multiplier of 31 bits, shifted right: rounded doubly."""
    high = sqrdmulh(x, multiplier)
    halved = (((high + (high >> 31)) >> maximum(right - 1, 0)) + 1) >> 1
    return select(less(0, right), halved, high)


@dataclass(frozen=True)
class IntegerRows:
    """Rows of integers, less ``x_zero``; the result has the type of x."""

    rows: int
    length: int
    dtype: DType
    x_zero: int = 0


@lru_cache(maxsize=64)
def l2_normalization(s: IntegerRows) -> Kernel:
    """Parameters: x [rows, length] of 8 bits and y, of the scale 1/128."""
    k = Builder(f"integer_l2_{s.rows}x{s.length}", f"L2 normalisation of {s.rows} rows of {s.length}, in integers")
    x = k.param("x", s.rows, s.length, dtype=s.dtype)
    y = k.param("y", s.rows, s.length, dtype=s.dtype, out=True)
    least, zero = (-128, 0) if s.dtype.is_signed else (0, 128)
    (kind,), _ = deal(s.rows)
    with k.loop("i", s.rows, kind=kind) as i:
        total = k.local("s", 1, dtype=I32)
        total[0] = 0
        with k.loop("j", s.length) as j:
            value = k.let("v", cast(x[i, j], I32) - s.x_zero)
            total[0] = total[0] + value * value
        multiplier, shift = inverse_square_root(k, k.let("sum", total[0]))
        if s.dtype.is_signed:  # the scale of the result is part of the shift
            up, right = k.let("up", maximum(7 - shift, 0)), k.let("down", maximum(shift - 7, 0))
        else:
            up, right = k.let("up", shift * 0 + 7), shift
        with k.loop("j", s.length) as j:
            value = (cast(x[i, j], I32) - s.x_zero) << up
            result = scaled_by(value, multiplier, right) + zero
            y[i, j] = cast(minimum(maximum(result, least), least + 255), s.dtype)
    return k.done()


@lru_cache(maxsize=64)
def layer_normalization(s: IntegerRows, limit: int, scaled: Requantize, factors: tuple[Expr, ...]) -> Kernel:
    """Parameters: x [rows, length] in i16, weights i16 [length], bias i32 [length], y."""
    n = s.length
    k = Builder(f"integer_layer_norm_{s.rows}x{n}", f"Layer normalisation of {s.rows} rows of {n} integers of 16 bits")
    x = k.param("x", s.rows, n, dtype=DType.I16)
    w = k.param("w", n, dtype=DType.I16)
    b = k.param("b", n, dtype=I32)
    y = k.param("y", s.rows, n, dtype=DType.I16, out=True)
    (kind,), _ = deal(s.rows)
    with k.loop("i", s.rows, kind=kind) as i:
        total, squares = k.local("s", 1, dtype=I32), k.local("q", 1, dtype=I64)
        total[0] = 0
        squares[0] = 0
        with k.loop("j", n) as j:
            value = k.let("v", cast(x[i, j], I32))
            total[0] = total[0] + value
            squares[0] = squares[0] + cast(value * value, I64)
        sign = k.let("sign", total[0] >> 31)
        size = cast(op("sub", op("xor", total[0], sign), sign), I64) << MEAN_BITS
        mean = k.let("mean", op("sub", op("xor", cast(op("div", size, n), I32), sign), sign))
        square = cast(mean, I64) * cast(mean, I64)
        variance = maximum(squares[0] * ((1 << 2 * MEAN_BITS) // n) - square, 0) >> (2 * MEAN_BITS)
        variance = k.let("variance", cast(variance, I32))
        given = k.let("guarded", select(less(variance, 1), limit, variance))
        multiplier, right = inverse_square_root(k, given)
        with k.loop("j", n) as j:
            steps = scaled_by((cast(x[i, j], I32) << MEAN_BITS) - mean, multiplier, right)
            wide = k.let("wide", cast(steps, I64) * cast(w[j], I64) + cast(b[j], I64))
            below = k.let("below", wide >> 63)
            rounded = (op("sub", op("xor", wide, below), below) + 512) >> MEAN_BITS
            value = cast(op("sub", op("xor", rounded, below), below), I32)
            result = scaled.scaled(value, factors)
            y[i, j] = cast(minimum(maximum(result, -(1 << 15)), (1 << 15) - 1), DType.I16)
    return k.done()
