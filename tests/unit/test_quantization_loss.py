"""The loss that the search for ranges and repairs reduces, and the probes that it measures with."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tenon
from networks_to_quantise import built, images, separable
from tenon.network.graph.graph import Graph
from tenon.network.passes import optimize
from tenon.tools.quantization.bias_correction import correct
from tenon.tools.quantization.calibration import observed
from tenon.tools.quantization.candidates import Candidates, Request
from tenon.tools.quantization.insertion import products
from tenon.tools.quantization.loss import is_classifier, loss_of, relative_entropy
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.scheme import named_scheme
from tenon.tools.quantization.simulation import Simulation


def test_scores_that_compete_count_more_than_those_far_below() -> None:
    scores = np.array([[5.0, 4.9, -5.0, -6.0]], np.float32)
    changed, harmless = scores.copy(), scores.copy()
    changed[0, 1] += 0.3  # the largest is another one
    harmless[0, 3] += 0.3
    assert relative_entropy(scores, scores) == pytest.approx(0, abs=1e-12)
    assert relative_entropy(scores, scores + 2) == pytest.approx(0, abs=1e-6)
    assert relative_entropy(scores, changed) > 1000 * relative_entropy(scores, harmless)
    (few, same, _), (many, other, _) = loss_of(0.01, 0.001), loss_of(0.01, 0.1)
    assert same == other == 0.01
    assert few < many
    assert loss_of(0.01, None).total == 0.01
    assert loss_of(0.01, 0.0) < loss_of(0.01, 1e-9)


def test_divergence_is_never_negative() -> None:
    """The divergence of equal scores is zero, up to rounding."""
    rng = np.random.default_rng(0)
    for scores in rng.normal(0, 300, (200, 5)):
        assert relative_entropy(scores, scores + rng.normal(0, 1e-13, 5)) >= 0


@pytest.mark.parametrize(("scheme", "whole"), [("int8", True), ("int4-weights", False)])
def test_noise_alone_counts_where_no_answer_changes(scheme: str, whole: bool) -> None:
    given = [{"x": x} for x in images(32)]
    made = Candidates(optimize(separable(), fuse=False), given, Request(named_scheme(scheme)))
    calibrated = made._calibrated(made.graph)
    simulation = made._simulated(calibrated)
    before = made._loss(calibrated, simulation)
    best = made._judged(calibrated, simulation, made._quality(calibrated, simulation))
    after = made._loss(calibrated, simulation)
    simulation.close()
    assert (before.changed == 0) == whole
    assert before.total != before.noise == after.noise
    assert (after.total == after.noise) == whole == made.by_noise
    assert (best.total == best.sqnr) == whole


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
    for equalisation in (False, None):
        report = tenon.quantize(
            graph, images(16), method="min-max", rounding="nearest", equalisation=equalisation
        ).report
        assert report.methods["outputs x 1.5"] != report.methods["outputs x 1.1"]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_samples_computed_at_the_same_time_come_in_their_order(count: int) -> None:
    graph = optimize(separable(), fuse=False)
    samples = [{"x": x} for x in images(count)]
    values = [*graph.inputs, graph.nodes[0].output, *graph.outputs]
    runs = []
    for threads in (1, 3):
        probes = Probes(graph, values, threads=threads)
        runs.append([b"".join(each[v].tobytes() for v in values) for each in probes.run(samples)])
        next(probes.run(samples))  # the rest of the samples is given up
        assert [each[values[0]].tobytes() for each in probes.run(samples[:1])] == [samples[0]["x"].tobytes()]
        probes.close()
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == count


def test_means_of_many_layers_are_put_back_one_at_a_time() -> None:
    """There are 44 layers with weights of 4 bits: every mean is that in floats."""
    rng, layers = np.random.default_rng(0), 44
    nodes, weights = [], {}
    for i in range(layers):
        weights[f"w{i}"] = rng.normal(0, 0.6, (4, 4)) + np.eye(4)
        weights[f"w{i}"] /= np.linalg.norm(weights[f"w{i}"], 2)
        nodes.append(helper.make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"x{i + 1}"]))
    nodes.append(helper.make_node("Identity", [f"x{layers}"], ["y"]))
    graph = optimize(built(nodes, weights, [1, 4], [1, 4]), fuse=False)
    given, scheme = (
        [{"x": rng.uniform(0, 1, (1, 4)).astype(np.float32)} for _ in range(8)],
        named_scheme("int4-weights"),
    )
    placed = placement(graph)
    seen = observed(graph, placed.tensors, given, histograms=False, threads=1, step=lambda *_: None)
    grids = {v: scheme.activation_grid(2 * each.low, 2 * each.high) for v, each in seen.items()}
    made = products(placed, grids, scheme)
    simulation = Simulation(graph, placed, made, grids, scheme, 1)
    correct(graph, made, simulation, given, threads=1, step=lambda *_: None)
    means = simulation.means(given)
    simulation.close()
    floats = Probes(graph, [each.node.output for each in made])
    expected = [[values[v].reshape(-1).copy() for v in floats.values] for values in floats.run(given)]
    floats.close()
    assert len(made) == layers
    np.testing.assert_allclose(means, np.mean(expected, 0), atol=1e-5)
