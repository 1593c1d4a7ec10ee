"""Splits of quantised tensors as slices, which move integers: an operator of several results does not."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Graph, Node
from tenon.network.graph.types import F32
from tenon.network.ops.move import Split
from tenon.network.ops.quantize import DequantizeLinear
from tenon.network.passes.base import attribute, make


def split_as_slices(graph: Graph, node: Node) -> None:
    """Replace a Split in place; its results keep their names."""
    axis = attribute(node, "axis") % node.input(0).type.rank
    start = 0
    for old in node.outputs:
        end = start + old.type.dims[axis]
        bounds = [
            graph.constant(f"{old.name}_{name}", np.array([number], np.int64))
            for name, number in (("start", start), ("end", end), ("axis", axis))
        ]
        new = graph.add(make("Slice"), [node.input(0), *bounds], [old.name], node.origin, before=node)
        graph.replace(old, new.output)
        start = end
    graph.remove(node)


def slice_splits(graph: Graph) -> None:
    """Replace all Splits of floats in place."""
    for node in list(graph):
        if isinstance(node.op, Split) and node.input(0).type.dtype is F32:
            split_as_slices(graph, node)


def slice_quantised(graph: Graph) -> None:
    """Replace Splits of what DequantizeLinear gives in place."""
    for node in list(graph):
        source = node.input(0).producer if isinstance(node.op, Split) else None
        if source is not None and isinstance(source.op, DequantizeLinear):
            split_as_slices(graph, node)
