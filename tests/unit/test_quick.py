"""``scripts/test quick`` has a case of every operator and a file of tests of every importer."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from on_targets import COMPILED
from tenon.formats.importers import FORMATS
from tenon.machine.targets import find
from tenon.network.ops import registry

ROOT = Path(__file__).resolve().parents[2]


@cache
def collected() -> list[tuple[Path, str]]:
    """The files and names of the quick tests."""
    command = [sys.executable, "-m", "pytest", "-m", "quick", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [(ROOT / file, name) for file, name in re.findall(r"^(\S+)::(\S.*)$", done.stdout, re.M)]


def test_every_operator_has_a_quick_case() -> None:
    """A case that its operator lowers, or else one that is listed as declined; of operators without cases, a test."""
    operators = re.findall(r"^test_(?:lowering|declined)_\w+\[(\w+)-", "\n".join(name for _, name in collected()), re.M)
    files = {path.name for path, _ in collected()}
    others = {"Scan": "test_scan.py", "If": "test_branches.py", "Clipped": "test_clip.py"}
    assert sorted({*operators, *(name for name, file in others.items() if file in files)}) == sorted(registry())


def test_every_importer_has_quick_tests() -> None:
    text = "\n".join(path.read_text() for path in dict.fromkeys(path for path, _ in collected()))
    importers = re.findall(r'mark\.quick\(importer="(\w+)"\)', text)
    assert sorted(importers) == sorted(format.module.split(".")[-2] for format in FORMATS.values())


def test_slow_tests_are_left_out() -> None:
    digits = [name for path, name in collected() if path.name == "test_digits.py"]
    run = {target for name in digits for target in re.findall(r"every_target\[(\S+)\]", name)}
    assert run == {target for target in COMPILED if find(target).tier == 1}


def test_passes_structure_and_a_network_are_tested() -> None:
    files = {path.name for path, _ in collected()}
    assert {"test_architecture.py", "test_golden.py", "test_digits.py"} <= files
