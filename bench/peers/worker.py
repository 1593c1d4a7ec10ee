"""One runtime with one model, in a process of its own: python worker.py RUNTIME MODEL THREADS CPU INPUT.npz

Speaks JSON lines on standard output: what is ready, how far its answer is from the reference in INPUT.npz, then one
list of milliseconds for every line "SECONDS" on standard input; "SECONDS urgent" lets nothing else on its processors
meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np

_WARM = 0.3  # seconds
_LEAST = 1  # runs in a slice, besides the first, which is not counted
Array = np.ndarray[Any, np.dtype[Any]]


def error(answers: list[Array], wanted: list[Array]) -> float:
    """The largest difference over the largest magnitude; NaN where an output is missing.

    Runtimes order, flatten and transpose their outputs, so each is compared with the closest one of its size.
    """
    worst = 0.0
    for want in wanted:
        near = [
            _distance(np.asarray(got, np.float64), want.astype(np.float64)) for got in answers if got.size == want.size
        ]
        worst = max(worst, min(near) / max(float(np.abs(want).max()), 1e-30)) if near else float("nan")
    return worst


def _distance(got: Array, want: Array) -> float:
    found = [got.reshape(want.shape)]
    if want.ndim == 4:
        n, c, h, w = want.shape
        found.append(got.reshape(n, h, w, c).transpose(0, 3, 1, 2))
    return min(float(np.abs(candidate - want).max()) for candidate in found)


def libraries() -> dict[str, list[int]]:
    """Of every library mapped as code: bytes of its file (of its mappings, where the file is gone) and of code."""
    found: dict[str, list[int]] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        begin, end = (int(x, 16) for x in fields[0].split("-"))
        entry = found.setdefault(fields[5], [0, 0])
        entry[0] += end - begin
        entry[1] += (end - begin) * ("x" in fields[1])
    kept = {name: sizes for name, sizes in found.items() if sizes[1]}
    for name, sizes in kept.items():
        if Path(name).exists():
            sizes[0] = Path(name).stat().st_size
    return kept


def peak_memory() -> int:
    """Bytes: the most that this process has had resident."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def schedule(policy: int, priority: int) -> None:
    """Set how every thread of this process is scheduled."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def timed(run: Callable[[], object], seconds: float) -> list[float]:
    """Milliseconds of each run in about ``seconds``."""
    run()  # caches hold what the others left
    times: list[float] = []
    until = perf_counter() + seconds
    while len(times) < _LEAST or perf_counter() < until:
        start = perf_counter_ns()
        run()
        times.append((perf_counter_ns() - start) / 1e6)
    return times


def main() -> None:
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # runtimes may print

    def say(message: Any) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    runtime, model, threads, cpu, given = sys.argv[1:]
    os.sched_setaffinity(0, range(int(cpu), int(cpu) + int(threads)))
    try:
        arrays = np.load(given)
        x = np.ascontiguousarray(arrays["input"])
        from contenders import CONTENDERS

        began = perf_counter()
        call = CONTENDERS[runtime](Path(model), int(threads))
        loaded = perf_counter()
        answers = [np.array(a) for a in call(x)]
        first = perf_counter()
        say({"first": True, "load_ms": 1e3 * (loaded - began), "run_ms": 1e3 * (first - loaded)})
        if sys.stdin.readline().strip() == "facts":
            say({"rss": peak_memory(), "libraries": libraries()})
            return
        wanted = [arrays[name] for name in arrays.files if name != "input"]
        if runtime == "reference":
            np.savez(given, input=x, **{f"output{i}": a for i, a in enumerate(answers)})
        until = perf_counter() + _WARM
        while perf_counter() < until:
            call(x)
        say({"ready": True, "error": error(answers, wanted) if wanted else 0.0})
        for line in sys.stdin:
            seconds, *urgent = line.split()
            if urgent:
                schedule(os.SCHED_FIFO, 1)
            times = timed(lambda: call(x), float(seconds))
            if urgent:
                schedule(os.SCHED_OTHER, 0)
            say(times)
    except Exception as problem:  # runtimes raise anything; the driver tells the user
        say({"failed": f"{type(problem).__name__}: {str(problem)[:200]}"})


if __name__ == "__main__":
    main()
