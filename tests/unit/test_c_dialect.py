"""C against the interpreter: the kernels of every operator case, bit for bit when nothing is contracted."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from compiled import built
from lowered import MACHINES, Ask, run_lowered
from tenon.ops import registry
from tenon.ops.base import Case

ASK = Ask(blocked=True, surplus=1)
CASES: list[Case] = [case for _, cls in sorted(registry().items()) for case in cls.cases()]


@pytest.mark.parametrize("machine", MACHINES)
def test_c_does_what_the_interpreter_does(machine: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    groups = built(CASES, MACHINES[machine], ASK, tmp_path, [gcc, "-O1", "-ffp-contract=off"])
    lowered = [(library, case) for library, cases in groups for case in cases]
    assert len(lowered) > 500
    for library, case in lowered:
        arguments = (case.op, case.arrays(), MACHINES[machine], case.constant, ASK)
        for a, b in zip(run_lowered(*arguments, library), run_lowered(*arguments), strict=True):
            x, y = (each.view(np.uint8) if each.dtype.isbuiltin != 1 else each for each in (a, b))
            np.testing.assert_array_equal(x, y, err_msg=f"{case.op} {case.label}")
