"""Outputs that a Mask reads, such as a decoder's cache, filled beyond their extents themselves.

What lies beyond the extents of an output is not specified.  So the result of the Mask may be the output, and nothing is
copied: the Mask stores a few elements in place.
"""

from __future__ import annotations

from tenon.machine.plan.demand import unchecked
from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.mask import Mask


def fill_outputs(graph: Graph) -> None:
    """Let results of Masks be the outputs of the graph that only these read, where both have the same extent."""
    for node in graph:
        if isinstance(node.op, Mask) and _fits(graph, node):
            before, after = node.input(0), node.output
            before.name, after.name = after.name, before.name
            graph.outputs[graph.outputs.index(before)] = after


def _fits(graph: Graph, node: Node) -> bool:
    x, extent = node.input(0), unchecked(node.input(1))
    others = sum(v is x for v in graph.outputs) != 1 or len(x.uses) != 1 or graph.is_output(node.output)
    if others or x.producer is None or x in graph.inputs or not isinstance(node.op, Mask):
        return False
    by_name = {v.name: v for v in (*graph.inputs, *graph.outputs)}
    axis = node.op.axis % x.type.rank
    return any(a == axis and unchecked(by_name[name]) is extent for a, name in graph.extents.get(x.name, ()))
