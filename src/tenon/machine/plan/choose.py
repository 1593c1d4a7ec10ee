"""Selects each layer's algorithm, by measured times if there are any or else by estimate, within a budget of weights.

Fast algorithms enlarge the packed weights (Winograd's F(4, 3) fourfold).  Where the total exceeds the budget, layers
trade speed for size, those first that lose the least time per byte saved.  Without a budget, weights stay within
``GROWTH`` times the smallest ones where that takes less than ``WORTH`` of the time of the fastest ones, or come part of
the way there for as much less.

Layers of several size classes have the same weights, which are stored once for each way in which they are packed: they
are chosen together, all with one packing or each for itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tenon.errors import InputError
from tenon.machine.algorithms.base import Cost
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.network.graph.graph import Graph, Node

GROWTH, WORTH = 1.5, 0.025
"""Growth of weights that is always allowed, and the share of the time by estimate that pays for more: 5 % of the time.
Estimates say too little of what smaller weights lose: 1.5, 2.7 and 3.6 % of ResNet-18, GoogLeNet and YOLOv3-tiny, where
4.4, 5.7 and 6 % were measured."""

_ANY = 1 << 62
"""More bytes than weights have."""

CACHED = 16 << 20
"""Bytes of weights that the last cache keeps from run to run."""

TimesByAlgorithm = Mapping[str, float]
"""Measured seconds by ``Algorithm.key``."""


def choose(
    graph: Graph, setting: Setting, times: Mapping[str, TimesByAlgorithm], max_weights: int | None = None
) -> dict[str, str]:
    """Keys of algorithms by ``lowering_context.key``, for the layers of ``graph`` where measured times or the budget
    decide.

    ``times`` are those of candidates, by layer; ``max_weights`` bounds the bytes of all weights.  Raises InputError if
    the smallest choices exceed it.
    """
    if setting.machine.launch is not None and not times and max_weights is None:
        return {}
    layers = _layers(graph, setting, times)
    choices = _choices(layers, several=any(node.bodies for node in graph))
    chosen = {name: choice.fastest() for name, choice in choices.items()}
    others = _other_weights(graph, layers)
    if max_weights is not None:
        _fit(choices, chosen, max_weights - others, others)
    elif not (small := _small(choices, chosen, others)) and not times:
        return {}
    else:
        chosen |= small
    return {name: own for c, option in chosen.items() for name, own in choices[c].options[option].items()}


def _small(layers: Mapping[str, _WeightsChoice], fastest: Mapping[str, str], others: int) -> dict[str, str]:
    """Algorithms with weights nearer to ``GROWTH`` times the smallest ones, ``others`` bytes included, where they cost
    little time; else nothing."""
    least = sum(min(map(layer.weights, layer.costs)) for layer in layers.values())
    most = int(GROWTH * (least + others)) - others
    unbounded = dict(fastest)
    _use_rest(layers, unbounded, _ANY)
    surplus, time = _weights(layers, unbounded) - most, _time(layers, unbounded)
    for share in (1.0, 0.75, 0.5, 0.25) if surplus > 0 else ():
        small = dict(fastest)
        _fit(layers, small, most + int((1 - share) * surplus), others)
        if _time(layers, small) < time * (1 + share * WORTH):
            return small
    return {}


def streaming(graph: Graph, setting: Setting) -> Setting:
    """The setting with the rate at which the weights of ``graph`` arrive."""
    weights, memory = (
        sum(v.array.nbytes for part in with_bodies(graph) for v in part.constants()),
        setting.machine.memory,
    )
    if memory is None or weights <= CACHED:
        return setting
    return replace(setting, machine=replace(setting.machine, stream=memory))


def choose_alike(graph: Graph, setting: Setting, first: Graph, there: Setting) -> dict[str, str]:
    """Algorithms that pack the weights of ``graph`` as they are packed for ``first``, the same model for inputs of
    another shape, planned with the setting ``there``; nothing for layers where that cannot be."""
    planned = {node.output.name: node for node in first}
    chosen: dict[str, str] = {}
    for node in graph:
        twin = planned.get(node.output.name)
        if twin is not None and type(twin.op) is type(node.op):
            algorithm = operator(node).packed_alike(site(node, setting), site(twin, there))
            if algorithm is not None:
                chosen[key(node)] = algorithm.key
    return chosen


@dataclass(frozen=True)
class _LayerChoice:
    """Equal nodes that can be computed by several algorithms: what each costs, best first by estimate, how it packs
    weights, and measured times."""

    nodes: list[Node]
    costs: Mapping[str, Cost]
    packings: Mapping[str, tuple[str | int, ...]]
    measured: TimesByAlgorithm

    def fastest(self) -> str:
        """The fastest of the algorithms measured, or else the best by estimate."""
        known = [algorithm for algorithm in self.costs if algorithm in self.measured]
        return min(known, key=self.measured.__getitem__) if known else next(iter(self.costs))

    def time(self, algorithm: str) -> float:
        """Measured seconds where all algorithms are known, else the estimate, in a unit of its own."""
        complete = all(each in self.measured for each in self.costs)
        return self.measured[algorithm] if complete else 1e-9 * self.costs[algorithm].time


@dataclass(frozen=True)
class _WeightsChoice:
    """Layers with the same weights.  ``options`` are their algorithms, by name of the layer; ``costs`` those of all
    nodes by estimate, weights that are packed alike counted once."""

    layers: Mapping[str, _LayerChoice]
    options: Mapping[str, Mapping[str, str]]
    costs: Mapping[str, Cost]

    @classmethod
    def of(cls, layers: Mapping[str, _LayerChoice]) -> _WeightsChoice:
        """The options: of one layer all algorithms, of several ones the fastest, and those of each common packing."""
        if len(layers) == 1:
            ((name, layer),) = layers.items()
            options = {algorithm: {name: algorithm} for algorithm in layer.costs}
        else:
            common = set.intersection(*(set(layer.packings.values()) for layer in layers.values()))
            options = {"fastest": {name: layer.fastest() for name, layer in layers.items()}}
            for packing in sorted(common, key=str):
                alike = {
                    name: [algorithm for algorithm, own in layer.packings.items() if own == packing]
                    for name, layer in layers.items()
                }
                options[str(packing)] = {name: min(own, key=layers[name].time) for name, own in alike.items()}
        return cls(layers, options, {option: _cost(layers, own) for option, own in options.items()})

    def fastest(self) -> str:
        """The option with the fastest algorithm of each layer."""
        return next(iter(self.layers.values())).fastest() if len(self.layers) == 1 else next(iter(self.options))

    def time(self, option: str) -> float:
        """Seconds of all nodes, as ``_LayerChoice.time``."""
        return sum(len(self.layers[n].nodes) * self.layers[n].time(own) for n, own in self.options[option].items())

    def weights(self, option: str) -> int:
        """Bytes of all nodes."""
        return self.costs[option].weights


def _cost(layers: Mapping[str, _LayerChoice], chosen: Mapping[str, str]) -> Cost:
    """The cost of all nodes of layers with the same weights."""
    stored = dict[tuple[str | int, ...], int]()
    for name, own in chosen.items():
        layer = layers[name]
        stored[layer.packings[own]] = len(layer.nodes) * layer.costs[own].weights
    return Cost(
        sum(len(layers[n].nodes) * layers[n].costs[own].time for n, own in chosen.items()), sum(stored.values())
    )


def _choices(layers: Mapping[str, _LayerChoice], *, several: bool) -> dict[str, _WeightsChoice]:
    """The layers, those with the same weights together, which are only looked for in ``several`` graphs."""
    together = dict[object, dict[str, _LayerChoice]]()
    for name, layer in layers.items():
        contents = frozenset(c for node in layer.nodes for c in _contents(node)) if several else None
        together.setdefault(contents or name, {})[name] = layer
    return {next(iter(own)): _WeightsChoice.of(own) for own in together.values()}


def _contents(node: Node) -> list[bytes]:
    """Hashes of the constants of a node that are large enough to be weights."""
    arrays = [v.array for v in node.inputs if v is not None and v.constant and v.type.rank > 1]
    return [hashlib.sha256(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data).digest() for a in arrays]


def _layers(graph: Graph, setting: Setting, times: Mapping[str, TimesByAlgorithm]) -> dict[str, _LayerChoice]:
    layers: dict[str, _LayerChoice] = {}
    for node in (node for part in with_bodies(graph) for node in part):
        name = key(node)
        if name in layers:
            layers[name].nodes.append(node)
            continue
        here, op = site(node, setting), operator(node)
        candidates = {each.key: each for each in op.candidates(here)}
        costs = {name: op.cost(replace(here, algorithm=each)) for name, each in candidates.items()}
        if costs:
            packings = {name: each.packing for name, each in candidates.items()}
            layers[name] = _LayerChoice([node], costs, packings, times.get(name, {}))
    return layers


def _other_weights(graph: Graph, layers: Mapping[str, _LayerChoice]) -> int:
    """Bytes of all constants that no algorithm packs."""
    flexible = {id(v) for layer in layers.values() for n in layer.nodes for v in n.inputs if v is not None}
    constants = (v for part in with_bodies(graph) for v in part.constants())
    return sum(v.array.nbytes for v in constants if id(v) not in flexible)


def _weights(layers: Mapping[str, _WeightsChoice], chosen: Mapping[str, str]) -> int:
    return sum(layer.weights(chosen[name]) for name, layer in layers.items())


def _time(layers: Mapping[str, _WeightsChoice], chosen: Mapping[str, str]) -> float:
    """Time of all layers by estimate, in which those that were measured and others add up."""
    return sum(layer.costs[chosen[name]].time for name, layer in layers.items())


def _fit(layers: Mapping[str, _WeightsChoice], chosen: dict[str, str], most: int, others: int) -> None:
    """Change ``chosen`` until its weights fit ``most`` bytes, besides ``others``."""
    total = _weights(layers, chosen)
    while total > most:
        best: tuple[float, str, str] | None = None
        for name, layer in layers.items():
            now = chosen[name]
            for other, cost in layer.costs.items():
                saved = layer.costs[now].weights - cost.weights
                if saved > 0:
                    rate = (layer.time(other) - layer.time(now)) / saved
                    if best is None or rate < best[0]:
                        best = rate, name, other
        if best is None:
            need, budget = total + others, most + others
            raise InputError(f"the weights need {need} bytes at least; the budget is {budget}: allow more")
        _, name, other = best
        total -= layers[name].weights(chosen[name]) - layers[name].weights(other)
        chosen[name] = other
    _use_rest(layers, chosen, most - total)


def _use_rest(layers: Mapping[str, _WeightsChoice], chosen: dict[str, str], room: int) -> None:
    """Give layers faster algorithms again that fit in ``room`` bytes, those first that gain the most time: the last
    layer that became smaller may have saved more than was needed."""
    while True:
        faster = [
            (layer.time(chosen[name]) - layer.time(other), name, other)
            for name, layer in layers.items()
            for other in layer.costs
            if layer.weights(other) - layer.weights(chosen[name]) <= room
        ]
        gain, name, other = max(faster, default=(0.0, "", ""))
        if gain <= 0:
            return
        room -= layers[name].weights(other) - layers[name].weights(chosen[name])
        chosen[name] = other
