"""The numbers that frequencies of rotary embeddings are divided by, for longer texts than a model began with."""

from __future__ import annotations

import math

import numpy as np

from tenon.formats.decompositions.decoder.config import Rope
from tenon.network.graph.graph import Array


def llama3_factors(rope: Rope, factor: float, low: float, high: float, original: int) -> Array:
    """The divisors of Llama 3: frequencies that turn less than ``low`` times in the ``original`` length are divided by
    ``factor``, those that turn more than ``high`` times by 1, others by a number in between."""
    frequencies = rope.base ** (-np.arange(0, rope.dimensions, 2, dtype=np.float64) / rope.dimensions)
    turns = original * frequencies / (2 * np.pi)
    share = np.clip((turns - low) / max(high - low, 1e-9), 0.0, 1.0)
    return np.asarray(1 / ((1 - share) / factor + share), np.float32)


def yarn_factors(
    rope: Rope, factor: float, original: int, fast: float = 32.0, slow: float = 1.0, *, truncate: bool = True
) -> Array:
    """The divisors of YaRN (Peng et al. 2023): from the pair that turns ``fast`` times in the ``original`` length to
    the one that turns ``slow`` times, from 1 to ``factor``; ``truncate``: from and to whole pairs."""
    pairs = rope.dimensions // 2

    def pair(turns: float) -> float:
        """The pair that turns so often."""
        return rope.dimensions * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    first, last = pair(fast), pair(slow)
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dimensions - 1)
    ramp = np.clip((np.arange(pairs) - first) / max(last - first, 1e-3), 0.0, 1.0)
    return np.asarray(1 / (ramp / factor + (1 - ramp)), np.float32)


def yarn_magnitude(factor: float, multiplier: float = 1.0) -> float:
    """The factor of cosines and sines with YaRN."""
    return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0
