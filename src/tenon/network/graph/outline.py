"""Moves nodes of a graph into a graph of their own, the body of a node."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.network.graph.graph import Graph, Node, Value


def outline(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], name: str
) -> tuple[Graph, list[Value]]:
    """Take ``nodes``, in order, out of ``graph``; nothing else may read what they make.

    ``inputs`` are values that only these nodes read and nothing makes; they become the body's first inputs.  Returns
    the body, which gives ``outputs``, and the values of ``graph`` that become its further inputs, in their order.
    """
    body, outside = Graph(name, graph.source), list[Value]()
    inner = {value: _input(body, value) for value in inputs}

    def of(value: Value) -> Value:
        if value not in inner and value.constant:
            inner[value] = value.twin()
        elif value not in inner:
            outside.append(value)
            inner[value] = _input(body, value)
        return inner[value]

    for node in nodes:
        given = [None if v is None else of(v) for v in node.inputs]
        names = [v.name for v in node.outputs]
        made = body.add(node.op, given, names, node.origin, infer=False, bodies=node.bodies)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.type = old.type
            inner[old] = new
    body.outputs = [of(value) for value in outputs]
    for node in reversed(nodes):
        graph.remove(node)
    return body, outside


def _input(body: Graph, value: Value) -> Value:
    return body.add_input(value.name, value.type)
