"""Time runs of an engine: warm-up, samples, and the statistics that tables show."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from types import MappingProxyType

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.manifest import BundleTensor, size_ranges
from tenon.runtime.engine.engine import Engine


@dataclass(frozen=True)
class Times:
    """Milliseconds of each run, in order; there is at least one."""

    samples: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.samples[0]

    @property
    def last(self) -> float:
        return self.samples[-1]

    @property
    def min(self) -> float:
        return min(self.samples)

    @property
    def max(self) -> float:
        return max(self.samples)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def std(self) -> float:
        """The population standard deviation of the samples."""
        return statistics.pstdev(self.samples)

    def summary(self) -> dict[str, float | int]:
        """Milliseconds by name, and the number of rounds."""
        return {
            "rounds": len(self.samples),
            "first": self.first,
            "last": self.last,
            "min": self.min,
            "max": self.max,
            "avg": self.mean,
            "median": self.median,
            "std": self.std,
        }


def measure(call: Callable[[], object], rounds: int) -> Times:
    """Time ``rounds`` calls, one by one.  Raises InputError for fewer than one."""
    if rounds < 1:
        raise InputError(f"{rounds} rounds: at least 1 is needed")
    samples = []
    for _ in range(rounds):
        began = perf_counter_ns()
        call()
        samples.append((perf_counter_ns() - began) / 1e6)
    return Times(tuple(samples))


def time_runs(engine: Engine, rounds: int, warmup: int) -> tuple[Times | None, Times]:
    """The warm-up runs (None if there are none) and the measured runs, on random input of the sizes that the engine's
    inputs hold, without copies."""
    sizes = size_ranges(engine.manifest.inputs)
    inputs = {name: array for name, array in engine.inputs.items() if name not in sizes}
    fill_randomly(inputs, value_ranges(engine.manifest.inputs))
    refill = refilled(engine)

    def run() -> object:
        refill()
        return engine.run(copy=False)

    return measure(run, warmup) if warmup > 0 else None, measure(run, rounds)


def refilled(engine: Engine) -> Callable[[], None]:
    """A function that gives sizes which are states their largest value again, because every run makes them larger."""
    kept = [(engine.inputs[t.name], t.size.most) for t in engine.manifest.inputs if t.size and t.state]

    def refill() -> None:
        for size, most in kept:
            size[...] = most

    return refill


def sizes_of_runs(engine: Engine) -> dict[str, int]:
    """The sizes, by name, of the runs that are timed: those that the engine's inputs hold, of states the largest."""
    sizes = size_ranges(engine.manifest.inputs)
    states = {tensor.name for tensor in engine.manifest.inputs if tensor.state}
    return {name: sizes[name].most if name in states else int(engine.inputs[name]) for name in sizes}


def value_ranges(tensors: Iterable[BundleTensor]) -> dict[str, tuple[float, float]]:
    """The minimum and maximum of inputs where they are known; sizes that a run chooses are the largest."""
    known = {t.name: t.range for t in tensors if t.range is not None}
    return known | {t.name: (t.size.most, t.size.most) for t in tensors if t.size is not None}


def fill_randomly(
    inputs: Mapping[str, Array], ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})
) -> None:
    """Fill inputs with random numbers of their ranges; without a range normal numbers for floats, else 0 and 1.  The
    seed is fixed."""
    rng = np.random.default_rng(0)
    for name, array in inputs.items():
        floats = np.issubdtype(array.dtype, np.floating)
        if name in ranges:
            low, high = ranges[name]
            drawn = rng.uniform(low, high, array.shape)
            array[...] = drawn if floats else np.round(drawn)
            continue
        array[...] = rng.standard_normal(array.shape) if floats else rng.integers(0, 2, array.shape)
