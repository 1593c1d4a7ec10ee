"""Loops of a graph before they are placed, and the graph itself, which runs again and again: where their states lie.

The state of a loop has one place, which is the memory of the node's output.  A copy before the node puts the initial
state there (``Scan.alias`` says that they share memory).  In the body, the next state is written to the same place if
nothing reads the state after that, else to a place of its own, from which a copy at the end of the body takes it.  The
same holds for a state that a graph keeps from run to run: it is an input and an output of one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tenon.machine.plan.buffer_sharing import Storage, share
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.ops.base import Alias, Site, Step
from tenon.network.ops.move import Reorder
from tenon.network.ops.scan import Scan


class StateCopy(Reorder):
    """The same tensor in memory of its own."""

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return ()


class InitialState(StateCopy):
    """The same tensor in memory that a loop overwrites: that of the operand where nothing else reads it later."""

    def in_place(self, site: Site) -> tuple[int, ...]:
        return (0,)

    def lower(self, site: Site) -> list[Step]:
        return [] if 0 in site.placed else super().lower(site)


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
                    inputs[i] = _copied(part, node.input(i), node, InitialState())
                part.rewire(node, inputs)


States = Sequence[tuple[Value, int]]
"""The inputs of a graph that are states, and the number of the output that is each one's next content."""


def states_of(graph: Graph) -> States:
    """The states that a graph keeps from run to run."""
    inputs = {value.name: value for value in graph.inputs}
    return [(inputs[name], number) for name, number in graph.states.items()]


def states_of_body(node: Node, op: Scan) -> States:
    """The states that a loop's body keeps from iteration to iteration."""
    (body,) = node.bodies
    return [(value, number) for number, value in enumerate(body.inputs[: op.states])]


def unchanged_states(graph: Graph) -> dict[int, frozenset[int]]:
    """For every body of a loop, by its ``id``, the numbers of the states that it leaves alone."""
    return {
        id(body): frozenset(i for i in range(node.op.states) if body.outputs[i] is body.inputs[i])
        for part in with_bodies(graph)
        for node in part
        if isinstance(node.op, Scan)
        for body in node.bodies
    }


def copy_next_states(graph: Graph, setting: Setting) -> None:
    """Put copies at the end of bodies, and of the graph, for next states that cannot be written over the state
    before."""
    for node in graph:
        if isinstance(node.op, Scan):
            _copy_unsafe(node.bodies[0], states_of_body(node, node.op), setting)
    _copy_unsafe(graph, states_of(graph), setting)


def place_states(graph: Graph, states: States, storage: Storage, setting: Setting) -> None:
    """Record the nodes of a graph that overwrite a state by the next one."""
    for state, number in states:
        root, _ = storage.root(graph.outputs[number])
        if root.producer is not None:
            storage.placed[root.producer] |= _overwritten(root.producer, storage, setting, state)


def _copy_unsafe(graph: Graph, states: States, setting: Setting) -> None:
    while numbers := _unsafe(graph, states, setting):  # what shares memory changes with a copy
        for number in numbers:
            graph.outputs[number] = _copied(graph, graph.outputs[number], None, StateCopy())


def _unsafe(graph: Graph, states: States, setting: Setting) -> list[int]:
    """The numbers of the outputs for states that something reads after the next one is written."""
    if not states:
        return []
    uses = _Uses(graph, setting)
    return [number for state, number in states if not uses.over(state, graph.outputs[number])]


def _copied(graph: Graph, value: Value, before: Node | None, op: StateCopy) -> Value:
    origin = value.producer.origin if value.producer else Origin(graph.source, value.name)
    return graph.add(op, [value], [f"{value.name}_copy"], origin, before=before).output


class _Uses:
    """When the memory of each value is written first and read last, in numbers of nodes."""

    def __init__(self, graph: Graph, setting: Setting) -> None:
        self.setting = setting
        self.storage = share(graph, setting)
        self.number = {node: i for i, node in enumerate(graph)}
        self.given = set(graph.inputs)
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        for value in graph.values():
            root, _ = self.storage.root(value)
            if value.producer is not None:
                made = self.number[value.producer]
                self.first[root] = min(made, self.first.get(root, made))
            read = (self.number[node] for node in value.uses)
            self.last[root] = max(self.last.get(root, -1), *read, -1)

    def over(self, state: Value, following: Value) -> bool:
        """Whether the next state can be written over the state: it is the same, or nothing reads that later, or at the
        same time but element for element."""
        root, offset = self.storage.root(following)
        if root is state and offset == 0 and _alike(state, following):
            return True
        if root in self.given or root.producer is None:
            return False
        first, last = self.first[root], self.last.get(state, -1)
        if first != last:
            return last < first
        same = first == self.number[root.producer]
        return same and bool(_overwritten(root.producer, self.storage, self.setting, state))


def _overwritten(node: Node, storage: Storage, setting: Setting, state: Value) -> frozenset[int]:
    """The inputs of a node that hold a state which the node may overwrite by its only result."""
    free = operator(node).in_place(site(node, setting))
    read = [i for i, v in enumerate(node.inputs) if v is not None and storage.root(v)[0] is state]
    whole = all(storage.root(node.input(i)) == (state, 0) and _alike(node.input(i), node.output) for i in read)
    return frozenset(read) if len(node.outputs) == 1 and whole and all(i in free for i in read) else frozenset()


def _alike(a: Value, b: Value) -> bool:
    """Whether two values have elements of the same type at the same places of their memory."""
    return a.type.dtype is b.type.dtype and a.type.layout == b.type.layout and a.type.nbytes == b.type.nbytes
