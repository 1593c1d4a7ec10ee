"""Weights of few bits that reproduce the float network's sums from what the quantised network gives them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import tenon
import tenon.tools.quantization.reconstruction as reconstruction
from networks_to_quantise import built, images, separable
from tenon.network.graph.graph import Array, Graph
from tenon.network.passes import optimize
from tenon.tools.quantization.calibration import observed
from tenon.tools.quantization.insertion import products
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.reconstruction import _other, _Sums, reconstructed, reconstructs
from tenon.tools.quantization.rounding import descended, fitted, gptq
from tenon.tools.quantization.scheme import named_scheme


def quiet(*_: object) -> None:
    """No progress."""


def form(wrong: Array, moment: Array) -> Array:
    noise: Array = ((wrong @ moment) * wrong).sum(-1)
    return noise


def moments_of(columns: int, groups: int = 1) -> Array:
    """The moments of columns that resemble each other."""
    rng = np.random.default_rng(3)
    rows = rng.normal(0, 1, (groups, 4 * columns, columns)) + rng.normal(0, 1, (groups, 4 * columns, 1))
    moments: Array = np.matmul(rows.transpose(0, 2, 1), rows) / (4 * columns)
    return moments


def column_by_column(steps: Array, moment: Array, bounds: tuple[float, float]) -> Array:
    """The definition of "gptq", for one group, without blocks of columns."""
    order = np.argsort(-np.diag(moment), kind="stable")
    left, rounded = steps[:, order].copy(), np.empty_like(steps)
    upper = np.linalg.cholesky(np.linalg.inv(moment[np.ix_(order, order)])).T
    for j, column in enumerate(order):
        rounded[:, column] = np.clip(np.rint(left[:, j]), *bounds)
        error = (left[:, j] - rounded[:, column]) / upper[j, j]
        left[:, j:] -= error[:, None] * upper[j, j:]
    return rounded


@pytest.mark.parametrize("columns", [9, 150])
def test_errors_pass_over_blocks_of_columns(columns: int) -> None:
    steps, moment = np.random.default_rng(0).normal(0, 3, (2, 5, columns)), moments_of(columns, 2)
    rounded = gptq(steps, moment, (-8, 7))
    for group in range(2):
        assert (rounded[group] == column_by_column(steps[group], moment[group], (-8, 7))).all()


def test_single_integers_improve_until_none_can() -> None:
    steps, moment = np.random.default_rng(0).normal(0, 3, (3, 6, 20)), moments_of(20, 3)
    near = np.clip(np.rint(steps), -8, 7)
    rounded = descended(near, steps, moment, (-8, 7))
    before, after = form(near - steps, moment), form(rounded - steps, moment)
    assert (after <= before + 1e-9).all()
    assert after.sum() < 0.6 * before.sum()
    for change in (-1, 1):
        for j in range(20):
            other = rounded.copy()
            other[..., j] = np.clip(other[..., j] + change, -8, 7)
            worse = form(other - steps, moment) - after
            assert np.quantile(worse, 0.1) >= -1e-9  # all but rows that stopped after the last sweep


def test_rows_with_one_great_weight_get_finer_steps() -> None:
    wanted = np.random.default_rng(0).normal(0, 1, (1, 4, 64))
    wanted[0, 0, 5] = 8.0
    scale = np.abs(wanted).max(-1, keepdims=True) / 7
    whole, steps = fitted(wanted, moments_of(64), scale, (-8, 7))
    plain = np.clip(np.rint(wanted / scale), -8, 7) * scale
    assert (form(whole * steps - wanted, moments_of(64)) < form(plain - wanted, moments_of(64))).all()
    assert steps[0, 0, 0] < scale[0, 0, 0]


def test_sums_of_halves_are_those_of_all() -> None:
    rng = np.random.default_rng(1)
    rows, weights, bias = rng.normal(1, 1, (2, 90, 5)), rng.normal(0, 1, (2, 3, 5)), rng.normal(0, 1, (2, 3))
    wanted = rng.normal(0, 1, (2, 3, 90))
    sums = _Sums.of(rows[:, :30], wanted[:, :, :30]) + _Sums.of(rows[:, 30:], wanted[:, :, 30:])
    wrong = weights @ rows.transpose(0, 2, 1) + bias[:, :, None] - wanted
    constant = (wanted**2).mean(2).sum()
    assert sums.error(weights, bias) + constant == pytest.approx((wrong**2).mean(2).sum())


def parts(graph: Graph, given: list[Array], scheme: str = "int4-weights") -> tuple[Any, ...]:
    placed, kind = placement(graph), named_scheme(scheme)
    samples = [{"x": x} for x in given]
    seen = observed(graph, placed.tensors, samples, histograms=False, threads=1, step=quiet)
    grids = {v: kind.activation_grid(each.low, each.high) for v, each in seen.items()}
    return graph, placed, products(placed, grids, kind), grids, kind, samples


def chain() -> Graph:
    """Two convolutions, the first of which makes twelve channels of four."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", ["x", "a"], ["h"]), helper.make_node("Conv", ["h", "b"], ["y"])]
    weights = {"a": rng.normal(0, 1, (12, 4, 1, 1)), "b": rng.normal(0, 1, (6, 12, 1, 1))}
    return optimize(built(nodes, weights, [1, 4, 9, 9], []), fuse=False)


