"""Copies of a graph together with what refers to its nodes and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tenon.network.graph.graph import Graph, Value
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.placement import Placement
from tenon.tools.quantization.scheme import QuantParams


def twins(
    graph: Graph, placed: Placement, made: list[WeightedLayer], grids: Mapping[Value, QuantParams]
) -> tuple[Graph, Placement, list[WeightedLayer], dict[Value, QuantParams], dict[Value, Value]]:
    """A copy of the graph, the same of what refers to it, and the copies of values."""
    copy = graph.copy()
    nodes = dict(zip(graph, copy, strict=True))
    values: dict[Value, Value] = dict(zip(graph.inputs, copy.inputs, strict=True))
    for old, new in nodes.items():
        values.update(zip(old.outputs, new.outputs, strict=True))
    placement = Placement(
        [nodes[n] for n in placed.products],
        [(nodes[n], i) for n, i in placed.constants],
        [values[v] for v in placed.tensors],
        {values[a]: values[b] for a, b in placed.parts.items()},
        {values[v] for v in placed.wide},
        {values[v] for v in placed.states},
        {values[a]: values[b] for a, b in placed.added.items()},
        {nodes[n] for n in placed.outer},
    )
    again = [replace(each, node=nodes[each.node]) for each in made]
    return copy, placement, again, {values[v]: grid for v, grid in grids.items()}, values
