"""Descriptions in words of targets, and of their tests: for ``tenon targets`` and docs/reference/targets.md."""

from __future__ import annotations

from typing import Literal

from tenon.machine.targets.base import Group, Target
from tenon.machine.targets.host import runner_of


def runs(target: Target) -> Literal["natively", "emulator", "no"]:
    """How this machine runs programs for a target; "no" also where the emulator is not installed."""
    runner = runner_of(target)
    if runner is None or runner.missing():
        return "no"
    return "emulator" if runner.emulates else "natively"


def how_tested(target: Target) -> str:
    """On which machine the tests run its programs, and how much of them."""
    if not target.format.compiled:
        in_browser = target.group is Group.BROWSER
        return "a part in a browser; all in the slow tests" if in_browser else "plans and prints"
    if target.runner is None and not (target.host and target.host.system == "linux"):
        return "compiled and linked" if target.c_library else "compiled"
    where = target.runner.name if target.runner else target.host.family if target.host else ""
    return f"all on {where}" if target.tier == 1 else f"a part on {where}; all in the slow tests"


def machine_code(target: Target) -> tuple[str, ...]:
    """The kinds of files with machine code that a bundle for it can have."""
    if not target.format.compiled:
        return ()
    if target.format.module:
        return "object", "module"
    if target.freestanding:
        return ("object",)
    return "object", "library", *(("executable",) if target.c_library else ())
