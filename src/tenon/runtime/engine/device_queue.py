"""Runs of bundles whose steps are launches on a device (``codegen.opencl.entry_points``)."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence

from tenon.errors import ResourceError
from tenon.runtime.engine.processors import Pinning

_NO_DEVICE = -1


def has_queue(library: ctypes.CDLL, entry: str) -> bool:
    """Whether the entry points of a program create, run and destroy a device queue."""
    return hasattr(library, f"{entry}_create")


class DeviceQueue:
    """Runs a program on a device, on which it stays from its first run until ``stop``.

    A forked child has no access to the device queue of its parent and creates its own.
    """

    threads = 1

    def __init__(self, library: ctypes.CDLL, entry: str, processors: frozenset[int]) -> None:
        self.processors = processors
        self._pinning = Pinning(processors)
        self._library, self._entry = library, entry
        self._process = 0
        self._handle = ctypes.c_void_p()
        self._destroy: weakref.finalize[[Callable[[ctypes.c_void_p], object], ctypes.c_void_p, int], DeviceQueue] | None
        self._destroy = None

    def run(self, regions: Sequence[ctypes.c_void_p]) -> int:
        """Returns what the program returned.  Raises ResourceError if there is no device."""
        constant, mutable, _ = regions
        if self.processors:
            self._pinning.pin()
        if self._process != os.getpid():
            self._create(constant)
        return int(self._library[f"{self._entry}_run"](mutable, self._handle))

    def _create(self, constant: ctypes.c_void_p) -> None:
        create, status = self._library[f"{self._entry}_create"], ctypes.c_int()
        create.restype = ctypes.c_void_p
        address = create(constant, ctypes.byref(status))
        if not address:
            raise ResourceError(f"'{self._entry}' cannot run: {_reason(status.value)}")
        if self._destroy:
            self._destroy.detach()
        self._process, self._handle = os.getpid(), ctypes.c_void_p(address)
        destroy = self._library[f"{self._entry}_destroy"]
        self._destroy = weakref.finalize(self, _destroyed, destroy, self._handle, self._process)

    def stop(self) -> None:
        """Release what the device holds.  The next run creates it again."""
        if self._destroy:
            self._destroy()
        self._process = 0
        self._pinning.release()


def _reason(status: int) -> str:
    """What a status of OpenCL means for users."""
    if status == _NO_DEVICE:
        return "there is no OpenCL device: install the driver of one (Debian's pocl-opencl-icd runs on the processor)"
    return f"the OpenCL driver answers with status {status}"


def _destroyed(destroy: Callable[[ctypes.c_void_p], object], handle: ctypes.c_void_p, process: int) -> None:
    if process == os.getpid():
        destroy(handle)
