"""Values of tensors on samples, observed by the workers of a pool: each gets the compiled network and some samples.

Extremes are of single samples, in their order, and histograms are sums of integers, so that the parts together are what
one process observes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from tenon.atomic_write import scratch, write
from tenon.network.graph.dtype import Array
from tenon.network.graph.graph import Value
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.container import SUFFIX, container
from tenon.runtime.engine import Engine
from tenon.runtime.engine.files import OWN
from tenon.tools.cluster import WorkerPool, WorkItem, content_key
from tenon.tools.cluster.pool import check_target, ordered
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.ranges import Observed
from tenon.tools.quantization.samples import Sample

Step = Callable[[str, int, int], None]
"""Called with a stage, the number of samples done and their number."""

PARTS = 4
"""Parts of the samples for each worker, so that a slow one is not waited for long."""

SAMPLES = 8
"""Samples of a part whose outputs are asked for."""

Extremes = dict[str, tuple[list[float], list[float]]]
"""The least and the greatest of each sample, by the names of tensors."""


def observe_on_workers(
    pool: WorkerPool, probes: Probes, samples: Sequence[Sample], *, histograms: bool, step: Step
) -> dict[Value, Observed]:
    """The extremes and histograms of the values of ``probes``.  Raises InputError for workers that cannot run it."""
    bundle, names = probes.bundle, probes.outputs
    check_target(pool, bundle.target)
    network = container({bundle.target.name: bundle.loaded_files()})
    size = max(1, -(-len(samples) // (PARTS * len(pool.workers))))
    parts = [list(samples[at : at + size]) for at in range(0, len(samples), size)]
    wanted = tuple(names.values())

    def items(limits: Mapping[str, tuple[float, float]] | None) -> list[WorkItem]:
        address = content_key("observed", network, limits and sorted(limits.items()), wanted)
        return [
            WorkItem(content_key("part", address, *_content(part)), observe_part, (network, wanted, part, limits))
            for part in parts
        ]

    statistics = {value: Observed() for value in names}
    for i, extremes in enumerate(ordered(pool, items(None))):
        step("ranges", min(i * size, len(samples)), len(samples))
        for value, name in names.items():
            statistics[value].lows += extremes[name][0]
            statistics[value].highs += extremes[name][1]
    if histograms:
        limits = {names[value]: (seen.low, seen.high) for value, seen in statistics.items()}
        for i, counts in enumerate(ordered(pool, items(limits))):
            step("histograms", min(i * size, len(samples)), len(samples))
            for value, name in names.items():
                statistics[value].counts += counts[name]
    return statistics


def _content(samples: Sequence[Sample]) -> list[bytes]:
    return [
        f"{name} {array.dtype} {array.shape}".encode() + array.tobytes()
        for sample in samples
        for name, array in sorted(sample.items())
    ]


def observe_part(
    network: bytes, names: Sequence[str], samples: Sequence[Sample], limits: Mapping[str, tuple[float, float]] | None
) -> Extremes | dict[str, Array]:
    """The extremes of tensors on samples; with ``limits``, those of all samples, their histograms."""
    engine = _engine(network)
    statistics = {name: _between(limits[name]) if limits else Observed() for name in names}
    for sample in samples:
        values = {**sample, **engine.run({name: sample[name] for name in engine.inputs}, copy=False)}
        for name, seen in statistics.items():
            seen.add(values[name]) if limits is None else seen.count(values[name])
    if limits is None:
        return {name: (seen.lows, seen.highs) for name, seen in statistics.items()}
    return {name: seen.counts for name, seen in statistics.items()}


def run_on_workers(pool: WorkerPool, bundle: Bundle, samples: Iterable[Sample]) -> Iterator[dict[str, Array]]:
    """The outputs of a bundle on each sample, in order.  Raises InputError for workers that cannot run it."""
    check_target(pool, bundle.target)
    network = container({bundle.target.name: bundle.loaded_files()})
    address, left, count = content_key("network", network), iter(samples), PARTS * len(pool.workers)
    while some := list(islice(left, SAMPLES * count)):
        parts = [some[at : at + SAMPLES] for at in range(0, len(some), SAMPLES)]
        items = [WorkItem(content_key("run", address, *_content(part)), run_part, (network, part)) for part in parts]
        for outputs in ordered(pool, items):
            yield from outputs


def run_part(network: bytes, samples: Sequence[Sample]) -> list[dict[str, Array]]:
    """The outputs on samples."""
    engine = _engine(network)
    return [engine.run(sample) for sample in samples]


def _between(limits: tuple[float, float]) -> Observed:
    return Observed([limits[0]], [limits[1]])


@lru_cache(maxsize=2)
def _engine(network: bytes) -> Engine:
    with scratch() as folder:
        path = folder / f"network{SUFFIX}"
        write(path, network)
        return Engine(path, opening=OWN)
