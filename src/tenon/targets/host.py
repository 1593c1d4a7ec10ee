"""The best target for the machine that Tenon runs on."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tenon.errors import InputError
from tenon.targets import arm, x86
from tenon.targets.base import Target
from tenon.targets.host_cpu import BF16, NEEDS, processor, runs_here


@lru_cache(maxsize=2)
def host(bf16: bool = False) -> Target:
    """``bf16`` asks for one that computes in bf16 if the machine does.

    Raises InputError on a machine that no target describes.
    """
    rows = {row.name: row for row in (*x86.TARGETS, *arm.TARGETS)}
    family = processor()
    if family == "x86-64":
        return next(rows[name] for name in NEEDS if runs_here(name) and (bf16 or name != BF16))
    if family == "aarch64":
        return replace(rows["aarch64"], triple="aarch64-linux-gnu", runner=())
    raise InputError(f"no target for a {family} host; name one with --target")
