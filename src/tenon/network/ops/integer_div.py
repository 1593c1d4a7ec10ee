"""Quotients of two quantised tensors, element by element, by a reciprocal in fixed-point arithmetic.

Source: tensorflow/lite/kernels/internal/reference/div.h and GetReciprocal of internal/common.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.loops import Expr, less, maximum, minimum, op, select, sqrdmulh
from tenon.machine.kernels.integer_softmax import reciprocal, top_bit
from tenon.network.graph.graph import Array
from tenon.network.ops.base import Case, register
from tenon.network.ops.integer_arithmetic import Fixed, IntegerBinary
from tenon.network.ops.integer_softmax import reciprocal_of
from tenon.network.ops.requantize import doubling_high, quantized_multiplier, rounding_shift


@register
@dataclass(frozen=True)
class IntegerDiv(IntegerBinary):
    """a / b times ``factor``; only the rounding "double".  A divisor of zero counts as one, and quotients that are too
    small for the reference kernel's shift (by more than 31 bits) are zero."""

    factor: Fixed = (1 << 30, 1)

    def scalar(self, a: Expr, b: Expr) -> Expr:
        left, right = self.centred(a, b)
        sign = right >> 31
        left, right = (op("sub", op("xor", v, sign), sign) for v in (left, right))
        right = maximum(right, 1)
        top = top_bit(right)
        inverse = reciprocal(op("xor", (right << (30 - top)) << 1, -(2**31)))
        # the bits that repeat the sign: of the magnitude, or of one less where it is negative
        headroom = 31 - top_bit((op("xor", left, left >> 31) << 1) + 1)
        quotient = sqrdmulh(sqrdmulh(left << headroom, inverse), self.factor[0])
        shift = headroom + top - self.factor[1]
        rounded = (((quotient + (quotient >> 31)) >> minimum(maximum(shift - 1, 0), 31)) + 1) >> 1
        kept = select(less(31, shift), 0, select(less(0, shift), rounded, quotient))
        return self.bounded(kept)

    def combined_arrays(self, left: Array, right: Array) -> Array:
        return left / right

    def reference(self, a: Array, b: Array) -> Array:
        left, right = np.broadcast_arrays(*self.centred_arrays(a, b))
        left, right = np.where(right < 0, -left, left), np.maximum(np.abs(right), 1)
        top = np.array([int(v).bit_length() - 1 for v in right.ravel()], np.int64).reshape(right.shape)
        size = np.where(left < 0, ~left, left)
        headroom = 31 - np.array([int(v).bit_length() for v in size.ravel()], np.int64).reshape(size.shape)
        inverse = reciprocal_of((right << (31 - top)) - (1 << 31))
        quotient = doubling_high(doubling_high(left << headroom, inverse), self.factor[0])
        shift = headroom + top - self.factor[1]
        return self.bounded_array(np.where(shift > 31, 0, rounding_shift(quotient, np.clip(shift, 0, 31))))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(20)
        for label, zeros, factor in (("fine", (3, -4, 5), 41.3), ("coarse", (0, 0, 0), 0.9)):
            made = cls("double", zeros, factor=quantized_multiplier(factor))
            for a, b in (((1, 5, 4, 7), (1, 5, 4, 7)), ((2, 8, 3, 3), (8, 1, 1)), ((41,), (41,))):
                left, right = (rng.integers(-128, 128, dims).astype(np.int8) for dims in (a, b))
                yield Case(made, (left, right), (1,) if a != b else (), 0, label=f"{label}_{len(a)}{len(b)}")
        ends = {"low": -(1 << 15), "high": (1 << 15) - 1, "to": "i16"}
        wide = [rng.integers(-(1 << 15), 1 << 15, (3, 50)).astype(np.int16) for _ in range(2)]
        made = cls("double", **ends, factor=quantized_multiplier(900.0))  # type: ignore[arg-type]
        yield Case(made, tuple(wide), (), 0, label="i16")
        one, other = (rng.integers(0, 256, (3, 50)).astype(np.uint8) for _ in range(2))
        made = cls("double", (120, 3, 130), 0, 255, "u8", factor=quantized_multiplier(17.7))
        yield Case(made, (one, other), (), 0, label="u8")
