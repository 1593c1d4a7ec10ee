"""Inputs that are integers of 8 bits themselves keep their steps."""

from __future__ import annotations

import numpy as np
import pytest

import tenon
from networks_to_quantise import separable
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.tools.quantization.input_steps import step_ranges
from tenon.tools.quantization.scheme import SCHEMES

STEP = 0.5847029


def integers(low: int, high: int, count: int = 8) -> list[Array]:
    """Samples for ``separable`` of integers, that have the least and the greatest one."""
    rng = np.random.default_rng(0)
    samples = [rng.integers(low, high + 1, (1, 3, 8, 8)) for _ in range(count)]
    samples[0].flat[:2] = low, high
    return samples


def span(arrays: list[Array], symmetric: bool = False) -> tuple[float, float] | None:
    samples = [{"x": a.astype(np.float32)} for a in arrays]
    return step_ranges(separable(), samples, symmetric=symmetric).get("x")


@pytest.mark.parametrize("step", [1.0, 1 / 255, 1 / 128, STEP])
@pytest.mark.parametrize(("low", "high"), [(0, 250), (3, 90), (-127, 100), (-211, 39), (-90, 0), (0, 255), (-128, 127)])
def test_all_integers_are_exact(low: int, high: int, step: float) -> None:
    """On the grid of the range, whatever the extremes of the samples are."""
    arrays = [each * step for each in integers(low, high)]
    limits = span(arrays)
    assert limits is not None
    for scheme in (each for each in SCHEMES.values() if each.activations in (DType.I8, DType.U8)):
        if scheme.symmetric or scheme.power_of_two:
            continue
        grid = scheme.activation_grid(*limits)
        x = np.concatenate(arrays).astype(np.float32)
        real = (grid.quantised(x).astype(np.float64) - grid.zero) * grid.scale
        np.testing.assert_allclose(real, x, atol=1e-3 * step)


def test_symmetric_grids_have_as_many_steps_on_both_sides() -> None:
    assert span([e * STEP for e in integers(-100, 90)], symmetric=True) == pytest.approx((-127 * STEP, 127 * STEP))
    assert span([e * STEP for e in integers(-211, 39)], symmetric=True) is None


def test_room_is_left_where_extremes_are_rare() -> None:
    """An extreme that many values have is a limit."""
    arrays = integers(-200, 39)
    arrays[1].flat[:50] = -200
    assert span(arrays) == (-200, 55)
    arrays[1].flat[:50] = 39
    assert span(arrays) == (-216, 39)
    assert span(integers(0, 200)) == (0, 255)


@pytest.mark.parametrize(
    "arrays",
    [
        [np.random.default_rng(0).normal(0, 1, (1, 3, 8, 8))],
        [each / 127.5 - 1 for each in integers(0, 255)],  # 0 is between two steps
        integers(0, 20),
        integers(-100, 200),
        [each + 0.1 * (np.arange(192).reshape(1, 3, 8, 8) == 7) for each in integers(0, 90)],
    ],
    ids=["any number", "between steps", "few values", "more than 8 bits", "an exception"],
)
def test_other_inputs_are_as_observed(arrays: list[Array]) -> None:
    assert span(arrays) is None


def test_quantised_networks_read_such_inputs_without_noise() -> None:
    """There is none where the samples have neither the least nor the greatest integer, whatever ranges are searched."""
    arrays = [(each * STEP).astype(np.float32) for each in integers(-200, 39, 12)]
    report = tenon.quantize(separable(), arrays, rounding="nearest").report
    noise = {each.name: each for each in report.tensors}
    assert noise["x"].sqnr > 100
    assert noise["x"].saturated == 0
