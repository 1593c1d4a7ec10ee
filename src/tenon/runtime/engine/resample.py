"""Sampling rates of sound converted by a windowed sinc, a filter for each phase between two samples.

Source: J. O. Smith and P. Gossett, A Flexible Sampling-Rate Conversion Method (1984).
"""

from __future__ import annotations

from math import gcd

import numpy as np

from tenon.network.graph.dtype import Array

_CROSSINGS, _BETA, _PASSED = 32, 8.0, 0.94
"""Zero crossings of the sinc on each side, the parameter of Kaiser's window, and the part of the band that passes."""


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Samples [n] at ``rate`` as samples at ``wanted``, f64 [ceil(n * wanted / rate)]."""
    if rate == wanted:
        return np.asarray(samples, np.float64)
    up, down = wanted // gcd(rate, wanted), rate // gcd(rate, wanted)
    cutoff = _PASSED * min(1.0, wanted / rate)
    half = int(np.ceil(_CROSSINGS / cutoff))
    count = -(-len(samples) * up // down)
    padded = np.pad(np.asarray(samples, np.float64), (half, half + 1 + down // up))
    result = np.zeros(count)
    for first in range(min(up, count)):
        start, phase = divmod(first * down, up)
        own = len(range(first, count, up))
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)[start::down][:own]
        result[first::up] = windows @ _filter(half, phase / up, cutoff)
    return result


def _filter(half: int, offset: float, cutoff: float) -> Array:
    """Weights [2 half + 1] of the samples around a place ``offset`` of a sample behind the middle one, of sum 1."""
    t = np.arange(-half, half + 1) - offset
    window = np.i0(_BETA * np.sqrt(np.clip(1 - (t / (half + 1)) ** 2, 0, 1)))
    weights = np.sinc(cutoff * t) * window
    return np.asarray(weights / weights.sum())
