"""Every case of every operator, lowered for every vector width, compared with the operator's reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowered import MACHINES, Ask, NotLoweredError, make_site, run_lowered
from tenon.network.graph.graph import Array
from tenon.network.graph.types import Layout
from tenon.network.ops import registry
from tenon.network.ops.base import Case
from tenon.network.ops.elementwise import Pointwise

ASKS = {
    "plain": Ask(),
    "blocked": Ask(blocked=True),
    "surplus": Ask(blocked=True, surplus=1),
}


def _cases() -> Iterator[tuple[str, Case]]:
    for name, cls in sorted(registry().items()):
        for i, case in enumerate(cls.cases()):
            yield f"{name}-{case.label or i}", case


CASES = dict(_cases())


def assert_close(got: Array, expected: Array, tolerance: float) -> None:
    """Equal within ``tolerance`` times the largest finite magnitude expected; integers exactly."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.isbuiltin != 1:  # a storage format
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    finite = expected[np.isfinite(expected)]
    scale = float(np.abs(finite).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


def check(case: Case, machine: str, ask: Ask) -> list[Array]:
    arrays = case.arrays()
    got = run_lowered(case.op, arrays, MACHINES[machine], case.constant, ask)
    for a, b in zip(got, case.op.evaluate(arrays), strict=True):
        assert_close(a, b, case.tolerance)
    return got


def placements(case: Case, machine: str) -> Iterator[Ask]:
    """The values of ``Ask`` that lead to different layouts. Skips the test if the operator declines the case."""
    seen = set()
    for ask in ASKS.values():
        try:
            site = make_site(case.op, case.arrays(), MACHINES[machine], case.constant, ask)
        except NotLoweredError as why:
            pytest.skip(f"not lowered: {why}")
        if (types := (site.inputs, site.outputs)) not in seen:
            seen.add(types)
            yield ask


def _sweep() -> Iterator[Any]:
    """Each case on the widest vectors and, by turns, on one of the others; with -m slow, on those left."""
    widest, *others = MACHINES
    for i, name in enumerate(CASES):
        yield name, widest
        for j, machine in enumerate(others):
            yield pytest.param(name, machine, marks=() if j == i % len(others) else pytest.mark.slow)


@pytest.mark.parametrize(("name", "machine"), list(_sweep()))
def test_lowering_agrees_with_the_reference(name: str, machine: str) -> None:
    for ask in placements(CASES[name], machine):
        check(CASES[name], machine, ask)


@pytest.mark.parametrize("name", CASES)
def test_aliases_do_not_change_results(name: str) -> None:
    """Results with aliases and in place equal those with separate buffers."""
    case = CASES[name]
    for ask in placements(case, "lanes4"):
        site = make_site(case.op, case.arrays(), MACHINES["lanes4"], case.constant, ask)
        if case.op.alias(site):
            check(case, "lanes4", replace(ask, alias=True))
        for i in case.op.in_place(site):
            assert i not in case.constant
            if site.input(i).physical == site.output.physical:
                check(case, "lanes4", replace(ask, overwrite=i))


POINTWISE = [name for name, case in CASES.items() if isinstance(case.op, Pointwise)]


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_results_do_not_depend_on_the_lanes(name: str) -> None:
    """There are no sums across lanes, so all machines compute the same bits."""
    case = CASES[name]
    results = [check(case, machine, Ask(blocked=True))[0].tobytes() for machine in MACHINES]
    assert len(set(results)) == 1


def test_pointwise_operators_keep_blocked_layout() -> None:
    """Ensures that the placements include blocked images: blocked input, blocked output, with any small operands."""
    image = Layout(8, ((0, 0), (0, 0)))
    for name in ("Relu-rank4", "Add-images", "Add-channel", "Add-scale", "Add-plane", "PRelu-channel", "Clip-relu6"):
        case = CASES[name]
        site = make_site(case.op, case.arrays(), MACHINES["lanes8"], case.constant, Ask(blocked=True))
        assert site.input(0).layout == site.output.layout == image, name
