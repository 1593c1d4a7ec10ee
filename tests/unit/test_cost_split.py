"""The split of a network between a device and the processor, by estimated times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import onnx
import onnx.parser
import pytest

import tenon
from onnx_models import model, node, random
from tenon.errors import InputError
from tenon.network.graph.bind import bind
from tenon.network.graph.graph import Graph, Node, Value
from tenon.plugins import DeviceRule, Part, SplitCosts, TargetDevice, partition, placed
from tenon.runtime.plugins.cost_split import ASSUMED_ITERATIONS, Places, PlaceTimes, fastest_split
from tenon.runtime.plugins.device import ExplainingDevice, TimedDevice


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


def cost(graph: Graph, places: Places, costs: Sequence[SplitCosts]) -> float:
    """Seconds of a split between the processor and devices of these costs, by definition."""
    total = sum(costs[at - 1].on_device(n) if at else costs[0].on_processor(n) for n, at in places.items())

    def home(value: Value) -> int:
        return places[value.producer] if value.producer is not None else 0

    for value in [*graph.inputs, *(v for n in graph for v in n.outputs)]:
        readers = {places[reader] for reader in value.uses} | ({0} if graph.is_output(value) else set())
        if home(value) and readers - {home(value)}:
            total += costs[home(value) - 1].copied(value)
        total += sum(costs[at - 1].copied(value) for at in readers - {0, home(value)})
    return total


def chosen(graph: Graph, costs: Sequence[SplitCosts], forbidden: Node) -> Places:
    """The split of least time, in which a node stays on the processor."""
    values = [*graph.inputs, *(v for n in graph for v in n.outputs)]
    here = PlaceTimes({n: costs[0].on_processor(n) for n in graph}, {})
    devices = [
        PlaceTimes({n: inf if n is forbidden else c.on_device(n) for n in graph}, {v: c.copied(v) for v in values})
        for c in costs
    ]
    return fastest_split(graph, [here, *devices])


def random_costs(rng: np.random.Generator) -> SplitCosts:
    """Costs for which most splits are mixed."""
    a, b, c, d = (float(10**e) for e in rng.uniform(4, 7, 4))
    return SplitCosts(a, b, c, d, launch=1e-4, copied_bytes=1e6, copy=2e-4)


def least(graph: Graph, costs: Sequence[SplitCosts], forbidden: Node) -> float:
    """The least of all splits."""
    nodes = list(graph)
    splits = (dict(zip(nodes, places, strict=True)) for places in product(range(len(costs) + 1), repeat=len(nodes)))
    return min(cost(graph, split, costs) for split in splits if not split[forbidden])


@pytest.mark.parametrize("seed", range(6))
def test_no_split_takes_less_time(seed: int) -> None:
    """The least of all 256."""
    graph, rng = branches(seed), np.random.default_rng(seed)
    costs = [random_costs(rng)]
    forbidden = list(graph)[int(rng.integers(len(graph)))]
    places = chosen(graph, costs, forbidden)
    assert places[forbidden] == 0
    assert cost(graph, places, costs) == pytest.approx(least(graph, costs, forbidden), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_two_devices_are_near_the_least_time(seed: int) -> None:
    """There are 6561 splits; the bound is the method's (twice), and these take the least time or little more."""
    graph, rng = branches(seed), np.random.default_rng(10 + seed)
    costs = [random_costs(rng), replace(random_costs(rng), processor_macs=1, processor_bytes=1)]
    forbidden = list(graph)[int(rng.integers(len(graph)))]
    places = chosen(graph, costs, forbidden)
    assert places[forbidden] == 0
    assert cost(graph, places, costs) <= 1.05 * least(graph, costs, forbidden)


def test_small_networks_stay_on_the_processor() -> None:
    """A copy takes longer than all of it."""
    (section,) = partition(placed(branches(0), [TargetDevice("opencl")]))
    assert not section.on_device


def test_what_is_slow_on_the_processor_goes_to_the_device() -> None:
    content = model(
        [node("MatMul", ["x", "w"], ["y"]), node("Relu", ["y"], ["z"])],
        {"x": [512, 1024]},
        ["z"],
        {"w": np.zeros((1024, 1024), np.float32)},
    ).SerializeToString()
    (section,) = partition(placed(bind(tenon.load(content), None), [TargetDevice("cuda")]))
    assert section.on_device


