"""Which loops and branches of a graph stay nodes with bodies, and which become nodes of the graph."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.branch import If
from tenon.network.ops.scan import Scan
from tenon.network.ops.traits import is_quantised
from tenon.network.ops.unroll import UNROLLED, in_integers, unrolled
from tenon.network.passes.sound_features import computes_features


def with_usable_bodies(graph: Graph, *, flat: bool, branches: bool, short: bool) -> Graph:
    """The same graph without the bodies that cannot or need not be compiled; ``graph`` itself if there are none.

    ``flat``: what follows looks at every layer, so none can.  Without ``branches`` the target takes no decisions: both
    branches are computed.  Of a quantised graph, bodies with floats cannot.  Loops of few steps are kept only where
    they shall be ``short``.
    """
    if flat:
        return unrolled(graph)
    quantised = is_quantised(graph)

    def usable(node: Node) -> bool:
        if isinstance(node.op, If) and not branches:
            return False
        if isinstance(node.op, Scan) and not node.op.counted and node.op.count <= UNROLLED and not short:
            return False
        return not quantised or all(in_integers(body) or computes_features(body) for body in node.bodies)

    return unrolled(graph, keep=usable)
