"""Normalisation of rows of integers by their length or their standard deviation, in fixed-point arithmetic.

Sources: tensorflow/lite/kernels/internal/common.h (GetInvSqrtQuantizedMultiplierExp), reference/l2normalization.h,
reference/integer_ops/l2normalization.h and reference/portable_tensor_utils.cc (PortableApplyLayerNorm).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Const, Type
from tenon.machine.kernels import integer_normalize as kernels
from tenon.machine.kernels.integer_normalize import HALF_SQRT_2, LARGEST, MEAN_BITS
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, DType, Quant, TensorType
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Output, Site, Step, Weights, register, typed
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_softmax import check_rows
from tenon.network.ops.requantize import (
    Factors,
    clamped,
    doubling_high,
    limits,
    quantized_multiplier,
    rescaled,
    rounding_shift,
)

LONGEST = (1 << 31) // 255**2
"""Elements of 8 bits of a row whose squares 32 bits can sum."""


def _saturated_shift(x: Array, bits: int) -> Array:
    return np.asarray(np.clip(x << bits, -(2**31), LARGEST))


def inverse_square_root(x: Array) -> tuple[Array, Array]:
    """(multiplier, right shift) of 1 / sqrt(x), of integers 0 <= x < 2**31, where 0 counts as 1."""
    given = np.maximum(x.astype(np.int64), 2)
    top = np.array([int(v).bit_length() - 1 for v in given.ravel()], np.int64).reshape(given.shape)
    large = (top > 28).astype(np.int64)
    pairs = ((30 - (top - 2 * large)) >> 1) - 1
    whole = (given >> (2 * large)) << (2 * pairs)
    half = ((whole >> 1) + 1) >> 1
    root = np.full_like(given, 1 << 28)
    for _ in range(5):
        cube = _saturated_shift(doubling_high(doubling_high(root, root), root), 6)
        root = _saturated_shift(doubling_high(root, (1 << 28) + (1 << 27)) - doubling_high(half, cube), 3)
    shift = 11 + large - pairs
    multiplier = doubling_high(root, HALF_SQRT_2) << np.maximum(-shift, 0)
    return np.where(x < 2, LARGEST, multiplier), np.where(x < 2, 0, np.maximum(shift, 0))


@register
@dataclass(frozen=True)
class IntegerL2Normalization(Operator):
    """Rows of i8 or u8 along the last axis, less ``x_zero``, divided by their length.

    The result has the type of x, the scale 1/128, and its middle for zero (0 or 128).
    """

    x_zero: int = 0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (1, 1)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (x,) = typed(inputs)
        check_rows(self.name, x, LONGEST)
        return (TensorType(x.dtype, x.dims, quant=Quant((1 / 128,), (0 if x.dtype.is_signed else 128,))),)

    def zero_points(self) -> tuple[int]:
        return (self.x_zero,)

    def reference(self, x: Array) -> Array:
        dtype = DType.of(x.dtype)
        value = x.astype(np.int64) - self.x_zero
        multiplier, right = inverse_square_root((value * value).sum(-1, keepdims=True))
        if dtype.is_signed:
            scaled = rounding_shift(
                doubling_high(value << np.maximum(7 - right, 0), multiplier), np.maximum(right - 7, 0)
            )
            return clamped(scaled, *limits(dtype), dtype)
        return clamped(rounding_shift(doubling_high(value << 7, multiplier), right) + 128, *limits(dtype), dtype)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        rows = kernels.IntegerRows(math.prod(x.dims[:-1]), x.dims[-1], x.dtype, self.x_zero)
        return [Step(kernels.l2_normalization(rows), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(17)
        for dtype, zero in ((np.int8, -9), (np.uint8, 140)):
            kind = np.iinfo(dtype)
            for shape in ((3, 10), (2, 1), (2, 3, 17), (1, 700)):
                x = rng.integers(kind.min, kind.max + 1, shape).astype(dtype)
                yield Case(cls(zero), (x,), (), 0, label=f"{np.dtype(dtype)}_{shape[-1]}")
            x = np.full((3, 4), zero, dtype)
            x[1, 2] += 1
            x[2] += np.arange(4).astype(dtype)
            yield Case(cls(zero), (x,), (), 0, label=f"{np.dtype(dtype)}_small")


@register
@dataclass(frozen=True)
class IntegerLayerNormalization(Operator):
    """Inputs: x i16 [..., N], constant weights i16 [N] and bias i32 [N], in units of 2**-10 of those of the weights.

    Rows of x less their mean, over their standard deviation, times the weights, plus the bias, times ``factor`` (a
    fixed-point number of 2**-10), clamped to i16.  Rows whose variance is below 1 have the variance ``limit``.
    """

    factor: Fixed = (1 << 30, 1)
    limit: int = 1
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (3, 3)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w, b = typed(inputs)
        if (x.dtype, w.dtype, b.dtype) != (DType.I16, DType.I16, I32) or not x.rank:
            raise ShapeError(f"{self.name}: {x}, {w} and {b} are no rows of i16, weights of i16 and a bias of i32")
        if not w.dims == b.dims == x.dims[-1:] or x.dims[-1] >= 1 << 16:
            raise ShapeError(f"{self.name}: weights {w} and bias {b} do not fit rows of {x}")
        return (TensorType(DType.I16, x.dims),)

    def reference(self, x: Array, w: Array, b: Array) -> Array:
        value, length = x.astype(np.int64), x.shape[-1]
        total = value.sum(-1, keepdims=True)
        mean = np.sign(total) * ((np.abs(total) << MEAN_BITS) // length)
        squares = (value * value).sum(-1, keepdims=True) * ((1 << 2 * MEAN_BITS) // length)
        variance = np.maximum(squares - mean * mean, 0) >> (2 * MEAN_BITS)
        multiplier, right = inverse_square_root(np.where(variance < 1, self.limit, variance))
        steps = rounding_shift(doubling_high((value << MEAN_BITS) - mean, multiplier), right)
        wide = steps * w.astype(np.int64) + b
        scaled = np.sign(wide) * ((np.abs(wide) + 512) >> MEAN_BITS)
        return clamped(rescaled(scaled, *self.factor, "double"), *limits(DType.I16), DType.I16)

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        rows = kernels.IntegerRows(math.prod(x.dims[:-1]), x.dims[-1], x.dtype)
        known = Factors("double", np.array([self.factor[0]]), np.array([self.factor[1]]))
        constants = tuple(Const(int(row[0]), Type(I32)) for row in known.rows().values())
        kernel = kernels.layer_normalization(rows, self.limit, known.kernel(0, -(2**31), 2**31 - 1, I32), constants)
        weights, bias = site.constants[1], site.constants[2]
        args = [Input(k) if data is None else Weights(data) for k, data in ((1, weights), (2, bias))]
        return [Step(kernel, (Input(0), *args, Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(18)
        for label, shape, reach in (("rows", (3, 24), 9000), ("odd", (2, 7), 32767), ("flat", (2, 5), 1)):
            x = rng.integers(-reach, reach + 1, shape).astype(np.int16)
            w = rng.integers(-9000, 9001, shape[-1]).astype(np.int16)
            b = rng.integers(-(1 << 20), 1 << 20, shape[-1]).astype(np.int32)
            factor, shift = quantized_multiplier(5e-5)
            yield Case(cls((factor, shift + 12), 10), (x, w, b), (1, 2), 0, label=label)
