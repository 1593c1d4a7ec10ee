"""Convolutions of quantised integers in all shapes that kernels tell apart, with operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.requantize import added_factors, quantized_multipliers

Shape = tuple[int, ...]
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 8, 3, 5), (8, 8, 1, 1), {}),
    "1x1_batch": ((2, 5, 3, 3), (4, 5, 1, 1), {"zero": 7}),
    "1x1_stride": ((1, 8, 5, 6), (4, 8, 1, 1), {"strides": (2, 2)}),
    "1x1_long": ((1, 36, 2, 2), (4, 36, 1, 1), {}),
    "3x3": ((1, 4, 5, 11), (8, 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    "3x3_stride": ((1, 3, 9, 10), (4, 3, 3, 3), {"pads": (0, 0, 1, 1), "strides": (2, 2), "zero": -3}),
    "dilated": ((1, 4, 7, 7), (4, 4, 3, 2), {"pads": (2, 1, 2, 1), "dilations": (2, 2)}),
    "plane": ((1, 1, 9, 6), (8, 1, 5, 4), {"pads": (2, 1, 2, 2), "strides": (2, 2)}),
    "plane_odd": ((1, 1, 6, 7), (4, 1, 3, 3), {"pads": (1, 1, 1, 1), "low": -100, "high": 90}),
    "1d": ((1, 6, 13), (4, 6, 3), {"pads": (1, 1)}),
    "depthwise": ((1, 8, 4, 5), (8, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    "sloped": ((1, 8, 4, 5), (8, 8, 3, 3), {"pads": (1, 1, 1, 1), "zero": -101, "slope": 0.1}),
    "depthwise_sloped": ((1, 8, 4, 5), (8, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1), "zero": -101, "slope": 0.1}),
    "depthwise_wide": ((1, 4, 3, 29), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1), "zero": 11}),
    "depthwise_stride": ((1, 4, 7, 8), (4, 1, 3, 3), {"group": 4, "pads": (0, 0, 1, 1), "strides": (2, 2)}),
    "depthwise_5x5": ((2, 4, 6, 13), (4, 1, 5, 5), {"group": 4, "pads": (2, 2, 2, 2)}),
    "depthwise_rows": ((1, 4, 9, 1), (4, 1, 4, 1), {"group": 4, "dilations": (2, 1)}),
    "depthwise_even": ((1, 4, 5, 9), (4, 1, 2, 4), {"group": 4, "pads": (1, 2, 0, 1), "strides": (1, 3)}),
}


EVEN = ((1, 8, 4, 6), (4, 8, 3, 3), {"pads": (1, 1, 1, 1)})
"""A convolution that Winograd's algorithm applies to."""

ADDED = ("1x1", "1x1_batch", "3x3", "3x3_stride", "plane", "1d", "depthwise", "depthwise_stride")
"""Cases to which a tensor is added."""


def with_added(name: str) -> tuple[IntegerConv, list[Array | None]]:
    """One of ``ADDED``, or ``EVEN`` for another name, with a tensor added to its sums, and its operands, of which all
    but 0 and 5 are constants."""
    x, w, more = CASES.get(name, EVEN)
    rng, (data, weights, bias, *_) = np.random.default_rng(7), operands(x, w)
    unit = np.sqrt(np.prod(w[1:])) * 60
    known = added_factors(rng.uniform(0.2, 1, w[0]) * unit)
    assert known is not None
    conv = operator({**more, "zero": -20, "added_zero": -9, "added_shift": known[1]})
    plain = operator(more).evaluate(operands(x, w))[0]
    other = np.asarray(rng.integers(-128, 128, plain.shape), np.int8)
    factors = quantized_multipliers((rng.uniform(0.5, 1, w[0]) / unit).tolist())
    return conv, [data, weights, bias, *factors, other, known[0]]


def operands(x: Shape, w: Shape, seed: int = 3) -> list[Array]:
    """x, weights, bias, multipliers and shifts; the weights of the second output channel are zero."""
    rng = np.random.default_rng(seed)
    data, weights = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (x, w))
    weights[1] = 0
    bias = rng.integers(-9000, 9000, w[0]).astype(np.int32)
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 60)
    real[1] = 7.3
    return [data, weights, bias, *quantized_multipliers(real.tolist())]


def operator(more: dict[str, Any]) -> IntegerConv:
    return IntegerConv("double", 3, **{"zero": -128, "scale": 0.5, **more})
