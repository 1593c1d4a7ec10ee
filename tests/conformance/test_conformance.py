"""A few conformance cases of every operator end as the list says; ``scripts/conformance`` runs all of them."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from conformance.__main__ import listed, quick, summary, surprises
from conformance.cases import cases
from conformance.exact import EXACT, expected
from conformance.harness import attempt_all


@pytest.fixture(autouse=True)
def _needs_gcc() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")


def test_every_operator_ends_as_listed() -> None:
    chosen = quick(cases(), 1)
    outcomes = attempt_all(chosen, 2)
    assert len({c.operator for c in chosen}) > 190
    assert not surprises(outcomes, listed()), summary(outcomes)


def test_expectations_are_computed_anew_only_where_they_are_rounding_noise() -> None:
    name, x = next(iter(EXACT)), np.arange(200, dtype=np.float32).reshape(1, 10, 10, 2)
    exact = EXACT[name]([x])
    noisy = exact + np.float32(2e-6)
    assert expected(name, [x], [noisy], 0, 1e-7)[0] is not noisy
    assert expected(name, [x], [noisy], 0, 1e-5)[0] is noisy
    assert expected("test_dft", [x], [noisy], 0, 1e-7)[0] is noisy
    with pytest.raises(ValueError, match="something else"):
        expected(name, [x], [exact + 1], 0, 1e-7)


@pytest.mark.slow
def test_all_cases_end_as_listed() -> None:
    outcomes = attempt_all(list(cases()), 2)
    assert not surprises(outcomes, listed()), summary(outcomes)
