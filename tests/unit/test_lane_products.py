"""Convolutions of f32 and f16 whose multiply-adds take lanes of vectors (NEON): the same bits as by single numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from integer_products import Shape
from lowered import Ask, make_site, run_site
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels.machine import Machine, in_halves
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.ops.conv import Conv
from tenon.network.ops.matmul import MatMul

BY_LANE = find("aarch64-dotprod").machine
HALVES = in_halves(find("aarch64-fp16").machine)
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1x1": ((1, 16, 2, 13), (24, 16, 1, 1), {}),
    "partial": ((2, 10, 3, 5), (7, 10, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strides": ((1, 12, 5, 9), (20, 12, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "groups": ((1, 16, 3, 7), (16, 8, 1, 3), {"group": 2, "pads": (0, 1, 0, 1)}),
    "one position": ((1, 16, 1, 1), (8, 16, 1, 1), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_lanes_of_vectors(name: str) -> None:
    rng, (shape, filters, more) = np.random.default_rng(2), CASES[name]
    given: list[Array] = [rng.standard_normal(each).astype(np.float32) for each in (shape, filters, filters[:1])]
    conv = Conv(**more)

    def computed(machine: Machine) -> tuple[str, Array]:
        site = make_site(conv, given, machine, (1, 2), Ask(blocked=True, surplus=int("pads" in more)))
        text = "".join(show(step.kernel) for step in conv.lower(site))
        return text, run_site(conv, site, given)[0]

    (text, by_lane), (single, expected) = computed(BY_LANE), computed(replace(BY_LANE, by_lane=False))
    assert ("lane3(" in text) == (name != "one position")
    assert "lane3(" not in single
    np.testing.assert_array_equal(by_lane, expected)
    np.testing.assert_allclose(by_lane, conv.evaluate(given)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_lanes_of_vectors_of_f16(name: str) -> None:
    rng, (shape, filters, more) = np.random.default_rng(4), CASES[name]
    given: list[Array] = [rng.standard_normal(each).astype(np.float16) for each in (shape, filters)]
    conv, results = Conv(**more), list[Array]()
    for machine in (HALVES, replace(HALVES, by_lane=False)):
        site = make_site(conv, given, machine, (1,), Ask(blocked=True, surplus=int("pads" in more)))
        text = "".join(show(step.kernel) for step in conv.lower(site))
        assert ("fma_f16_lane7(" in text) == (machine.by_lane and name != "one position")
        results.append(run_site(conv, site, given)[0])
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("constant", [(1,), ()])
def test_matrices_in_rows(constant: tuple[int, ...]) -> None:
    """One product has a constant matrix, the other two that only a run knows."""
    rng = np.random.default_rng(3)
    given: list[Array] = [rng.standard_normal(each).astype(np.float32) for each in ((2, 7, 24), (2, 24, 18))]
    results = list[Array]()
    for machine in (BY_LANE, replace(BY_LANE, by_lane=False)):
        site = make_site(MatMul(), given, machine, constant)
        assert any("lane3(" in show(step.kernel) for step in MatMul().lower(site)) == machine.by_lane
        results.append(run_site(MatMul(), site, given)[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(results[0], given[0] @ given[1], rtol=1e-4, atol=1e-4)
