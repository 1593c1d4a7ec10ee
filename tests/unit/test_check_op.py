"""``scripts/check-op`` selects every case of an operator, on all widths, and all that runs them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import check_op
from lowered import MACHINES
from operator_cases import BY_OPERATOR, DECLINED


def collected(*words: str) -> list[str]:
    """The names of the tests that the command would run."""
    command = [sys.executable, "-m", "check_op", *words, "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=check_op.TESTS, capture_output=True, text=True, check=True)
    return re.findall(r"^\S+::(\S+)$", done.stdout, re.M)


def test_every_case_runs_on_all_widths_in_all_ways() -> None:
    names = collected("MaxPool")
    cases = [name for name, _ in BY_OPERATOR["MaxPool"] if name not in DECLINED]
    assert len(cases) > 10
    wanted = [f"test_lowering_agrees_with_the_reference[{case}-{machine}]" for case in cases for machine in MACHINES]
    for machine in MACHINES:
        wanted += [f"test_c_matches_the_interpreter[MaxPool-{machine}-{compiler}]" for compiler in ("gcc", "zig")]
        wanted.append(f"test_operator_cases_run_clean[MaxPool-{machine}]")
        wanted.append(f"test_both_proofs_agree_on_every_kernel[MaxPool-{machine}]")
    assert set(wanted) <= set(names)
    assert not [name for name in names if "MaxPoolWithIndices" in name or "sample" in name]


def test_names_of_operators_are_checked(capfd: pytest.CaptureFixture[str]) -> None:
    assert check_op.main(["MaxPol", "Abs"]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("check-op: there is no operator 'MaxPol': did you mean MaxPool or ")
    assert "'Abs'" not in printed
    assert check_op.main(["-x"]) == 2
    assert "usage" in capfd.readouterr().err
