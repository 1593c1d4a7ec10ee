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
from contenders import EXACT, OURS, PRECISIONS
from prepare import ROOT, MissingError, Workshop

_TIMEOUT = 300.0  # seconds to load, or for one slice
WRONG = 1e-3
"""Largest relative error of a correct fp32 result; errors of reduced precision are only shown."""


@dataclass(frozen=True)
class Net:
    """A network, and the processors it runs on: a list, or the first one."""

    name: str
    threads: int
    cpu: str


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
        return self.runtime in EXACT and not self.error <= WRONG

    @property
    def counts(self) -> bool:
        """Whether it counts for a ratio."""
        return bool(self.times) and not self.wrong


@dataclass
class Result:
    """One network at one number of threads."""

    net: str
    threads: int
    lanes: list[Lane]

    def lane(self, runtime: str) -> Lane | None:
        return next((lane for lane in self.lanes if lane.runtime == runtime), None)

    def fastest(self, precision: str) -> Lane | None:
        """The fastest correct peer in a precision."""
        peers = [lane for lane in self.lanes if lane.counts and lane.runtime in PRECISIONS[precision].peers]
        return min(peers, key=lambda lane: lane.best, default=None)

    def pair(self, precision: str) -> tuple[Lane, Lane] | None:
        """Ours in a precision and its fastest correct peer, if both have times."""
        ours, peer = self.lane(PRECISIONS[precision].ours), self.fastest(precision)
        return (ours, peer) if peer and ours and ours.counts else None

    def ratio(self, precision: str) -> float | None:
        """Milliseconds of the fastest peer over Tenon's: minima."""
        pair = self.pair(precision)
        return pair[1].best / pair[0].best if pair else None

    def median_ratio(self, precision: str) -> float | None:
        """The same of medians, of the peer whose minimum is least."""
        pair = self.pair(precision)
        return pair[1].median / pair[0].median if pair else None

    def text(self) -> str:
        shown = [
            f"{lane.runtime} {lane.best:.2f}{'!' if lane.wrong else ''}" if lane.times else f"{lane.runtime} -"
            for lane in self.lanes
        ]
        ratios = [f"{precision} {ratio:.2f}x" for precision in PRECISIONS if (ratio := self.ratio(precision))]
        return f"{self.net} x{self.threads}: {', '.join(shown)}; {', '.join(ratios)}"


class Worker:
    """A process that answers commands with lines of JSON.  Raises MissingError if it fails or does not answer."""

    def __init__(
        self, runtime: str, model: Path, net: Net, given: Path, shop: Workshop, *, urgent: bool = False
    ) -> None:
        python = Path(sys.executable) if runtime in OURS else shop.python
        paths = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": str(net.threads), "PYTHONPATH": paths}
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
    """Load all runtimes, then run each for a slice of time in turn; ``order`` is the command sent to workers.

    Raises MissingError if the model is not there.
    """
    lanes, running = [Lane(runtime) for runtime in runtimes], dict[str, Worker]()
    with tempfile.TemporaryDirectory(prefix="peers-") as place:
        given = Path(place) / "input.npz"
        write_input(shop.onnx(net.name), given)
        try:
            for lane in lanes:
                with noted(lane):
                    model = shop.model(lane.runtime, net.name, net.threads)
                    running[lane.runtime] = Worker(lane.runtime, model, net, given, shop)
            note = _reference(net, given, shop)
            for lane in lanes:
                with noted(lane):
                    if not lane.note:
                        running[lane.runtime].hear()
            for lane in lanes:
                with noted(lane):
                    if not lane.note:
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
    """Write the reference's outputs beside ``given``; returns an error message if that fails."""
    try:
        with worker("reference", shop.onnx(net.name), net, given, shop) as started:
            started.hear()
            started.ask("warm")
    except MissingError as missing:
        return str(missing)
    return ""
