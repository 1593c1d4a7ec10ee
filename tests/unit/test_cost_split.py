"""The split of a network between a device and the processor, by estimated times."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from tenon.errors import InputError
from tenon.network.graph.bind import bind
from tenon.network.graph.graph import Graph, Node, Value
from tenon.plugins import SplitCosts, TargetDevice
from tenon.runtime.plugins.cost_split import fastest_split
from tenon.runtime.plugins.partition import partition


def branches(seed: int) -> Graph:
    """Eight nodes with two branches, a join, and two outputs."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, 3)
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Sigmoid", ["a"], ["d"]),
        node("MatMul", ["d", "v"], ["e"]),
        node("Add", ["c", "e"], ["f"]),
        node("Softmax", ["f"], ["g"]),
        node("Exp", ["e"], ["h"]),
    ]
    weights = {"w": random(int(sizes[0]), int(sizes[1])), "v": random(int(sizes[1]), int(sizes[2]))}
    content = model(nodes, {"x": [4, int(sizes[0])]}, ["g", "h"], weights).SerializeToString()
    return bind(tenon.load(content), None)


def cost(graph: Graph, on_device: frozenset[Node], costs: SplitCosts) -> float:
    """Seconds of a split, by definition."""
    total = sum(costs.on_device(n) if n in on_device else costs.on_processor(n) for n in graph)

    def is_there(value: Value) -> bool:
        return value.producer in on_device

    values = [*graph.inputs, *(v for n in graph for v in n.outputs)]
    for value in values:
        readers = {reader in on_device for reader in value.uses} | ({False} if graph.is_output(value) else set())
        total += costs.copied(value) * ((not is_there(value)) in readers)
    return total


@pytest.mark.parametrize("seed", range(6))
def test_no_split_takes_less_time(seed: int) -> None:
    """The least of all 256; the costs are such that most splits are mixed."""
    graph = branches(seed)
    rng = np.random.default_rng(seed)
    a, b, c, d = (float(10**e) for e in rng.uniform(4, 7, 4))
    costs = SplitCosts(a, b, c, d, launch=1e-4, copied_bytes=1e6, copy=2e-4)
    nodes = list(graph)
    forbidden = nodes[int(rng.integers(len(nodes)))]
    chosen = fastest_split(graph, costs, lambda n: n is not forbidden)
    assert forbidden not in chosen
    splits = (frozenset(n for n, taken in zip(nodes, bits, strict=True) if taken) for bits in product((0, 1), repeat=8))
    least = min(cost(graph, split, costs) for split in splits if forbidden not in split)
    assert cost(graph, chosen, costs) == pytest.approx(least, rel=1e-9)


def test_small_networks_stay_on_the_processor() -> None:
    """A copy takes longer than all of it."""
    (section,) = partition(branches(0), TargetDevice("opencl"))
    assert not section.on_device


def test_what_is_slow_on_the_processor_goes_to_the_device() -> None:
    content = model(
        [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["y"], ["z"])],
        {"x": [512, 1024]},
        ["z"],
        {"w": np.zeros((1024, 1024), np.float32)},
    ).SerializeToString()
    (section,) = partition(bind(tenon.load(content), None), TargetDevice("cuda"))
    assert section.on_device


def test_targets_of_processors_are_no_devices() -> None:
    with pytest.raises(InputError, match="x86-64 is a target of processors: a device is a GPU target"):
        TargetDevice("x86-64")
