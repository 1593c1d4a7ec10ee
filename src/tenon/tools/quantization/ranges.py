"""Ranges of activations, from what calibration observed of a tensor.

Sources: percentiles and entropy: Migacz, "8-bit Inference with TensorRT" (2017); mean squared error: Sung et al.,
"Resiliency of Deep Neural Networks under Quantization" (2015); ACIQ: Banner et al., "Post training 4-bit quantization
of convolutional networks for rapid-deployment" (2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.network.graph.graph import Array, Value

BINS = 4096
"""Bins of a histogram between the least and the greatest value."""


COUNTED = 1 << 15
"""Elements of a sample that its histogram counts, at least."""


@dataclass
class Observed:
    """A tensor over all samples: extremes of each sample, a histogram between ``low`` and ``high``."""

    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))

    @property
    def low(self) -> float:
        return min(0.0, min(self.lows, default=0.0))

    @property
    def high(self) -> float:
        return max(0.0, max(self.highs, default=0.0))

    def add(self, values: Array) -> None:
        """Extremes of one sample; values that are not finite do not count."""
        finite = values if np.isfinite(values).all() else values[np.isfinite(values)]
        if finite.size:
            self.lows.append(float(finite.min()))
            self.highs.append(float(finite.max()))

    def count(self, values: Array) -> None:
        """Add a sample to the histogram, when the extremes of all are known; of large tensors, every n-th element."""
        if self.high <= self.low:
            return
        flat = values.reshape(-1)
        flat = flat[:: flat.size // COUNTED | 1] if flat.size > COUNTED else flat
        flat = flat if np.isfinite(flat).all() else flat[np.isfinite(flat)]
        bins = ((flat - np.float32(self.low)) * np.float32(BINS / (self.high - self.low))).astype(np.intp)
        self.counts += np.bincount(np.clip(bins, 0, BINS - 1), minlength=BINS)

    @property
    def edges(self) -> Array:
        return np.linspace(self.low, self.high, BINS + 1)


Range = tuple[float, float]
"""The least and the greatest real number that integers stand for."""


def min_max(seen: Observed) -> Range:
    """Everything that was observed."""
    return seen.low, seen.high


def moving_average(seen: Observed, momentum: float = 0.9) -> Range:
    """Extremes of the samples, averaged exponentially in their order."""
    if not seen.lows:
        return 0.0, 0.0
    low, high = seen.lows[0], seen.highs[0]
    for least, most in zip(seen.lows[1:], seen.highs[1:], strict=True):
        low, high = momentum * low + (1 - momentum) * least, momentum * high + (1 - momentum) * most
    return min(low, 0.0), max(high, 0.0)


def percentile(seen: Observed, share: float = 99.99) -> Range:
    """The range without as many values at either end as ``share`` leaves, in percent of all."""
    total = int(seen.counts.sum())
    if not total:
        return min_max(seen)
    cumulative, left = np.cumsum(seen.counts), total * (1 - share / 100) / 2
    low = int(np.searchsorted(cumulative, left, "right"))
    high = int(np.searchsorted(cumulative, total - left, "left"))
    return min(float(seen.edges[low]), 0.0), max(float(seen.edges[min(high, BINS - 1) + 1]), 0.0)


def mean_squared_error(seen: Observed) -> Range:
    """The range of least mean squared error of 8 bits, of those narrowed at the ends by the same factor."""
    return _best(seen, _squared_error)


def entropy(seen: Observed) -> Range:
    """The range of least Kullback-Leibler divergence of 8 bits, of those narrowed at the ends by the same factor."""
    return _best(seen, _divergence)


def aciq(seen: Observed) -> Range:
    """The mean plus and minus 9.89 mean absolute deviations: the best for 8 bits of Laplace's distribution."""
    total = int(seen.counts.sum())
    if not total:
        return min_max(seen)
    centres = (seen.edges[:-1] + seen.edges[1:]) / 2
    mean = float(centres @ seen.counts) / total
    spread = 9.89 * float(np.abs(centres - mean) @ seen.counts) / total
    return min(max(seen.low, mean - spread), 0.0), max(min(seen.high, mean + spread), 0.0)


ENHANCE_RATIO = 10
"""How many times more of the range than of the samples a narrower end must save: MACE's default."""

