"""Timestamps between the kernel calls of a run, for profiling."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError, ToolchainError
from tenon.machine.targets.host import host
from tenon.machine.toolchain.compiler import find
from tenon.network.graph.graph import Array
from tenon.options import Options
from tenon.runtime.bundle.link import runtime
from tenon.runtime.engine.loading import load_library
from tenon.runtime.engine.thread_pool import ThreadPool, check_status

_WATCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


class _Spent(ctypes.Structure):
    """``TenonSpent`` of ``runtime/c/clock.c``."""

    _fields_ = (
        ("spent", ctypes.POINTER(ctypes.c_uint64)),
        ("begin", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("phase", ctypes.c_int),
    )


@lru_cache(maxsize=1)
def watch() -> Any:
    """A C function that adds the nanoseconds since its last call to those of the phase that ended (see ``clock.c``).

    It costs less than 40 ns, or about 1 µs where no compiler can make its C form.
    """
    try:
        target, compiler = host(), find(Options.from_environment())
        clock_object = compiler.compile({"clock.c": runtime("clock.c")}, "clock.c", target)
        library = compiler.link({"clock.o": clock_object}, target, ("-shared", "-nostdlib"))
    except (ToolchainError, InputError):
        return _WATCH(_stamp)
    return _WATCH(("tenon_stamp", load_library(library, Path("clock.so"))))


def _stamp(context: int, phase: int) -> None:
    own, now = _Spent.from_address(context), time.monotonic_ns()
    if own.phase >= 0:
        own.spent[own.phase] += now - own.last
    else:
        own.begin = now
    own.last, own.phase = now, phase


class StampedThreadPool(ThreadPool):
    """The threads that run ``<entry>_profile``, in which each of ``calls`` kernel calls is a phase of its own."""

    def __init__(self, library: ctypes.CDLL, entry: str, calls: int, threads: int, processors: frozenset[int]) -> None:
        super().__init__(library, entry, threads, processors)
        self._phase, self._next = f"{entry}_profile", f"{entry}_profile_next"
        self._entry, self._calls, self._spent = entry, calls, _Spent()

    def stamps(self, regions: Sequence[ctypes.c_void_p]) -> Array:
        """One run: readings in nanoseconds before the first call and after each; a call in a loop counts as if all of
        its iterations followed each other."""
        spent = np.zeros(self._calls, np.uint64)
        self._spent.spent = ctypes.cast(spent.ctypes.data, ctypes.POINTER(ctypes.c_uint64))
        self._spent.phase = -1
        self._pinning.pin()
        check_status(self._entry, self._share(regions))
        return np.cumsum(np.append(np.uint64(self._spent.begin), spent), dtype=np.uint64)

    def _start(self) -> None:
        super()._start()
        self._library[f"{self._pool}watch"](self._handle, watch(), ctypes.byref(self._spent))
