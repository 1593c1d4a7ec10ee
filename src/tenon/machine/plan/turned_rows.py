"""Rows of new tokens that a Transpose only brings into the order of a cache: Append reads them as they are."""

from __future__ import annotations

from dataclasses import replace

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.append import TURNED, Append
from tenon.network.ops.move import Transpose


def read_turned(graph: Graph) -> None:
    """Let nodes that append several rows of heads read the operand of the Transpose that nothing else reads."""
    for node in list(graph):
        maker = _transpose(graph, node)
        if maker is not None and isinstance(node.op, Append):
            node.op = replace(node.op, turned=True)
            graph.rewire(node, (node.inputs[0], maker.inputs[0], *node.inputs[2:]))
            graph.remove(maker)


def _transpose(graph: Graph, node: Node) -> Node | None:
    if not isinstance(node.op, Append) or not node.op.takes_turned(node.inputs):
        return None
    rows = node.input(1)
    maker = rows.producer
    if maker is None or not isinstance(maker.op, Transpose) or maker.op.order(rows.type.rank) != TURNED:
        return None
    return maker if rows.type.dims[2] > 1 and rows.uses == [node] and not graph.is_output(rows) else None
