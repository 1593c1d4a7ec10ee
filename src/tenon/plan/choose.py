"""Which way to compute each layer: what a search measured, else what the estimate says, within a budget of weights.

Fast algorithms grow the weights that they are packed into (Winograd's F(4, 3) fourfold).  Where the total passes the
budget, layers give up speed for size, those first that lose the least time for a byte saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tenon.errors import InputError
from tenon.ir.graph import Graph, Node
from tenon.ops.base import Cost, Site
from tenon.plan.lowering_context import Setting, choice_text, key, operator, site


def choose(
    graph: Graph, setting: Setting, times: Mapping[str, Mapping[str, float]], max_weights: int | None = None
) -> dict[str, object]:
    """Choices by ``sites.key``, for the layers of ``graph`` where the estimate alone does not decide.

    ``times`` are measured seconds of candidates, by layer; ``max_weights`` bounds the bytes of all weights.  Raises
    InputError if the smallest choices pass it.
    """
    if not times and max_weights is None:
        return {}
    layers = _layers(graph, setting)
    chosen = {name: _fastest(ways, times.get(name, {})) for name, (_, ways) in layers.items()}
    if max_weights is not None:
        _fit(graph, layers, chosen, times, max_weights)
    return chosen


def choose_alike(graph: Graph, setting: Setting, first: Graph, there: Setting) -> dict[str, object]:
    """Choices that pack the weights of ``graph`` as they are packed for ``first``, the same model for inputs of another
    shape, planned with the setting ``there``; nothing for layers where that cannot be."""
    planned = {node.output.name: node for node in first}
    found: dict[str, object] = {}
    for node in graph:
        twin = planned.get(node.output.name)
        if twin is not None and twin.op.name == node.op.name:
            choice = operator(node).packed_like(site(node, setting), site(twin, there))
            if choice is not None:
                found[key(node)] = choice
    return found


Ways = dict[object, Cost]


def _layers(graph: Graph, setting: Setting) -> dict[str, tuple[list[Node], Ways]]:
    """Layers that can be computed in several ways: the nodes that are alike, and what each way costs."""
    found: dict[str, tuple[list[Node], Ways]] = {}
    for node in graph:
        name = key(node)
        if name in found:
            found[name][0].append(node)
            continue
        here: Site = site(node, setting)
        candidates = operator(node).candidates(here)
        if candidates:
            found[name] = [node], {c: operator(node).cost(replace(here, choice=c)) for c in candidates}
    return found


def _fastest(ways: Ways, measured: Mapping[str, float]) -> object:
    known = [c for c in ways if choice_text(c) in measured]
    return min(known, key=lambda c: measured[choice_text(c)]) if known else next(iter(ways))


def _fit(
    graph: Graph,
    layers: dict[str, tuple[list[Node], Ways]],
    chosen: dict[str, object],
    times: Mapping[str, Mapping[str, float]],
    most: int,
) -> None:
    """Change ``chosen`` until all weights fit ``most`` bytes."""
    flexible = {id(v) for nodes, _ in layers.values() for n in nodes for v in n.inputs if v is not None}
    total = sum(v.array.nbytes for v in graph.constants() if id(v) not in flexible)
    total += sum(len(nodes) * ways[chosen[name]].weights for name, (nodes, ways) in layers.items())
    while total > most:
        best: tuple[float, str, object] | None = None
        for name, (_, ways) in layers.items():
            now = chosen[name]
            for other, cost in ways.items():
                saved = ways[now].weights - cost.weights
                if saved > 0:
                    lost = _time(ways, other, times.get(name, {})) - _time(ways, now, times.get(name, {}))
                    rate = lost / saved
                    if best is None or rate < best[0]:
                        best = rate, name, other
        if best is None:
            raise InputError(f"the weights need {total} bytes at least; the budget is {most}: allow more")
        _, name, other = best
        nodes, ways = layers[name]
        total -= len(nodes) * (ways[chosen[name]].weights - ways[other].weights)
        chosen[name] = other


def _time(ways: Ways, choice: object, measured: Mapping[str, float]) -> float:
    """Measured seconds where all ways are known, else the estimate, in a unit of its own."""
    complete = all(choice_text(c) in measured for c in ways)
    return measured[choice_text(choice)] if complete else 1e-9 * ways[choice].time
