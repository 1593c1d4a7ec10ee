"""Random arrays: ordinary numbers and special values."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

ODD_FLOATS = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    1.1754944e-38,
    1e30,
    -1e30,
    1e-45,
    16777216.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    2147483648.0,
    -2147483904.0,
    1e20,
)
ODD_DOUBLES = (np.nan, np.inf, -np.inf, 5e-324, 1e300, -0.0, 9.3e18, 0.5, -2.5)
"""Not near the largest finite number: whether a sum of those overflows depends on its order."""


def ordinary(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, low: float = -1, high: float = 1) -> Array:
    """Uniform in the given range, sometimes rounded to multiples of 0.5, so that ties and discontinuities occur."""
    data = np.asarray(rng.uniform(low, high, shape))
    if rng.random() < 0.15:
        data = np.clip(np.round(4 * data) / 2, low, high)
    return np.asarray(data).astype(np.float32).astype(dtype.numpy)


def special(rng: np.random.Generator, data: Array) -> Array:
    """Some elements replaced by special values of their type."""
    odd: Array
    if data.dtype.kind in "iu":
        info = np.iinfo(data.dtype)
        odd = np.array([info.min, info.max, 0, 1, info.max - 1], data.dtype)
    elif data.dtype == np.float64:
        odd = np.array(ODD_DOUBLES)
    elif data.dtype in (np.float32, np.float16):
        with np.errstate(all="ignore"):
            odd = np.array(ODD_FLOATS).astype(data.dtype)
    else:
        return data
    array = np.array(data)
    where = rng.random(data.shape) < rng.choice([0.02, 0.2, 0.8])
    array[where] = rng.choice(odd, int(where.sum()))
    return array