def test_a_layer_makes_up_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of the second layer are nearer to those in floats than with weights that may not move."""
    graph, rng = chain(), np.random.default_rng(5)
    given = [rng.normal(1, 1, (1, 4, 9, 9)).astype(np.float32) for _ in range(24)]
    first, second = graph.nodes
    errors = []
    for ridges in (reconstruction.RIDGES, (1e9, 1e9)):
        monkeypatch.setattr(reconstruction, "RIDGES", ridges)
        layers, shifts = reconstructed(*parts(graph, given), centred=True, threads=1, step=quiet)
        a, b = (each.stored_weights().astype(np.float32) for each in layers)
        p, q = (each.reshape(1, -1, 1, 1).astype(np.float32) for each in shifts)
        total = 0.0
        for x in given:
            (exact,) = second.op.evaluate([first.op.evaluate([x, first.input(1).array])[0], second.input(1).array])
            (y,) = second.op.evaluate([first.op.evaluate([x, a])[0] + p, b])
            total += float(((y + q - exact) ** 2).mean())
        errors.append(total)
    assert errors[0] < 0.6 * errors[1]


def test_only_the_later_operand_of_an_addition_makes_up_for_the_other() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"]),
        helper.make_node("Abs", ["x"], ["r"]),
        helper.make_node("Conv", ["r", "b"], ["g"]),
        helper.make_node("Add", ["h", "g"], ["s"]),
        helper.make_node("Conv", ["s", "c"], ["y"]),
    ]
    weights = {name: np.random.default_rng(0).normal(0, 1, (4, 4, 1, 1)) for name in "abc"}
    graph = optimize(built(nodes, weights, [1, 4, 5, 5], []), fuse=False)
    (added,) = (node for node in graph if node.op.name == "Add")
    one, other, last = (node for node in graph if node.op.name == "Conv")
    assert _other(graph, one, {one, other, last}) is None
    assert _other(graph, other, {other, last}) == added.inputs.index(one.output)
    assert _other(graph, last, {last}) is None


def test_shared_weights_and_those_of_8_bits_stay() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    graph = optimize(built(nodes, {"w": np.random.default_rng(0).normal(0, 1, (8, 8))}, [3, 8], []), fuse=False)
    assert not any(map(reconstructs, parts(graph, [np.ones((3, 8), np.float32)])[2]))
    graph, given = chain(), [np.ones((1, 4, 9, 9), np.float32)]
    assert all(map(reconstructs, parts(graph, given)[2]))
    assert not any(map(reconstructs, parts(graph, given, "int8")[2]))


def test_network_of_weights_of_4_bits_gains_over_gptq() -> None:
    settings: dict[str, Any] = {
        "scheme": "int4-weights",
        "method": "min-max",
        "range_search": False,
        "equalisation": False,
    }
    made = tenon.quantize(separable(None, residual=True), images(48), **settings).report
    assert "reconstruction" in made.applied
    assert made.repairs["reconstruction"] > made.repairs["gptq"] + 1


def test_first_and_last_layers_with_few_weights_keep_8_bits() -> None:
    """Layers that have more than their share do not, and none of a scheme of 8 bits changes."""
    rng = np.random.default_rng(4)
    shapes = {"first": (8, 3, 1, 1), "middle": (64, 8, 5, 5), "y": (16, 64, 1, 1)}
    weights = {f"{name}_w": rng.normal(0, 0.2, shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", [x, f"{name}_w"], [name]) for x, name in zip(["x", *shapes], shapes, strict=False)
    ]
    graph = built(nodes, weights, [1, 3, 8, 8], [1, 16, 4, 4])
    for scheme, bits in (("int4-weights", [8, 4, 4]), ("int8", [8, 8, 8])):
        made = tenon.quantize(graph, images(8), scheme=scheme, rounding="nearest", range_search=False)
        assert [each.bits for each in made.report.weights] == bits
