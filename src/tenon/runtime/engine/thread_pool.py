"""The thread pool of an engine (see ``runtime/c/threads.c``)."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence

from tenon.errors import InputError, InternalError
from tenon.runtime.engine.processors import Pinning

_process = os.getpid()
"""This process: a system call in every run would take longer than some layers."""


def _forked() -> None:
    global _process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def check_status(name: str, status: int) -> None:
    """Raise InputError or InternalError unless the run of the network ``name`` ended with status 0."""
    if not status:
        return
    from tenon.machine.plan.program import SIZE_OUT_OF_RANGE, TOO_MANY_ITERATIONS

    if status == TOO_MANY_ITERATIONS:
        raise InputError(f"'{name}': for these inputs a loop would run more often than it was compiled for")
    if status == SIZE_OUT_OF_RANGE:
        what = "a size is not in the range that it was compiled for (--max), or sizes differ that must be equal"
        raise InputError(f"'{name}': for these inputs {what}")
    raise InternalError(f"'{name}' returned {status}")


class ThreadPool:
    """Runs an entry point with ``threads`` threads.

    Worker threads are native threads, which never execute Python and sleep between runs.  A forked child has none of
    them and starts its own.
    """

    def __init__(self, library: ctypes.CDLL, entry: str, threads: int, processors: frozenset[int]) -> None:
        self.threads, self.processors = threads, processors
        self._pinning = Pinning(processors)
        self._alone = library[entry]
        self._pool = f"{entry}_thread_pool_"
        self._library, self._phase, self._next = library, f"{entry}_phase", f"{entry}_next"
        self._process = 0
        self._stop: weakref.finalize[[Callable[[ctypes.c_void_p], object], ctypes.c_void_p, int], ThreadPool] | None = (
            None
        )

    def run(self, regions: Sequence[ctypes.c_void_p]) -> int:
        """Returns what the network returned."""
        if self.processors:
            self._pinning.pin()
        if self.threads == 1:
            return int(self._alone(*regions))
        return self._share(regions)

    def _share(self, regions: Sequence[ctypes.c_void_p]) -> int:
        if self._process != _process:
            self._start()
        return int(self._run(self._handle, *regions))

    def _start(self) -> None:
        library = self._library
        start = library[f"{self._pool}start"]
        start.restype = ctypes.c_void_p
        phase, following = (ctypes.cast(library[name], ctypes.c_void_p) for name in (self._phase, self._next))
        address = start(phase, following, self.threads)
        if not address:
            raise InternalError(f"the system has no room for {self.threads - 1} more threads")
        if self._stop:
            self._stop.detach()
        self._process, self._handle = _process, ctypes.c_void_p(address)
        self._run = _function(library, self._pool)  # looked up once, which takes as long as short layers
        self._stop = weakref.finalize(self, _stop, library[f"{self._pool}stop"], self._handle, self._process)

    def stop(self) -> None:
        """Stop the threads.  The next run starts them again."""
        if self._stop:
            self._stop()
        self._process = 0
        self._pinning.release()


def _function(library: ctypes.CDLL, pool: str) -> Callable[..., int]:
    """The function that runs a pool and returns a status; libraries of older bundles have one that returns nothing."""
    try:
        return library[f"{pool}run_once"]
    except AttributeError:
        run = library[f"{pool}run"]
        run.restype = None

    def run_once(*arguments: object) -> int:
        run(*arguments)
        return 0

    return run_once


def _stop(stop: Callable[[ctypes.c_void_p], object], handle: ctypes.c_void_p, process: int) -> None:
    if process == _process:
        stop(handle)
