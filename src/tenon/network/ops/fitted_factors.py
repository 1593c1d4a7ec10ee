"""Factors in f32 as multipliers, offsets and shifts of integers that give the same results for every sum.

A sum times a factor in f32, rounded halves to even and clamped to 8 bits, is a step function of the sum with at most
255 steps.  ``(sum * m / 2**31 + a) >> r`` is one, too, and mostly some m and a near the factor give the same steps: not
where several products lie so close to halves that floats round them to these, of which the even neighbour is taken.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.ops.requantize import Factors

_MOST_LEFT, _MOST_RIGHT = 20, 22
_SLOPES = np.array([0, *(sign * d for d in range(3, 513, 3) for sign in (1, -1))])
"""Numbers added to a multiplier of 31 bits, of which a factor in f32 has 24."""
_AROUND = 3
"""How far the first sum of a step may lie from where real numbers have it."""


Row = tuple[int, int, int]
"""Requantisation constants of a channel: a multiplier from 2**30 on, what is added, and a shift to the right."""


def fitted_factors(values: Array, zero: int, low: int, high: int, largest: Array) -> tuple[Array, int] | None:
    """Rows in i32, [3, channels], of multipliers from 2**30 on, of what is added and of shifts to the right, and a
    shift to the left of the sums before; None where a channel has none.

    ``values`` are the factors in f32, and ``largest`` the largest magnitudes of the sums, per channel.
    """
    fitted = fitted_rows(values, zero, low, high, largest)
    if fitted is None:
        return None
    rows = [row for row in fitted[0] if row is not None]
    return (np.array(rows, np.int32).T.copy(), fitted[1]) if len(rows) == len(fitted[0]) else None


def fitted_rows(
    values: Array, zero: int, low: int, high: int, largest: Array
) -> tuple[tuple[Row | None, ...], int] | None:
    """The same for each channel, None for those that have none; None where no shift to the left does for all."""
    return _fitted(values.astype(np.float32).tobytes(), zero, low, high, largest.astype(np.int64).tobytes())


@lru_cache(maxsize=256)
def _fitted(factors: bytes, zero: int, low: int, high: int, bounds: bytes) -> tuple[tuple[Row | None, ...], int] | None:
    """``fitted_rows``: a layer asks for them several times while it is planned."""
    values, largest = np.frombuffer(factors, np.float32), np.frombuffer(bounds, np.int64)
    if not np.isfinite(values).all() or (values < 2.0**-100).any() or (largest >= 1 << 30).any():
        return None
    fractions, exponents = np.frexp(values.astype(np.float64))
    multipliers = (fractions * 2.0**31).astype(np.int64)
    steps = _steps(values, zero, low, high, largest)
    left = _left(exponents, zero, largest)
    if steps is None or left is None:
        return None
    rows = tuple(
        _fit(int(m), left - int(e), left, zero, below, above)
        for m, e, below, above in zip(multipliers, exponents, *steps, strict=True)
    )
    return rows, left


def _left(exponents: Array, zero: int, largest: Array) -> int | None:
    """The most bits that sums can be shifted by."""
    for left in range(_MOST_LEFT, -1, -1):
        right = left - exponents.astype(np.int64)
        room = (largest.astype(np.int64) << left) + ((np.int64(abs(zero)) + 2) << np.clip(right, 0, 40))
        if ((right >= 1) & (right <= _MOST_RIGHT) & (room < 1 << 31)).all():
            return left
    return None


def _steps(values: Array, zero: int, low: int, high: int, largest: Array) -> tuple[list[Array], list[Array]] | None:
    """Pairs (result, sum) of each channel: from that sum on the result must be at least this, and below it less."""
    results = np.arange(low + 1, high + 1)
    real = np.ceil((results - zero - 0.5) / values.astype(np.float64)[:, None])
    nominal = np.clip(real, -(2.0**40), 2.0**40).astype(np.int64)
    sums = nominal[..., None] + np.arange(-_AROUND, _AROUND + 1)
    reached = Factors("float", values[:, None, None]).apply(sums) + zero >= results[:, None]
    if reached[..., 0].any() or not reached[..., -1].all() or (np.diff(reached.astype(np.int8)) < 0).any():
        return None
    first = np.take_along_axis(sums, reached.argmax(-1)[..., None], -1)[..., 0]
    above, below = [], []
    for start, most in zip(first, largest.astype(np.int64), strict=True):
        inside, before = start <= most, start - 1 >= -most
        above.append(np.stack([results[inside], np.maximum(start, -most)[inside]]))
        below.append(np.stack([results[before], np.minimum(start - 1, most)[before]]))
    return below, above


def _fit(multiplier: int, right: int, left: int, zero: int, below: Array, above: Array) -> Row | None:
    """A multiplier and an offset with these steps; None where none near the given multiplier has them."""
    slopes = multiplier + _SLOPES
    for m in slopes[(slopes >= 1 << 30) & (slopes < 1 << 31)].tolist():
        high = [((sums << left) * m + (1 << 30)) >> 31 for _, sums in (below, above)]
        most = ((below[0] << right) - 1 - high[0]).min(initial=1 << 40)
        least = ((above[0] << right) - high[1]).max(initial=-(1 << 40))
        if least <= most:
            usual = (1 << right >> 1) + (zero << right)
            return m, int(np.clip(usual, least, most)), right
    return None
