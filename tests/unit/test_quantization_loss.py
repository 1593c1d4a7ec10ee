"""What the search for ranges and repairs reduces, and the probes that it measures with."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tenon
from networks_to_quantise import built, images, separable
from tenon.ir.graph import Graph
from tenon.passes import optimize
from tenon.quantization.loss import is_classifier, loss_of, relative_entropy
from tenon.quantization.probes import Probes


def test_scores_that_compete_count_more_than_those_far_below() -> None:
    scores = np.array([[5.0, 4.9, -5.0, -6.0]], np.float32)
    changed, harmless = scores.copy(), scores.copy()
    changed[0, 1] += 0.3  # the largest is another one
    harmless[0, 3] += 0.3
    assert relative_entropy(scores, scores) == pytest.approx(0, abs=1e-12)
    assert relative_entropy(scores, scores + 2) == pytest.approx(0, abs=1e-6)
    assert relative_entropy(scores, changed) > 1000 * relative_entropy(scores, harmless)
    (few, same), (many, other) = loss_of(0.01, 0.001), loss_of(0.01, 0.1)
    assert same == other == 0.01
    assert few < many
    assert loss_of(0.01, 0.0).total == 0.01


def dense(inputs: int, outputs: int) -> Graph:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    return built(nodes, {"w": np.ones((inputs, outputs))}, [1, inputs], [1, outputs])


def test_vectors_of_scores_are_those_of_a_classifier() -> None:
    assert is_classifier(separable())
    assert is_classifier(dense(6, 3))
    assert not is_classifier(dense(6, 6))  # an autoencoder's
    assert not is_classifier(dense(6, 1))


def test_ranges_of_outputs_are_widened_behind_a_reshape() -> None:
    """The tensor with the grid is what the reshape reads."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"], name="scores"),
        helper.make_node("GlobalAveragePool", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["3"]),
        helper.make_node("Flatten", ["3"], ["y"]),
    ]
    weights = {"a": rng.normal(0, 1, (6, 3, 1, 1)), "b": rng.normal(0, 1, (5, 6, 1, 1))}
    graph = built(nodes, weights, [1, 3, 8, 8], [1, 5])
    tried = tenon.quantize(graph, images(16), method="min-max", rounding="nearest", equalisation=False).report.methods
    assert tried["outputs x 1.5"] != tried["outputs x 1.1"]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_samples_computed_at_the_same_time_come_in_their_order(count: int) -> None:
    graph = optimize(separable(), fuse=False)
    samples = [{"x": x} for x in images(count)]
    values = [*graph.inputs, graph.nodes[0].output, *graph.outputs]
    found = []
    for threads in (1, 3):
        probes = Probes(graph, values, threads=threads)
        found.append([b"".join(each[v].tobytes() for v in values) for each in probes.run(samples)])
        next(probes.run(samples))  # the rest of the samples is given up
        assert [each[values[0]].tobytes() for each in probes.run(samples[:1])] == [samples[0]["x"].tobytes()]
        probes.close()
    assert found[0] == found[1]
    assert len(set(found[0])) == count
