"""Compile time of long networks grows linearly with their length; measured in function calls."""

from __future__ import annotations

import cProfile
import pstats
import random as chance
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from tenon.machine.plan import arena
from tenon.machine.plan import order as planned
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.ordering import Order
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.pointwise import Add

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(kind: str, steps: int, hidden: int = 8) -> bytes:
    gates, inputs = GATES[kind], 6
    weights = {
        "w": random(2, gates * hidden, inputs),
        "r": random(2, gates * hidden, hidden),
        "b": random(2, 2 * gates * hidden),
    }
    made = node(kind, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction="bidirectional")
    return bytes(model([made], {"x": [steps, 1, inputs]}, ["y"], weights).SerializeToString())


def calls(work: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(work)
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def test_work_grows_with_the_number_of_steps() -> None:
    """Four times the steps take four times the calls, with some allowance for logarithmic factors."""

    def work(steps: int) -> int:
        return calls(lambda: tenon.compile(recurrent("LSTM", steps), target="null"))

    work(4)  # work done once per process
    assert work(96) < 5 * work(24)


@pytest.mark.parametrize("kind", GATES)
def test_recurrent_weights_are_not_copied_for_each_step(kind: str) -> None:
    def large(steps: int) -> int:
        graph = tenon.load(recurrent(kind, steps))
        return sum(v.array.nbytes for v in graph.constants() if v.array.size > 1)

    assert large(20) < large(4) + 20 * 100  # starts and ends of slices


def test_long_recurrent_layer_stays_below_the_constant_limit() -> None:
    assert tenon.load(recurrent("LSTM", 160, hidden=512))  # copies of the weights for each step would take 1.3 GB


# ------------------------------------------------------------------------------------------- their parts
def test_node_order_behaves_like_a_list() -> None:
    rng, order, expected = chance.Random(0), Order[int](), list[int]()
    for item in range(600):
        kind = rng.random()
        if kind < 0.3 or not expected:
            order.append(item)
            expected.append(item)
        elif kind < 0.8:
            at = rng.choice([0, rng.randrange(len(expected)), len(expected) // 2])
            order.insert(item, expected[at])
            expected.insert(at, item)
        else:
            order.remove(expected.pop(rng.randrange(len(expected))))
        assert list(order) == expected
        assert len(order) == len(expected)
    assert all(order.position(a) < order.position(b) for a, b in pairwise(expected))
    with pytest.raises(KeyError):
        order.remove(-1)


def test_positions_increase_after_repeated_insertion_before_a_node() -> None:
    order = Order(["first", "last"])
    for i in range(200):
        order.insert(f"new {i}", "last")
    places = [order.position(item) for item in order]
    assert places == sorted(set(places))


def random_sums(seed: int) -> Graph:
    """Random sums of earlier values, some of which are outputs."""
    rng, graph = chance.Random(seed), Graph("tangle")
    values: list[Value] = [graph.add_input("x", tensor(F32, 1, 8)), graph.add_input("z", tensor(F32, 7, 1))]
    for i in range(60):
        values.append(graph.add(Add(), [rng.choice(values), rng.choice(values[-8:])], [f"v{i}"]).output)
    graph.outputs = [values[-1], rng.choice(values[2:])]
    return graph


def quadratic_greedy_order(graph: Graph) -> list[Node]:
    """Of the ready nodes, always the first one that leaves the least memory alive."""
    waiting, done, order = list(graph), set[Value](), list[Node]()

    def growth(n: Node) -> int:
        made = sum(v.type.nbytes for v in n.outputs)
        last = [v for v in {*n.inputs} if v and v.producer and not graph.is_output(v) and {*v.uses} - {*order} == {n}]
        return made - sum(v.type.nbytes for v in last)

    while waiting:
        ready = [n for n in waiting if all(v is None or v.producer is None or v in done for v in n.inputs)]
        best = min(ready, key=growth)
        order.append(best)
        waiting.remove(best)
        done.update(best.outputs)
    return order


@pytest.mark.parametrize("seed", range(5))
def test_greedy_order_equals_the_quadratic_search(seed: int) -> None:
    graph = random_sums(seed)
    assert planned._greedy(graph) == quadratic_greedy_order(graph)


def test_overlapping_blocks() -> None:
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 40, 60)
    blocks = [arena.Block(1, int(a), int(a + n)) for a, n in zip(starts, rng.integers(0, 9, 60), strict=True)]
    for i, overlaps in enumerate(arena._meetings(blocks)):
        meets = [j for j, b in enumerate(blocks) if b.first <= blocks[i].last and blocks[i].first <= b.last]
        assert sorted([*overlaps, i]) == meets
