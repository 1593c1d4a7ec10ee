"""Nodes with sub-graphs, sequences or optionals while they are imported, and the order of nodes."""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tenon.formats.decompositions.onnx.node import Entry, StringTensor, TensorSequence
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.fixed import remedy
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.writer import Mark, Writer, is_known

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


Scope = ChainMap[str, Entry]
"""The values of names within a graph, those of the graphs around it behind its own."""


@dataclass(frozen=True)
class ImportMark:
    """The state of an importer, to return to."""

    writer: Mark
    asked: bool


class NodeImporter(Protocol):
    """The interface of the importer that nodes need."""

    proto: GraphProto
    graph: Graph
    writer: Writer
    opset: int

    def attributes(self, node: NodeProto) -> dict[str, Any]: ...

    def emit_node(
        self, type: str, inputs: Sequence[Value | None], name: str, origin: Origin, **attributes: Any
    ) -> Value: ...

    def mark(self) -> ImportMark:
        """The present state, for ``restore``."""

    def restore(self, mark: ImportMark) -> None:
        """Take back everything that was imported since then."""

    def failed_since(self, mark: ImportMark) -> bool:
        """Whether a problem was reported since then."""

    def refuse_extents(self, type: str, entries: Sequence[Entry]) -> None:
        """Raises RefusedError for an operand whose extents only a run knows."""

    def state_extent(self, value: Value, axis: int, extent: Value) -> None:
        """Let ``extent``, an i64, say how many entries of a tensor along an axis are valid."""

    def walk(self, graph: GraphProto, nodes: Sequence[int], outputs: Sequence[str], scope: Scope) -> None:
        """Import some nodes of a graph, with what its names stand for."""