def test_targets_of_processors_are_no_devices() -> None:
    with pytest.raises(InputError, match="x86-64 is a target of processors: a device is a GPU target"):
        TargetDevice("x86-64")


class SoftmaxDevice:
    """A device for one operator, which is slow."""

    name = "NPU"

    def describe(self) -> str:
        return "nothing"

    def supports(self, node: Node) -> bool:
        return not self.refusal(node)

    def refusal(self, node: Node) -> str:
        return "" if node.op.name == "Softmax" else "has no multipliers"

    def seconds(self, node: Node) -> float:
        return 1.0

    def copy_seconds(self, value: Value) -> float:
        return 1.0

    def prerun(self, model: bytes) -> Part:
        raise NotImplementedError

    def release(self) -> None:
        """Nothing is held."""


def test_layers_that_are_assigned() -> None:
    """Names of layers, results and operators, with wildcards; the last rule counts, and names ignore case."""
    graph, devices = branches(0), (TargetDevice("opencl"), SoftmaxDevice())
    assert isinstance(devices[1], TimedDevice)
    assert isinstance(devices[1], ExplainingDevice)

    def devices_of(*rules: str) -> list[tuple[str, str]]:
        places = placed(graph, devices, [DeviceRule.parse(rule) for rule in rules]).described()
        return [(layer.device, layer.reason) for layer in places.layers]

    usual = [("cpu", "")] * 8
    assert devices_of() == usual
    fitting = devices_of("MatMul=opencl", "Softmax=npu", "c=host", "h=NPU")
    on_gpu, assigned = ("opencl", "assigned"), ("cpu", "assigned")
    refused = ("cpu", "assigned to NPU, which has no multipliers")
    between = ("opencl", "")  # of two products, which are there
    assert fitting == [on_gpu, usual[0], assigned, between, on_gpu, usual[0], ("NPU", "assigned"), refused]
    assert devices_of("*=opencl") == [on_gpu] * 8
    for rule, said in (
        ("a", "write LAYER=DEVICE"),
        ("a=tpu", "no device tpu in this network: they are cpu, opencl, NPU"),
        ("MatMull=cpu", "no layer has that name"),
    ):
        with pytest.raises(InputError, match=said):
            devices_of(rule)


def test_loops_and_branches_take_the_time_of_their_bodies() -> None:
    """A loop that of all iterations, of an assumed number where a run decides it, and a branch that of the longer
    body; on a device every number that a run decides by is a copy."""
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 21]> g (int64 n, bool c, float[64,64] x) => (float[64,64] y) {'
        " yes = Constant <value = bool {1}> () forty = Constant <value = int64 {40}> ()"
        " p = MatMul(x, x)"
        " q = Loop (forty, yes, x) <body = b (int64 i, bool h, float[64,64] t) => (bool k, float[64,64] u)"
        " { k = Identity(h) u = MatMul(t, t) }>"
        " r = Loop (n, yes, q) <body = d (int64 i2, bool h2, float[64,64] t2) => (bool k2, float[64,64] u2)"
        " { k2 = Identity(h2) u2 = MatMul(t2, t2) }>"
        " v = If (c) <then_branch = e () => (float[64,64] w) { w = MatMul(r, p) },"
        " else_branch = f () => (float[64,64] z) { z = Relu(r) }>"
        " y = Add(v, p) }"
    )
    graph, costs = tenon.load(made.SerializeToString()), SplitCosts()
    matmul, known, counted, branch = (n for n in graph if n.op.name in ("MatMul", "Scan", "If"))
    here, there = costs.on_processor(matmul), costs.on_device(matmul)
    times = (1, 40, ASSUMED_ITERATIONS, 1)
    for node_, runs, reads in zip((matmul, known, counted, branch), times, (0, 0, 1, 1), strict=True):
        assert costs.on_processor(node_) == pytest.approx(runs * here)
        assert costs.on_device(node_) == pytest.approx(runs * (there + reads * costs.copy))
