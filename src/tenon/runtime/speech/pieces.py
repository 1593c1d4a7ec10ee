"""Long sounds cut into pieces where they are quiet."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tenon.network.graph.dtype import Array

_FRAME = 0.02
"""Seconds of which the loudness is compared."""


def pieces(samples: Array, rate: int, longest: float, search: float = 5.0) -> Iterator[tuple[int, int]]:
    """(first, end) of pieces of at most ``longest`` seconds, without gaps.

    Each ends in the middle of the quietest fifth of a second among its last ``search`` seconds, at most half of the
    piece; the last one ends with the sound.
    """
    start, most = 0, int(longest * rate)
    searched = min(int(search * rate), most // 2)
    while len(samples) - start > most:
        end = _quietest(samples, rate, start + most - searched, start + most)
        yield start, end
        start = end
    if start < len(samples):
        yield start, len(samples)


def _quietest(samples: Array, rate: int, first: int, last: int) -> int:
    """The middle of the quietest fifth of a second between two samples."""
    size = max(1, int(_FRAME * rate))
    count = (last - first) // size
    frames = samples[first : first + count * size].reshape(count, size)
    energy = (np.asarray(frames, np.float64) ** 2).sum(1)
    width = min(count, 10)
    sums = np.convolve(energy, np.ones(width), "valid")
    return first + (int(sums.argmin()) + width // 2) * size
