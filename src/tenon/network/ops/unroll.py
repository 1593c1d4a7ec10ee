"""Loops as nodes for each of their iterations, for what cannot look into bodies: other formats, quantisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.base import Operator
from tenon.network.ops.move import Concat
from tenon.network.ops.scan import Scan
from tenon.network.ops.shape import Identity, Unsqueeze
from tenon.network.ops.slice_gather import Gather


def unrolled(graph: Graph, *, keep: Callable[[Graph], bool] = lambda body: False) -> Graph:
    """The same graph without loops, but those whose body is to be kept; ``graph`` itself if there are no others."""

    def opened(node: Node) -> bool:
        return isinstance(node.op, Scan) and not all(map(keep, node.bodies))

    if not any(map(opened, graph)):
        return graph
    copy = graph.copy()
    names = Names(copy)
    for node in copy:
        if isinstance(node.op, Scan) and opened(node):
            results = _Unrolling(copy, node, names).run(node.op)
            for old, new in zip(node.outputs, results, strict=True):
                copy.replace(old, _named(copy, new, node, old.name) if copy.is_output(old) else new)
            copy.remove(node)
    return unrolled(copy, keep=keep)


def in_integers(body: Graph) -> bool:
    """Whether a body computes with integers only: there is nothing to quantise in it."""
    return not any(value.type.dtype.is_float for node in body for value in node.outputs)


def _named(graph: Graph, value: Value, node: Node, name: str) -> Value:
    """The same value under the name of an output of the graph."""
    return graph.add(Identity(), [value], [name], node.origin, before=node).output


class _Unrolling:
    """The iterations of one node, placed before it."""

    def __init__(self, graph: Graph, node: Node, names: Names) -> None:
        self.graph, self.node, self.names = graph, node, names
        self.constants: dict[Value, Value] = {}

    def run(self, op: Scan) -> list[Value]:
        """What replaces the node's outputs."""
        given = [self.node.input(i) for i in range(len(self.node.inputs))]
        states, sliced = given[: op.states], given[op.states : op.states + op.slices]
        alike, (body,) = given[op.states + op.slices :], self.node.bodies
        rows: list[list[Value]] = [[] for _ in body.outputs[op.states :]]
        for t in op.iterations():
            cut = [self.add(Gather(), v, self.integer(t)) for v in sliced]
            results = self.iteration(body, [*states, *cut, *alike])
            states = results[: op.states]
            for row, result in zip(rows, results[op.states :], strict=True):
                row.append(self.add(Unsqueeze(), result, self.integer([0])))
        return [*states, *(self.add(Concat(0), *(row[::-1] if op.reverse else row)) for row in rows)]

    def iteration(self, body: Graph, arguments: Sequence[Value]) -> list[Value]:
        """A copy of the body for these arguments; returns its outputs."""
        known = dict(zip(body.inputs, arguments, strict=True))
        for inner in body:
            inputs = [None if v is None else known.get(v) or self.constant(v) for v in inner.inputs]
            names = [self.names.fresh(v.name) for v in inner.outputs]
            bodies = [each.copy() for each in inner.bodies]
            made = self.graph.add(inner.op, inputs, names, inner.origin, before=self.node, bodies=bodies)
            known.update(zip(inner.outputs, made.outputs, strict=True))
        return [known.get(v) or self.constant(v) for v in body.outputs]

    def constant(self, value: Value) -> Value:
        if value not in self.constants:
            self.constants[value] = value.twin()
            self.constants[value].name = self.names.fresh(value.name)
        return self.constants[value]

    def integer(self, number: int | list[int]) -> Value:
        return self.graph.constant(self.names.fresh("number"), np.array(number, np.int64))

    def add(self, op: Operator, *inputs: Value) -> Value:
        name = self.names.fresh(f"{self.node.output.name}_{op.name.lower()}")
        return self.graph.add(op, inputs, [name], self.node.origin, before=self.node).output
