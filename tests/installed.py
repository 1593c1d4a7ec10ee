"""Runs the console script of the installed package in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from real import ROOT

SCRIPT = Path(sys.executable).with_name("tenon")


def tenon_script() -> Path:
    """The installed console script; skips the test if there is none."""
    if not SCRIPT.exists():
        pytest.skip("the package is not installed: no console script beside this Python")
    return SCRIPT


def environment(**changes: str) -> dict[str, str]:
    """The environment without TENON_* variables except for the cache, and with ``changes``."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("TENON_") or name == "TENON_CACHE"}
    return {**kept, "COLUMNS": "80", **changes}


def tenon(*arguments: str | Path, cwd: Path = ROOT, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``tenon``; ``changes`` are environment variables."""
    command = [str(tenon_script()), *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(**changes), capture_output=True, text=True, check=False, timeout=300
    )


def succeeds(*arguments: str | Path, cwd: Path = ROOT, **changes: str) -> str:
    """The command's output; it must exit with status 0 and print no traceback."""
    done = tenon(*arguments, cwd=cwd, **changes)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout
