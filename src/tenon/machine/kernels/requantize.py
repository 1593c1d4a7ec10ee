"""Requantisation: a 32-bit sum times a factor, rounded, shifted to a zero point and clamped, as loop IR.

A factor below one is a multiplier of 31 bits, 2**30 <= m < 2**31, and a shift: sum * m * 2**(shift - 31).  How the
product is rounded differs between runtimes; ``Rounding`` lists the rounding modes.  ``ops.requantize`` has the same in
NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tenon.machine.kernel_ir.loops import Expr, bitcast, cast, maximum, minimum, op, select, sqrdmulh
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, I64, DType

Rounding = Literal["double", "single", "float", "reduced", "none", "even"]
"""``double``: the product is rounded to 31 bits less (halves up), then shifted right (halves away from zero), as
gemmlowp, TFLite Micro and CMSIS-NN do.  ``single``: rounded once, halves away from zero.  ``float``: the sum as f32
times a factor in f32, rounded halves to even, as ONNX Runtime and XNNPACK do.  ``reduced``: times a multiplier of 15
bits, rounded once, halves up, as TFLite does with sums of 64 bits.  ``none``: the sums themselves, in i32.  ``even``,
of kernels only: the results of "float" for 8 bits, in integers: sums are multiplied by the factor in fixed point, and
in f32 only where the product lies so close to a half that the two may be rounded differently (``even_factors``)."""


@dataclass(frozen=True)
class Requantize:
    """How a sum becomes an element of ``dtype``.

    ``rows`` are the factors per channel that it takes, after ``ops.requantize.rows``: of "double" the multiplier and
    the right shift with half of what it drops, "mask" where some shifts are zero and "left" where some go left;
    of "single" and "reduced" the multiplier, the whole shift and half of what it drops; of "float" the factor; of
    "none", where the zero point of x is known at run time only, that and the sums of the weights; of "even" the
    multiplier, what is added, with the zero point in it, and the shift, after that of the sums to the ``left``.  With
    ``wide``, sums may come so close to 2**31 that half of what is dropped cannot be added.  Negative sums are
    multiplied by ``slope``, from 0 to 1, before they are rounded.  With ``near``, of "float", sums times factors are
    of less than 2**30, so that they can be rounded to i32 before they are clamped.
    """

    rounding: Rounding
    zero: int
    low: int
    high: int
    dtype: DType
    rows: tuple[str, ...]
    wide: bool = False
    slope: float = 1.0
    left: int = 0
    near: bool = False

    def __call__(self, total: Expr, factors: Sequence[Expr]) -> Expr:
        """``total`` is i32; one factor for each of ``rows``."""
        given = dict(zip(self.rows, factors, strict=True))
        if self.rounding == "none":
            return total - cast(given["zero"], I32) * given["weights"] if given else total
        if self.rounding == "float":
            scaled = op("mul", cast(total, F32), given["factor"])
            if self.slope != 1:
                scaled = maximum(scaled, op("mul", scaled, self.slope))
            if self.near:
                whole = op("nearest", scaled) + self.zero
                return cast(minimum(maximum(whole, self.low), self.high), self.dtype)
            return rounded_to_even(scaled, self.zero, self.low, self.high, self.dtype)
        if self.rounding == "even":
            total = total << self.left
            high = sqrdmulh(total, given["multiplier"]) + given["offset"]
            value = op("shift_even", high, total, given["multiplier"], given["offset"], given["right"])
            return cast(minimum(maximum(value, self.low), self.high), self.dtype)
        if self.slope != 1:
            total = maximum(total, sqrdmulh(total, fixed_slope(self.slope)))
        scaled = self.scaled(total, factors)
        return cast(minimum(maximum(scaled + self.zero, self.low), self.high), self.dtype)

    def scaled(self, total: Expr, factors: Sequence[Expr]) -> Expr:
        """``total`` times a fixed-point factor, rounded."""
        given = dict(zip(self.rows, factors, strict=True))
        if self.rounding == "reduced":
            product = cast(total, I64) * cast(given["multiplier"], I64)
            return cast((product + given["half"]) >> given["shift"], I32)
        return _doubly(total, given, wide=self.wide) if self.rounding == "double" else _once(total, given)


@dataclass(frozen=True)
class Added:
    """Another tensor r that is added to sums of i32 before they are requantised: (r - ``zero``) times a factor of each
    channel, a whole number, is in sums times 2**``shift``, and is rounded to sums, halves up."""

    zero: int
    shift: int

    def __call__(self, total: Expr, r: Expr, factor: Expr) -> Expr:
        """``total`` and ``factor`` are i32; the product must fit 32 bits."""
        product = (cast(r, I32) - self.zero) * factor
        return total + (product if not self.shift else (product + (1 << self.shift >> 1)) >> self.shift)


def fixed_slope(slope: float) -> int:
    """A slope below 1 as a multiplier of 31 bits: sums times it are rounded to whole sums, halves up."""
    return min(int(slope * 2.0**31 + 0.5), (1 << 31) - 1)


def rounded_to_even(x: Expr, zero: int, low: int, high: int, dtype: DType) -> Expr:
    """An f32 rounded, halves to even, plus ``zero``, between ``low`` and ``high``."""
    bounded = minimum(maximum(x, float(low - zero)), float(high - zero))
    # Added to a float whose last digit counts ones, a number is rounded as floats are: halves to even.
    return cast(bitcast(bounded + ONES, I32) + (zero - ONES_BITS), dtype)


# ------------------------------------------------------------------------------------- floats in integers
_LARGEST = 256.0
"""Beyond this many steps from the zero point, what is rounded is clamped."""
_MOST_LEFT = 20


def even_factors(values: Array, zero: int, largest: Array) -> tuple[Array, int] | None:
    """Rows in i32 of ``Requantize`` with the rounding "even", [3, channels], and its ``left``, for factors ``values``
    in f32; None where that cannot be.

    ``largest`` are the largest magnitudes of the sums.  The product in fixed point is at most half a unit of
    2**-right off; a product of f32, of a sum that is rounded to f32, by its magnitude / 2**23.  Where the former's
    distance from a half is a unit or more, and half a unit is more than the latter, both are rounded alike.
    """
    if not np.isfinite(values).all() or (values < 2.0**-100).any():
        return None
    fractions, exponents = np.frexp(values.astype(np.float64))
    most = np.minimum(values * largest.astype(np.float64), _LARGEST)
    deepest = np.floor(np.log2(2.0**22 / np.maximum(1.001 * most, 2.0**-8))).astype(np.int64)
    for left in range(_MOST_LEFT, -1, -1):
        right = left - exponents.astype(np.int64)
        added = ((np.int64(1) << np.clip(right, 1, 30)) >> 1) + (np.int64(zero) << np.clip(right, 0, 30))
        bounded = (largest.astype(np.int64) << left) + np.abs(added) < 1 << 31
        if ((right >= 1) & (right <= deepest) & bounded).all():
            rows = np.stack([(fractions * 2.0**31).astype(np.int64), added, right])
            return rows.astype(np.int32), left
    return None


def in_integers(s: Requantize, values: Array, largest: Array) -> tuple[Requantize, Array] | None:
    """``s``, of the rounding "float" by factors ``values``, for a machine without floats: the same with the rounding
    "even", and its rows; None where that cannot be."""
    if s.rounding != "float" or s.slope != 1 or s.dtype.bytes > 1:
        return None
    known = even_factors(values, s.zero, largest)
    if known is None:
        return None
    rows, left = known
    return replace(s, rounding="even", rows=("multiplier", "offset", "right"), left=left), rows


NEAR = 2.0**30
"""Sums times factors of less than this are i32 when they are rounded, and with a zero point added, too."""
ONES = 1.5 * 2.0**23
"""A float whose last digit counts ones, as do those within 2**22 of it."""
ONES_BITS = 0x4B400000


def _doubly(total: Expr, given: dict[str, Expr], *, wide: bool) -> Expr:
    if "left" in given:
        total = total << given["left"]
    high = sqrdmulh(total, given["multiplier"])
    if "right" not in given:
        return high
    sign = high >> 31
    mask = given.get("mask")
    if wide:
        shift = given["right"] - 1 if mask is None else maximum(given["right"] - 1, 0)
        halved = (((high + sign) >> shift) + 1) >> 1
        return halved if mask is None else select(mask, halved, high)
    if mask is not None:
        sign = op("and", sign, mask)
    return (high + given["half"] + sign) >> given["right"]


def _once(total: Expr, given: dict[str, Expr]) -> Expr:
    """On the magnitude, whose sign comes back at the end."""
    sign = total >> 31
    size = cast(op("sub", op("xor", total, sign), sign), I64) * cast(given["multiplier"], I64)
    rounded = cast((size + given["half"]) >> given["shift"], I32)
    return op("sub", op("xor", rounded, sign), sign)