@dataclass
class SubgraphNode:
    """A node that holds sub-graphs, or whose inputs or outputs are no tensors."""

    importer: NodeImporter
    node: NodeProto
    origin: Origin
    inputs: list[Entry]
    scope: Scope

    def entry(self, i: int) -> Entry:
        return self.inputs[i] if i < len(self.inputs) else None

    def value(self, i: int) -> Value:
        entry = self.entry(i)
        if not isinstance(entry, Value):
            raise RefusedError(f"input {i} must be a tensor")
        return entry

    def items(self, i: int) -> tuple[Value, ...]:
        entry = self.entry(i)
        if not isinstance(entry, TensorSequence):
            raise RefusedError(f"input {i} must be a sequence")
        if entry.growing:
            raise RefusedError("it reads a sequence that its loop appends to")
        return entry.values

    def known(self, i: int, what: str) -> Array:
        """The data of input ``i``, which must be known when compiling."""
        value = self.value(i)
        if value.data is None:
            what = f"{what} is computed at run time; it must be known when compiling"
            raise RefusedError(what, self.importer.writer.fixing(value))
        return value.data

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.importer.attributes(self.node).get(name, default)

    def graph(self, name: str) -> GraphProto:
        graphs = [a.g for a in self.node.attribute if a.name == name and a.HasField("g")]
        if not graphs:
            raise RefusedError(f"it has no {name}")
        graph: GraphProto = graphs[0]
        return graph

    def emit(self, type: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        stem = next((name for name in self.node.output if name), self.origin.layer)
        return self.importer.emit_node(type, inputs, f"{stem}_{type.lower()}", self.origin, **attributes)

    def constant(self, data: Array) -> Value:
        return self.importer.writer.constant(f"{self.origin.layer}_constant", data)

    def inline(self, graph: GraphProto, arguments: Sequence[Entry]) -> list[Entry]:
        """The outputs of a sub-graph on these arguments."""
        self.importer.writer.charge(self.origin)
        inner, names = self.scope.new_child(), [v.name for v in graph.output]
        inner.update({v.name: a for v, a in zip(graph.input, arguments, strict=False)})
        self.importer.walk(graph, range(len(graph.node)), names, inner)
        missing = [name for name in names if name not in inner]
        if missing:
            raise RefusedError(f"its sub-graph does not make {', '.join(map(repr, missing))}")
        return [inner[name] for name in names]

    def body(self, graph: GraphProto, arguments: Sequence[Entry]) -> list[Entry]:
        """The outputs of a sub-graph whose nodes become a body."""
        results = self.inline(graph, arguments)
        return rebuilt(results, [self.importer.writer.sizes.made(v, self.origin) for v in flat(results)])

    def choose(self, condition: Value, a: Entry, b: Entry) -> Entry:
        """``a`` where the condition holds at run time, else ``b``."""
        if a is b:
            return a
        if isinstance(a, TensorSequence) and isinstance(b, TensorSequence) and len(a.values) == len(b.values):
            return TensorSequence(tuple(self.pick(condition, x, y) for x, y in zip(a.values, b.values, strict=True)))
        if isinstance(a, StringTensor) and isinstance(b, StringTensor):
            wide = (
                self.emit("Unsqueeze", [condition, self.constant(np.array([-1]))]) if condition.type.rank else condition
            )
            return StringTensor(self.pick(wide, a.bytes, b.bytes))
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise self.open_condition(condition, "sequences of different lengths")
        return self.pick(condition, a, b)

    def pick(self, condition: Value, a: Value, b: Value) -> Value:
        if is_known(a) and is_known(b) and (a.type.dims != b.type.dims or a.type.dtype is not b.type.dtype):
            raise self.open_condition(condition, f"{a.type} and {b.type}")
        return self.emit("Where", [condition, a, b])

    def open_condition(self, condition: Value, what: str) -> RefusedError:
        inputs = self.importer.writer.need(condition)
        return RefusedError(
            f"its condition is computed at run time, and its branches give {what}",
            remedy(inputs, "let both branches give the same shapes"),
        )


def flat(entries: Sequence[Entry]) -> list[Value]:
    """The tensors that entries consist of."""
    values: list[Value] = []
    for entry in entries:
        match entry:
            case TensorSequence():
                values += entry.values
            case StringTensor():
                values.append(entry.bytes)
            case Value():
                values.append(entry)
    return values


def kinds(entries: Sequence[Entry]) -> list[object]:
    """The kind of each entry, of sequences their lengths: equal for lists that can take each other's place."""
    return [(len(e.values), e.growing) if isinstance(e, TensorSequence) else type(e) for e in entries]


def rebuilt(entries: Sequence[Entry], values: Sequence[Value]) -> list[Entry]:
    """Entries like these, of other tensors."""
    rest = iter(values)

    def entry(like: Entry) -> Entry:
        match like:
            case TensorSequence():
                return replace(like, values=tuple(next(rest) for _ in like.values))
            case StringTensor():
                return StringTensor(next(rest))
            case Value():
                return next(rest)
        return like

    return [entry(like) for like in entries]


# ---------------------------------------------------------------------------------------- control flow


def reads(node: NodeProto) -> list[str]:
    """The tensors that a node reads, those read inside its sub-graphs or named by a Gradient included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if node.op_type == "Gradient":
            names += [name.decode() for name in (*attribute.strings, attribute.s) if name]
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            names += _captured(graph)
    return names


def in_order(nodes: Sequence[NodeProto]) -> tuple[list[NodeProto], list[NodeProto]]:
    """The nodes, each behind those that it reads, else in the file's order; and those in a cycle."""
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name:
                makers.setdefault(name, i)
    needs = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    if all(max(before, default=-1) < i for i, before in enumerate(needs)):
        return list(nodes), []
    readers: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(needs):
        for j in before:
            readers[j].append(i)
    left = [len(before) for before in needs]
    ready = [i for i, count in enumerate(left) if not count]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in readers[i]:
            left[j] -= 1
            if not left[j]:
                heapq.heappush(ready, j)
    return [nodes[i] for i in order], [node for node, count in zip(nodes, left, strict=True) if count]


def _captured(graph: GraphProto) -> list[str]:
    own = {t.name for t in graph.initializer} | {v.name for v in graph.input}
    own |= {name for node in graph.node for name in node.output}
    inner = [name for node in graph.node for name in reads(node)] + [v.name for v in graph.output]
    return [name for name in inner if name not in own]
