"""Capabilities of the processor and system that Tenon runs on."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import lru_cache

from tenon.machine.targets.base import Host
from tenon.machine.targets.registry import named


def processor() -> str:
    """The family: "x86-64", "aarch64", or what the system calls another one."""
    name = platform.machine().lower()
    return {"x86_64": "x86-64", "amd64": "x86-64", "arm64": "aarch64"}.get(name, name)


def system() -> str:
    """The operating system: "linux", "darwin", "windows"."""
    return platform.system().lower()


@lru_cache(maxsize=64)
def runs_here(name: str) -> bool:
    """Whether this machine executes code made for the target of that name."""
    target = named(name)
    return target is not None and target.host is not None and fits(target.host)


def fits(host: Host) -> bool:
    """Whether this machine has what code for such a host needs."""
    return suits(host, processor(), system(), flags())


def suits(host: Host, family: str, system: str, features: frozenset[str]) -> bool:
    """Whether a machine has what code for such a host needs."""
    return (host.family, host.system) == (family, system) and features >= host.features


def model() -> str:
    """The name of the first processor, as far as the system knows it."""
    return _listed("model name") or processor()


@lru_cache(maxsize=1)
def flags() -> frozenset[str]:
    """The features that the first processor lists.  The system asks every processor for the rest of the file, which
    takes its time."""
    known = features(_listed)
    lengths = {"sve": 51, "sme": 64}  # PR_SVE_GET_VL, PR_SME_GET_VL
    return known | {f"{name}{_vector_bits(question)}" for name, question in lengths.items() if name in known}


def features(listed: Callable[[str], str]) -> frozenset[str]:
    """Features that /proc/cpuinfo lists of a processor; ``listed`` gives the entry under a name."""
    if extensions := listed("isa"):  # RISC-V: rv64imafdcv_zicsr_...
        letters, *words = extensions.split("_")
        return frozenset((*letters[len("rv64") :], *words))
    return frozenset((listed("flags") or listed("Features")).split())  # the latter on Arm


def _vector_bits(question: int) -> int:
    """The length of registers, as the system has set it for this thread; ``question`` is that of prctl."""
    import ctypes

    length: int = ctypes.CDLL(None).prctl(question, 0, 0, 0, 0)
    return 8 * (length & 0xFFFF) if length > 0 else 0


def _listed(what: str) -> str:
    """The system's entry for the first processor; empty if there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(what)), "")
    except OSError:
        return ""
