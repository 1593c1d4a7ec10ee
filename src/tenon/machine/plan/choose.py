"""Selects each layer's algorithm, by measured times if there are any or else by estimate, within a budget of weights.

Fast algorithms enlarge the packed weights (Winograd's F(4, 3) fourfold).  Where the total exceeds the budget, layers
trade speed for size, those first that lose the least time per byte saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tenon.errors import InputError
from tenon.machine.algorithms.base import Cost
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.network.graph.graph import Graph, Node

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
    if not times and max_weights is None:
        return {}
    layers = _layers(graph, setting, times)
    chosen = {name: layer.fastest() for name, layer in layers.items()}
    if max_weights is not None:
        _fit(graph, layers, chosen, max_weights)
    return chosen


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
    """Equal nodes that can be computed by several algorithms: what each costs, best first by estimate, and measured
    times."""

    nodes: list[Node]
    costs: Mapping[str, Cost]
    measured: TimesByAlgorithm

    def fastest(self) -> str:
        """The fastest of the algorithms measured, or else the best by estimate."""
        known = [algorithm for algorithm in self.costs if algorithm in self.measured]
        return min(known, key=self.measured.__getitem__) if known else next(iter(self.costs))

    def time(self, algorithm: str) -> float:
        """Measured seconds where all algorithms are known, else the estimate, in a unit of its own."""
        complete = all(each in self.measured for each in self.costs)
        return self.measured[algorithm] if complete else 1e-9 * self.costs[algorithm].time

    def weights(self, algorithm: str) -> int:
        """Bytes of all nodes."""
        return len(self.nodes) * self.costs[algorithm].weights


def _layers(graph: Graph, setting: Setting, times: Mapping[str, TimesByAlgorithm]) -> dict[str, _LayerChoice]:
    layers: dict[str, _LayerChoice] = {}
    for node in (node for part in with_bodies(graph) for node in part):
        name = key(node)
        if name in layers:
            layers[name].nodes.append(node)
            continue
        here, op = site(node, setting), operator(node)
        costs = {each.key: op.cost(replace(here, algorithm=each)) for each in op.candidates(here)}
        if costs:
            layers[name] = _LayerChoice([node], costs, times.get(name, {}))
    return layers


def _fit(graph: Graph, layers: Mapping[str, _LayerChoice], chosen: dict[str, str], most: int) -> None:
    """Change ``chosen`` until all weights fit ``most`` bytes."""
    flexible = {id(v) for layer in layers.values() for n in layer.nodes for v in n.inputs if v is not None}
    constants = (v for part in with_bodies(graph) for v in part.constants())
    total = sum(v.array.nbytes for v in constants if id(v) not in flexible)
    total += sum(layer.weights(chosen[name]) for name, layer in layers.items())
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
            raise InputError(f"the weights need {total} bytes at least; the budget is {most}: allow more")
        _, name, other = best
        total -= layers[name].weights(chosen[name]) - layers[name].weights(other)
        chosen[name] = other
