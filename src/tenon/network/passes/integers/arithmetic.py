"""Named arithmetics: how the scales of a quantised operator become requantisation multipliers.

``tflm``: TFLite Micro's reference kernels, which CMSIS-NN agrees with.  ``litert``: LiteRT's reference kernels, which
round fully connected layers once.  ``onnx``: factors in f32, ties to even, as in ONNX Runtime.
Source: the TensorFlow Lite quantization specification, and the kernels' headers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.machine.kernels.requantize import Rounding
from tenon.network.graph.graph import Array
from tenon.network.ops.integer_arithmetic import HEADROOM, Fixed
from tenon.network.ops.requantize import SUMS, Factors, quantized_multiplier, quantized_multipliers
from tenon.options import Arithmetic

LARGEST_SHIFT = 7
"""Factors above this power of two are not supported: products with them could overflow."""


def product_factors(
    arithmetic: Arithmetic, x: float, w: Array, y: float, *, gemm: bool, wide: bool = False
) -> Factors | str:
    """The factors that requantise sums of products, of the scales x and w (one, or one per channel), to the scale y.

    ``wide``: TFLite sums them in 64 bits.
    """
    if arithmetic == "onnx":
        return Factors("float", ((np.float32(x) * w.astype(np.float32)) / np.float32(y)).astype(np.float32))
    unit = w.astype(np.float64) * x
    if gemm and w.size == 1 and not (wide and arithmetic == "litert"):
        unit = (w.astype(np.float32) * np.float32(x)).astype(np.float64)
    rounding: Rounding = "reduced" if wide else "double"
    if gemm and arithmetic == "litert":
        rounding = "single"
    multipliers, shifts = quantized_multipliers((unit / y).tolist())
    if shifts.max(initial=0) > LARGEST_SHIFT:
        return f"its sums are multiplied by more than {1 << LARGEST_SHIFT}"
    return Factors(rounding, multipliers, shifts)


def overflows(largest: Array, factors: Factors) -> str:
    """Empty, or a message that sums of these magnitudes per channel exceed 32 bits when rounded."""
    if factors.shifts is None:
        return "" if largest.max(initial=0) <= SUMS else "its sums could be too large for 32 bits"
    shifts = np.broadcast_to(factors.shifts.astype(np.int64), largest.shape)
    wide = largest << np.maximum(shifts, 0)
    if wide.max(initial=0) > SUMS or (wide.max(initial=0) >= SUMS // 2 and shifts.max(initial=-1) >= 0):
        return "its sums could be too large for 32 bits"
    return ""


def sum_factors(a: float, b: float, y: float, headroom: int = HEADROOM) -> tuple[Fixed, Fixed, Fixed] | str:
    """The factors that bring two operands, shifted left by HEADROOM bits, to a common scale, and their sum to the scale
    y.
    """
    most = 2 * max(a, b)
    factors = tuple(map(quantized_multiplier, (a / most, b / most, most / ((1 << headroom) * y))))
    if factors[2][1] > 0:
        return "its result has so small a scale that its operands would be scaled up"
    return factors  # type: ignore[return-value]


def mul_factor(arithmetic: Arithmetic, a: float, b: float, y: float) -> Fixed | str:
    single = float(np.float32(a) * np.float32(b) / np.float32(y))
    factor = single if arithmetic == "litert" else a * b / y
    fixed = quantized_multiplier(factor)
    return "its products are scaled up" if fixed[1] > LARGEST_SHIFT else fixed


def ratio_of(arithmetic: Arithmetic, x: float, y: float, alpha: float = 1.0) -> float:
    """The factor of a function of one tensor, scales x to y: LiteRT divides in f32, TFLite Micro in f64."""
    if arithmetic == "litert":
        return float(np.float32(x) * np.float32(alpha) / np.float32(y))
    return x * alpha / y


def mean_factor(x: float, y: float, count: int) -> Fixed:
    """The factor from the sum of ``count`` elements to their mean; the count is part of the multiplier."""
    multiplier, shift = quantized_multiplier(x / y)
    up = min(count.bit_length() - 1, 32, 31 + shift)
    return (multiplier << up) // count, shift - up


def concatenated_u8(codes: Array, scale: float, zero: int, y_scale: float, y_zero: int) -> Array:
    """Elements of a part as LiteRT's CONCATENATION of u8 requantises them: in f32, ties away from zero."""
    factor = np.float32(scale) * (np.float32(1) / np.float32(y_scale))
    steps = codes.astype(np.float32) * factor + np.float32(-zero) * factor
    whole = np.sign(steps) * np.floor(np.abs(steps) + np.float32(0.5))
    result: Array = np.clip(whole.astype(np.int64) + y_zero, 0, 255)
    return result


def table_of(real: Array, scale: float, zero: int, limits: Sequence[int], *, away: bool) -> Array:
    """Real numbers quantised to a grid, ties away from zero or to even; NaN becomes the least integer, as in LiteRT and
    onnxruntime."""
    with np.errstate(over="ignore"):
        steps = real.astype(np.float32) / np.float32(scale)
    whole = np.sign(steps) * np.floor(np.abs(steps) + np.float32(0.5)) if away else np.rint(steps)
    wide = np.nan_to_num(whole.astype(np.float64), nan=-(2.0**40), posinf=2.0**40, neginf=-(2.0**40))
    result: Array = np.clip(wide + zero, limits[0], limits[1]).astype(np.int64)
    return result
