"""Offsets of channels in the biases of the layers that read them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tenon
from evaluate import evaluate
from networks_to_quantise import built, images
from tenon.network.graph.graph import Graph
from tenon.network.passes import optimize
from tenon.tools.quantization.bias_absorption import absorbed


def with_offsets(padding: int = 0, group: int = 1) -> Graph:
    """Two convolutions with a ReLU between them, whose channels hold 20 to 60 times their spread."""
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.normal(0, 0.3, (4, 3, 1, 1)),
        "ab": rng.uniform(20, 30, 4),
        "b": rng.normal(0, 1, (8, 4 // group, 3, 3)),
        "bb": rng.normal(0, 1, 8),
        "g": rng.normal(0, 1, (5, 8)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a", "ab"], ["1"]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b", "bb"], ["3"], pads=[padding] * 4, group=group),
        helper.make_node("GlobalAveragePool", ["3"], ["4"]),
        helper.make_node("Flatten", ["4"], ["5"]),
        helper.make_node("Gemm", ["5", "g"], ["y"], transB=1),
    ]
    return built(nodes, weights, [1, 3, 8, 8], [1, 5])


@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_network_computes_the_same(group: int) -> None:
    graph, given = optimize(with_offsets(group=group), fuse=False), images(8)
    other, count = absorbed(graph, [{"x": x} for x in given], 1)
    assert count >= 1
    assert other.nodes[0].input(2).array.max() < 0.2 * graph.nodes[0].input(2).array.max()
    for x in given:
        (mine,), (theirs,) = (evaluate(each, {"x": x}).values() for each in (other, graph))
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-3)


def test_zeros_around_the_image_are_no_offsets() -> None:
    graph = optimize(with_offsets(padding=1), fuse=False)
    other, _ = absorbed(graph, [{"x": x} for x in images(4)], 1)
    np.testing.assert_array_equal(other.nodes[0].input(2).array, graph.nodes[0].input(2).array)


def test_it_is_measured_and_kept_where_it_helps() -> None:
    report = tenon.quantize(with_offsets(), images(16), method="min-max", rounding="nearest").report
    assert "bias absorption" in report.applied
    assert report.repairs["bias absorption"] > report.repairs["bias correction"] + 2
