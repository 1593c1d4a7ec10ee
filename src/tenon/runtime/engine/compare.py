"""Error metrics between two results."""

from __future__ import annotations

import math

import numpy as np

from tenon.network.graph.dtype import Array


def relative_error(got: Array, expected: Array) -> float:
    """The largest difference over the largest magnitude expected; 0 if both are the same (NaN matches NaN).

    Infinite if shapes differ, or if only one has NaN or infinity at some element.
    """
    if got.shape != expected.shape:
        return math.inf
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    a, b = a[finite], b[finite]
    difference = float(np.max(np.abs(a - b), initial=0.0))
    magnitude = float(np.max(np.abs(b), initial=0.0))
    return difference / magnitude if magnitude else (math.inf if difference else 0.0)


def cosine_similarity(got: Array, expected: Array) -> float:
    """The cosine of the angle between both as vectors; 1 for two zeros, 0 for one."""
    a, b = got.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    if not lengths:
        return 1.0 if not a.any() and not b.any() else 0.0
    return float(a @ b) / lengths


def signal_to_noise(got: Array, expected: Array) -> float:
    """The signal-to-quantisation-noise ratio in dB: power of ``expected`` over power of the difference."""
    a, b = got.astype(np.float64), expected.astype(np.float64)
    noise, signal = float(np.sum((a - b) ** 2)), float(np.sum(b**2))
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
