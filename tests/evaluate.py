"""Evaluate a graph by its operators' NumPy references, which all other results are compared with."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph

__all__ = ["difference", "evaluate", "random_inputs"]


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Random numbers between -1 and 1 for every input."""
    rng = np.random.default_rng(seed)
    return {v.name: rng.uniform(-1, 1, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs}


def difference(a: Array, b: Array) -> float:
    """The largest difference over the largest magnitude of ``b``."""
    if a.shape != b.shape:
        return float("inf")
    gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    return float(gap.max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
