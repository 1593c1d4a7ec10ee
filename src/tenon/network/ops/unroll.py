"""Loops as nodes for each of their iterations and choices as nodes of both branches, for what cannot look into bodies:
other formats, quantisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.errors import InternalError, Problem, UnsupportedError
from tenon.network.graph import writer
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.base import Operator
from tenon.network.ops.branch import If
from tenon.network.ops.comparison import Where
from tenon.network.ops.move import Concat
from tenon.network.ops.scan import Scan
from tenon.network.ops.shape import Identity, Unsqueeze
from tenon.network.ops.slice_gather import Gather

UNROLLED = 32
"""The most steps of a loop that become nodes of their own where code and memory are not scarce.  Both run equally fast,
and passes see through nodes: a first step from zeros needs no product.  What loops save grows with the steps."""

Keep = Callable[[Node], bool]
"""Whether a node with bodies stays as it is."""


def unrolled(graph: Graph, *, keep: Keep = lambda node: False) -> Graph:
    """The same graph without nodes that have bodies, but those that are to be kept; ``graph`` itself if there are no
    others.  Raises UnsupportedError where that would be more than ``MOST_NODES``."""
    if not _opens(graph, keep):
        return graph
    if (count := _count(graph, keep)) > writer.MOST_NODES:
        node = next(node for node in graph if node.bodies and not keep(node))
        what = f"loops expand to {count} nodes, more than {writer.MOST_NODES}"
        remedy = "compile the model itself: it keeps its loops"
        raise UnsupportedError(graph.source, [Problem(str(node.origin), what, remedy)])
    copy = graph.copy()
    names = Names(copy)
    for node in copy:
        if node.bodies and not keep(node):
            _put(copy, node, _Unrolling(copy, node, names).run())
        else:
            node.bodies = tuple(unrolled(body, keep=keep) for body in node.bodies)
    return unrolled(copy, keep=keep)


def _opens(graph: Graph, keep: Keep) -> bool:
    """Whether there is a node in the graph, or in a body of one that is kept, that is not to be kept."""
    with_bodies = [node for node in graph if node.bodies]
    return any(not keep(node) or any(_opens(body, keep) for body in node.bodies) for node in with_bodies)


def _count(graph: Graph, keep: Keep) -> int:
    """The nodes that a graph has without the bodies of those that are not to be kept, at least."""
    return sum(_copies(node, keep) * sum(_count(body, keep) for body in node.bodies) + 1 for node in graph)


def _copies(node: Node, keep: Keep) -> int:
    """How often the bodies of a node are there."""
    op = node.op
    return len(op.iterations()) if isinstance(op, Scan) and not op.counted and not keep(node) else 1


def decided_at_run_time(node: Node) -> bool:
    """Whether what a run computes decides which body runs, or how often."""
    return isinstance(node.op, If) or (isinstance(node.op, Scan) and node.op.counted)


def _named(graph: Graph, value: Value, node: Node, name: str) -> Value:
    """The same value under the name of an output of the graph."""
    return graph.add(Identity(), [value], [name], node.origin, before=node).output


def take_body(graph: Graph, node: Node, body: Graph, arguments: Sequence[Value], names: Names) -> None:
    """Replace ``node`` by a copy of ``body``, which is one of its own, for these arguments."""
    _put(graph, node, _Unrolling(graph, node, names).iteration(body, arguments))


def _put(graph: Graph, node: Node, results: Sequence[Value]) -> None:
    """Replace a node by what its outputs are."""
    for old, new in zip(node.outputs, results, strict=True):
        graph.replace(old, _named(graph, new, node, old.name) if graph.is_output(old) else new)
    graph.remove(node)


class _Unrolling:
    """The iterations or the branches of one node, placed before it."""

    def __init__(self, graph: Graph, node: Node, names: Names) -> None:
        self.graph, self.node, self.names = graph, node, names
        self.constants: dict[Value, Value] = {}

    def run(self) -> list[Value]:
        """The values that replace the node's outputs."""
        match self.node.op:
            case Scan() as op:
                return self.iterations(op)
            case If():
                return self.branches()
        raise InternalError(f"{self.node} has bodies, and it is not known what they do")

    def branches(self) -> list[Value]:
        """Both branches, and a choice between each two results."""
        condition, *given = [self.node.input(i) for i in range(len(self.node.inputs))]
        first, second = (self.iteration(body, given) for body in self.node.bodies)
        return [self.add(Where(), condition, a, b) for a, b in zip(first, second, strict=True)]

    def iterations(self, op: Scan) -> list[Value]:
        """All iterations of a loop.  Raises UnsupportedError where a state says how many there are."""
        if op.counted:
            what = "a loop whose number of iterations is known only at run time cannot be unrolled"
            remedy = "fix what decides about it with --value, or compile it for a processor"
            raise UnsupportedError(self.graph.source, [Problem(str(self.node.origin), what, remedy)])
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
            made = self.graph.add(inner.op, inputs, names, inner.origin, infer=False, before=self.node, bodies=bodies)
            for old, new in zip(inner.outputs, made.outputs, strict=True):
                new.type, known[old] = old.type, new
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
