"""Splits a network between a device and compiled code.

Sections run one after another and alternate between the two.  A node's section is the first of its own side that comes
after the sections of all that it reads, so that no section waits for a later one, whatever the branches are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tenon.network.graph.graph import Graph, Node, Value
from tenon.runtime.plugins.device import ChoosingDevice, Device


@dataclass(frozen=True)
class Section:
    """A part of a network as a graph of its own; inputs and outputs have the names of the whole network's values."""

    graph: Graph
    on_device: bool


def partition(graph: Graph, device: Device) -> list[Section]:
    """The sections of a bound graph, in the order in which they run; nodes that nothing reads are left out."""
    sections: dict[Node, int] = {}
    taken = device.chosen(graph) if isinstance(device, ChoosingDevice) else {n for n in graph if device.supports(n)}
    for node in graph:
        before = max((sections[p] for v in node.inputs if v is not None and (p := v.producer) is not None), default=0)
        is_device = node in taken
        sections[node] = before + ((before % 2 == 1) != is_device)
    groups: dict[int, list[Node]] = {}
    for node, number in sections.items():
        groups.setdefault(number, []).append(node)
    return [Section(_extracted(graph, nodes, number), number % 2 == 1) for number, nodes in sorted(groups.items())]


def _extracted(graph: Graph, nodes: Collection[Node], number: int) -> Graph:
    """A copy of some nodes, whose inputs are what they read of others, and whose outputs are what others read."""
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
