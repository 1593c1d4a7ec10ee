"""One runtime with one model, in a process of its own: python worker.py RUNTIME MODEL THREADS CPUS INPUT.npz

Speaks JSON lines on standard output: what is ready, how far its answer is from the reference's in expected.npz
beside INPUT.npz, then one list of milliseconds for every line "SECONDS" on standard input; "SECONDS urgent" lets
nothing else on its processors meanwhile, and "SECONDS processor" counts processor time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

_WARM = 0.2  # seconds
_LEAST = 1  # runs in a slice, besides the first, which is not measured
Array = np.ndarray[Any, np.dtype[Any]]


def error(answers: list[Array], expected: list[Array]) -> float:
    """The largest difference over the largest magnitude; NaN where an output is missing.

    Runtimes order, flatten and transpose their outputs, so each is compared with the closest one of its size.
    """
    worst = 0.0
    for want in expected:
        near = [
            _distance(np.asarray(got, np.float64), want.astype(np.float64)) for got in answers if got.size == want.size
        ]
        worst = max(worst, min(near) / max(float(np.abs(want).max()), 1e-30)) if near else float("nan")
    return worst


def _distance(got: Array, want: Array) -> float:
    candidates = [got.reshape(want.shape)]
    if want.ndim == 4:
        n, c, h, w = want.shape
        candidates.append(got.reshape(n, h, w, c).transpose(0, 3, 1, 2))
    return min(float(np.abs(candidate - want).max()) for candidate in candidates)


def processors(given: str, count: int) -> list[int]:
    """``count`` processors: of a list, or from the number given on, one of each core before any core's second."""
    first, *others = map(int, given.split(","))
    if others:
        return [first, *others][:count]
    numbers = sorted(n for n in os.sched_getaffinity(0) if n >= first)
    return sorted(numbers, key=lambda number: (_place(number), number))[:count]


def _place(number: int) -> int:
    """A processor's place among those of its core."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list").read_text()
    except OSError:
        return 0
    ends = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
    return [n for part in ends for n in range(part[0], part[-1] + 1)].index(number)


def schedule(policy: int, priority: int) -> None:
    """Set the scheduling of all threads of this process."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def timed(run: Callable[[], object], seconds: float, clock: Callable[[], int]) -> list[float]:
    """Milliseconds of each run in about ``seconds``, by a clock of nanoseconds."""
    run()  # warm up the caches
    times: list[float] = []
    until = perf_counter() + seconds
    while len(times) < _LEAST or perf_counter() < until:
        start = clock()
        run()
        times.append((clock() - start) / 1e6)
    return times


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes may print

    def say(message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    runtime, model, threads, cpu, given = sys.argv[1:]
    os.sched_setaffinity(0, processors(cpu, int(threads)))
    try:
        x = np.ascontiguousarray(np.load(given)["input"])
        from contenders import CONTENDERS

        call = CONTENDERS[runtime](Path(model), int(threads))
        answers = [np.array(a) for a in call(x)]
        say({"loaded": True})
        sys.stdin.readline()
        expected = []
        results = Path(given).with_name("expected.npz")
        if runtime == "reference":
            np.savez(results, **{f"output{i}": a for i, a in enumerate(answers)})
        elif results.exists():
            expected = list(np.load(results).values())
        until = perf_counter() + _WARM
        while perf_counter() < until:
            call(x)
        say({"ready": True, "error": error(answers, expected) if expected else 0.0})
        for line in sys.stdin:
            seconds, *how = line.split()
            urgent = "urgent" in how
            if urgent:
                schedule(os.SCHED_FIFO, 1)
            times = timed(lambda: call(x), float(seconds), process_time_ns if "processor" in how else perf_counter_ns)
            if urgent:
                schedule(os.SCHED_OTHER, 0)
            say(times)
    except Exception as problem:  # runtimes raise anything; the driver tells the user
        say({"failed": f"{type(problem).__name__}: {str(problem)[:200]}"})


if __name__ == "__main__":
    main()
