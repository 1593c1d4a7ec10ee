"""A board with a network in its firmware, behind a serial port, as a runner of that network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from tenon.errors import DeviceError, InputError
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.bundle.network_digest import network_digest
from tenon.tools.devices.serial_frames import Requests
from tenon.tools.devices.serial_port import SPEED, SerialPort

_SECONDS = 120.0
"""For a run of the network."""


@dataclass(frozen=True)
class SerialBoard:
    """The board at a port; its firmware has the network (``--emit serial``), no program is pushed to it."""

    path: str
    speed: int = SPEED
    emulates: bool = False

    @property
    def name(self) -> str:
        return f"the board at {self.path}"

    def missing(self) -> str:
        """Nothing: opening the port tells."""
        return ""

    def session(self) -> NoReturn:
        """Raises InputError: programs cannot be pushed."""
        raise InputError(f"{self.name} runs the network of its firmware only: use validate, run, evaluate or benchmark")

    @contextmanager
    def connected(self) -> Iterator[SerialBoard]:
        """The board itself: the port is opened for each batch of runs."""
        yield self

    def regions(self, manifest: Manifest, weights: bytes, given: Sequence[bytes]) -> list[bytes]:
        """The mutable regions after a run from each of ``given``.

        Inputs are written and outputs read.  Raises DeviceError if the board has another network, or fails.
        """
        with self._requests(manifest, weights) as requests:
            return [self._run(requests, manifest, region)[0] for region in given]

    def microseconds(self, manifest: Manifest, weights: bytes, given: bytes, rounds: int, warmup: int) -> list[int]:
        """The time of each of ``rounds`` runs by the board's clock.  Raises DeviceError if it has none."""
        with self._requests(manifest, weights) as requests:
            times = [self._run(requests, manifest, given)[1] for _ in range(warmup + rounds)][warmup:]
        if not any(times):
            raise DeviceError(f"{self.name} has no clock: give its function for microseconds, not NULL")
        return times

    @contextmanager
    def _requests(self, manifest: Manifest, weights: bytes) -> Iterator[Requests]:
        with SerialPort(self.path, self.speed) as port:
            requests = Requests(port, self.name)
            hello = requests.hello()
            if hello.digest != network_digest(manifest, weights):
                raise DeviceError(
                    f"{self.name} has another network ('{hello.name}', {hello.tensors} bytes of tensors) than "
                    f"'{manifest.name}' for {manifest.target.name}: compile with --emit serial and the same options "
                    "and flash it, or give the folder of the bundle that was flashed"
                )
            yield requests

    def _run(self, requests: Requests, manifest: Manifest, region: bytes) -> tuple[bytes, int]:
        for tensor in manifest.inputs:
            requests.write(tensor.offset, region[tensor.offset : tensor.offset + tensor.bytes])
        status, time = requests.run(_SECONDS)
        if status:
            raise DeviceError(f"{self.name}: the network failed with status {status}")
        after = bytearray(region)
        for tensor in manifest.outputs:
            after[tensor.offset : tensor.offset + tensor.bytes] = requests.read(tensor.offset, tensor.bytes)
        return bytes(after), time
