"""Run workers interleaved and collect their times."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from contenders import OTHER_PRECISION, OURS
from prepare import ROOT, MissingError, Workshop

_TIMEOUT = 300.0  # seconds to load, or for one slice
WRONG = 1e-3
"""Largest relative error of a correct fp32 result; errors of reduced precision are only shown."""


@dataclass(frozen=True)
class Net:
    """A network, and the processors it runs on."""

    name: str
    threads: int
    cpu: int


@dataclass
class Lane:
    """One runtime: times in milliseconds, or the reason for missing ones."""

    runtime: str
    error: float = float("nan")
    times: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def best(self) -> float:
        return min(self.times)

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def wrong(self) -> bool:
        return self.runtime not in OTHER_PRECISION and not self.error <= WRONG

    @property
    def counts(self) -> bool:
        """Whether it counts for the ratio."""
        return bool(self.times) and not self.wrong and self.runtime not in OTHER_PRECISION | OURS


@dataclass
class Result:
    """One network at one number of threads."""

    net: str
    threads: int
    lanes: list[Lane]

    def lane(self, runtime: str) -> Lane | None:
        return next((lane for lane in self.lanes if lane.runtime == runtime), None)

    @property
    def fastest(self) -> Lane | None:
        """The fastest correct fp32 peer."""
        return min((lane for lane in self.lanes if lane.counts), key=lambda lane: lane.best, default=None)

    @property
    def ratio(self) -> float | None:
        """Milliseconds of the fastest peer over Tenon's: minima."""
        ours, peer = self.lane("tenon"), self.fastest
        return peer.best / ours.best if peer and ours and ours.times and not ours.wrong else None

    @property
    def reduced(self) -> float | None:
        """Milliseconds of OpenVINO with default settings (bf16 if the processor supports it) over Tenon's in bf16:
        minima."""
        ours, peer = self.lane("tenon-bf16"), self.lane("openvino-default")
        return peer.best / ours.best if peer and peer.times and ours and ours.times else None

    def text(self) -> str:
        shown = [
            f"{lane.runtime} {lane.best:.2f}{'!' if lane.wrong else ''}" if lane.times else f"{lane.runtime} -"
            for lane in self.lanes
        ]
        return f"{self.net} x{self.threads}: {', '.join(shown)}" + (f"; {self.ratio:.2f}x" if self.ratio else "")


class Worker:
    """A process that answers commands with lines of JSON.  Raises MissingError if it fails or does not answer."""

    def __init__(
        self, runtime: str, model: Path, net: Net, given: Path, shop: Workshop, *, urgent: bool = False
    ) -> None:
        python = Path(sys.executable) if runtime in OURS else shop.python
        environment = {**os.environ, "OMP_NUM_THREADS": str(net.threads), "PYTHONPATH": str(ROOT / "src")}
        command = [python, Path(__file__).with_name("worker.py"), runtime, model, net.threads, net.cpu, given]
        self.began = perf_counter()
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=environment, preexec_fn=hurry if urgent else None,
        )  # fmt: skip

    def hear(self) -> Any:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], _TIMEOUT)[0]:
            raise MissingError(f"says nothing for {_TIMEOUT:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            raise MissingError(f"died with status {self.process.wait()}")
        message = json.loads(line)
        if isinstance(message, dict) and "failed" in message:
            raise MissingError(message["failed"])
        return message

    def ask(self, line: str) -> Any:
        assert self.process.stdin
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise MissingError(f"died with status {self.process.wait()}") from None
        return self.hear()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def hurry() -> None:
    """Run this process at real-time priority."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@contextmanager
def worker(
    runtime: str, model: Path, net: Net, given: Path, shop: Workshop, *, urgent: bool = False
) -> Iterator[Worker]:
    started = Worker(runtime, model, net, given, shop, urgent=urgent)
    try:
        yield started
    finally:
        started.end()


def race(net: Net, runtimes: Sequence[str], shop: Workshop, rounds: int, order: str) -> Result:
    """Load every runtime, then run each for a slice of time in turn; ``order`` is the command sent to workers.

    Raises MissingError if the model is not there.
    """
    lanes, running = [Lane(runtime) for runtime in runtimes], dict[str, Worker]()
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        given = Path(place) / "input.npz"
        write_input(shop.onnx(net.name), given)
        note = _reference(net, given, shop)
        try:
            for lane in lanes:
                with noted(lane):
                    model = shop.model(lane.runtime, net.name)
                    running[lane.runtime] = Worker(lane.runtime, model, net, given, shop)
                    running[lane.runtime].hear()
                    lane.error = float("nan") if note else running[lane.runtime].ask("warm")["error"]
            for number in range(rounds):
                for lane in lanes[number % len(lanes) :] + lanes[: number % len(lanes)]:
                    with noted(lane):
                        if not lane.note:
                            lane.times += running[lane.runtime].ask(order)
        finally:
            for started in running.values():
                started.end()
    return Result(net.name, net.threads, lanes)


@contextmanager
def noted(lane: Lane) -> Iterator[None]:
    """Problems of a runtime become a note next to its name."""
    try:
        yield
    except Exception as problem:  # compilers and converters raise anything; continue with the others
        lane.note = str(problem).splitlines()[0] if str(problem) else type(problem).__name__


def write_input(model: Path, given: Path) -> None:
    """Random input of the model's shape, with a fixed seed."""
    dims = onnx.load(model, load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    shape = [d.dim_value or 1 for d in dims]
    np.savez(given, input=np.random.default_rng(7).standard_normal(shape, dtype=np.float32))


def _reference(net: Net, given: Path, shop: Workshop) -> str:
    """Add the reference's outputs to ``given``; returns an error message if that fails."""
    try:
        with worker("reference", shop.onnx(net.name), net, given, shop) as started:
            started.hear()
            started.ask("warm")
    except MissingError as missing:
        return str(missing)
    return ""
