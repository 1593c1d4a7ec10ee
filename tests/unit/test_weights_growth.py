"""Without a budget, fast algorithms enlarge weights by more than half only where that saves time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tenon.machine.algorithms.base import Cost
from tenon.machine.plan.choose import GROWTH, WORTH, choose, streaming
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.ops.conv import Conv
from tenon.network.ops.mask import Mask
from tenon.network.passes.size_classes import chosen_by_size

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
    """The costs of the candidates of each layer, best first."""
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


def classes(*sizes: int) -> Graph:
    """1x1 convolutions of images of as many rows and columns as a run says: a graph for each of these largest sizes,
    of which a run takes one."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((outs, ins, 1, 1)) for ins, outs in ((128, 256), (256, 512), (512, 512), (512, 128))]

    def network(most: int) -> Graph:
        graph = Graph("network")
        value, size = graph.add_input("x", tensor(F32, 1, 128, most, most)), graph.add_input("H", tensor(I64))
        graph.sizes, graph.extents["x"] = {"H": SizeRange(1, most)}, ((2, "H"), (3, "H"))
        for array in arrays:
            weights = graph.constant("w", array.astype(np.float32))
            value = graph.add(Mask(2, 0.0), [value, size], [f"m{len(graph)}"]).output
            value = graph.add(Conv(), [value, weights], [f"y{len(graph)}"]).output
        graph.outputs, graph.extents[value.name] = [value], ((2, "H"), (3, "H"))
        return graph

    return chosen_by_size(network(sizes[-1]), [network(size) for size in sizes[:-1]])


def test_size_classes_are_chosen_by_what_is_stored() -> None:
    """Layers of several classes have the same weights: packed alike, these are stored once."""
    graph = classes(8, 16, 32)
    chosen = choose(graph, SETTING, {})
    packings, stored, plain = dict[bytes, set[object]](), dict[object, int](), dict[bytes, int]()
    for node in (node for part in with_bodies(graph) for node in part if isinstance(node.op, Conv)):
        here, op = site(node, SETTING), operator(node)
        own = next(each for each in op.candidates(here) if chosen.get(key(node), each.key) == each.key)
        content = node.input(1).array.tobytes()
        packings.setdefault(content, set()).add(own.packing)
        stored[content, own.packing] = op.cost(replace(here, algorithm=own)).weights
        plain[content] = node.input(1).array.nbytes
    assert [len(each) for each in packings.values()] == [1, 1, 1, 1]
    assert sum(stored.values()) > sum(plain.values())
