"""The list of tests that are slow for their cost alone names tests that exist."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_listed_tests_exist() -> None:
    listed = [line for line in (TESTS / "slow_tests.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(listed) == len(set(listed)) > 100
    for line in listed:
        path, _, test = line.partition("::")
        assert f"def {test.partition('[')[0]}(" in (TESTS.parent / path).read_text(), line
