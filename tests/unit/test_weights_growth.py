"""Without a budget, fast algorithms enlarge weights by more than half only where that saves time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tenon.machine.algorithms.base import Cost
from tenon.machine.plan.choose import GROWTH, WORTH, choose, streaming
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.conv import Conv

SETTING = Setting(find("x86-64-avx2").machine)


def network(*sizes: int) -> Graph:
    """3x3 convolutions of 64 channels, of images of these sizes."""
    graph = Graph("layers")
    graph.outputs = []
    for i, size in enumerate(sizes):
        x = graph.add_input(f"x{i}", tensor(F32, 1, 64, size, size))
        w = graph.constant(f"w{i}", np.zeros((64, 64, 3, 3), np.float32))
        graph.outputs.append(graph.add(Conv(pads=(1, 1, 1, 1)), [x, w], [f"y{i}"]).output)
    return graph


def costs(graph: Graph) -> list[dict[str, Cost]]:
    """What the candidates of each layer cost, best first."""
    return [
        {each.key: operator(node).cost(replace(here, algorithm=each)) for each in operator(node).candidates(here)}
        for node, here in ((node, site(node, SETTING)) for node in graph)
    ]


def growth_and_time(graph: Graph, chosen: dict[str, str]) -> tuple[float, float]:
    """Bytes of weights over the fewest ones, and time over that of the fastest algorithms."""
    listed = costs(graph)
    used = [each[chosen.get(key(node), next(iter(each)))] for node, each in zip(graph, listed, strict=True)]
    fewest = sum(min(cost.weights for cost in each.values()) for each in listed)
    fastest = sum(next(iter(each.values())).time for each in listed)
    return sum(cost.weights for cost in used) / fewest, sum(cost.time for cost in used) / fastest


def test_weights_stay_small_where_that_takes_little_time() -> None:
    graph = network(112, *range(3, 10))  # small images gain little time, and have most weights
    assert growth_and_time(graph, {})[0] > GROWTH
    chosen = choose(graph, SETTING, {})
    growth, time = growth_and_time(graph, chosen)
    assert growth <= GROWTH
    assert time < 1 + WORTH


def test_weights_grow_where_that_saves_time() -> None:
    graph = network(56, 28)
    assert growth_and_time(graph, {})[0] > GROWTH
    assert choose(graph, SETTING, {}) == {}


def test_what_is_lost_is_counted_from_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are in the order of their times before layouts are known: the first may not be the fastest."""
    graph, (conv,) = network(14), {type(operator(node)) for node in network(14)}
    first, large, small = (each for each in operator(graph.nodes[0]).candidates(site(graph.nodes[0], SETTING))[:3])
    known = {first: Cost(1.1, 400), large: Cost(1.0, 400), small: Cost(1.11, 100)}
    monkeypatch.setattr(conv, "candidates", lambda *_: tuple(known))
    monkeypatch.setattr(conv, "cost", lambda _, here: known[here.algorithm])
    assert set(choose(graph, SETTING, {}).values()) <= {large.key}
    known[small] = Cost(1.0 + WORTH / 2, 100)
    assert set(choose(graph, SETTING, {}).values()) == {small.key}


def test_a_budget_that_allows_more_is_used() -> None:
    graph = network(112, *range(3, 10))
    chosen = choose(graph, SETTING, {}, max_weights=1 << 30)
    assert growth_and_time(graph, chosen)[1] == pytest.approx(1)


def test_layers_get_the_rest_of_a_budget() -> None:
    """The last layer to become smaller saves more than was needed: another one may be faster again."""
    graph = network(56, 28, 14)
    listed = costs(graph)
    least = sum(min(cost.weights for cost in each.values()) for each in listed)
    for more in range(0, 4 << 20, 1 << 18):
        chosen = choose(graph, SETTING, {}, max_weights=least + more)
        used = [each[chosen[key(node)]] for node, each in zip(graph, listed, strict=True)]
        room = least + more - sum(cost.weights for cost in used)
        for each, now in zip(listed, used, strict=True):
            assert not [o for o in each.values() if o.weights - now.weights <= room and o.time < now.time]


def test_weights_that_no_cache_keeps_arrive_from_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, machine = network(7), SETTING.machine
    assert streaming(graph, SETTING) is SETTING
    monkeypatch.setattr("tenon.machine.plan.choose.CACHED", 4 * 64 * 64 * 9 - 1)
    assert machine.memory is not None
    assert streaming(graph, SETTING).machine.stream == machine.memory < machine.stream
    assert streaming(graph, replace(SETTING, machine=replace(machine, memory=None))).machine.stream == machine.stream
