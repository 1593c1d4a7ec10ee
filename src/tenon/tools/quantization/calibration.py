"""Values that tensors of a float graph hold on samples."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.network.graph.graph import Graph, Value
from tenon.tools.cluster import WorkerPool
from tenon.tools.quantization.distributed import Step as Step
from tenon.tools.quantization.distributed import observe_on_workers
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.ranges import Observed
from tenon.tools.quantization.samples import Sample


def observed(
    graph: Graph,
    tensors: Sequence[Value],
    samples: Sequence[Sample],
    *,
    histograms: bool,
    threads: int,
    step: Step,
    pool: WorkerPool | None = None,
) -> dict[Value, Observed]:
    """Extremes and, in a second pass over the samples, histograms of ``tensors``; the workers of ``pool`` take parts of
    the samples, with the same results."""
    statistics = {v: Observed() for v in tensors}
    probes = Probes(graph, tensors, threads=threads)
    try:
        if pool is not None:
            return observe_on_workers(pool, probes, samples, histograms=histograms, step=step)
        for i, values in enumerate(probes.run(samples)):
            step("ranges", i, len(samples))
            for value, array in values.items():
                statistics[value].add(array)
        for i, values in enumerate(probes.run(samples) if histograms else ()):
            step("histograms", i, len(samples))
            for value, array in values.items():
                statistics[value].count(array)
    finally:
        probes.close()
    return statistics
