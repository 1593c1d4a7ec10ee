"""What the machine that Tenon runs on can execute."""

from __future__ import annotations

import platform
from functools import lru_cache

_AVX2 = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd"}
BF16 = "x86-64-avx512-bf16"
NEEDS: dict[str, frozenset[str]] = {
    BF16: _AVX512 | {"avx512_bf16"}, "x86-64-avx512": _AVX512, "x86-64-avx2": _AVX2, "x86-64": frozenset()
}  # fmt: skip
"""The targets of x86-64, best first, and what /proc/cpuinfo must list for each."""


def processor() -> str:
    """The family: "x86-64", "aarch64", or what the system calls another one."""
    name = platform.machine().lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(name, name)


def runs_here(name: str) -> bool:
    """Whether this machine executes code made for the target of that name."""
    family = processor()
    return name in NEEDS and flags() >= NEEDS[name] if family == "x86-64" else name == family == "aarch64"


def model() -> str:
    """The name of the first processor, as far as the system knows it."""
    return _listed("model name") or processor()


@lru_cache(maxsize=1)
def flags() -> frozenset[str]:
    """What the first processor says it can.  The system asks every processor for the rest of the file, which takes
    its time."""
    return frozenset(_listed("flags").split())


def _listed(what: str) -> str:
    """What the system says of the first processor; empty if nothing."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")
    except OSError:
        return ""
