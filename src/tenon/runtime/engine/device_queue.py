"""Runs of bundles whose steps are launches on a device (``codegen.gpu.entry_points``)."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.errors import InputError, ResourceError, TenonError
from tenon.gpu_options import USUAL, GpuOptions
from tenon.network.graph.dtype import Array
from tenon.runtime.engine.processors import Pinning

_WRONG_SIZE, _TOO_MANY_ITERATIONS = -1007, -1008
"""Statuses of runs that inputs end (``runtime/c/device_network.c``): the device works."""


def has_queue(library: ctypes.CDLL, entry: str) -> bool:
    """Whether the entry points of a program create, run and destroy a device queue."""
    return hasattr(library, f"{entry}_create")


@dataclass(frozen=True)
class DeviceProperties:
    """The facts that a device states: its name, its driver's version, the version of the interface (OpenCL's, or the
    compute capability), the number of compute units, and bytes of memory."""

    name: str
    driver: str
    version: str
    units: int
    memory: int

    @classmethod
    def read(cls, lines: bytes) -> DeviceProperties | None:
        """From the lines of the entry point ``<name>_device``; None if there are none."""
        parts = (line.partition(": ") for line in lines.decode(errors="replace").splitlines())
        words = {word: text for word, colon, text in parts if colon}
        if not words:
            return None
        name, driver, version = (words.get(word, "").strip() for word in ("name", "driver", "version"))
        return cls(name, driver, version, int(words.get("units", "0")), int(words.get("memory", "0")))

    def __str__(self) -> str:
        return f"{self.name}, {self.version}, driver {self.driver}"


class DeviceQueue:
    """Runs a program on a device, on which it stays from its first run until ``stop``.

    A forked child has no access to the device queue of its parent; it creates its own, if its parent had used none.
    """

    threads = 1

    def __init__(
        self, library: ctypes.CDLL, entry: str, processors: frozenset[int], options: GpuOptions = USUAL
    ) -> None:
        self.processors = processors
        self._pinning = Pinning(processors)
        self._library, self._entry, self._options = library, entry, options
        self._process = 0
        self._handle = ctypes.c_void_p()
        self._destroy: weakref.finalize[[Callable[[ctypes.c_void_p], object], ctypes.c_void_p, int], DeviceQueue] | None
        self._destroy = None

    def run(self, regions: Sequence[ctypes.c_void_p]) -> int:
        """Returns 0.  Raises InputError for inputs with a size out of range or too many iterations of a loop, and
        ResourceError if there is no device, or if it fails."""
        self.prepare(regions)
        self._require_success(self._library[f"{self._entry}_run"](regions[1], self._handle))
        return 0

    def times(self, regions: Sequence[ctypes.c_void_p], steps: int) -> Array:
        """One run: nanoseconds by the device's clock of the copies of inputs, of those of outputs, and of each step.

        Raises InputError and ResourceError as ``run`` does.
        """
        self.prepare(regions)
        spent = np.zeros(2 + steps, np.uint64)
        address = ctypes.c_void_p(spent.ctypes.data)
        self._require_success(self._library[f"{self._entry}_timed_run"](regions[1], self._handle, address))
        return spent

    def properties(self) -> DeviceProperties | None:
        """The device that runs the program, or would run it; None if there is none."""
        describe = self._library[f"{self._entry}_device"]
        describe.restype = ctypes.c_char_p
        return DeviceProperties.read(describe())

    @property
    def has_streams(self) -> bool:
        """Whether runs can be queued on a stream of the caller's."""
        return hasattr(self._library, f"{self._entry}_queue_run")

    def queue_run(self, regions: Sequence[ctypes.c_void_p], inputs: Sequence[int], stream: int) -> None:
        """Queue a run on a stream, with the inputs at these addresses (0: where the network has them).

        Raises InputError and ResourceError as ``run`` does.
        """
        self.prepare(regions)
        addresses = (ctypes.c_uint64 * max(1, len(inputs)))(*inputs)
        self._require_success(
            self._library[f"{self._entry}_queue_run"](addresses, ctypes.c_void_p(stream), self._handle)
        )

    def wait(self, stream: int) -> None:
        """Let a stream wait for the last run that was queued."""
        if self._process == os.getpid():
            self._require_success(self._library[f"{self._entry}_wait"](ctypes.c_void_p(stream), self._handle))

    def tensors(self, regions: Sequence[ctypes.c_void_p]) -> int:
        """The address on the device of the mutable region."""
        self.prepare(regions)
        address = self._library[f"{self._entry}_tensors"]
        address.restype = ctypes.c_uint64
        return int(address(self._handle))

    def prepare(self, regions: Sequence[ctypes.c_void_p]) -> None:
        """Create the network on the device, unless that is done.  Raises ResourceError if there is no device, or if it
        refuses the network."""
        if self.processors:
            self._pinning.pin()
        if self._process != os.getpid():
            self._create(regions[0])

    def _create(self, constant: ctypes.c_void_p) -> None:
        create, status = self._library[f"{self._entry}_create_with_options"], ctypes.c_int()
        create.restype = ctypes.c_void_p
        address = create(constant, os.fsencode(self._options.lines()), ctypes.byref(status))
        if not address:
            raise ResourceError(f"'{self._entry}' cannot run: {self._message()}")
        if self._destroy:
            self._destroy.detach()
        self._process, self._handle = os.getpid(), ctypes.c_void_p(address)
        destroy = self._library[f"{self._entry}_destroy"]
        self._destroy = weakref.finalize(self, _destroyed, destroy, self._handle, self._process)

    def _require_success(self, status: int) -> None:
        """Raise the error of a run, unless it ended with status 0."""
        if status:
            raise self._failure(status)

    def _failure(self, status: int) -> TenonError:
        """The error of a run.  Where the device failed, the network is destroyed: the next run creates it again, on a
        device that works."""
        if status in (_WRONG_SIZE, _TOO_MANY_ITERATIONS):
            return InputError(f"'{self._entry}': {self._message()}")
        error = ResourceError(f"'{self._entry}' failed on the device: {self._message()}")
        self.stop()
        return error

    def _message(self) -> str:
        """The message of the last error."""
        message = self._library[f"{self._entry}_message"]
        message.restype = ctypes.c_char_p
        return str(message().decode(errors="replace")).strip()

    def stop(self) -> None:
        """Release what the device holds.  The next run creates it again."""
        if self._destroy:
            self._destroy()
        self._process = 0
        self._pinning.release()


def _destroyed(destroy: Callable[[ctypes.c_void_p], object], handle: ctypes.c_void_p, process: int) -> None:
    if process == os.getpid():
        destroy(handle)
