"""The C of every operator case under AddressSanitizer and UndefinedBehaviorSanitizer, and the C libraries in Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from operator_cases import sweep

SCRIPT = """
import sys
from pathlib import Path
from compiled import build_libraries
from lowered import MACHINES, Ask, run_lowered
from tenon.network.ops import registry
from operator_cases import selected

machine = MACHINES[sys.argv[1]]
ask = Ask(blocked=True, surplus=1)
cases = selected(sys.argv[3])
gcc = ["gcc", "-O0", "-g1", "-march=native", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
count = 0
for library, group in build_libraries(cases, machine, ask, Path(sys.argv[2]), gcc):
    for case in group:
        print(case.op, case.label, flush=True)
        run_lowered(case.op, case.arrays(), machine, case.constant, ask, library)
        count += 1
assert count == len(cases)
print("ran", count, "cases")
"""


LOADED = ("test_libtenon.py", "test_tengine_api.py", "test_tengine_graphs.py")
"""Tests that call the C libraries from Python."""


def preloaded(library: str) -> dict[str, str]:
    """An environment in which Python begins with a sanitizer's runtime."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    line = [gcc, f"-print-file-name={library}"]
    path = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"gcc has no {library}")
    return {
        **os.environ,
        "LD_PRELOAD": path,
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": f"suppressions={Path(__file__).parents[1] / 'tsan.supp'}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }


@pytest.mark.slow
@pytest.mark.parametrize("build", ["asan", "tsan"])
def test_libraries_run_clean_in_python(build: str) -> None:
    """The tests of the C libraries that need the sanitizer's runtime before Python; a report fails them."""
    setarch = shutil.which("setarch")  # old runtimes do not support a random layout of memory
    files = [str(Path(__file__).parents[1] / "unit" / name) for name in LOADED]
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "slow", "-k", build, *files]
    command = [*([setarch, "-R"] if setarch else []), sys.executable, *words]
    done = subprocess.run(command, env=preloaded(f"lib{build}.so"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    assert int(passed[1]) > 200, done.stdout
    assert "has to be loaded before Python" not in done.stdout


@pytest.mark.parametrize(("selection", "machine"), sweep(share=8))
def test_operator_cases_run_clean(selection: str, machine: str, tmp_path: Path) -> None:
    environment = preloaded("libasan.so")
    command = [sys.executable, "-c", SCRIPT, machine, str(tmp_path), selection]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    assert "ran" in done.stdout
