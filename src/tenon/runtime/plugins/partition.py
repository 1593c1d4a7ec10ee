"""Splits a network between devices and compiled code.

Sections run one after another; each is of one device, or of the processor.  A node's section is the first of its own
place that comes after the sections of all that it reads, so that no section waits for a later one, whatever the
branches are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tenon.network.graph.graph import Graph, Node, Value
from tenon.runtime.engine.part_devices import Device
from tenon.runtime.plugins.placement import PlacedGraph


@dataclass(frozen=True)
class Section:
    """A part of a network as a graph of its own, for a device or, if that is None, for compiled code.

    Its inputs and outputs have the names of the whole network's values; ``nodes`` are those of the whole network.
    """

    graph: Graph
    device: Device | None
    nodes: tuple[Node, ...]

    @property
    def on_device(self) -> bool:
        """Whether a device runs it."""
        return self.device is not None


def partition(placed: PlacedGraph) -> list[Section]:
    """The sections of a graph whose nodes have places, in the order in which they run."""
    count = len(placed.devices) + 1
    sections: dict[Node, int] = {}
    for node in placed.graph:
        before = max((sections[p] for v in node.inputs if v is not None and (p := v.producer) is not None), default=0)
        sections[node] = before + (placed.places[node] - before) % count
    groups: dict[int, list[Node]] = {}
    for node, number in sections.items():
        groups.setdefault(number, []).append(node)
    return [
        Section(
            extracted(placed.graph, nodes, number),
            placed.devices[number % count - 1] if number % count else None,
            tuple(nodes),
        )
        for number, nodes in sorted(groups.items())
    ]


def extracted(graph: Graph, nodes: Collection[Node], number: int) -> Graph:
    """A copy of some nodes of a graph, called by its name and a number: its inputs are what they read of others, and
    its outputs are what others read."""
    part, inside, twins = Graph(f"{graph.name}_{number}", graph.source), set(nodes), dict[Value, Value]()

    def twin(value: Value) -> Value:
        if value not in twins:
            is_input = value.data is None
            twins[value] = part.add_input(value.name, value.type) if is_input else value.twin()
        return twins[value]

    for node in nodes:
        inputs = [None if value is None else twin(value) for value in node.inputs]
        new = part.add(node.op, inputs, [value.name for value in node.outputs], node.origin, bodies=node.bodies)
        twins.update(zip(node.outputs, new.outputs, strict=True))
    for node in nodes:
        for value in node.outputs:
            if graph.is_output(value) or any(reader not in inside for reader in value.uses):
                part.outputs.append(twins[value])
    return part
