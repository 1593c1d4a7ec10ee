"""Which nodes of a network run on a device in the least time, with the copies between it and the processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.base import Operator
from tenon.runtime.plugins.min_cut import Capacities


@dataclass(frozen=True)
class SplitCosts:
    """The rates and times that the split depends on: multiply-adds and bytes of memory per second of the processor and
    of the device, seconds that a launch takes, bytes per second of a copy between the two, and seconds that every copy
    takes.

    The defaults are of the order of one core of a current processor beside a small GPU.  They are not measured: the
    same model is split in the same way everywhere.
    """

    processor_macs: float = 5e10
    processor_bytes: float = 2e10
    device_macs: float = 2e12
    device_bytes: float = 2e11
    launch: float = 5e-6
    copied_bytes: float = 1e10
    copy: float = 1e-5

    def on_processor(self, node: Node) -> float:
        """Seconds of a node in compiled code."""
        return max(_macs(node) / self.processor_macs, _bytes(node) / self.processor_bytes)

    def on_device(self, node: Node) -> float:
        """Seconds of a node on the device."""
        return self.launch + max(_macs(node) / self.device_macs, _bytes(node) / self.device_bytes)

    def copied(self, value: Value) -> float:
        """Seconds of a copy of a tensor."""
        return self.copy + value.type.nbytes / self.copied_bytes


def fastest_split(graph: Graph, costs: SplitCosts, can_run: Callable[[Node], bool]) -> frozenset[Node]:
    """The nodes that run on the device in the split of least time, of those that it ``can_run``.

    Times of nodes and copies are added up; a tensor that several nodes read is copied once.  The split is exact: the
    cheapest cut of a network of capacities.  Inputs and outputs of the graph lie in the memory of the processor.
    """
    capacities = Capacities()
    for node in graph:
        capacities.add("processor", node, costs.on_device(node) if can_run(node) else inf)
        capacities.add(node, "device", costs.on_processor(node))
        for value in node.outputs:
            _add_copies(capacities, graph, value, node, costs.copied(value))
    for value in graph.inputs:
        _add_copies(capacities, graph, value, "processor", costs.copied(value))
    on_processor = capacities.first_side("processor", "device")
    return frozenset(node for node in graph if node not in on_processor)


def _add_copies(capacities: Capacities, graph: Graph, value: Value, home: Node | str, seconds: float) -> None:
    """A copy to the device if a reader of what the processor made is there, and one back for the other way round."""
    there, back = ("there", id(value)), ("back", id(value))
    capacities.add(home, there, seconds)
    capacities.add(back, home, seconds)
    for reader in set(value.uses):
        capacities.add(there, reader, inf)
        capacities.add(reader, back, inf)
    if graph.is_output(value):
        capacities.add("processor", back, inf)


def _macs(node: Node) -> int:
    if not isinstance(node.op, Operator):
        return 0
    return node.op.macs([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def _bytes(node: Node) -> int:
    return sum(value.type.nbytes for value in (*node.inputs, *node.outputs) if value is not None)
