"""Evaluate a graph by its operators' NumPy references: the truth that everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tenon.ir.graph import Array, Graph, Value


def evaluate(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by name.  Every result is checked against the type that was inferred for it."""
    known: dict[Value, Array] = {v: np.asarray(inputs[v.name]) for v in graph.inputs}
    last = {v: node for node in graph for v in node.inputs if v is not None}
    for node in graph:
        arrays = [None if v is None else known[v] if v.data is None else v.data for v in node.inputs]
        for value, array in zip(node.outputs, node.op.evaluate(arrays), strict=False):
            found = (array.dtype, array.shape)
            assert found == (value.type.dtype.numpy, value.type.dims), f"{node}: {found} is not {value.type}"
            known[value] = array
        for v in node.inputs:
            if v in known and last[v] is node and not graph.is_output(v):
                del known[v]
    return {v.name: known[v] if v.data is None else v.data for v in graph.outputs}


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Numbers between -1 and 1 for every input."""
    rng = np.random.default_rng(seed)
    return {v.name: rng.uniform(-1, 1, v.type.dims).astype(v.type.dtype.numpy) for v in graph.inputs}


def difference(a: Array, b: Array) -> float:
    """The largest difference over the largest magnitude of ``b``."""
    if a.shape != b.shape:
        return float("inf")
    gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    return float(gap.max(initial=0) / max(np.abs(b).max(initial=0), 1e-30))
