"""Softmax of rows of 8-bit integers by a table of exponentials: see ``ops.integer_softmax`` for the arithmetic."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Expr, Kernel, bitcast, cast, maximum, minimum, op, sqrdmulh
from tenon.machine.kernels.parallel import deal
from tenon.network.graph.types import F32, I32, DType

ACCUMULATED = 12
"""Integer bits of the sum of a row."""

CODES = 256


@lru_cache(maxsize=64)
def integer_softmax(rows: int, length: int, dtype: DType, to: DType) -> Kernel:
    """Parameters: x [rows, length] of ``dtype``, the table i32 [256] of exp by the distance from a row's maximum, y of
    ``to``, of 8 or 16 bits."""
    k = Builder(f"integer_softmax_{rows}x{length}", f"Softmax of {rows} rows of {length}, in integers")
    x = k.param("x", rows, length, dtype=dtype)
    t = k.param("t", CODES, dtype=I32)
    y = k.param("y", rows, length, dtype=to, out=True)
    bits = 8 * to.bytes
    lowest, least = (-(1 << (8 * each.bytes - 1)) if each.is_signed else 0 for each in (dtype, to))
    (kind,), _ = deal(rows)
    with k.loop("i", rows, kind=kind) as i:
        most = k.local("m", 1, dtype=I32)
        total = k.local("s", 1, dtype=I32)
        most[0] = lowest
        total[0] = 0
        with k.loop("j", length) as j:
            most[0] = maximum(most[0], cast(x[i, j], I32))
        with k.loop("j", length) as j, k.bind("d", most[0] - cast(x[i, j], I32), CODES) as d:
            total[0] = total[0] + (((t[d] >> (ACCUMULATED - 1)) + 1) >> 1)
        headroom = k.let("headroom", 31 - top_bit(k.let("sum", total[0])))
        scale = k.let("scale", reciprocal(op("xor", total[0] << headroom, -(2**31))))
        shift = k.let("shift", (ACCUMULATED + 31 - bits) - headroom)
        with k.loop("j", length) as j, k.bind("d", most[0] - cast(x[i, j], I32), CODES) as d:
            product = ((sqrdmulh(scale, t[d]) >> (shift - 1)) + 1) >> 1
            y[i, j] = cast(minimum(maximum(product + least, least), least + (1 << bits) - 1), to)
    return k.done()


def top_bit(x: Expr) -> Expr:
    """The number of the highest bit of x > 0: the exponent of the bits that no neighbour above has, which f32 holds
    without rounding up."""
    top = op("and", x, op("xor", x >> 1, -1))
    return (bitcast(cast(top, F32), I32) >> 23) - 127


def reciprocal(fraction: Expr) -> Expr:
    """1 / (1 + fraction) for fractions from 0 to 1, all without integer bits: three steps of Newton's division."""
    half = (fraction >> 1) + (1 << 30)
    x = sqrdmulh(half, -1010580540) + 1515870810
    for _ in range(3):
        left = (1 << 29) - sqrdmulh(half, x)
        x = x + saturated_shift(sqrdmulh(x, left), 2)
    return saturated_shift(x, 1)


def saturated_shift(x: Expr, bits: int) -> Expr:
    """``x`` shifted up by a constant number of bits, saturated to 32 bits."""
    limit = (1 << (31 - bits)) - 1
    over = op("less", limit, x)
    return op("select", over, 2**31 - 1, maximum(x, -limit - 1) << bits)
