"""The device of each node of a network: what the user says, else the cut of least time, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import inf

from tenon.errors import InputError
from tenon.network.graph.device_placement import PROCESSOR, CopiedTensor, DevicePlacement, PlacedLayer
from tenon.network.graph.graph import Graph, Node, Value
from tenon.runtime.engine.part_devices import Device
from tenon.runtime.plugins.cost_split import Places, PlaceTimes, SplitCosts, copied, fastest_split
from tenon.runtime.plugins.device import TimedDevice, refusal


@dataclass(frozen=True)
class DeviceRule:
    """Nodes whose layer, result or operator has a name that ``pattern`` matches (``*`` and ``?`` as in file names) run
    on ``device``, or on the processor ("cpu")."""

    pattern: str
    device: str

    @classmethod
    def parse(cls, text: str) -> DeviceRule:
        """From "PATTERN=DEVICE".  Raises InputError for another form."""
        pattern, equals, device = text.rpartition("=")
        if not (pattern and equals and device):
            raise InputError(f"'{text}' assigns no layer to a device: write LAYER=DEVICE, as in conv1=cpu")
        return cls(pattern, device)

    def matches(self, node: Node) -> bool:
        """Whether the rule is about a node."""
        names = {node.origin.layer, node.origin.type, node.op.name, *(value.name for value in node.outputs)}
        return any(fnmatchcase(name, self.pattern) for name in names)


@dataclass(frozen=True)
class PlacedGraph:
    """A graph, the devices, and the place of each of its nodes: 0 is the processor, then the devices in their order.

    ``reasons`` are those of nodes that are not where the cut of least time alone has put them.
    """

    graph: Graph
    devices: tuple[Device, ...]
    places: Places
    reasons: Mapping[Node, str]

    def name(self, place: int) -> str:
        """The name of the device at a place."""
        return self.devices[place - 1].name if place else PROCESSOR

    def described(self) -> DevicePlacement:
        """The placement by names, as it is printed and stored in the manifest."""
        layers = tuple(
            PlacedLayer(node.origin.layer or node.output.name, node.op.name, self.name(at), self.reasons.get(node, ""))
            for node, at in self.places.items()
        )
        return DevicePlacement(layers, tuple(self._copies()))

    def _copies(self) -> list[CopiedTensor]:
        copies = []
        for value, place in copied(self.graph, self.places, len(self.devices) + 1):
            home = self.places[value.producer] if value.producer is not None else 0
            way = (self.name(place), PROCESSOR) if home == place else (PROCESSOR, self.name(place))
            copies.append(CopiedTensor(value.name, *way, value.type.nbytes))
        return copies


def placed(
    graph: Graph,
    devices: Sequence[Device],
    rules: Sequence[DeviceRule] = (),
    costs: SplitCosts | None = None,
    refused: Mapping[tuple[str, Node], str] | None = None,
) -> PlacedGraph:
    """The place of each node of a bound graph.

    Of several ``rules`` for a node the last one counts.  A node whose device does not support it runs on the
    processor; ``refused`` are further nodes that the device of that name does not run, with the reasons.  ``costs``
    says how fast the processor is.  Raises InputError for a rule that no node fits, and for a device that there is not.
    """
    assigned, usual = _assigned(graph, devices, rules), costs or SplitCosts()
    seconds: dict[Node, list[float]] = {}
    reasons: dict[Node, str] = {}
    for node in graph:
        refusals = [(refused or {}).get((device.name, node), "") or refusal(device, node) for device in devices]
        seconds[node], reason = _possible(node, devices, refusals, assigned.get(node), usual)
        if reason:
            reasons[node] = reason
    copies = [{}, *(_copy_times(graph, device) for device in devices)]
    times = [PlaceTimes({node: each[at] for node, each in seconds.items()}, copies[at]) for at in range(len(copies))]
    return PlacedGraph(graph, tuple(devices), fastest_split(graph, times), reasons)


def _copy_times(graph: Graph, device: Device) -> dict[Value, float]:
    """The seconds of a copy of each input and result to a device, or back."""
    timed = device if isinstance(device, TimedDevice) else None
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return {value: timed.copy_seconds(value) if timed else 0.0 for value in values}


def _possible(
    node: Node, devices: Sequence[Device], refusals: Sequence[str], assigned: int | None, costs: SplitCosts
) -> tuple[list[float], str]:
    """The seconds of a node in each place, infinite where it must not run, and the reason if there is no choice."""
    here = costs.on_processor(node)
    alone = [here, *([inf] * len(devices))]
    if assigned == 0:
        return alone, "assigned"
    if assigned is not None and refusals[assigned - 1]:
        return alone, f"assigned to {devices[assigned - 1].name}, which {refusals[assigned - 1]}"
    seconds = [_seconds(device, node) if not why else inf for device, why in zip(devices, refusals, strict=True)]
    if assigned is not None:
        return [each if at == assigned else inf for at, each in enumerate([here, *seconds])], "assigned"
    if all(refusals):
        return alone, "; ".join(f"{device.name} {why}" for device, why in zip(devices, refusals, strict=True))
    return [here, *seconds], ""


def _seconds(device: Device, node: Node) -> float:
    return device.seconds(node) if isinstance(device, TimedDevice) else 0.0


def _assigned(graph: Graph, devices: Sequence[Device], rules: Sequence[DeviceRule]) -> dict[Node, int]:
    """The places that the rules name."""
    places = {PROCESSOR: 0, "host": 0, **{device.name.lower(): at for at, device in enumerate(devices, 1)}}
    assigned: dict[Node, int] = {}
    for rule in rules:
        if rule.device.lower() not in places:
            known = ", ".join(["cpu", *(device.name for device in devices)])
            raise InputError(
                f"'{rule.pattern}={rule.device}': there is no device {rule.device} in this network: they are {known}"
            )
        nodes = [node for node in graph if rule.matches(node)]
        if not nodes:
            raise InputError(f"'{rule.pattern}={rule.device}': no layer has that name{_similar(graph, rule.pattern)}")
        assigned.update(dict.fromkeys(nodes, places[rule.device.lower()]))
    return assigned


def _similar(graph: Graph, pattern: str) -> str:
    """ ": did you mean conv1?", and where all names are listed."""
    layers = [node.origin.layer or node.output.name for node in graph]
    close = get_close_matches(pattern, layers, 1)
    return f": did you mean {close[0]}?" if close else ": 'tenon inspect MODEL --layers' lists them"
