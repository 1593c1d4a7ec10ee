"""The operations of the loop IR on arrays of lanes, as NumPy computes them: everything that C leaves undefined is an
error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType


class KernelError(Exception):
    """A kernel did something undefined."""


@cache
def numpy_type(dtype: DType) -> np.dtype[np.generic]:
    """The NumPy type of elements in the interpreter: that of ``DType.numpy``, except that bools and storage formats are
    held as their bits.
    """
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.carrier.numpy


# ------------------------------------------------------------------------------------------ operations
def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    quotient = a // b
    short = (a != quotient * b) & ((a < 0) != (b < 0))
    result: Array = np.where(b == 0, 0, quotient + short)
    return result


def _shift(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    def apply(a: Array, b: Array) -> Array:
        if ((b < 0) | (b >= a.itemsize * 8)).any():
            raise KernelError(f"shift of {a.dtype} by {b.tolist()}")
        return np.asarray(function(a, b))

    return apply


def _bits(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(function(a, b))


def _mask(function: Callable[..., Any]) -> Callable[[Array, Array], Array]:
    return lambda a, b: -np.asarray(function(a, b)).astype(np.int8)


def _select(mask: Array, a: Array, b: Array) -> Array:
    if not ((mask == 0) | (mask == -1)).all():
        raise KernelError(f"select by {mask.tolist()}, which is not a mask")
    return np.where(mask, a, b)


def _chosen(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


def _reduce_sum(a: Array) -> Array:
    """The sum of all lanes, the upper half onto the lower until one is left."""
    while len(a) > 1:
        a = a[: len(a) // 2] + a[len(a) // 2 :]
    return a


def _dot4(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.uint8).astype(np.int32) * b.view(np.int8).astype(np.int32)
    total: Array = acc + products.reshape(-1, 4).sum(1, dtype=np.int32)
    return total


def _dot4_signed(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.int8).astype(np.int32) * b.view(np.int8).astype(np.int32)
    total: Array = acc + products.reshape(-1, 4).sum(1, dtype=np.int32)
    return total


def _dot4_narrow(acc: Array, a: Array, b: Array) -> Array:
    if (b.view(np.int8) == -128).any():
        raise KernelError("dot4_narrow by -128")
    return _dot4_signed(acc, a, b)


def _dot8_small(acc: Array, a: Array, b: Array, c: Array, d: Array) -> Array:
    if max(a.view(np.uint8).max(), c.view(np.uint8).max()) >= 64:
        raise KernelError("dot8_small of bytes of more than 6 bits")
    return _dot4(_dot4(acc, a, b), c, d)


def _blocks(acc: Array, a: Array, b: Array) -> Array:
    rows = (a if a.dtype == np.uint8 else a.view(np.int8)).reshape(2, 8).astype(np.int32)
    total: Array = acc + (rows @ b.view(np.int8).reshape(2, 8).astype(np.int32).T).reshape(-1)
    return total


def _dot2(acc: Array, a: Array, b: Array) -> Array:
    first, second = (_bf16_to_f32(a.view(np.uint16)[i::2]) * _bf16_to_f32(b.view(np.uint16)[i::2]) for i in (0, 1))
    total: Array = (acc + second) + first
    return total


def _odd_sum(a: Array, b: Array) -> Array:
    """The sum of f32 rounded to odd: one that is not exact is cut off, and its last bit becomes 1."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    total = x + y
    back = total - x
    error = (x - (total - back)) + (y - back)  # of the sum in f64
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = total.astype(np.float32)
        rest = np.where(total != nearest, total - nearest, error)
    inexact = np.isfinite(nearest) & (rest != 0)
    beyond = (rest < 0) == (nearest > 0)
    bits = nearest.view(np.int32)
    odd: Array = np.where(inexact, (bits - beyond) | 1, bits).astype(np.int32).view(np.float32)
    return odd


def _dot2_odd(acc: Array, a: Array, b: Array) -> Array:
    first, second = (_bf16_to_f32(a.view(np.uint16)[i::2]) * _bf16_to_f32(b.view(np.uint16)[i::2]) for i in (0, 1))
    return _odd_sum(_odd_sum(first, second), acc)


def _mmla_bf16(acc: Array, a: Array, b: Array) -> Array:
    rows, columns = np.repeat(a.reshape(2, 2), 2, axis=0), np.tile(b.reshape(2, 2), (2, 1))
    for pair in (0, 1):
        acc = _dot2_odd(acc, np.ascontiguousarray(rows[:, pair]), np.ascontiguousarray(columns[:, pair]))
    return acc


