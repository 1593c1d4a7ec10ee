"""The range of a histogram that loses least to 8 bits: Glow's ``-quantization-calibration=KL``.

The window of bins is narrowed step by step; the range is the window whose histogram, with what lies outside of it added
to its ends, has the least Kullback-Leibler divergence from the same histogram in 255 levels.  Source: Migacz, "8-bit
Inference with TensorRT" (2017), in the form of Glow's ``lib/Quantization/Base/Calibration.cpp``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.network.graph.graph import Array

LEVELS = 255
"""A histogram with fewer bins has nothing to choose: its whole range is taken."""
_OF_EMPTY_BINS = 1e-4


def least_entropy_range(
    histogram: Sequence[float], least: float, greatest: float, *, symmetric: bool
) -> tuple[float, float]:
    """The range, of values ``least`` to ``greatest`` with the counts of ``histogram`` in bins of equal width.

    ``symmetric`` narrows both ends alike, of a histogram around zero; otherwise that end, or both, where fewer values
    are lost.
    """
    counts = np.array(histogram, np.float64)
    if symmetric and greatest > least:
        counts, least, greatest = _around_zero(counts, least, greatest)
    if counts.size < LEVELS or not counts.any() or greatest <= least:
        return least, greatest
    first, last = 0, counts.size - 1
    best, window = np.inf, (first, last)
    while last - first + 1 >= LEVELS:
        divergence = _divergence(counts, first, last)
        if divergence < best:
            best, window = divergence, (first, last)
        left, right = (1, 1) if symmetric else _narrowed(counts, first, last)
        first, last = first + left, last - right
    width = (greatest - least) / counts.size
    return least + window[0] * width, least + (window[1] + 1) * width


def _around_zero(counts: Array, least: float, greatest: float) -> tuple[Array, float, float]:
    """The histogram of the same values over a range that is as wide on both sides of zero."""
    end = max(-least, greatest)
    centres = least + (np.arange(counts.size) + 0.5) * (greatest - least) / counts.size
    return np.histogram(centres, counts.size, (-end, end), weights=counts)[0], -end, end


def _narrowed(counts: Array, first: int, last: int) -> tuple[int, int]:
    """How many bins to leave out at either end: two together, those that hold the fewest values."""
    losses = (
        counts[first] + counts[last],
        counts[first] + counts[first + 1],
        counts[last] + counts[last - 1],
    )
    return ((1, 1), (2, 0), (0, 2))[int(np.argmin(losses))]


def _divergence(counts: Array, first: int, last: int) -> float:
    """The Kullback-Leibler divergence of the window, with outliers counted at its ends, from its histogram in
    ``LEVELS`` levels."""
    window = counts[first : last + 1]
    saturated = window.copy()
    saturated[0] = counts[: first + 1].sum()
    saturated[-1] = counts[last:].sum()
    level = np.minimum(np.arange(window.size) // (window.size // LEVELS), LEVELS - 1)
    held, taken = np.bincount(level, window, LEVELS), np.bincount(level, window != 0, LEVELS)
    stored = np.where(saturated > 0, (held / np.maximum(taken, 1))[level], 0.0)
    p, q = _without_zeros(saturated), _without_zeros(stored)
    if not p.any() or not q.any():
        return 0.0
    p, q = p / p.sum(), q / q.sum()
    both = (p > 0) & (q > 0)
    return float(np.sum(p[both] * np.log(p[both] / q[both])))


def _without_zeros(counts: Array) -> Array:
    """Empty bins get a little, taken evenly from the others."""
    empty = counts == 0
    if empty.all():
        return counts
    taken = _OF_EMPTY_BINS * np.count_nonzero(empty) / np.count_nonzero(~empty)
    return counts if taken >= 1 else counts + np.where(empty, _OF_EMPTY_BINS, -taken)
