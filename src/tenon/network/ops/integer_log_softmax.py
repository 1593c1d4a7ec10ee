"""Logarithm of a softmax of 8-bit integers in fixed-point arithmetic.

Sources: tensorflow/lite/kernels/internal/reference/log_softmax.h (LogSoftmaxQuantized) and internal/common.h
(log_x_for_x_greater_than_or_equal_to_1).  The sum of exponentials is that of ``ops.integer_softmax``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from tenon.machine.kernels import integer_log_softmax as kernels
from tenon.machine.kernels.integer_log_softmax import (
    ALPHA_D,
    ALPHA_F,
    ALPHA_I,
    ALPHA_N,
    FOURTH_ROOT_HALF,
    INPUT_BITS,
    LOG_2,
    OUTPUT_BITS,
    QUARTER,
    SQRT_HALF,
)
from tenon.machine.kernels.integer_softmax import ACCUMULATED
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_softmax import LONGEST, check_rows, differences, reciprocal_of, saturated, table
from tenon.network.ops.requantize import clamped, doubling_high, limits, quantized_multiplier, rounding_shift

LEAST_SCALE = 2.0**-26
"""The scale of x is larger."""


def _top_bit(x: Array) -> Array:
    return np.array([int(v).bit_length() - 1 for v in x.ravel()], np.int64).reshape(x.shape)


def logarithm(x: Array) -> Array:
    """ln x with INPUT_BITS integer bits, of x >= 1 with ACCUMULATED integer bits."""
    top = _top_bit(x)
    other = doubling_high(x, SQRT_HALF)
    second = _top_bit(other)
    power = np.maximum(((ACCUMULATED - 31 + top) << 25) + QUARTER, ((ACCUMULATED - 30 + second) << 25) - QUARTER)
    first = saturated(doubling_high(x << (30 - top), SQRT_HALF) << 1)
    r = np.minimum(first, saturated(x << (30 - second)))
    p = (r + FOURTH_ROOT_HALF + 1) >> 1
    q = (r - FOURTH_ROOT_HALF) << 1
    square = doubling_high(q, q)
    numerator = doubling_high(q, r) + doubling_high(doubling_high(q, square), ALPHA_N)
    denominator = doubling_high(p, ALPHA_I + q + doubling_high(square, ALPHA_D)) + doubling_high(q, ALPHA_F)
    scaled = doubling_high(rounding_shift(numerator, 6), reciprocal_of(denominator))
    return saturated((doubling_high(power, LOG_2) + scaled) << 1)


@lru_cache(maxsize=64)
def scaling(scale: float) -> tuple[Array, int, Fixed]:
    """For a scale of x: i32 [256], the differences 0, -1 ... with INPUT_BITS integer bits, as far as they count; the
    least that counts; and the fixed-point factor back from such numbers to differences."""
    scaled, radius, (multiplier, shift) = differences(scale, INPUT_BITS)
    return scaled.astype(np.int32), -radius, quantized_multiplier((1 << (31 - shift)) / multiplier)


@register
@dataclass(frozen=True)
class IntegerLogSoftmax(Operator):
    """Logarithm of the softmax over the last axis of i8 or u8, to the same type with the scale 1/16 and its greatest
    number for zero.

    ``x_scale`` is the scale of x, above 2**-26.
    """

    x_scale: float = 1.0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        check_rows(self.name, x, LONGEST)
        return (TensorType(x.dtype, x.dims, quant=Quant((1 / 16,), (limits(x.dtype)[1],))),)

    def reference(self, x: Array) -> Array:
        dtype, wide = DType.of(x.dtype), x.astype(np.int64)
        least, most = limits(dtype)
        distances, radius, inverse = scaling(self.x_scale)
        far = wide.max(-1, keepdims=True) - wide
        exps = table(self.x_scale).astype(np.int64)[far]
        log = logarithm(rounding_shift(exps, ACCUMULATED).sum(-1, keepdims=True))
        limit = rounding_shift(doubling_high(log - (1 << 31), inverse[0]), -inverse[1])
        value = rounding_shift(distances.astype(np.int64)[far] - log, 31 - INPUT_BITS - OUTPUT_BITS) + most
        return clamped(np.where(-far > np.maximum(limit, radius - 1), value, least), least, most, dtype)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        distances, radius, inverse = scaling(self.x_scale)
        s = kernels.LogSoftmax(math.prod(x.dims[:-1]), x.dims[-1], x.dtype, radius, inverse)
        tables = (Weights(table(self.x_scale)), Weights(distances))
        return [Step(kernels.integer_log_softmax(s), (Input(0), *tables, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(19)
        for dtype in (np.int8, np.uint8):
            kind = np.iinfo(dtype)
            for shape, scale in (((3, 10), 0.07), ((1, 1), 1.0), ((2, 3, 17), 0.9), ((1, 1000), 0.004)):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                yield Case(cls(scale), (x,), (), 0, label=f"{np.dtype(dtype)}_{shape[-1]}")