def _fma_f16(acc: Array, a: Array, b: Array) -> Array:
    # f64 holds the product exactly, and enough of the sum that rounding it to f16 is the only rounding.
    with np.errstate(over="ignore", invalid="ignore"):
        total: Array = (acc.astype(np.float64) + a.astype(np.float64) * b.astype(np.float64)).astype(np.float16)
    return total


def _dot2_i16(acc: Array, a: Array, b: Array) -> Array:
    products = a.view(np.int16).astype(np.int32) * b.view(np.int16).astype(np.int32)
    total: Array = acc + products.reshape(-1, 2).sum(1, dtype=np.int32)
    return total


def _bytes_from(first: int) -> Callable[[Array], Array]:
    return lambda a: np.ascontiguousarray(a.view(np.int8)[first::2]).astype(np.int16).view(np.int32)


def _nearest(a: Array) -> Array:
    if not (np.abs(a) < 2.0**31).all():
        raise KernelError(f"{a.tolist()} rounded to i32")
    return np.rint(a).astype(np.int32)


def _nearest_add(a: Array, b: Array) -> Array:
    span = np.iinfo(np.int32)
    whole = np.clip(np.rint(a.astype(np.float64)), span.min, span.max).astype(np.int64)
    return np.clip(whole + b, span.min, span.max).astype(np.int32)


def _nearest_away_add(a: Array, b: Array) -> Array:
    quarters = np.clip(np.trunc(4 * a.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int64)
    return (((quarters * (2**30 + 1) + 2**31) >> 32) + b).astype(np.int32)


def _nearest_quotient_add(a: Array, b: Array, c: Array, d: Array) -> Array:
    with np.errstate(all="ignore"):
        whole = np.rint(a / c).astype(np.float64)
    return (np.nan_to_num(np.clip(whole, -(2**30), 2**30), nan=-(2**30)).astype(np.int64) + b).astype(np.int32)


def _lookup(x: Array, *tables: Array) -> Array:
    return np.asarray(np.concatenate(tables)[x.view(np.uint8)])


def _mulh_add(a: Array, b: Array, c: Array) -> Array:
    high = (a.astype(np.int64) * b + (1 << 31)) >> 32
    return np.asarray((high + c).astype(np.int32))


def _shift_even(t: Array, s: Array, m: Array, c: Array, r: Array) -> Array:
    factor = (m.astype(np.float64) * 2.0 ** -(31.0 + r)).astype(np.float32)
    product = np.clip(s.astype(np.float32) * factor, -(2.0**21), 2.0**21)
    exact = np.rint(product).astype(np.int32) + (c >> r)
    return np.where(t & ((np.int32(1) << r) - 1), t >> r, exact).astype(np.int32)


OPERATIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "mod": np.fmod,
    "max": lambda a, b: _chosen(b < a, a, b),
    "min": lambda a, b: _chosen(a < b, a, b),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "and": _bits(np.bitwise_and),
    "or": _bits(np.bitwise_or),
    "xor": _bits(np.bitwise_xor),
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "less": _mask(np.less),
    "less_equal": _mask(np.less_equal),
    "equal": _mask(np.equal),
    "not_equal": _mask(np.not_equal),
    "select": _select,
    "dot16": lambda acc, a, b: acc + _dot4_signed(np.zeros(4, np.int32), a, b).sum(dtype=np.int32, keepdims=True),
    **{f"lane{i}": lambda a, i=i: a[i : i + 1] for i in range(4)},
    "vector4": lambda *scalars: np.concatenate(scalars),
    "lookup4": _lookup,
    "lookup16": _lookup,
    "reduce_add": _reduce_sum,
    "reduce_max": lambda a: a.max(keepdims=True),
    "reduce_min": lambda a: a.min(keepdims=True),
    "dot4": _dot4,
    "dot4_signed": _dot4_signed,
    "dot4_narrow": _dot4_narrow,
    "dot8_small": _dot8_small,
    "bytes_left4": lambda a: (a.view(np.uint8) << 4).view(np.int32),
    "bytes_right4": lambda a: (a.view(np.uint8) >> 4).view(np.int32),
    **{f"dot4_lane{i}": lambda acc, a, b, i=i: _dot4_signed(acc, a, np.full(4, b[i])) for i in range(4)},
    "madd_i16": _dot2_i16,
    "dot2": _dot2,
    "dot2_odd": _dot2_odd,
    "mmla_bf16": _mmla_bf16,
    "mul_rounded": np.multiply,
    "fma_f16": _fma_f16,
    "fma_f16_scalar": _fma_f16,
    "evens": lambda a, b: np.concatenate([a[::2], b[::2]]),
    "odds": lambda a, b: np.concatenate([a[1::2], b[1::2]]),
    **{f"fma_f16_lane{i}": lambda acc, a, b, i=i: _fma_f16(acc, a, b[i : i + 1]) for i in range(8)},
    "interleave4": lambda a: np.ascontiguousarray(a.view(np.uint8).reshape(4, -1).T).view(np.int32).reshape(-1),
    "dot2_i16": _dot2_i16,
    "even_bytes": _bytes_from(0),
    "odd_bytes": _bytes_from(1),
    "mulh_add": _mulh_add,
    "mmla": lambda acc, a, b: _blocks(acc, a.view(np.uint8), b),
    "mmla_signed": lambda acc, a, b: _blocks(acc, a, b),
    "low_words": lambda a, b: np.stack([a, b], 1).reshape(-1)[:4],
    "low_halves": lambda a, b: np.append(a[:2], b[:2]),
    "outer_halves": lambda a, b: np.append(a[:2], b[2:]),
    "even_words": lambda a, b: np.append(a[::2], b[::2]),
    "odd_words": lambda a, b: np.append(a[1::2], b[1::2]),
    "high_words": lambda a, b: np.stack([a, b], 1).reshape(-1)[4:],
    "high_halves": lambda a, b: np.append(a[2:], b[2:]),
    "add_i16x2": lambda a, b: (a.view(np.int16) + b.view(np.int16)).view(np.int32),
    "sub_i16x2": lambda a, b: (a.view(np.int16) - b.view(np.int16)).view(np.int32),
    "pair_i16": lambda a, b: (a & 0xFFFF) | (b << 16),
    "saturate_i8": lambda a: np.clip(a, -128, 127),
    "scalar": lambda a: a,
    "shift_even": _shift_even,
    "nearest": _nearest,
    "nearest_add": _nearest_add,
    "nearest_away_add": _nearest_away_add,
    "nearest_quotient_add": _nearest_quotient_add,
    "sqrdmulh": lambda a, b: ((a.astype(np.int64) * b + (1 << 30)) >> 31).astype(np.int32),
}
"""Rows of ``OPS`` but cast, bitcast and broadcast, whose meaning needs the result's type; of instruction sets also
those without a meaning in loop IR."""


