"""Every case of every operator, lowered for every vector width, agrees with the operator's reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from lowered import MACHINES, Ask, NotLoweredError, make_site, run_lowered
from tenon.ir.graph import Array
from tenon.ops import registry
from tenon.ops.base import Case

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
    """Equal but for ``tolerance`` times the largest finite magnitude expected; integers are equal."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    finite = expected[np.isfinite(expected)]
    scale = float(np.abs(finite).max(initial=0.0)) or 1.0
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * scale)


def check(case: Case, machine: str, ask: Ask) -> list[Array]:
    arrays = case.arrays()
    expected = case.op.evaluate(arrays)
    try:
        got = run_lowered(case.op, arrays, MACHINES[machine], case.constant, ask)
    except NotLoweredError as why:
        pytest.skip(f"not lowered: {why}")
    for a, b in zip(got, expected, strict=True):
        assert_close(a, b, case.tolerance)
    return got


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_lowering_agrees_with_the_reference(name: str, machine: str, ask: str) -> None:
    check(CASES[name], machine, ASKS[ask])


@pytest.mark.parametrize("name", CASES)
def test_shared_memory_changes_nothing(name: str) -> None:
    """Aliases and in-place results give what separate buffers give."""
    case, machine = CASES[name], MACHINES["lanes4"]
    for blocked in (False, True):
        ask = Ask(blocked=blocked)
        try:
            site = make_site(case.op, case.arrays(), machine, case.constant, ask)
        except NotLoweredError:
            return
        if case.op.alias(site):
            check(case, "lanes4", Ask(blocked=blocked, alias=True))
        for i in case.op.in_place(site):
            assert site.input(i).nbytes >= site.output.nbytes
            assert i not in case.constant
            if site.input(i).physical == site.output.physical:
                check(case, "lanes4", Ask(blocked=blocked, overwrite=i))
