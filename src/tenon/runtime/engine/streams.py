"""Throughput: several inputs at once, each in an engine of its own, all with the same code and weights."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter_ns

from tenon.errors import InputError, TenonError
from tenon.runtime.bundle.manifest import size_ranges
from tenon.runtime.engine.engine import Engine
from tenon.runtime.engine.timing import Times, fill_randomly, refilled, value_ranges


@dataclass(frozen=True)
class Throughput:
    """``inputs_per_second`` over all streams, and the milliseconds of each of their runs, stream after stream."""

    inputs_per_second: float
    times: Times


def run_streams(engine: Engine, streams: int, rounds: int, warmup: int, affinity: Sequence[int] = ()) -> Throughput:
    """Let ``streams`` engines run ``rounds`` inputs each at the same time, after ``warmup`` others.

    Inputs are random, of the sizes that ``engine.inputs`` holds.  ``affinity`` are the processors of all streams, in
    order: as many for each as an engine has threads, or the same for all where there are fewer.  The clock starts when
    the first stream begins and stops when the last one ends.  Raises InputError for fewer than one stream or round.
    """
    if streams < 1 or rounds < 1:
        raise InputError(f"{streams} streams of {rounds} rounds: at least 1 of each is needed")
    together = threading.Barrier(streams)

    def run(twin: Engine) -> list[int]:
        """The times at which the runs began, and at which the last one ended."""
        refill = refilled(twin)
        try:
            for _ in range(warmup):
                refill()
                twin.run(copy=False)
            together.wait()
        except TenonError:
            together.abort()
            raise
        except threading.BrokenBarrierError:
            return []  # another stream raises what went wrong
        stamps = [perf_counter_ns()]
        for _ in range(rounds):
            refill()
            twin.run(copy=False)
            stamps.append(perf_counter_ns())
        return stamps

    with ExitStack() as opened, ThreadPoolExecutor(streams) as pool:
        twins = [opened.enter_context(_twin(engine, own)) for own in _shares(affinity, streams, engine.threads)]
        stamps = list(pool.map(run, twins))
    seconds = (max(own[-1] for own in stamps) - min(own[0] for own in stamps)) / 1e9
    samples = tuple((after - before) / 1e6 for own in stamps for before, after in pairwise(own))
    return Throughput(streams * rounds / seconds, Times(samples))


def _shares(affinity: Sequence[int], streams: int, threads: int) -> list[Sequence[int]]:
    """The processors of each stream."""
    if len(affinity) < streams * threads:
        return [affinity] * streams
    return [affinity[i * threads : (i + 1) * threads] for i in range(streams)]


def _twin(engine: Engine, affinity: Sequence[int]) -> Engine:
    """An engine with random input, of the sizes of the first one."""
    twin = engine.fork(affinity)
    sizes = size_ranges(engine.manifest.inputs)
    fill_randomly({n: a for n, a in twin.inputs.items() if n not in sizes}, value_ranges(engine.manifest.inputs))
    for name in sizes:
        twin.inputs[name][...] = engine.inputs[name]
    return twin
