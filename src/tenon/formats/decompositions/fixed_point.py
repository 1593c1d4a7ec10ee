"""Integers of 64 bits times fixed-point numbers, rounded as gemmlowp and TFLite round, as nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.integer_arithmetic import Integers
from tenon.network.graph.graph import Array
from tenon.network.ops.requantize import quantized_multipliers


def scaled(x: Integers, factors: Sequence[float]) -> Integers:
    """Times real numbers, one for all or one for each of the last axis, as fixed-point arithmetic rounds: the product's
    upper half with ties up, then the rest with ties away from zero."""
    digits, shifts = (numbers.astype(np.int64) for numbers in quantized_multipliers(factors))
    left, right = np.maximum(shifts, 0), np.maximum(-shifts, 0)
    x = x * (1 << left) if left.any() else x
    return divided(((x * digits) + (1 << 30)) >> np.full(1, 31), right)


def divided(x: Integers, bits: Array) -> Integers:
    """Over a power of two, ties rounded away from zero."""
    if not bits.any():
        return x
    half = np.where(bits > 0, 1 << np.maximum(bits - 1, 0), 0)
    below = x.below(0).to(x.dtype) * (bits > 0).astype(np.int64)
    return (x + half - below) >> bits


def limited(x: Integers, bits: int = 16) -> Integers:
    """Clamped to signed integers of so many bits."""
    return x.minimum((1 << (bits - 1)) - 1).maximum(-(1 << (bits - 1)))
