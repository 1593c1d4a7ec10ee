"""Bodies of nodes that read constants, and choices whose condition is one."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node
from tenon.network.graph.writer import Names
from tenon.network.ops.branch import If
from tenon.network.ops.scan import Scan
from tenon.network.ops.unroll import take_body
from tenon.network.passes.base import Log, Pass
from tenon.network.passes.canonicalize import CONSTANTS


def take_known_branches(graph: Graph, log: Log) -> int:
    """Let bodies have the constants that they read, and replace each choice with a constant condition by the nodes of
    the branch that it picks; returns the number of changes."""
    names, count = Names(graph), 0
    for node in graph:
        if not isinstance(node.op, If | Scan):
            continue
        count += _take_constants(graph, node, node.op.shared)
        condition = node.input(0).data if isinstance(node.op, If) else None
        if condition is not None:
            body = node.bodies[0 if condition.item() else 1]
            take_body(graph, node, body, [node.input(i) for i in range(1, len(node.inputs))], names)
            count += 1
    return count + (take_known_branches(graph, log) if count and CONSTANTS.run(graph, log) else 0)


def _take_constants(graph: Graph, node: Node, shared: int) -> int:
    """Copy the constants among the inputs from ``shared`` on into the bodies; returns how many there are."""
    constants = [i for i in range(shared, len(node.inputs)) if node.input(i).constant]
    for body in node.bodies:
        before = len(node.inputs) - len(body.inputs)
        for i in constants:
            body.replace(body.inputs[i - before], node.input(i).twin())
        body.inputs = [v for i, v in enumerate(body.inputs, before) if i not in constants]
    graph.rewire(node, [v for i, v in enumerate(node.inputs) if i not in constants])
    return len(constants)


KNOWN_BRANCHES = Pass(
    "take known branches", take_known_branches, 1, "no choice has a constant condition and no body reads a constant"
)
