"""Fixed-point factors of quantised operators, and requantisation by them: the definition, in NumPy.

Sources: Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference"
(2018), 2.2 and appendix B; gemmlowp, doc/quantization.md; the TensorFlow Lite quantization specification.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernels.requantize import Requantize, Rounding, fixed_slope
from tenon.machine.kernels.storage_types import INTEGERS
from tenon.network.graph.graph import Array
from tenon.network.graph.types import I32, I64, DType

SUMS = (1 << 31) - 1
"""The largest magnitude of sums of integer operators."""


def largest_sums(weights: Array, zero: int, x_range: tuple[int, int], x_zero: int, bias: Array | None) -> Array:
    """The largest magnitude that each sum of products with weights [out, ...] can have, in i64."""
    wide = (weights.astype(np.int64) - zero).reshape(len(weights), -1)
    least, most = x_range[0] - x_zero, x_range[1] - x_zero
    offset = np.int64(0) if bias is None else bias.astype(np.int64)
    high = np.maximum(wide * most, wide * least).sum(1) + offset
    low = np.minimum(wide * most, wide * least).sum(1) + offset
    result: Array = np.maximum(np.abs(high), np.abs(low))
    return result


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bits, signed = INTEGERS[dtype] if dtype in INTEGERS else (8 * dtype.bytes, dtype.is_signed)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


ADDED_FACTORS = 22
"""Bits of the factors of a tensor that is added to sums: 255 times them fits 32 bits."""


def added_factors(units: Array) -> tuple[Array, int] | None:
    """Factors, i32, and a shift as of ``kernels.requantize.Added``, for a step of ``units`` sums in each channel; None
    where the steps are too many sums."""
    most = float(units.max(initial=0.0))
    shift = min(ADDED_FACTORS - math.frexp(most)[1], 30)
    if shift < 0:
        return None
    return np.rint(units * 2.0**shift).astype(np.int32), shift


def in_sums(x: Array, zero: int, factors: Array, shift: int) -> Array:
    """Elements of a tensor, channels last, in units of sums, as ``kernels.requantize.Added`` adds them."""
    product = (x.astype(np.int64) - zero) * factors.astype(np.int64)
    result: Array = (product + (1 << shift >> 1)) >> shift
    return result


def largest_added(zero: int, span: tuple[int, int], factors: Array, shift: int) -> Array:
    """The largest magnitude of ``in_sums`` of each channel, for integers of ``span``."""
    ends = [in_sums(np.array(end), zero, factors, shift) for end in span]
    result: Array = np.max(np.abs(ends), axis=0)
    return result


def clamped(x: Array, low: int, high: int, dtype: DType) -> Array:
    """Integers between two bounds, as elements of ``dtype``."""
    result: Array = np.clip(x, low, high).astype(dtype.numpy)
    return result


def quantized_multiplier(factor: float) -> tuple[int, int]:
    """``factor`` as a multiplier of 31 bits and a shift to the left: multiplier * 2**(shift - 31).

    Too small a factor is 0, shifted as far as can be.  Raises ValueError for one that is not a number >= 0, or of 2**31
    and more.
    """
    if not 0 <= factor < 2.0**31:
        raise ValueError(f"a factor of {factor} cannot be a fixed-point multiplier")
    fraction, shift = math.frexp(factor)
    multiplier = math.floor(fraction * 2.0**31 + 0.5)
    if multiplier == 1 << 31:
        multiplier, shift = 1 << 30, shift + 1
    return (0, -31) if shift < -31 or not multiplier else (multiplier, shift)


def quantized_multipliers(factors: Sequence[float]) -> tuple[Array, Array]:
    """(multipliers, shifts), each i32, of several factors."""
    pairs = [quantized_multiplier(float(f)) for f in factors]
    table = np.array(pairs, np.int32).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def rounding_shift(x: Array, right: Array | int) -> Array:
    """``x / 2**right`` of integers, halves away from zero."""
    right = np.asarray(right, np.int64)
    half = (np.int64(1) << right) >> 1
    x = x.astype(np.int64)
    result: Array = (x + half - ((x < 0) & (right > 0))) >> right
    return result


def doubling_high(x: Array, multiplier: Array | int) -> Array:
    """``x * multiplier / 2**31``, halves up."""
    result: Array = (x.astype(np.int64) * np.asarray(multiplier, np.int64) + (1 << 30)) >> 31
    return result


def reduced(multiplier: Array) -> Array:
    """Multipliers of 31 bits as those of 15 bits that TFLite multiplies sums of 64 bits by, in i64."""
    wide = multiplier.astype(np.int64)
    result: Array = np.where(wide < 0x7FFF0000, (wide + (1 << 15)) >> 16, 0x7FFF)
    return result


def rescaled(total: Array, multiplier: Array | int, shift: Array | int, rounding: Rounding) -> Array:
    """``total`` times a fixed-point factor, as i64; ``multiplier`` and ``shift`` broadcast."""
    shift = np.asarray(shift, np.int64)
    if rounding == "double":
        return rounding_shift(doubling_high(total << np.maximum(shift, 0), multiplier), np.maximum(-shift, 0))
    if rounding == "reduced":
        product = total.astype(np.int64) * reduced(np.asarray(multiplier))
        short: Array = (product + (np.int64(1) << (14 - shift))) >> (15 - shift)
        return short
    size, wide = np.abs(total.astype(np.int64)), np.asarray(multiplier, np.int64)
    # sums of more than 32 bits times the multiplier exceed 64: 16 bits are dropped before the rest is
    product = (size >> 16) * wide + (((size & 0xFFFF) * wide) >> 16)
    result: Array = np.sign(total) * ((product + (np.int64(1) << (14 - shift))) >> (15 - shift))
    return result


@dataclass(frozen=True)
class Factors:
    """Factors per channel, or one for all: f32 of "float", else multipliers and shifts in i32.  Negative sums are
    multiplied by ``slope``, from 0 to 1, too."""

    rounding: Rounding
    values: Array
    shifts: Array | None = None
    slope: float = 1.0

    @classmethod
    def single(cls, rounding: Rounding, factor: float, fixed: tuple[int, int]) -> Factors:
        """One for all: ``factor`` in f32 of "float", else the multiplier and shift ``fixed``."""
        if rounding == "float":
            return cls(rounding, np.array([factor], np.float32))
        multiplier, shift = (np.array([number], np.int32) for number in fixed)
        return cls(rounding, multiplier, shift)

    def apply(self, total: Array) -> Array:
        """The sums, whose channels are the last axis, times the factors, rounded, as i64."""
        if self.rounding == "float":
            with np.errstate(all="ignore"):
                scaled = total.astype(np.float32) * self.values.astype(np.float32)
                scaled = scaled if self.slope == 1 else np.maximum(scaled, scaled * np.float32(self.slope))
                return np.rint(np.clip(scaled, -(2.0**62), 2.0**62)).astype(np.int64)
        assert self.shifts is not None
        if self.slope != 1:
            total = np.maximum(total, doubling_high(total, fixed_slope(self.slope)))
        return rescaled(total.astype(np.int64), self.values, self.shifts, self.rounding)

    def rows(self) -> dict[str, Array]:
        """Rows of factors that ``kernels.requantize`` takes for each channel."""
        if self.rounding == "float":
            return {"factor": self.values.astype(np.float32)}
        assert self.shifts is not None
        shifts = self.shifts.astype(np.int64)
        constants = {"multiplier": self.values.astype(np.int32)}
        if self.rounding == "reduced":
            narrow = reduced(self.values).astype(np.int32)
            return {"multiplier": narrow, "shift": 15 - shifts, "half": np.int64(1) << (14 - shifts)}
        if self.rounding == "single":
            return {**constants, "shift": 31 - shifts, "half": np.int64(1) << (30 - shifts)}
        right, left = np.maximum(-shifts, 0), np.maximum(shifts, 0)
        if left.any():
            constants["left"] = left.astype(np.int32)
        if right.any():
            constants |= {"right": right.astype(np.int32), "half": ((np.int64(1) << right) >> 1).astype(np.int32)}
            if not right.all():
                constants["mask"] = -(right > 0).astype(np.int32)
        return constants

    def kernel(self, zero: int, low: int, high: int, dtype: DType, largest: int = 0) -> Requantize:
        """For sums of at most that magnitude."""
        wide = largest >= SUMS // 2
        return Requantize(self.rounding, zero, low, high, dtype, tuple(self.rows()), wide, self.slope)


ROW_TYPES = {"factor": DType.F32, "shift": I64, "half": I64}
"""Element types of rows that are not i32; half of what is dropped is i32 in "double"."""


def row_type(rounding: Rounding, name: str) -> DType:
    return I32 if rounding == "double" else ROW_TYPES.get(name, I32)
