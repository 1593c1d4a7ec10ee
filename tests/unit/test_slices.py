"""The kernels of every operator case run in slices, the last slice first, compared with whole runs, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compiled import Library, lowered_steps
from lowered import MACHINES, Ask, run_lowered
from operator_cases import selected

ASK = Ask(blocked=True, surplus=1)


@pytest.mark.parametrize(
    ("machine", "slices", "stride"),
    [
        ("lanes4", 5, 12),  # every twelfth case
        pytest.param("lanes4", 5, 1, marks=pytest.mark.slow),
        pytest.param("lanes16", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_slices_in_any_order_give_the_same_result(machine: str, slices: int, stride: int, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    cases = [case for case in selected(f"0::{stride}") if lowered_steps(case, MACHINES[machine], ASK)]
    libraries = {n: Library(n) for n in (1, slices)}
    for n, library in libraries.items():
        for case in cases:
            for step in lowered_steps(case, MACHINES[machine], ASK):
                library.add(step.kernel)
        (tmp_path / str(n)).mkdir()
        library.build(tmp_path / str(n), [gcc, "-O0", "-march=native", "-ffp-contract=off"])
    assert sum(items > 1 for _, items in libraries[slices].callers.values()) > 100 // stride
    for case in cases:
        arguments = (case.op, case.arrays(), MACHINES[machine], case.constant, ASK)
        whole, sliced = (run_lowered(*arguments, library) for library in libraries.values())
        for a, b in zip(whole, sliced, strict=True):
            assert a.tobytes() == b.tobytes(), f"{case.op} {case.label}"
