"""A few conformance cases of every operator, compared with the list of expected failures; ``scripts/conformance`` runs
all.
"""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

from conformance.__main__ import expected_failures, quick, summary, unexpected
from conformance.cases import cases
from conformance.exact import EXACT, expected
from conformance.harness import attempt_all
from conformance.run import flat, imported, ports
from tenon.network.ops.scan import Scan


@pytest.fixture(autouse=True)
def _needs_gcc() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")


KEPT = {"test_loop11": 5, "test_scan_sum": 3, "test_scan9_sum": 3, "test_scan9_multi_state": 3, "test_scan9_scalar": 5}
"""Cases of control flow of which the graph has a loop, and how often that runs; others have bodies that differ from
iteration to iteration (elements of sequences), or fewer steps than loops have."""


def test_smallest_cases_have_the_expected_outcomes() -> None:
    """All cases of If, Loop, Scan and sequences are among them, whose loops stay loops."""
    everything = list(cases())
    control = [c for c in everything if c.kind == "node" and re.match("test_(if|loop|scan_|scan9|sequence_)", c.name)]
    chosen = list(dict.fromkeys([*quick(everything, 1), *control]))
    outcomes = attempt_all(chosen, 2)
    assert len({c.operator for c in chosen}) > 190
    assert not unexpected(outcomes, expected_failures()), summary(outcomes)
    assert len(control) > 20
    assert all(o.status == "passed" for o in outcomes if o.name in {c.name for c in control}), summary(outcomes)
    for case in control:
        graph, _ = imported(case, flat(zip(ports(case.model)[0], case.data[0][0], strict=False)))
        counts = [node.op.count for node in graph if isinstance(node.op, Scan)]
        assert counts == ([KEPT[case.name]] if case.name in KEPT else []), case.name


def test_only_rounding_noise_in_expected_values_is_recomputed() -> None:
    name, x = next(iter(EXACT)), np.arange(200, dtype=np.float32).reshape(1, 10, 10, 2)
    exact = EXACT[name]([x])
    noisy = exact + np.float32(2e-6)
    assert expected(name, [x], [noisy], 0, 1e-7)[0] is not noisy
    assert expected(name, [x], [noisy], 0, 1e-5)[0] is noisy
    assert expected("test_dft", [x], [noisy], 0, 1e-7)[0] is noisy
    with pytest.raises(ValueError, match="something else"):
        expected(name, [x], [exact + 1], 0, 1e-7)


@pytest.mark.slow
def test_all_cases_have_the_expected_outcomes() -> None:
    outcomes = attempt_all(list(cases()), 2)
    assert not unexpected(outcomes, expected_failures()), summary(outcomes)
