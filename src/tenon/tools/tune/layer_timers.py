"""Timers of one compiled layer: in this process, or on the machine that the target's runner reaches.

Before every run the second-level cache is filled with something else, as the rest of a network would, and then with
what the layer works on, but not its weights.  A GPU runs all candidates for a layer one after the other, and its clock
gives the times of the kernels, without copies and launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

import numpy as np

from tenon.errors import InputError
from tenon.machine.targets import Target
from tenon.machine.targets.host import runner_of
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.targets.runner import Runner
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.engine import Engine, open_bundle

_EVICT = np.zeros(2 << 20, np.float32)
"""Bytes that push a layer's data out of the second-level cache: 8 MiB."""


class LayerTimer(Protocol):
    """A layer that is ready to run."""

    def seconds(self) -> float:
        """How long one run takes."""

    def close(self) -> None:
        """Give back what it holds."""


def open_timer(bundle: Bundle, threads: int, runner: Runner | None = None) -> LayerTimer:
    """The timer of a bundle, on ``runner`` if given.  Raises ToolchainError where nothing runs its target's programs,
    InputError for several threads on another machine."""
    if runner is None and runs_here(bundle.target.name):
        return _EngineTimer(open_bundle(bundle, threads=threads))
    if threads > 1:
        raise InputError(f"layers run in one thread on machines other than this one: leave out threads={threads}")
    return _DeviceTimer(RemoteBundle(bundle, runner))


def machine_of(target: Target, runner: Runner | None = None) -> str:
    """The key of measured times: the target, or its emulator, whose times say nothing of the target."""
    runner = runner or runner_of(target)
    return f"{target.name} on {runner.name}" if runner and runner.emulates else target.name


class CandidatesTimer:
    """Candidates for a layer that one bundle for a GPU runs one after the other, of so many kernel calls each."""

    def __init__(self, bundle: Bundle, calls: Sequence[int]) -> None:
        self._engine, self._first = open_bundle(bundle), np.cumsum([0, *calls[:-1]])
        self._engine.prepare()

    def seconds(self) -> list[float]:
        """How long one run of each candidate takes, by the device's clock."""
        return [float(t) / 1e9 for t in np.add.reduceat(self._engine.device_times()[2:], self._first)]

    def close(self) -> None:
        """Give back what it holds."""
        self._engine.close()


class _EngineTimer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def seconds(self) -> float:
        _EVICT.sum()
        self._engine.touch()
        began = perf_counter()
        self._engine.run(copy=False)
        return perf_counter() - began

    def close(self) -> None:
        self._engine.close()


class _DeviceTimer:
    def __init__(self, device: RemoteBundle) -> None:
        self._device = device.__enter__()

    def seconds(self) -> float:
        return self._device.time(1, cold=True).min / 1e3

    def close(self) -> None:
        self._device.__exit__(None, None, None)
