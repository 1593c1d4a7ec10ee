"""A few conformance cases of every operator end as the list says; ``scripts/conformance`` runs all of them."""

from __future__ import annotations

import shutil

import pytest

from conformance.__main__ import listed, quick, summary, surprises
from conformance.cases import cases
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


@pytest.mark.slow
def test_all_cases_end_as_listed() -> None:
    outcomes = attempt_all(list(cases()), 2)
    assert not surprises(outcomes, listed()), summary(outcomes)
