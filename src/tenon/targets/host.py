"""The best target for the machine that Tenon runs on."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

from tenon.errors import InputError
from tenon.targets.base import Target

_AVX2 = {"avx2", "fma", "bmi1", "bmi2", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}
_BF16 = "x86-64-avx512-bf16"
_NEEDS = {
    _BF16: _AVX512 | {"avx512_bf16"}, "x86-64-avx512": _AVX512, "x86-64-avx2": _AVX2, "x86-64": set[str]()
}  # fmt: skip
"""Best first: what /proc/cpuinfo must list for each row."""


@lru_cache(maxsize=2)
def host(bf16: bool = False) -> Target:
    """``bf16`` asks for one that computes in bf16 if the machine does.

    Raises InputError on a machine that no target describes.
    """
    from dataclasses import replace

    from tenon.targets import arm, x86

    machine = platform.machine().lower()
    rows = {row.name: row for row in (*x86.TARGETS, *arm.TARGETS)}
    if machine in ("x86_64", "amd64"):
        flags = _cpu_flags()
        return next(rows[name] for name, needs in _NEEDS.items() if flags >= needs and (bf16 or name != _BF16))
    if machine in ("aarch64", "arm64"):
        return replace(rows["aarch64"], triple="aarch64-linux-gnu", runner=())
    raise InputError(f"no target for a {machine} host; name one with --target")


def runs_here(name: str) -> bool:
    """Whether this machine executes code made for the target of that name."""
    try:
        best = host()
    except InputError:
        return False
    return best.name == name or (best.name in _NEEDS and _cpu_flags() >= _NEEDS.get(name, {"unknown"}))


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())
