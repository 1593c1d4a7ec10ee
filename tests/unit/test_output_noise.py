"""The noise at the outputs by its causes, and the order in which layers are taken out of 8 bits."""

from __future__ import annotations

import pytest

import tenon
from networks_to_quantise import images, separable
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType, TensorType
from tenon.tools.quantization import output_noise
from tenon.tools.quantization.candidates import grids
from tenon.tools.quantization.float_model import float_graph
from tenon.tools.quantization.output_noise import OutputNoise
from tenon.tools.quantization.range_search import expected_scores
from tenon.tools.quantization.recipe import Recipe, Request, recipe
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import SCHEMES
from tenon.tools.quantization.simulation import Simulation

A, B, C, D = (Value(name, TensorType(DType.F32, (1,))) for name in "abcd")
NOISE = OutputNoise(
    {A: 4.0, B: 3.0, C: 2.0, D: 1.0},
    {"first": 0.5, "second": 6.0},
    {"first": frozenset({A, B}), "second": frozenset({B, C}), "third": frozenset({C, D})},
)
ALIKE = dict.fromkeys(("first", "second", "third"), 1.0)


def test_order_of_16_bits_counts_each_tensor_once() -> None:
    """b and c are worth more than c and d, but not after a and b."""
    assert NOISE.order(ALIKE, "int16") == ["first", "third", "second"]
    assert NOISE.order({**ALIKE, "first": 10.0}, "int16") == ["second", "third", "first"]


def test_order_of_floats_counts_weights() -> None:
    """From the last one back: c and d are the least (3), then a, b and the weights of the first (7.5), not b and those
    of the second (9)."""
    assert NOISE.order(ALIKE, "float") == ["second", "first", "third"]
    assert NOISE.order({**ALIKE, "second": 2.0}, "fp16") == ["first", "second", "third"]


@pytest.fixture(scope="module")
def calibrated() -> tuple[Recipe, list[Sample], Request]:
    graph = float_graph(separable(None))
    given: list[Sample] = [{graph.inputs[0].name: x} for x in images(8)]
    request = Request(SCHEMES["int8"], ("min-max",), False, "nearest", range_search=False)
    return recipe(graph, given, request), given, request


def test_causes_add_up_to_the_noise(calibrated: tuple[Recipe, list[Sample], Request]) -> None:
    made, given, request = calibrated
    parts = output_noise.output_noise(made, given, request)
    assert parts is not None
    assert set(parts.read) == set(parts.weights)
    assert all(tensors for tensors in parts.read.values())
    simulation = Simulation(
        made.graph, made.placed, made.products, grids(made.placed, made.ranges, request.scheme), request.scheme, 1
    )
    whole = simulation.noise(given, expected_scores(made.graph, given, 1))[-1].noise
    simulation.close()
    known = sum(parts.tensors.values()) + sum(parts.weights.values())
    assert 0.5 < known / whole < 2.0
    assert max(parts.tensors.values()) < whole


def test_larger_networks_are_not_measured(
    calibrated: tuple[Recipe, list[Sample], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_noise, "MACS", 1.0)
    assert output_noise.output_noise(*calibrated) is None


@pytest.mark.slow
@pytest.mark.parametrize("macs", [1.0, 1e11])
def test_contract_is_met_with_some_layers_in_16_bits(macs: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether layers are ordered by the noise of their sums or at the outputs."""
    monkeypatch.setattr(output_noise, "MACS", macs)
    free = tenon.quantize(separable(None), images(8), method="min-max", rounding="nearest", range_search=False)
    wanted = free.report.outputs[0].sqnr + 1
    made = tenon.quantize(
        separable(None),
        images(8),
        method="min-max",
        rounding="nearest",
        range_search=False,
        min_sqnr=wanted,
        mixed_types=["int16"],
    )
    assert 0 < len(made.report.wide) < 4
    assert made.report.points[-1].sqnr >= wanted
