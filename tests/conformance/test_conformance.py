"""A few conformance cases of every operator, compared with the list of expected failures; ``scripts/conformance`` runs
all.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from conformance.__main__ import expected_failures, quick, summary, unexpected
from conformance.cases import cases
from conformance.exact import EXACT, expected
from conformance.harness import attempt_all


@pytest.fixture(autouse=True)
def _needs_gcc() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")


def test_smallest_cases_have_the_expected_outcomes() -> None:
    chosen = quick(cases(), 1)
    outcomes = attempt_all(chosen, 2)
    assert len({c.operator for c in chosen}) > 190
    assert not unexpected(outcomes, expected_failures()), summary(outcomes)


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
