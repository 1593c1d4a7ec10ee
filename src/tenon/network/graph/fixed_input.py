"""A fixed pseudo-random input, and the digest of what a network answers to it: the same on every machine.

Element i of an input is drawn from the i-th output of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", 2014), seeded by the input's number: its highest bits are an integer of a quantised type, or the
fraction of a float between -1 and 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from tenon.network.graph.dtype import Array, DType


def fixed_input(dtype: DType, dims: Sequence[int], number: int) -> Array:
    """Input ``number`` of a network: integers over the whole range of their type, or floats in [-1, 1)."""
    count = int(np.prod(dims, dtype=np.int64))
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(number << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    if dtype.is_float:
        data = ((z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1).astype(dtype.numpy)
    elif dtype is DType.BOOL:
        data = (z >> np.uint64(63)).astype(np.bool_)
    else:
        data = (z >> np.uint64(64 - 8 * dtype.bytes)).astype(f"u{dtype.bytes}").view(dtype.carrier.numpy)
    return data.reshape(tuple(dims))


def answer_digest(outputs: Iterable[Array]) -> str:
    """SHA-256 of the outputs, one after the other, as they lie in memory of a little-endian machine."""
    digest = hashlib.sha256()
    for array in outputs:
        little = np.ascontiguousarray(array)
        digest.update(little.astype(little.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()
