"""Batches whose images are computed one after the other: which layers are in the loop, and when there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from tenon.machine.algorithms.base import Limits
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.program import Program, Repeat
from tenon.machine.targets import find
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph
from tenon.network.ops.scan import Scan
from tenon.network.passes import image_loop
from tenon.network.passes.image_loop import with_image_loop
from tenon.tools.tune.search import jobs

BATCH = 3
WEIGHTS = {
    "w": random(16, 3, 3, 3),
    "v": random(16, 16, 1, 1),
    "u": random(16, 8),
    "shape": np.array([BATCH, 16], np.int64),
    "each": random(BATCH, 16, 1, 1),
}


def network(*last: Any, output: str = "y", size: int = 10, batch: int = BATCH) -> Graph:
    """Two convolutions with a residual, and what follows ``e``."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["d"]),
        node("Add", ["d", "r"], ["e"]),
        *last,
    ]
    text = model(nodes, {"x": [batch, 3, size, size]}, [output], WEIGHTS)
    return tenon.load(text.SerializeToString())


HEAD = (
    node("GlobalAveragePool", ["e"], ["g"]),
    node("Reshape", ["g", "shape"], ["f"]),
    node("MatMul", ["f", "u"], ["m"]),
    node("Softmax", ["m"], ["y"], axis=1),
)


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_loop, "CACHED", 1000)


def loops(graph: Graph) -> list[Graph]:
    return [node.bodies[0] for node in graph if isinstance(node.op, Scan)]


def agree(graph: Graph, changed: Graph) -> None:
    feeds = {v.name: np.random.default_rng(0).standard_normal(v.type.dims).astype(np.float32) for v in graph.inputs}
    expected, got = evaluate(graph, feeds), evaluate(changed, feeds)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------ which layers
def test_a_whole_network_is_a_loop() -> None:
    graph = network(*HEAD)
    changed = with_image_loop(graph)
    assert [n.op.name for n in changed] == ["Scan"]
    (body,) = loops(changed)
    assert {v.type.dims[0] for n in body for v in n.outputs if v.type.rank == 4} == {1}
    assert len(graph) == 8  # it is not changed
    agree(graph, changed)


def test_products_of_one_position_by_large_weights_are_those_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_loop, "LARGE", 256)
    graph = network(*HEAD)
    changed = with_image_loop(graph)
    assert [n.op.name for n in changed] == ["Scan", "MatMul", "Softmax"]
    agree(graph, changed)


@pytest.mark.parametrize(
    "last",
    [
        (node("Softmax", ["e"], ["y"], axis=0),),
        (node("Add", ["e", "each"], ["y"]),),
        (node("CumSum", ["e", "axis"], ["y"]),),
        (node("Transpose", ["e"], ["t"], perm=[1, 0, 2, 3]), node("Transpose", ["t"], ["y"], perm=[1, 0, 2, 3])),
        (node("ReduceMean", ["e"], ["t"], axes=[0]), node("Mul", ["e", "t"], ["y"])),
    ],
    ids=lambda last: last[0].op_type,
)
def test_what_mixes_images_is_outside(last: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WEIGHTS, "axis", np.array(0, np.int64))
    graph = network(*last)
    changed = with_image_loop(graph)
    inside = {n.op.name for body in loops(changed) for n in body}
    assert inside == {"Unsqueeze", "Conv", "Relu", "Add", "Squeeze"} or inside == {
        "Unsqueeze",
        "Conv",
        "Relu",
        "Squeeze",
    }
    assert len(changed) >= 2
    agree(graph, changed)


def test_results_that_others_read_leave_the_loop() -> None:
    """An output of the network in the middle, and a value that a layer outside reads."""
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["d"]),
        node("Sigmoid", ["d"], ["s"]),
        node("Add", ["s", "each"], ["y"]),
    ]
    text = model(nodes, {"x": [BATCH, 3, 8, 8]}, ["y", "r"], WEIGHTS)
    graph = tenon.load(text.SerializeToString())
    changed = with_image_loop(graph)
    assert [n.op.name for n in changed] == ["Scan", "Add"]
    assert [v.name for v in changed.outputs] == ["y", "r"]
    agree(graph, changed)


# ------------------------------------------------------------------------------------------ when
def test_one_image_and_small_results_are_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    last = (node("Relu", ["e"], ["y"]),)
    assert not loops(with_image_loop(network(*last, batch=1)))
    monkeypatch.setattr(image_loop, "CACHED", 1 << 20)
    assert not loops(with_image_loop(network(*last)))


def program(**options: Any) -> Program:
    return tenon.compile(network(*HEAD, size=40), no_tuning=True, target="x86-64-avx2", **options).program


def test_few_threads_of_a_processor_compute_image_by_image() -> None:
    together, apart = program(threads=8), program()
    assert not any(isinstance(item, Repeat) for item in together.items)
    assert [item.count for item in apart.items if isinstance(item, Repeat)] == [BATCH]
    assert apart.memory.activations < together.memory.activations / 2
    for options in ({"optimize": 1}, {"profile": True}, {"ram": 1 << 30}):
        assert not any(isinstance(item, Repeat) for item in program(**options).items)


def test_layers_in_the_loop_are_tuned() -> None:
    setting = Setting(find("x86-64-avx2").machine, Limits())
    assert {job.name for job in jobs(with_image_loop(network(*HEAD, size=40)), setting)} >= {"the_c", "the_d"}


def test_the_bundle_gives_what_the_network_gives() -> None:
    graph = network(*HEAD)
    with tenon.open(tenon.compile(graph, no_tuning=True)) as engine:
        feeds = {"x": np.random.default_rng(0).standard_normal((BATCH, 3, 10, 10)).astype(np.float32)}
        np.testing.assert_allclose(engine.run(feeds)["y"], evaluate(graph, feeds)["y"], rtol=1e-4, atol=1e-5)
