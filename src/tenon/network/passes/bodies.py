"""The choice of loops that stay nodes with bodies; others become nodes of the graph."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.scan import Scan
from tenon.network.ops.unroll import UNROLLED, unrolled


def with_usable_bodies(graph: Graph, *, short: bool) -> Graph:
    """The same graph without the bodies that need not be compiled; ``graph`` itself if there are none.

    Loops of few steps are kept only where they shall be ``short``.
    """

    def usable(node: Node) -> bool:
        few = isinstance(node.op, Scan) and not node.op.counted and node.op.count <= UNROLLED
        return short or not few

    return unrolled(graph, keep=usable)
