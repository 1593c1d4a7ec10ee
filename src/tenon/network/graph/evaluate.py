"""Evaluate a graph by the NumPy references of its operators, which define the correct results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tenon.errors import InternalError
from tenon.network.graph.graph import Array, Graph, Node, Value

Step = Callable[[Node, Sequence[Array | None]], tuple[Array, ...]]
"""The outputs of a node, given the arrays of its inputs."""


def by_reference(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    """Evaluate the reference of the node's operator."""
    return node.evaluate(arrays)


def evaluate(graph: Graph, inputs: Mapping[str, Array], step: Step = by_reference) -> dict[str, Array]:
    """The outputs by name.  Raises InternalError if a result does not have the inferred type."""
    known: dict[Value, Array] = {v: np.asarray(inputs[v.name]) for v in graph.inputs}
    last = {v: node for node in graph for v in node.inputs if v is not None}
    for node in graph:
        arrays = [None if v is None else known[v] if v.data is None else v.data for v in node.inputs]
        for value, array in zip(node.outputs, step(node, arrays), strict=False):
            if (array.dtype, array.shape) != (value.type.dtype.numpy, value.type.dims):
                actual = f"{array.dtype}{list(array.shape)}"
                raise InternalError(f"{node.op} at {node.origin} gave {actual} where its type rule says {value.type}")
            known[value] = array
        for v in node.inputs:
            if v in known and last[v] is node and not graph.is_output(v):
                del known[v]
    return {v.name: known[v] if v.data is None else v.data for v in graph.outputs}
