"""The generator of random numbers of sampling: SplitMix64, with the same numbers here and in C."""

from __future__ import annotations

_MASK = (1 << 64) - 1


class RandomNumbers:
    """Uniform 64-bit integers.  ``seed`` is any integer; its lowest 64 bits count.

    Reference: G. Steele, D. Lea, C. Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """The next number, scaled to 0 up to ``limit`` - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
        return (z * limit) >> 64
