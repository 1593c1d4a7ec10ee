"""Random weights for models without weights, e.g. for benchmarks."""

from __future__ import annotations

import math
import zlib

import numpy as np

from tenon.network.graph.graph import Array, Graph, Value


def with_random_weights(graph: Graph) -> Graph:
    """A copy of an incomplete graph in which every missing weight is drawn from a generator seeded by its name.

    Weights of two axes and more are normal with the variance 2 / (inputs of a sum), which keeps the scale of the
    activations (He et al., "Delving Deep into Rectifiers", 2015); vectors are uniform in [0.5, 1.5), so that they are
    valid variances.
    """
    filled = graph.copy()
    for value in filled.constants():
        if is_placeholder(value):
            value.data = _drawn(value)
    filled.incomplete = ""
    return filled


def placeholder(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """A placeholder for missing weights: a broadcast zero, which takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def is_placeholder(value: Value) -> bool:
    data = value.data
    return data is not None and data.ndim > 0 and data.size > 0 and not any(data.strides) and not data.flat[0]


def _drawn(value: Value) -> Array:
    dims, dtype = value.type.dims, value.type.dtype.numpy
    rng = np.random.default_rng(zlib.crc32(value.name.encode()))
    if len(dims) < 2 or not value.type.dtype.is_float:
        return np.asarray(rng.uniform(0.5, 1.5, dims)).astype(dtype)
    inputs = min(dims) if len(dims) == 2 else math.prod(dims[1:])
    return (rng.standard_normal(dims, np.float32) * math.sqrt(2 / max(inputs, 1))).astype(dtype)
