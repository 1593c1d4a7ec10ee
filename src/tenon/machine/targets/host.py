"""The best target for the machine that Tenon runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from tenon.errors import InputError
from tenon.machine.targets.base import Host, Target
from tenon.machine.targets.host_cpu import fits, processor
from tenon.machine.targets.registry import rows
from tenon.machine.targets.runner import Local, Runner
from tenon.network.graph.types import DType


@lru_cache(maxsize=2)
def host(bf16: bool = False) -> Target:
    """The target, among those whose code this machine executes, that uses the most features; ``bf16`` allows targets
    that compute in bf16.

    Raises InputError on a machine that no target describes.
    """
    row = best(fits, bf16)
    if row is None or row.host is None:
        raise InputError(f"no target for a {processor()} host; name one with --target")
    return replace(row, triple=row.host.triple or row.triple, runner=None)


def best(fitting: Callable[[Host], bool], bf16: bool = False) -> Target | None:
    """The target with the most features whose ``Host`` fits a machine, except targets for one processor only; ``bf16``
    allows targets that compute in bf16."""
    fitting_targets = [
        (len(row.host.features), row.name)
        for row in rows().values()
        if row.host and fitting(row.host) and not row.host.tuned and (bf16 or not row.machine.multiplies(DType.BF16, 2))
    ]
    return rows()[max(fitting_targets)[1]] if fitting_targets else None


def runner_of(target: Target) -> Runner | None:
    """The runner of programs for a target: this machine itself if it can, else the row's runner."""
    return Local() if target.host and fits(target.host) else target.runner


def missing(target: Target) -> str:
    """Why programs for a target cannot be run, and what to do; "" if they can."""
    runner = runner_of(target)
    if runner:
        return runner.missing()
    return f"nothing runs programs for {target.name}: this machine lacks its instructions, and there is no emulator"
