"""Kinds of channels of a detector's last convolution have scales of their own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tenon
from evaluate import evaluate
from networks_to_quantise import built, images
from tenon.network.graph.graph import Graph
from tenon.network.passes import optimize
from tenon.tools.quantization.head_scales import with_head_scales


def detector(kinds: bool = True) -> Graph:
    """Two boxes of 2 offsets and 4 scores in each cell, from one convolution; without ``kinds``, scores alone."""
    rng = np.random.default_rng(0)
    head = rng.normal(0, 0.3, (12, 6, 1, 1)) * np.tile([0.1, 0.1, 3, 3, 3, 3], 2)[:, None, None, None]
    bias = np.tile([0.0, 0.0, -9, -9, -9, -9], 2)
    weights = {"a": rng.normal(0, 1, (6, 3, 3, 3)), "h": head, "hb": bias}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "h", "hb"], ["3"], name="head"),
        helper.make_node("Reshape", ["3", "shape"], ["4"]),
    ]
    if kinds:
        nodes += [
            helper.make_node("Split", ["4", "parts"], ["5", "6"], axis=2),
            helper.make_node("Exp", ["5"], ["7"]),
            helper.make_node("Sigmoid", ["6"], ["8"]),
            helper.make_node("Concat", ["7", "8"], ["y"], axis=2),
        ]
    else:
        nodes.append(helper.make_node("Sigmoid", ["4"], ["y"]))
    constants = {"shape": np.array([1, 2, 6, 36]), "parts": np.array([2, 4])}
    return optimize(built(nodes, weights, [1, 3, 8, 8], [1, 2, 6, 36], constants), fuse=False)


def test_results_stay_the_same() -> None:
    graph, given = detector(), images(8)
    made, count = with_head_scales(graph, [{"x": x} for x in given], 1)
    assert count == 1
    for x in images(4, seed=2):
        (ours,), (real,) = (evaluate(each, {"x": x}).values() for each in (made, graph))
        np.testing.assert_allclose(ours, real, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", ["one kind", "outputs"])
def test_other_products_stay_as_they_are(place: str) -> None:
    graph = detector(kinds=place == "outputs")
    if place == "outputs":  # the raw tensor is an output, too
        head = next(n for n in graph if n.origin.layer == "head" or n.op.name == "Reshape")
        graph.outputs.append(head.output)
    assert with_head_scales(graph, [{"x": x} for x in images(4)], 1)[1] == 0


def test_offsets_beside_scores_have_less_noise() -> None:
    graph, given, tests = detector(), images(16), images(16, seed=2)
    noise = []
    for equalisation in (False, None):
        made = tenon.quantize(graph, given, equalisation=equalisation, range_search=False)
        assert ("head scales" in made.report.applied) == (equalisation is None)
        with tenon.open(tenon.compile(made.graph)) as engine:
            results = [next(iter(engine.run(x).values())) for x in tests]
        real = [next(iter(evaluate(graph, {"x": x}).values())) for x in tests]
        noise.append(np.mean([(a - b)[:, :, :2] ** 2 for a, b in zip(results, real, strict=True)]))
    assert noise[1] < 0.25 * noise[0]
