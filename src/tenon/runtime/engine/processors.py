"""Processor affinity of threads: a list of processors, or all cores of one kind."""

from __future__ import annotations

import os
from _thread import get_native_id
from collections.abc import Sequence
from typing import Literal

from tenon.errors import InputError

Cores = Literal["all", "big", "little", 0, 1, 2]
"""The kind of cores to use: all, or on machines with different cores only the fast ("big", 1) or slow ("little", 2)
ones."""

_KINDS: tuple[Cores, ...] = ("all", "big", "little")
_SYSTEM = "/sys/devices/system/cpu"


def choose(
    affinity: Sequence[int] = (), cores: Cores = "all", system: str | os.PathLike[str] = _SYSTEM
) -> frozenset[int]:
    """The processors to run on; empty for no restriction.

    Raises InputError for processors that this process may not use, and for unknown kinds.
    """
    kind = _KINDS[cores] if isinstance(cores, int) and not isinstance(cores, bool) and 0 <= cores < 3 else cores
    if kind not in _KINDS:
        raise InputError(f"cores={cores!r}: choose from all (0), big (1) and little (2)")
    if affinity and kind != "all":
        raise InputError(f"affinity={list(affinity)} and cores={cores!r} exclude each other: give one of them")
    if not affinity and kind == "all":
        return frozenset()
    if not hasattr(os, "sched_setaffinity"):
        raise InputError("this operating system does not let a program choose its processors: leave out affinity")
    present = os.sched_getaffinity(0)
    if affinity:
        if missing := sorted(set(affinity) - present):
            raise InputError(f"affinity: there is no processor {missing[0]} here; there are {sorted(present)}")
        return frozenset(affinity)
    return of_kind(kind == "big", present, system)


def of_kind(big: bool, present: set[int], system: str | os.PathLike[str] = _SYSTEM) -> frozenset[int]:
    """The fastest (slowest) of ``present``; all of them if they are equal or their speeds are unknown."""
    speeds = {number: _speed(f"{system}/cpu{number}") for number in present}
    chosen = (max if big else min)(speeds.values())
    return frozenset(number for number, speed in speeds.items() if speed == chosen)


def _speed(folder: str) -> int:
    """The capacity of a core, or its highest clock rate in kHz, as reported by the system; 0 if unknown."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        try:
            with open(f"{folder}/{name}") as file:
                return int(file.read())
        except (OSError, ValueError):
            continue
    return 0


class Pinning:
    """Sets and restores the affinity of threads.  Without processors, it does nothing."""

    def __init__(self, processors: frozenset[int]) -> None:
        self.processors = processors
        self._before: dict[int, set[int]] = {}
        self._process = os.getpid()

    def pin(self) -> None:
        """Pin the calling thread; the threads that it starts inherit this."""
        if not self.processors:
            return
        if self._process != os.getpid():  # forked: threads of the parent must not be changed
            self._before, self._process = {}, os.getpid()
        thread = get_native_id()
        if thread not in self._before:
            self._before[thread] = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self.processors)

    def release(self) -> None:
        """Restore the affinity of all pinned threads that still exist."""
        while self._before and self._process == os.getpid():
            thread, processors = self._before.popitem()
            try:
                os.sched_setaffinity(thread, processors)
            except OSError:
                continue
