"""Softmax of 8-bit integers in fixed-point arithmetic.

Source of the arithmetic: fixedpoint/fixedpoint.h of google/gemmlowp, as TFLite's and TFLite Micro's SOFTMAX use it.
exp of a difference of two 8-bit integers takes 256 values, so it is a table; the reciprocal of a row's sum is found by
three steps of Newton's division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.integer_softmax import ACCUMULATED, integer_softmax
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.reach import Operands, Reaches, alike
from tenon.network.ops.requantize import clamped, doubling_high, limits, quantized_multiplier, rounding_shift

ONE = 2**31 - 1
"""The largest number without integer bits stands for 1."""

INTEGER_BITS = 5
"""Integer bits of the scaled differences."""

LONGEST = (1 << ACCUMULATED) - 1
"""Elements of a row whose exponentials 32 bits can sum."""


def saturated(x: Array) -> Array:
    return np.clip(x, -(2**31), ONE)


def _exp_of_quarter(a: Array) -> Array:
    """exp of [-1/4, 0), by a polynomial around -1/8."""
    x = a + (1 << 28)
    x2 = doubling_high(x, x)
    x3, x4 = doubling_high(x2, x), doubling_high(x2, x2)
    sixths = doubling_high(rounding_shift(x4, 2) + x3, 715827883) + x2
    return 1895147668 + doubling_high(x + rounding_shift(sixths, 1), 1895147668)


def exp_of_negative(a: Array) -> Array:
    """exp of numbers <= 0 of INTEGER_BITS integer bits: a factor for each bit of whole quarters."""
    behind = 31 - INTEGER_BITS
    quarter = 1 << (behind - 2)
    part = (a & (quarter - 1)) - quarter
    result = _exp_of_quarter(saturated(part << INTEGER_BITS))
    rest = part - a
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in zip(range(-2, 5), factors, strict=True):
        result = np.where(rest & (1 << (behind + exponent)), doubling_high(result, factor), result)
    return np.where(a == 0, ONE, result)


def differences(scale: float, bits: int) -> tuple[Array, int, Fixed]:
    """For a scale of x: i64 [256], the differences 0, -1 ... times the scale with ``bits`` integer bits, those that do
    not count as the least that does; the amount of that one; and the fixed-point factor of the scale."""
    multiplier, shift = quantized_multiplier(min(scale * 2.0 ** (31 - bits), 2.0**31 - 1))
    radius = math.floor(((1 << bits) - 1) * 2.0 ** (31 - bits) / 2.0**shift)
    counted = np.maximum(-np.arange(256, dtype=np.int64), -radius)
    return doubling_high(counted << shift, multiplier), radius, (multiplier, shift)


def check_rows(name: str, x: TensorType, longest: int) -> None:
    """Raises ShapeError unless ``x`` has rows of at most ``longest`` 8-bit integers along its last axis."""
    if x.dtype not in (DType.I8, DType.U8) or not x.rank:
        raise ShapeError(f"{name}: {x} is no tensor of 8-bit integers with a last axis")
    if x.dims[-1] > longest:
        raise ShapeError(f"{name}: rows of {x.dims[-1]} elements are too long to be summed in 32 bits")


@lru_cache(maxsize=64)
def table(scale: float) -> Array:
    """i32 [256]: exp(-scale * i) without integer bits, zero where it is too small to count."""
    scaled, radius, _ = differences(scale, INTEGER_BITS)
    return np.where(np.arange(256) <= radius, exp_of_negative(scaled), 0).astype(np.int32)


def reciprocal(total: Array) -> tuple[Array, Array]:
    """(1 / total without integer bits, the bits that it is to be shifted down by), of sums of 12 integer bits."""
    bits = np.array([int(t).bit_length() for t in total.ravel()]).reshape(total.shape)
    headroom = 32 - bits
    return reciprocal_of((total << headroom) - (1 << 31)), ACCUMULATED - headroom


def reciprocal_of(fraction: Array) -> Array:
    """1 / (1 + fraction) for fractions from 0 to 1, all without integer bits: three steps of Newton's division."""
    half = (fraction + ONE + 1) >> 1
    x = 1515870810 + doubling_high(half, -1010580540)
    for _ in range(3):
        left = (1 << 29) - doubling_high(half, x)
        x = x + saturated(doubling_high(x, left) << 2)
    return saturated(x << 1)


@register
@dataclass(frozen=True)
class IntegerSoftmax(Operator):
    """Softmax over the last axis of i8 or u8: to the same type or to i16, with the scale 2**-8 or 2**-16 of its
    bits and its least number for zero.

    ``x_scale`` is the scale of x times the operator's beta; ``to`` is empty for the type of x.
    """

    x_scale: float = 1.0
    to: str = ""
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        check_rows(self.name, x, LONGEST)
        y = self.result(x.dtype)
        if y not in (x.dtype, DType.I16):
            raise ShapeError(f"{self.name}: no results of {y} for {x}")
        return (TensorType(y, x.dims, quant=Quant((1 / (1 << 8 * y.bytes),), (limits(y)[0],))),)

    def result(self, x: DType) -> DType:
        """The type of the result for one of x."""
        return DType(self.to) if self.to else x

    def reference(self, x: Array) -> Array:
        wide = x.astype(np.int64)
        exps = table(self.x_scale).astype(np.int64)[wide.max(-1, keepdims=True) - wide]
        total = rounding_shift(exps, ACCUMULATED).sum(-1, keepdims=True)
        scale, over = reciprocal(total)
        to = self.result(DType.of(x.dtype))
        least, most = limits(to)
        result = rounding_shift(doubling_high(scale, exps), over + 31 - 8 * to.bytes) + least
        return clamped(result, least, most, to)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return None if axis == outputs[0].rank - 1 else alike(inputs, axis)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        kernel = integer_softmax(math.prod(x.dims[:-1]), x.dims[-1], x.dtype, site.output.dtype)
        return [Step(kernel, (Input(0), Weights(table(self.x_scale)), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(10)
        for dtype in (np.int8, np.uint8):
            kind = np.iinfo(dtype)
            for shape, scale in (((3, 10), 0.07), ((1, 1), 1.0), ((2, 3, 17), 0.9), ((1, 1000), 0.004)):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                yield Case(cls(scale), (x,), (), 0, label=f"{np.dtype(dtype)}_{shape[-1]}")
                yield Case(cls(scale, "i16"), (x,), (), 0, label=f"{np.dtype(dtype)}_to_int16_{shape[-1]}")
