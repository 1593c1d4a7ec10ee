"""The cut of a network between the processor and devices that takes the least estimated time, with all copies.

A tensor that lies on a device is copied to the processor's memory if a node elsewhere reads it, and from there to every
other device whose nodes read it.  So the copies of a tensor cost, for every device, one copy if some of the nodes that
make and read it run on that device and others do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf, isfinite

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.base import Operator
from tenon.network.ops.scan import Scan
from tenon.network.ops.unroll import decided_at_run_time
from tenon.runtime.plugins.min_cut import Capacities


@dataclass(frozen=True)
class SplitCosts:
    """The rates and times that the split depends on: multiply-adds and bytes of memory per second of the processor and
    of the device, seconds that a launch takes, bytes per second of a copy between the two, and seconds that every copy
    takes.

    The defaults are constants, so that the same model is split in the same way everywhere.  The processor's are
    those of one core of a Xeon with AVX-512 (measured: 5.7e10 and 2.7e10), rounded down; the device's are of the order
    of a small GPU.  ``measured_costs`` measures those of a machine.
    """

    processor_macs: float = 5e10
    processor_bytes: float = 2e10
    device_macs: float = 2e12
    device_bytes: float = 2e11
    launch: float = 5e-6
    copied_bytes: float = 1e10
    copy: float = 1e-5

    def on_processor(self, node: Node) -> float:
        """Seconds of a node in compiled code; of a loop, in all iterations, and of a branch, of its longer body."""
        if node.bodies:
            return _runs(node) * max(sum(map(self.on_processor, body)) for body in node.bodies)
        return max(_macs(node) / self.processor_macs, _bytes(node) / self.processor_bytes)

    def on_device(self, node: Node) -> float:
        """Seconds of a node on the device, where a number that a run decides by is a copy from the device."""
        if node.bodies:
            read = self.copy if decided_at_run_time(node) else 0
            return _runs(node) * (read + max(sum(map(self.on_device, body)) for body in node.bodies))
        return self.launch + max(_macs(node) / self.device_macs, _bytes(node) / self.device_bytes)

    def copied(self, value: Value) -> float:
        """Seconds of a copy of a tensor."""
        return self.copy + value.type.nbytes / self.copied_bytes


@dataclass(frozen=True)
class PlaceTimes:
    """Estimated seconds in one place: of each node (infinite where it cannot run), and of the copy of each tensor
    between it and the processor's memory (none in the processor's own times)."""

    nodes: Mapping[Node, float]
    copies: Mapping[Value, float]


Places = dict[Node, int]
"""The number of the place where each node runs; 0 is the processor."""

ASSUMED_ITERATIONS = 16
"""Iterations of a loop whose number only a run knows."""

_FIRST, _SECOND = "stays", "moves"


def fastest_split(graph: Graph, times: Sequence[PlaceTimes]) -> Places:
    """The place of each node; ``times`` are those of the processor, then of the devices.

    Inputs and outputs of the graph lie in the processor's memory.  Every node can run somewhere.  With one device the
    result is exact (the cheapest cut of a network of capacities).  With several, nodes are moved to one place after the
    other, each time all those whose move saves the most, until no such move saves anything: the result takes less than
    twice the least time, and mostly the least (Boykov, Veksler and Zabih 2001).
    """
    places = {node: next(i for i, each in enumerate(times) if isfinite(each.nodes[node])) for node in graph}
    if len(times) == 2:
        return _moved(graph, times, places, 1)
    least, improved = split_seconds(graph, times, places), True
    while improved:
        improved = False
        for place in (*range(1, len(times)), 0):
            moved = _moved(graph, times, places, place)
            seconds = split_seconds(graph, times, moved)
            if seconds < least * (1 - 1e-9):
                places, least, improved = moved, seconds, True
    return places


def split_seconds(graph: Graph, times: Sequence[PlaceTimes], places: Places) -> float:
    """Seconds of a run: nodes run one after another, and nothing is copied meanwhile."""
    copies = sum(times[place].copies[value] for value, place in copied(graph, places, len(times)))
    return copies + sum(times[place].nodes[node] for node, place in places.items())


def copied(graph: Graph, places: Places, count: int) -> Iterator[tuple[Value, int]]:
    """The tensors that are copied between the processor's memory and a device, with the device's place."""
    for value, home, readers in _tensors(graph):
        ends = [0 if node is None else places[node] for node in (home, *readers)]
        for place in range(1, count):
            if any(end == place for end in ends) and any(end != place for end in ends):
                yield value, place


def _tensors(graph: Graph) -> Iterator[tuple[Value, Node | None, list[Node | None]]]:
    """Inputs and results, the node that makes each, and the nodes that read it; None is the processor's memory."""
    outputs = {id(value) for value in graph.outputs}
    values = [(value, None) for value in graph.inputs] + [(value, node) for node in graph for value in node.outputs]
    for value, home in values:
        readers: list[Node | None] = list(dict.fromkeys(value.uses))
        yield value, home, readers + [None] * (id(value) in outputs)


def _moved(graph: Graph, times: Sequence[PlaceTimes], places: Places, target: int) -> Places:
    """The places after the nodes have moved to ``target`` whose move saves the most."""
    capacities = Capacities()
    for node, place in places.items():
        if place != target:
            capacities.add(_FIRST, node, times[target].nodes[node])
            capacities.add(node, _SECOND, times[place].nodes[node])
    sides = [_sides(places, target, place) for place in range(len(times))]
    for value, home, readers in _tensors(graph):
        ends = {home, *readers}
        for place in {target, *(places[end] for end in ends if end is not None)} - {0}:
            vertices = {sides[place][end] for end in ends}
            if len(vertices) > 1:
                _add_copy(capacities, (id(value), place), times[place].copies[value], vertices)
    stay = capacities.first_side(_FIRST, _SECOND)
    return {node: place if node in stay else target for node, place in places.items()}


def _sides(places: Places, target: int, place: int) -> dict[Node | None, Node | str]:
    """The vertex of each node, which lies on the second side if the node is at ``target``, or on the first side if it
    is at ``place``, where that is another: either way, a cut between two of these vertices is a copy to or from
    ``place``."""
    if place == target:
        return {None: _FIRST, **{node: _SECOND if at == target else node for node, at in places.items()}}
    return {None: _SECOND, **{node: node if at == place else _SECOND for node, at in places.items()}}


def _add_copy(capacities: Capacities, key: tuple[int, int], seconds: float, vertices: Set[Node | str]) -> None:
    """A copy, which is paid once if the vertices do not all lie on the same side of the cut."""
    some_first, some_second = (key, _FIRST), (key, _SECOND)
    capacities.add(some_first, some_second, seconds)
    for vertex in vertices:
        capacities.add(vertex, some_first, inf)
        capacities.add(some_second, vertex, inf)


def inner_nodes(node: Node) -> Iterator[Node]:
    """The nodes of the bodies of a node, and of those in them."""
    for body in node.bodies:
        for inner in body:
            yield inner
            yield from inner_nodes(inner)


def _runs(node: Node) -> int:
    """How often a body of a node runs: of a loop that a run ends, an assumed number."""
    if not isinstance(node.op, Scan):
        return 1
    return min(node.op.count, ASSUMED_ITERATIONS) if node.op.counted else node.op.count


def _macs(node: Node) -> int:
    if not isinstance(node.op, Operator):
        return 0
    return node.op.macs([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def _bytes(node: Node) -> int:
    return sum(value.type.nbytes for value in (*node.inputs, *node.outputs) if value is not None)