_CLOSE = 0.1
"""Ranges are not narrowed to less."""


def enhanced(seen: Observed) -> Range:
    """Extremes of the samples without those that few of them need, narrowed as MACE's ``quantize_stat --enhance``."""
    if len(seen.lows) < 2 or not seen.low < seen.high:
        return min_max(seen)
    low, high = narrowed_ends(seen.lows, seen.highs, (min(seen.lows), max(seen.highs)), ENHANCE_RATIO)
    return min(low, 0.0), max(high, 0.0)


def narrowed_ends(lows: Sequence[float], highs: Sequence[float], given: Range, ratio: float) -> Range:
    """The ends ``given``, moved to those of samples ``lows`` and ``highs`` while that saves ``ratio`` times more of the
    range than it gives up of the samples.

    Source: ``quantize_stat.py`` of XiaoMi/mace.
    """
    (low, high), count = given, len(lows)
    ordered = np.sort(np.asarray(lows, np.float64)), np.sort(np.asarray(highs, np.float64))[::-1]
    at_low = at_high = 0
    for i, (least, most) in enumerate(zip(*ordered, strict=True)):
        if least + _CLOSE > high:
            break
        share = (i - at_low) / (count - at_low)
        if share > 0 and (least - low) / (high - low) / share > ratio:
            at_low, low = i, float(least)
        if low + _CLOSE > most:
            break
        share = (i - at_high) / (count - at_high)
        if share > 0 and (high - most) / (high - low) / share > ratio:
            at_high, high = i, float(most)
    return low, high


_LEVELS = 256


def _best(seen: Observed, error: Callable[[Observed, Range], float]) -> Range:
    if not seen.counts.any():
        return min_max(seen)
    ranges = [(seen.low * share, seen.high * share) for share in np.linspace(1.0, 0.2, 81)]
    errors = [error(seen, each) for each in ranges]
    low, high = ranges[int(np.argmin(errors))]
    return float(low), float(high)


def _squared_error(seen: Observed, span: Range) -> float:
    low, high = span
    centres, step = (seen.edges[:-1] + seen.edges[1:]) / 2, (high - low) / (_LEVELS - 1)
    stored = np.clip(np.rint((centres - low) / step), 0, _LEVELS - 1) * step + low
    return float(((centres - stored) ** 2) @ seen.counts)


def _divergence(seen: Observed, span: Range) -> float:
    """The Kullback-Leibler divergence of the values saturated at ``span`` from their quantised histogram, in which each
    level is spread evenly over its bins."""
    low, high = span
    centres = (seen.edges[:-1] + seen.edges[1:]) / 2
    inside = (centres >= low) & (centres <= high)
    reference = np.where(inside, seen.counts, 0).astype(np.float64)
    held = np.flatnonzero(inside)
    if not held.size:
        return np.inf
    kept = reference[held].copy()
    reference[held[0]] += seen.counts[: held[0]].sum()
    reference[held[-1]] += seen.counts[held[-1] + 1 :].sum()
    level = np.clip(((centres[held] - low) / (high - low) * _LEVELS).astype(int), 0, _LEVELS - 1)
    mass, taken = np.bincount(level, kept, _LEVELS), np.bincount(level, kept > 0, _LEVELS)
    spread = np.where(kept > 0, mass[level] / np.maximum(taken[level], 1), 0.0)
    p, q = reference[held] / reference.sum(), spread / max(spread.sum(), 1e-30)
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / np.maximum(q[some], 1e-12))))


METHODS: dict[str, Callable[[Observed], Range]] = {
    "min-max": min_max,
    "moving-average": moving_average,
    "percentile": percentile,
    "mse": mean_squared_error,
    "entropy": entropy,
    "aciq": aciq,
    "enhance": enhanced,
}
"""By name."""

HISTOGRAMS = frozenset({"percentile", "mse", "entropy", "aciq"})
"""Methods that need histograms."""


_USUAL = {"Sigmoid": (0.0, 255 / 256), "Tanh": (-1.0, 127 / 128)}
"""Results of TFLite's kernels of 8 bits: scales of 1/256 and 1/128."""


def usual_range(value: Value) -> Range | None:
    """The range of a result that is the same in every network, whatever was observed; None if it has none."""
    return _USUAL.get(value.producer.op.name) if value.producer is not None else None
