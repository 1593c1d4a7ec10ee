"""Programs of both formats compared with Paddle, over most of its operators; skipped if Paddle is not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers

paddle = pytest.importorskip("paddle", reason="Paddle is not installed")
written = pytest.importorskip("paddle_programs")
CASES = [*written.cases(), *written.OPERATORS]
WRITER = Path(__file__).parents[1] / "paddle_programs.py"
MOST_REFUSED = 120
"""Paddle 3 no longer saves every operator in the format of 2, and some operators have no place in that of 3."""


@pytest.fixture(scope="session", params=[("0", ".pdmodel"), ("1", ".json")], ids=["2.x", "3.x"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder with the programs of a format, and their file suffix."""
    flag, suffix = request.param
    if suffix == ".json" and paddle.__version__ < "3":
        pytest.skip("Paddle 2 has one format")
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run(
        [sys.executable, WRITER, folder],
        env=os.environ | {"FLAGS_enable_pir_api": flag},
        check=True,
        capture_output=True,
    )
    assert len(list(folder.glob(f"*{suffix}"))) > len(CASES) - MOST_REFUSED
    return folder, suffix


@pytest.mark.parametrize("name", CASES)
def test_programs_match_paddle(name: str, programs: tuple[Path, str]) -> None:
    folder, suffix = programs
    kept = folder / f"{name}.npz"
    if not kept.exists():
        pytest.skip("this Paddle does not save it")
    x, *expected = np.load(kept).values()
    actual = list(evaluate(importers.load(folder / f"{name}{suffix}"), {"x": x}).values())
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        room = 1e-5 * max(1.0, float(np.abs(theirs.astype(np.float64)).max(initial=0)))
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=1e-5, atol=room)
