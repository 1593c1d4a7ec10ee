"""Random cases of integer convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.machine.kernels.requantize import Rounding
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.requantize import added_factors, limits, quantized_multipliers
from tenon.network.ops.window import Ints


def conv_case(
    cls: Callable[..., Operator],
    rng: np.random.Generator,
    label: str,
    x: Ints,
    w: Ints,
    more: dict[str, Any],
    rounding: Rounding,
    dtype: type[np.integer[Any]] = np.int8,
    *,
    wide: bool = False,
) -> Case:
    """Random integers, bias and factors whose results span the whole range; weights of -128 only if ``wide``."""
    kind = np.iinfo(dtype)
    data = rng.integers(kind.min, kind.max + 1, x).astype(dtype)
    weights = rng.integers(kind.min + (not wide and kind.min < 0), kind.max + 1, w).astype(dtype)
    bias = rng.integers(-20000, 20000, w[0]).astype(np.int32)
    real = rng.uniform(0.5, 2, w[0]) / (math.sqrt(math.prod(w[1:])) * 60)
    if label == "1x1":
        real[::3] = 0.75  # no right shift, and with the next a left one
        real[1::7] = 1.5
    factors: tuple[Array, ...] = quantized_multipliers(real.tolist())
    if rounding == "float":
        factors = (real.astype(np.float32),)
    least, most = int(kind.min), int(kind.max)
    if label == "depthwise" and rounding == "double":  # channels whose sums are nearly too large
        bias[:2], real[:2] = (2**31 - 2**18, -(2**31) + 2**18), 0.4e-8
        factors = quantized_multipliers(real.tolist())
    op = cls(rounding, 3 if least else 131, zero=-5 if least else 120, low=least, high=most, scale=0.5, **more)
    return Case(op, (data, weights, bias, *factors), (1, 2, 3, 4)[: 2 + len(factors)], 0, label=f"{label}_{rounding}")


def sums_case(
    cls: Callable[..., Operator],
    rng: np.random.Generator,
    label: str,
    x: Ints,
    w: Ints,
    more: dict[str, Any],
    dtypes: tuple[DType, DType] = (DType.U8, DType.I8),
    w_zero: int = 0,
) -> Case:
    """Random integers whose sums are the result, less a zero point that is an operand."""
    data, weights = (
        rng.integers(limits(dtype)[0], limits(dtype)[1] + 1, dims).astype(dtype.numpy)
        for dtype, dims in zip(dtypes, (x, w), strict=True)
    )
    zero = np.array([int(rng.integers(*limits(dtypes[0])))], np.int32)
    op = cls("none", w_zero=w_zero, to="i32", **more)
    return Case(op, (data, weights, None, zero), (1,), 0, label=f"{label}_sums_{dtypes[0]}_{w_zero}")


def with_added(case: Case, rng: np.random.Generator, dtype: DType = DType.I8) -> Case:
    """The case with a tensor that is added to the sums, as large as they are."""
    x, w, b, *factors = case.inputs
    op: Any = case.op
    assert isinstance(x, np.ndarray)
    assert isinstance(w, np.ndarray)
    dims = (x.shape[0], w.shape[0], *(a.out for a in op.axes(x.shape, w.shape)))
    least, most = limits(dtype)
    r = rng.integers(least, most + 1, dims).astype(dtype.numpy)
    known = added_factors(rng.uniform(0.2, 1.0, w.shape[0]) * math.sqrt(math.prod(w.shape[1:])) * 60)
    assert known is not None
    own, shift = known
    plus = replace(op, added_zero=(least + most) // 2 - 7, added_shift=shift)
    shifts = (*factors, None)[:2]
    return replace(
        case, op=plus, inputs=(x, w, b, *shifts, r, own), constant=(1, 2, 3, 4, 6), label=f"{case.label}_plus"
    )
