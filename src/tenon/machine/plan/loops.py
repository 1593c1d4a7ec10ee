"""Loops of a graph before they are placed: where their states lie.

The state of a loop has one place, which is the memory of the node's output.  A copy before the node puts the initial
state there (``Scan.alias`` says that they share memory).  In the body, the next state is written to the same place if
nothing reads the state after that, else to a place of its own, from which a copy at the end of the body takes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.machine.plan.buffer_sharing import Storage, share
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.ops.base import Alias, Site
from tenon.network.ops.move import Reorder
from tenon.network.ops.scan import Scan


class Copy(Reorder):
    """The same tensor in memory of its own."""

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return ()


def with_bodies(graph: Graph) -> Iterator[Graph]:
    """The bodies of all nodes, the inner ones first, and then the graph itself."""
    for node in graph:
        for body in node.bodies:
            yield from with_bodies(body)
    yield graph


def prepare_loops(graph: Graph) -> None:
    """Put a copy of its own before each initial state of a loop."""
    for part in list(with_bodies(graph)):
        for node in part:
            if isinstance(node.op, Scan):
                inputs = list(node.inputs)
                for i in range(node.op.states):
                    inputs[i] = _copied(part, node.input(i), node)
                part.rewire(node, inputs)


def copy_next_states(graph: Graph, setting: Setting) -> None:
    """Put copies at the end of bodies for next states that cannot be written over the state before."""
    for node in graph:
        if isinstance(node.op, Scan):
            (body,) = node.bodies
            while (i := _unsafe(body, node.op.states, setting)) is not None:  # what shares memory changes with a copy
                body.outputs[i] = _copied(body, body.outputs[i], None)


def place_states(body: Graph, states: int, storage: Storage, setting: Setting) -> None:
    """Record the nodes of a body that overwrite a state by the next one."""
    for state, following in zip(body.inputs[:states], body.outputs, strict=False):
        root, _ = storage.root(following)
        if root.producer is not None:
            placed = _overwritten(root.producer, storage, setting, state)
            storage.placed[root.producer] |= placed


def _unsafe(body: Graph, states: int, setting: Setting) -> int | None:
    """The number of a state that something reads after the next one is written."""
    storage = share(body, setting)
    pairs = zip(body.inputs[:states], body.outputs, strict=False)
    return next((i for i, pair in enumerate(pairs) if not _over(body, storage, setting, *pair)), None)


def _copied(graph: Graph, value: Value, before: Node | None) -> Value:
    origin = value.producer.origin if value.producer else Origin(graph.source, value.name)
    return graph.add(Copy(), [value], [f"{value.name}_copy"], origin, before=before).output


def _over(body: Graph, storage: Storage, setting: Setting, state: Value, following: Value) -> bool:
    """Whether the next state can be written over the state: nothing reads that later, or at the same time but element
    for element."""
    number = {node: i for i, node in enumerate(body)}
    root, _ = storage.root(following)
    makers = [number[v.producer] for v in body.values() if v.producer and storage.root(v)[0] is root]
    readers = [node for v in body.values() if storage.root(v)[0] is state for node in v.uses]
    last = max((number[node] for node in readers), default=-1)
    if root in body.inputs or not makers or root.producer is None:
        return False
    if last < min(makers):
        return True
    return last == min(makers) == number[root.producer] and bool(_overwritten(root.producer, storage, setting, state))


def _overwritten(node: Node, storage: Storage, setting: Setting, state: Value) -> frozenset[int]:
    """The inputs of a node that hold a state which the node may overwrite by its only result."""
    free = operator(node).in_place(site(node, setting))
    read = [i for i, v in enumerate(node.inputs) if v is not None and storage.root(v)[0] is state]
    whole = all(storage.root(node.input(i)) == (state, 0) and _alike(node.input(i), node.output) for i in read)
    return frozenset(read) if len(node.outputs) == 1 and whole and all(i in free for i in read) else frozenset()


def _alike(a: Value, b: Value) -> bool:
    """Whether two values have elements of the same type at the same places of their memory."""
    return a.type.dtype is b.type.dtype and a.type.layout == b.type.layout and a.type.nbytes == b.type.nbytes
