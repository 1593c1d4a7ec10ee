"""What tensors of a float graph hold on samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.ir.graph import Graph, Value
from tenon.quantization.probes import Probes
from tenon.quantization.ranges import Observed
from tenon.quantization.samples import Sample

Step = Callable[[str, int, int], None]
"""Called with a stage, the number of samples done and their number."""


def observed(
    graph: Graph, tensors: Sequence[Value], samples: Sequence[Sample], *, histograms: bool, threads: int, step: Step
) -> dict[Value, Observed]:
    """Extremes and, in a second pass over the samples, histograms of ``tensors``."""
    found = {v: Observed() for v in tensors}
    probes = Probes(graph, tensors, threads=threads)
    try:
        for i, values in enumerate(probes.run(samples)):
            step("ranges", i, len(samples))
            for value, array in values.items():
                found[value].add(array)
        for i, values in enumerate(probes.run(samples) if histograms else ()):
            step("histograms", i, len(samples))
            for value, array in values.items():
                found[value].count(array)
    finally:
        probes.close()
    return found
