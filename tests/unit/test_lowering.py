"""Every case of every operator, lowered for every vector width, compared with the operator's reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lowered import MACHINES, Ask, NotLoweredError, make_site, run_lowered
from operator_cases import BY_OPERATOR, CASES, DECLINED, LOWERED, NAMED, OF_OTHER_MACHINES, ON_DEVICES
from tenon.machine.targets import targets
from tenon.network.graph.graph import Array, Graph, Origin
from tenon.network.graph.types import DType, Layout, TensorType
from tenon.network.ops.base import Case
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.head_attention import HeadAttention
from tenon.network.passes import optimize

ASKS = {
    "plain": Ask(),
    "blocked": Ask(blocked=True),
    "surplus": Ask(blocked=True, surplus=1),
}


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
    """The values of ``Ask`` that lead to different layouts.  Raises NotLoweredError if the operator declines."""
    seen = set()
    for ask in ASKS.values():
        site = make_site(case.op, case.arrays(), MACHINES[machine], case.constant, ask)
        if (types := (site.inputs, site.outputs)) not in seen:
            seen.add(types)
            yield ask


def _sweep() -> Iterator[Any]:
    """Each case on the widest vectors and, by turns, on one of the others; with -m slow, on those left.  The
    quick tests run the first case of every operator."""
    widest, *others = MACHINES
    first = {next((name for name, _ in own if name in LOWERED), "") for own in BY_OPERATOR.values()}
    for i, name in enumerate(LOWERED):
        yield pytest.param(name, widest, marks=pytest.mark.quick if name in first else ())
        for j, machine in enumerate(others):
            yield pytest.param(name, machine, marks=() if j == i % len(others) else pytest.mark.slow)


@pytest.mark.parametrize(("name", "machine"), list(_sweep()))
def test_lowering_agrees_with_the_reference(name: str, machine: str) -> None:
    for ask in placements(LOWERED[name], machine):
        check(LOWERED[name], machine, ask)


def test_names_of_cases_are_unique() -> None:
    assert len(NAMED) == len(CASES)


@pytest.mark.quick
@pytest.mark.parametrize("name", DECLINED)
def test_declined_cases_are_rewritten_by_the_passes(name: str) -> None:
    """The operator declines the case for the stated reason, and no such node is left when kernels are chosen."""
    case, arrays = NAMED[name], NAMED[name].arrays()
    with pytest.raises(NotLoweredError, match=DECLINED[name]):
        make_site(case.op, arrays, MACHINES["lanes4"], case.constant)
    graph = Graph("declined")
    values = [
        None
        if a is None
        else graph.constant(f"c{i}", a)
        if i in case.constant
        else graph.add_input(f"x{i}", TensorType(DType.of(a.dtype), a.shape))
        for i, a in enumerate(arrays)
    ]
    graph.outputs = list(graph.add(case.op, values, ["y"], Origin("", "y", case.op.name)).outputs)
    optimize(graph)
    assert case.op not in [node.op for node in graph]


@pytest.mark.quick
@pytest.mark.parametrize("name", OF_OTHER_MACHINES)
def test_declined_cases_of_other_machines(name: str) -> None:
    """Tests of such operators (``test_attention.py``, ``test_byte_attention.py``, ``test_block_tiles_bf16.py``) lower
    them, and show that no pass makes them for other machines."""
    case = NAMED[name]
    with pytest.raises(NotLoweredError, match=OF_OTHER_MACHINES[name]):
        make_site(case.op, case.arrays(), MACHINES["lanes4"], case.constant)


@pytest.mark.parametrize("target", targets())
def test_no_other_case_is_declined_on_any_target(target: str) -> None:
    machine = targets()[target].machine
    for case in (LOWERED if machine.launch is None else ON_DEVICES).values():
        if isinstance(case.op, HeadAttention) and not machine.float_unit:
            continue  # a pass makes it for machines that compute floats by instructions
        make_site(case.op, case.arrays(), machine, case.constant, Ask(blocked=True))


@pytest.mark.parametrize("name", LOWERED)
def test_aliases_do_not_change_results(name: str) -> None:
    """Results with aliases and in place equal those with separate buffers."""
    case = LOWERED[name]
    for ask in placements(case, "lanes4"):
        site = make_site(case.op, case.arrays(), MACHINES["lanes4"], case.constant, ask)
        if case.op.alias(site):
            check(case, "lanes4", replace(ask, alias=True))
        for i in case.op.in_place(site):
            assert i not in case.constant
            if site.input(i).physical == site.output.physical:
                check(case, "lanes4", replace(ask, overwrite=i))


POINTWISE = [name for name, case in LOWERED.items() if isinstance(case.op, Pointwise)]


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_results_do_not_depend_on_the_lanes(name: str) -> None:
    """There are no sums across lanes, so all machines compute the same bits."""
    case = LOWERED[name]
    results = [check(case, machine, Ask(blocked=True))[0].tobytes() for machine in MACHINES]
    assert len(set(results)) == 1


def test_pointwise_operators_keep_blocked_layout() -> None:
    """Ensures that the placements include blocked images: blocked input, blocked output, with any small operands."""
    image = Layout(8, ((0, 0), (0, 0)))
    for name in ("Relu-rank4", "Add-images", "Add-channel", "Add-scale", "Add-plane", "PRelu-channel", "Clip-relu6"):
        case = LOWERED[name]
        site = make_site(case.op, case.arrays(), MACHINES["lanes8"], case.constant, Ask(blocked=True))
        assert site.input(0).layout == site.output.layout == image, name
