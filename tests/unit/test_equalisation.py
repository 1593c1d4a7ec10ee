"""Channels scaled to similar ranges, constant channels, limits for each channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import exact_onnxruntime
import tenon
from networks_to_quantise import built, images, separable
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes import optimize
from tenon.tools.quantization.channel_groups import channel_groups
from tenon.tools.quantization.equalisation import equalised, silenced


def plain(graph: Graph) -> Graph:
    return optimize(graph, fuse=False)


def answers(graph: Graph, given: list[Array]) -> Array:
    with tenon.open(tenon.compile(graph, arithmetic="float", name="net")) as engine:
        return np.stack([next(iter(engine.run(x).values())) for x in given])


def samples(given: list[Array]) -> list[dict[str, Array]]:
    return [{"x": x} for x in given]


def test_groups_reach_from_products_to_products() -> None:
    groups = channel_groups(plain(separable()))
    assert [(g.channels, len(g.makers), len(g.readers), len(g.limited)) for g in groups] == [
        (16, 1, 1, 1),
        (16, 1, 1, 1),
        (8, 1, 1, 0),
    ]


def test_sums_join_groups_and_other_readers_prevent_them() -> None:
    groups = channel_groups(plain(separable(residual=True)))
    assert [(g.channels, len(g.makers), len(g.readers)) for g in groups] == [(16, 2, 2), (8, 1, 1)]
    sigmoid = [
        helper.make_node("Conv", ["x", "a"], ["1"]),
        helper.make_node("Sigmoid", ["1"], ["2"]),
        helper.make_node("Conv", ["2", "b"], ["y"]),
    ]
    assert not channel_groups(
        plain(built(sigmoid, {"a": np.ones((4, 3, 1, 1)), "b": np.ones((2, 4, 1, 1))}, [1, 3, 4, 4], [1, 2, 4, 4]))
    )


def test_channels_that_are_flattened_repeat() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "a": rng.normal(0, 1, (4, 3, 1, 1)) * [[[[1]]], [[[5]]], [[[20]]], [[[100]]]],
        "g": rng.normal(0, 1, (64, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["1"]),
        helper.make_node("Relu", ["1"], ["2"]),
        helper.make_node("Flatten", ["2"], ["3"]),
        helper.make_node("Gemm", ["3", "g"], ["y"]),
    ]
    graph, given = plain(built(nodes, weights, [1, 3, 4, 4], [1, 5])), [x[:, :, :4, :4] for x in images(8)]
    (group,) = channel_groups(graph)
    assert group.readers[0][1].repeat == 16
    made, count = equalised(graph, samples(given), per_channel=False, threads=1)
    assert count == 1
    np.testing.assert_allclose(answers(made, given), answers(graph, given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("limit", [None, 6.0, 0.5])
@pytest.mark.parametrize("residual", [False, True])
def test_answers_are_the_same_also_where_channels_reach_their_limit(
    per_channel: bool, limit: float | None, residual: bool
) -> None:
    graph, given = plain(separable(limit, residual=residual)), images(16)
    made, count = equalised(graph, samples(given), per_channel=per_channel, threads=1)
    assert count
    np.testing.assert_allclose(answers(made, given), answers(graph, given), rtol=1e-4, atol=1e-4)


def test_channels_have_their_own_limits_where_one_scale_must_do_for_all_weights() -> None:
    """A limit that is above the range of the tensor on samples is cut off there, as integers are: not more."""
    graph, given = plain(separable(0.5)), images(16)
    made, _ = equalised(graph, samples(given), per_channel=False, threads=1)
    limits = [node.input(1).array.reshape(-1) for node in made if node.op.name == "Min"]
    assert limits
    assert all(each.max() > 1.5 * each.min() for each in limits)


def test_constant_channels_lose_their_weights() -> None:
    graph, given = plain(separable(dead=True)), images(16)
    made, count = silenced(graph, samples(given), 1)
    assert count >= 1
    assert not made.nodes[0].input(1).array[0].any()
    np.testing.assert_allclose(answers(made, given), answers(graph, given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [None, 6.0, 0.5])
def test_one_scale_for_all_weights_is_enough_after_equalisation(limit: float | None) -> None:
    """The network loses more than 8 dB without equalisation."""
    graph, given = separable(limit, dead=True), images()
    settings: dict[str, Any] = {
        "scheme": "int8-per-tensor",
        "method": "min-max",
        "range_search": False,
        "rounding": "nearest",
    }
    without = tenon.quantize(graph, given, equalisation=False, **settings).report
    made = tenon.quantize(graph, given, **settings)
    assert "equalisation" in made.report.applied
    assert made.report.outputs[0].sqnr > without.outputs[0].sqnr + 8


def test_limits_of_channels_are_integers_and_onnxruntime_agrees(tmp_path: Path) -> None:
    given = images()
    made = tenon.quantize(
        separable(0.5),
        given,
        scheme="int8-per-tensor",
        method="min-max",
        range_search=False,
        rounding="nearest",
        equalisation=True,
    )
    assert "Min" in {node.op.name for node in made.graph}
    description, planned = tenon.inspect(made.graph)
    assert description.left_in_float == ()
    assert planned is not None
    assert all(str(n.output.type.dtype) == "i8" for n in planned if n.op.name == "Min")
    made.save(tmp_path / "net.onnx")
    session = exact_onnxruntime.session(tmp_path / "net.onnx")
    with tenon.open(tenon.compile(made.graph)) as engine:
        for x in given[:4]:
            (y,) = engine.run(x).values()
            np.testing.assert_allclose(y, session.run(None, {"x": x})[0], atol=0.05 * np.abs(y).max())


def test_activations_gain_where_weights_have_a_scale_for_each_channel() -> None:
    given = images()
    settings: dict[str, Any] = {"method": "min-max", "range_search": False, "rounding": "nearest"}
    with_, without = (
        tenon.quantize(separable(None), given, equalisation=each, **settings).report.outputs[0].sqnr
        for each in (True, False)
    )
    assert with_ > without + 2
