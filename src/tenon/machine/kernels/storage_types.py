"""Conversions between storage formats and f32 in kernels, for any number of lanes.

A float of e exponent and m mantissa bits is sign, exponent, mantissa from the top.  Rounding is to nearest, ties to
even.  Sources: OCP 8-bit floating point and OCP microscaling formats; ONNX, "Float stored in 8 bits".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tenon.machine.kernel_ir.loops import Const, Expr, Op, Type, bitcast, broadcast, cast, less, op, select
from tenon.network.graph.types import F32, I32, DType


@dataclass(frozen=True)
class FloatFormat:
    """``bits`` in total, of which ``mantissa``; the exponent's ``bias``; the code of the largest finite magnitude.

    ``nan`` is the code of NaN (that of minus zero if the format has none) and ``infinity`` that of infinity, if it has
    one; ``one_zero`` says that the code of minus zero is NaN.
    """

    bits: int
    mantissa: int
    bias: int
    largest: int
    nan: int | None
    infinity: int | None = None
    one_zero: bool = False

    @property
    def maximum(self) -> float:
        """The largest finite magnitude."""
        exponent, fraction = divmod(self.largest, 1 << self.mantissa)
        return math.ldexp(1 + fraction / (1 << self.mantissa), exponent - self.bias)


FORMATS = {
    DType.F8E4M3: FloatFormat(8, 3, 7, 0x7E, 0x7F),
    DType.F8E4M3U: FloatFormat(8, 3, 8, 0x7F, 0x80, one_zero=True),
    DType.F8E5M2: FloatFormat(8, 2, 15, 0x7B, 0x7F, 0x7C),
    DType.F8E5M2U: FloatFormat(8, 2, 16, 0x7F, 0x80, one_zero=True),
    DType.F4E2M1: FloatFormat(4, 1, 1, 0x7, None),
}

NARROW = frozenset({DType.F16, DType.BF16})
"""16-bit types in which weights and images are stored; arithmetic is in f32."""

INTEGERS = {DType.I4: (4, True), DType.U4: (4, False), DType.I2: (2, True), DType.U2: (2, False)}
"""Bits, and whether there is a sign."""


def _const(value: float, like: Expr, dtype: DType) -> Expr:
    return broadcast(Const(value, Type(dtype)), like.type.lanes)


def _bits(x: Expr) -> Expr:
    """The stored bits, as i32."""
    return cast(bitcast(x, x.type.dtype.carrier), I32)


def widen(x: Expr) -> Expr:
    """The f32 of the same value."""
    dtype = x.type.dtype
    if dtype is DType.BF16:
        return cast(x, F32)
    bits = _bits(x)
    if dtype is DType.F8E8M0:
        power = select(op("equal", bits, 0), 0x00400000, bits << 23)
        return bitcast(select(op("equal", bits, 255), 0x7FC00000, power), F32)
    f = FORMATS[dtype]
    magnitude = op("and", bits, (1 << (f.bits - 1)) - 1)
    sign = op("and", bits, 1 << (f.bits - 1)) << (32 - f.bits)
    small = cast(magnitude, F32) * math.ldexp(1.0, 1 - f.bias - f.mantissa)
    normal = (magnitude << (23 - f.mantissa)) + ((127 - f.bias) << 23)
    value = select(less(magnitude, 1 << f.mantissa), bitcast(small, I32), normal)
    if f.infinity is not None:
        value = select(less(magnitude, f.infinity), value, 0x7F800000)
    value = op("or", value, sign)
    if f.nan is not None and f.infinity is None:
        value = select(op("equal", bits if f.one_zero else magnitude, f.nan), 0x7FC00000, value)
    elif f.infinity is not None:
        value = select(less(f.infinity, magnitude), 0x7FC00000, value)
    return bitcast(value, F32)


def narrow(x: Expr, dtype: DType, *, saturate: bool = True) -> Expr:
    """The nearest value of ``dtype`` to an f32, as its bits; ``saturate`` clamps overflow to the largest finite one."""
    if dtype is DType.BF16:
        rounded = isinstance(x, Op) and x.name == "cast" and x.args[0].type.dtype is dtype
        return x.args[0] if isinstance(x, Op) and rounded else cast(x, dtype)
    if dtype is DType.F8E8M0:
        return narrow_exponent(x, "nearest", saturate=saturate)
    f, bits = FORMATS[dtype], bitcast(x, I32)
    magnitude = op("and", bits, 0x7FFFFFFF)
    size = bitcast(magnitude, F32)
    drop = 23 - f.mantissa
    tie = op("and", magnitude >> drop, 1)
    code = ((magnitude + tie + ((1 << (drop - 1)) - 1)) >> drop) - ((127 - f.bias) << f.mantissa)
    tiny = less(size, math.ldexp(1.0, 1 - f.bias))
    steps = op("round", select(tiny, size, 0.0) * math.ldexp(1.0, f.bias - 1 + f.mantissa))
    code = select(tiny, cast(steps, I32), code)
    code = _limited(code, magnitude, f, saturate)
    sign = op("and", bits >> (32 - f.bits), 1 << (f.bits - 1))
    if f.one_zero:
        sign = select(op("equal", code, 0), 0, sign)
    code = op("or", code, sign)
    if f.nan is not None:
        code = select(less(0x7F800000, magnitude), _const(f.nan, x, I32), code)
    else:
        code = select(less(0x7F800000, magnitude), _const(1 << (f.bits - 1), x, I32), code)
    return bitcast(cast(op("and", code, (1 << f.bits) - 1), DType.U8), dtype)


def _limited(code: Expr, magnitude: Expr, f: FloatFormat, saturate: bool) -> Expr:
    """``code`` where it is finite, and the code for overflow elsewhere."""
    if saturate or f.nan is None:
        beyond: float = f.largest
    else:
        beyond = f.nan if f.infinity is None else f.infinity
    fits = less(magnitude, 0x7F800000)
    fits = op("and", fits, op("less_equal", code, f.largest))
    return select(fits, code, _const(beyond, code, I32))


def narrow_exponent(x: Expr, mode: str, *, saturate: bool = True) -> Expr:
    """A power of two as its exponent (f8e8m0): the one "nearest", "up" or "down" from |x|."""
    magnitude = op("and", bitcast(x, I32), 0x7FFFFFFF)
    fraction = op("and", magnitude, 0x7FFFFF)
    code = magnitude >> 23
    if mode == "up":
        above = op("and", less(0, fraction), less(0x400000, magnitude))  # 2**-127 and less has the code 0
        above = op("and", above, 1)
    elif mode == "nearest":
        half = select(less(magnitude, 0x800000), _const(0x5FFFFF, x, I32), 0x3FFFFF)  # 2**-127 has the code 0
        above = op("and", less(half, fraction), 1)
    else:
        above = _const(0, x, I32)
    code = code + above
    limit = 254 if saturate else 255
    code = select(less(limit, code), _const(limit, x, I32), code)
    code = select(less(0x7F800000, magnitude), _const(255, x, I32), code)
    return bitcast(cast(code, DType.U8), DType.F8E8M0)


def loaded(x: Expr) -> Expr:
    """An element in its arithmetic type: storage formats and half precision as f32."""
    dtype = x.type.dtype
    if dtype is DType.F16:
        return cast(x, F32)
    if dtype.is_small_float:
        return widen(x)
    if dtype in INTEGERS:
        bits, signed = INTEGERS[dtype]
        return lowest(bitcast(x, DType.U8), bits, signed)
    return x


def as_f32(x: Expr) -> Expr:
    """A weight as f32, however it is stored: i8 stands for the integer, whose scale is applied to sums."""
    return cast(x, F32) if x.type.dtype is DType.I8 else loaded(x)


def lowest(x: Expr, bits: int, signed: bool) -> Expr:
    """The value of the lowest bits of an integer, as i8 or u8."""
    if not signed:
        return cast(op("and", cast(x, I32), (1 << bits) - 1), DType.U8)
    shift = 32 - bits
    return cast(cast(x, I32) << shift >> shift, DType.I8)


def stored(x: Expr, dtype: DType) -> Expr:
    """A computed value (f32 for every float but f64, the carrier for small integers) as an element of ``dtype``."""
    if x.type.dtype is dtype:
        return x
    if dtype is DType.F16:
        return cast(cast(x, F32), dtype)
    if dtype.is_small_float:
        return narrow(cast(x, F32), dtype, saturate=False)
    if dtype in INTEGERS:
        return bitcast(lowest(x, INTEGERS[dtype][0], signed=False), dtype)
    return cast(x, dtype)


def computed(dtype: DType) -> DType:
    """The type that elements of ``dtype`` are computed in."""
    if dtype in INTEGERS:
        return DType.I8 if INTEGERS[dtype][1] else DType.U8
    return F32 if dtype is DType.F16 or dtype.is_small_float else dtype