MIXED = (
    *("dot4", "dot4_signed", "dot4_narrow", "dot8_small", "dot2", "dot2_odd", "mmla_bf16"),
    *(f"dot4_lane{i}" for i in range(4)),
    *("nearest_add", "nearest_away_add", "nearest_quotient_add"),
)
"""Operations whose operands have different types."""


EXACT = ("add", "sub", "mul", "max", "min", "and", "or", "xor", "neg", "abs", "sqrt", "floor", "ceil", "round", "trunc")
"""Operations whose result has the type and lanes of their operands, if all of them have the same."""


def _bf16_to_f32(bits: Array) -> Array:
    """bf16 bits to f32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _f32_to_bf16(a: Array) -> Array:
    """f32 to bf16 bits, rounded to nearest even; NaN stays NaN."""
    bits = a.view(np.uint32)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    return np.where(np.isnan(a), bits >> 16 | 0x40, rounded).astype(np.uint16)


def convert(a: Array, source: DType, target: DType) -> Array:
    if DType.BF16 not in (source, target):
        return _cast(a, numpy_type(target))
    if {source, target} != {DType.BF16, DType.F32}:
        raise KernelError(f"cast of {source} to {target}: bf16 is widened to f32 and narrowed from it only")
    return _bf16_to_f32(a) if target is DType.F32 else _f32_to_bf16(a)


def _cast(a: Array, dtype: np.dtype[Any]) -> Array:
    if a.dtype.kind == "f" and dtype.kind in "iu":
        limits, whole = np.iinfo(dtype), np.trunc(a.astype(np.float64))
        if not ((whole >= limits.min) & (whole <= limits.max)).all():
            raise KernelError(f"cast of {a.tolist()} to {dtype}")
    return a.astype(dtype)
