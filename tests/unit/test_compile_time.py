"""Compile time of long networks grows linearly with their length; measured in function calls."""

from __future__ import annotations

import cProfile
import pstats
import random as chance
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from tenon.machine.codegen import threads
from tenon.machine.codegen.threads import WorkDivision
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan import arena
from tenon.machine.plan import order as planned
from tenon.machine.plan.program import Place
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.ordering import Order
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.move import Concat
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
    """An order that takes, among the ready nodes, always the first one that leaves the least memory alive."""
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


def deepest_first(graph: Graph) -> list[Node]:
    """From each output, always the producer of the largest result among those that are left."""
    order: dict[Node, None] = {}

    def visit(n: Node) -> None:
        while left := [v.producer for v in n.inputs if v and v.producer and v.producer not in order]:
            visit(max(left, key=lambda n: n.output.type.nbytes))
        order[n] = None

    for output in graph.outputs:
        if output.producer and output.producer not in order:
            visit(output.producer)
    return [*order] if len(order) == len(graph) else list(graph)


@pytest.mark.parametrize("seed", range(5))
def test_depth_first_order_equals_the_repeated_search(seed: int) -> None:
    graph = random_sums(seed)
    graph.outputs = [v for v in graph.values() if v.producer and not v.uses]
    assert planned._depth_first(graph) == deepest_first(graph) != list(graph)


def test_overlapping_blocks() -> None:
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 40, 60)
    blocks = [arena.Block(1, int(a), int(a + n)) for a, n in zip(starts, rng.integers(0, 9, 60), strict=True)]
    for i, overlaps in enumerate(arena._meetings(blocks)):
        meets = [j for j, b in enumerate(blocks) if b.first <= blocks[i].last and blocks[i].first <= b.last]
        assert sorted([*overlaps, i]) == meets


def simple_greedy(blocks: Sequence[arena.Block], order: Sequence[int]) -> list[int]:
    """Each block in turn at the lowest of 0 and the ends of those that it meets that is free."""
    offsets: dict[int, int] = {}
    for i in order:
        met = [j for j in offsets if blocks[j].first <= blocks[i].last and blocks[i].first <= blocks[j].last]
        taken = [(offsets[j], offsets[j] + blocks[j].size) for j in met]
        size = blocks[i].size
        free = (
            at for at in sorted([0, *(end for _, end in taken)]) if all(at + size <= a or b <= at for a, b in taken)
        )
        offsets[i] = next(free)
    return [offsets[i] for i in range(len(blocks))]


def test_placement_by_loops_and_by_arrays_is_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    firsts, lives, sizes = (rng.integers(low, high, 90) for low, high in ((0, 60), (0, 20), (1, 9)))
    blocks = [arena.Block(64 * int(s), int(a), int(a + n)) for a, n, s in zip(firsts, lives, sizes, strict=True)]
    order = rng.permutation(len(blocks)).tolist()
    expected = simple_greedy(blocks, order)
    for few in (0, 20, 1000):
        monkeypatch.setattr(arena, "FEW", few)
        offsets, length = arena._Placement(blocks).greedy(order)
        assert offsets == expected
        assert length == max(offset + b.size for offset, b in zip(offsets, blocks, strict=True))


def made_calls(count: int, seed: int | None = None) -> list[WorkDivision]:
    """Calls of one kernel, of which some are divided among threads: each on memory of its own, or at random places."""
    call = next(c for c in tenon.compile(sums(1), target="null").program.calls if len(c.args) > 1)
    rng, parts = chance.Random(seed), list[WorkDivision]()
    for i in range(count):
        offsets = [rng.randrange(40) * 64 if seed is not None else (i * len(call.args) + j) * 64 for j in range(9)]
        args = tuple(Place(place.region, at) for place, at in zip(call.args, offsets, strict=False))
        divided = rng.random() < 0.5 if seed is not None else i % 2
        parts.append(WorkDivision(replace(call, args=args), WorkItems(4) if divided else None))
    return parts


def sums(count: int) -> bytes:
    """A chain of additions."""
    nodes = [node("Add", [f"v{i}", "x"], [f"v{i + 1}"]) for i in range(count)]
    nodes.insert(0, node("Neg", ["x"], ["v0"]))
    return bytes(model(nodes, {"x": [1, 4]}, [f"v{count}"]).SerializeToString())


@pytest.mark.parametrize("grid", [False, True])
def test_barriers_equal_the_quadratic_search(grid: bool) -> None:
    for seed in range(20):
        parts, since, expected = made_calls(30, seed), list[WorkDivision](), list[bool]()
        for part in parts:
            earlier = [p for p in since if grid or part.slices or p.slices]
            expected.append(any(threads.depends(part.call, p.call) for p in earlier))
            since = [part] if expected[-1] else [*since, part]
        assert list(threads.barriers(parts, grid=grid)) == expected
        assert 0 < sum(expected) < len(expected)


def skips(count: int) -> Graph:
    """Half of the values live until the mirrored node reads them."""
    graph = Graph("skips")
    values: list[Value] = [graph.add_input("x", tensor(F32, 1, 8))]
    for i in range(count):
        second = values[-1] if i < count // 2 else values[count - i]
        values.append(graph.add(Add(), [values[-1], second], [f"v{i}"]).output)
    graph.outputs = [values[-1]]
    return graph


def joined(count: int) -> Graph:
    """Branches that one node reads."""
    graph = Graph("joined")
    x = graph.add_input("x", tensor(F32, 1, 8))
    branches = [graph.add(Add(), [x, x], [f"v{i}"]).output for i in range(count)]
    graph.outputs = [graph.add(Concat(axis=1), branches, ["y"]).output]
    return graph


def barriers_of(count: int) -> Callable[[], object]:
    parts = made_calls(count)
    return lambda: list(threads.barriers(parts))


def placed(count: int) -> Callable[[], object]:
    blocks = [arena.Block(64, i, 2 * count - i) for i in range(count)]
    return lambda: arena.place(blocks)


def ordered(made: Callable[[int], Graph]) -> Callable[[int], Callable[[], object]]:
    return lambda count: partial(planned.orders, made(count))


@pytest.mark.parametrize(
    "part", [barriers_of, placed, ordered(skips), ordered(joined)], ids=["barriers", "arena", "skips", "joined"]
)
def test_parts_do_linear_work(part: Callable[[int], Callable[[], object]]) -> None:
    """Where many values live at once, nothing depends on anything, or a node reads many values."""
    few, many = (calls(part(count)) for count in (300, 1200))
    assert many < 5 * few
