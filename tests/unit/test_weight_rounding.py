"""Weights rounded by their effect on sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tenon
from networks_to_quantise import built, images, separable
from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.passes import optimize
from tenon.tools.quantization.calibration import observed
from tenon.tools.quantization.insertion import WeightedLayer, products
from tenon.tools.quantization.moments import Moments, mean_shift, moments
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.rounding import ROUNDINGS, gptq, rounded
from tenon.tools.quantization.scheme import named_scheme


def quiet(*_: object) -> None:
    """No progress."""


def convolution(**attributes: Any) -> Graph:
    """One convolution whose input channels resemble each other."""
    rng = np.random.default_rng(0)
    groups = attributes.get("group", 1)
    shape = (8, 4 // int(str(groups)), 3, 3)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    graph = built([node], {"w": rng.normal(0, 1, shape)}, [1, 4, 9, 9], [])
    return optimize(graph, fuse=False)


def sums(node: Node, x: Array, weights: Array) -> Array:
    (y,) = node.op.evaluate([x, weights])
    return y


def similar(count: int) -> list[Array]:
    rng = np.random.default_rng(2)
    one = [rng.normal(0, 1, (1, 1, 9, 9)).cumsum(2).cumsum(3) for _ in range(count)]
    return [(x + 0.2 * rng.normal(0, 1, (1, 4, 9, 9))).astype(np.float32) for x in one]


def parts(graph: Graph, given: list[Array], scheme: str) -> tuple[list[WeightedLayer], dict[Node, Moments]]:
    placed, kind = placement(graph), named_scheme(scheme)
    samples = [{"x": x} for x in given]
    seen = observed(graph, placed.tensors, samples, histograms=False, threads=1, step=quiet)
    grids = {v: kind.activation_grid(each.low, each.high) for v, each in seen.items()}
    made = products(placed, grids, kind)
    return made, moments(graph, made, samples, threads=1, step=quiet)


def error_of_sums(graph: Graph, each: WeightedLayer, given: list[Array]) -> float:
    """The mean squared error that the integers of the weights add, by the reference of Conv."""
    node = graph.nodes[0]
    data = node.input(1).array.astype(np.float64)
    wrong = (each.stored_weights() - data).astype(np.float32)
    return float(np.mean([sums(node, x, wrong) ** 2 for x in given]))


@pytest.mark.parametrize("method", ROUNDINGS)
@pytest.mark.parametrize(
    "attributes",
    [{"pads": [1] * 4}, {"strides": [2, 2]}, {"dilations": [2, 2], "pads": [2] * 4}, {"group": 4}, {"group": 2}],
    ids=["same", "strides", "dilations", "depthwise", "groups"],
)
def test_sums_have_less_error_than_with_the_nearest_integers(method: str, attributes: dict[str, Any]) -> None:
    graph, given = convolution(**attributes), similar(24)
    made, known = parts(graph, given, "int4-weights")
    (near,), (better,) = made, rounded(made, known, method, step=quiet)
    assert error_of_sums(graph, better, given[12:]) < 0.8 * error_of_sums(graph, near, given[12:])
    assert np.abs(better.weights.astype(int) - near.weights).max() >= 1
    assert better.weights.min() >= -8
    assert better.weights.max() <= 7


def test_moments_are_those_of_the_windows() -> None:
    """The moments are of all positions: their quadratic form with the weights is the mean square of the sums."""
    graph, given = convolution(pads=[1, 0, 2, 1]), similar(4)
    _, known = parts(graph, given, "int8")
    node = graph.nodes[0]
    rows = node.input(1).array.reshape(8, -1).astype(np.float64)
    second = known[node].second
    assert second is not None
    squares = np.mean([sums(node, x, node.input(1).array) ** 2 for x in given], axis=(0, 1, 3, 4))
    np.testing.assert_allclose(((rows @ second[0]) * rows).sum(1), squares, rtol=1e-4)


def test_predicted_shift_of_the_mean_is_that_of_the_sums() -> None:
    graph, given = convolution(pads=[1, 0, 2, 1], group=2), similar(6)
    made, known = parts(graph, given, "int4-weights")
    node, (each,) = graph.nodes[0], made
    wrong = (each.stored_weights() - node.input(1).array).astype(np.float32)
    expected = np.mean([sums(node, x, wrong) for x in given], axis=(0, 1, 3, 4))
    np.testing.assert_allclose(mean_shift(each, known[node]), expected, rtol=1e-3, atol=1e-5)


def test_means_that_biases_put_back_do_not_count() -> None:
    """With data far from zero, roundings by the deviations from the mean leave sums that deviate less."""
    graph, given = convolution(), [x + 20 for x in similar(24)]
    made, known = parts(graph, given, "int4-weights")
    node = graph.nodes[0]
    spread = []
    for centred in (False, True):
        (each,) = rounded(made, known, "gptq", step=quiet, centred=centred)
        wrong = (each.stored_weights() - node.input(1).array).astype(np.float32)
        errors = np.concatenate([sums(node, x, wrong) for x in given[12:]])
        spread.append(float(errors.var(axis=(0, 2, 3)).mean()))
    assert spread[1] < 0.8 * spread[0]


def test_independent_columns_are_rounded_to_the_nearest() -> None:
    steps = np.random.default_rng(0).normal(0, 3, (5, 12))
    assert (gptq(steps, np.eye(12), (-8, 7)) == np.clip(np.rint(steps), -8, 7)).all()


@pytest.mark.parametrize(("scheme", "least"), [("int8", -127), ("int4-weights", -8)])
def test_symmetric_bytes_stay_above_the_least(scheme: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors passed on to weights at the end of the range do not make them -128."""
    asked = []

    def nearest(steps: Array, moment: Array, bounds: tuple[float, float]) -> Array:
        asked.append(bounds)
        return np.clip(np.rint(steps), *bounds)

    monkeypatch.setitem(ROUNDINGS, "nearest", nearest)
    rounded(*parts(convolution(), similar(2), scheme), "nearest", step=quiet)
    assert [low for low, _ in asked] == [least]


@pytest.mark.parametrize("method", ROUNDINGS)
def test_network_of_weights_of_4_bits_gains(method: str) -> None:
    settings: dict[str, Any] = {
        "scheme": "int4-weights",
        "method": "min-max",
        "range_search": False,
        "equalisation": False,
    }
    given = images(48)
    near, better = (
        tenon.quantize(separable(None), given, rounding=each, **settings).report for each in ("nearest", method)
    )
    assert method in better.applied
    assert better.repairs[method] > near.repairs["bias correction"]


def test_unknown_rounding_is_an_error() -> None:
    from tenon.errors import InputError

    with pytest.raises(InputError, match="no rounding 'up'"):
        tenon.quantize(separable(), images(4), rounding="up")
