"""Ranges of activations that give the outputs least noise, searched tensor by tensor.

Saturating rare values of a tensor leaves the others finer steps.  How much of either is best for the answer depends on
all layers after it, so each candidate is measured at the outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array, Graph, Value
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.placement import Placement, root
from tenon.tools.quantization.probes import Probes, scores
from tenon.tools.quantization.ranges import Range, usual_range
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.scheme import QuantParams, Scheme
from tenon.tools.quantization.simulation import Simulation

SHARES = ((0.8, 1.0), (1.0, 0.8), (0.9, 1.0), (1.0, 0.9), (0.95, 0.95), (1.15, 1.0), (1.0, 1.15))
"""Factors of the least and the greatest value that are tried."""

MACS = 1e12
"""Multiply-accumulates that a search may take: it uses fewer samples for larger networks."""


def searched(
    graph: Graph,
    placed: Placement,
    ranges: Mapping[Value, Range],
    simulation: Simulation,
    scheme: Scheme,
    samples: Sequence[Sample],
    *,
    expected: Sequence[Sequence[Array]],
    step: Step,
    fixed: Collection[Value] = (),
) -> dict[Value, Range]:
    """Better ranges than ``ranges`` on ``samples``, but for ``fixed`` tensors; those given where the network is too
    large to search.

    The grids of ``simulation`` are changed.  Tensors that share a grid are changed together; those of 16 bits, whose
    steps are fine enough, and those with a usual range stay as they are.
    """
    ends = [v for v in placed.tensors if v not in placed.parts]
    kept = {v for v in ends if v in placed.wide or usual_range(v) is not None} | set(fixed)
    count = min(len(samples), int(MACS / max(network_macs(graph), 1) / (len(SHARES) * max(len(ends) - len(kept), 1))))
    if count < 4:
        return dict(ranges)
    groups: dict[Value, list[Value]] = {end: [end] for end in ends}
    for part in placed.parts:
        groups[placed.end(part)].append(part)
    chosen, few = dict(ranges), samples[:count]
    best = simulation.noise(few, expected[:count])
    outputs = {placed.end(root(v)) for v in scores(graph)}  # saturation there is no noise that later layers average out
    for number, (end, group) in enumerate(groups.items()):
        if end in outputs or end in kept:
            continue
        step("range search", number, len(groups))
        low, high = chosen[end]
        for least, most in SHARES:
            if (low == 0 and least != 1 and most == 1) or (high == 0 and most != 1 and least == 1):
                continue
            tried = (low * least, high * most)
            _set(simulation, group, placed.scheme_of(end, scheme).activation_grid(*tried))
            noise = simulation.noise(few, expected[:count], best)
            if noise[-1].total < best[-1].total:
                best, chosen[end] = noise, tried
        _set(simulation, group, placed.scheme_of(end, scheme).activation_grid(*chosen[end]))
        chosen.update(dict.fromkeys(group, chosen[end]))
    return chosen


def network_macs(graph: Graph) -> int:
    """Multiply-accumulates of one run."""
    return sum(n.op.macs([None if v is None else v.type for v in n.inputs], [v.type for v in n.outputs]) for n in graph)


def _set(simulation: Simulation, group: Sequence[Value], grid: QuantParams) -> None:
    for value in group:
        simulation.set_grid(value, grid)


def expected_scores(graph: Graph, samples: Sequence[Sample], threads: int) -> list[list[Array]]:
    """The outputs in floats on each sample.  Raises InputError where an output is NaN or infinite in all of them, so
    that no noise can be measured."""
    asked = scores(graph)
    probes = Probes(graph, asked, threads=threads)
    try:
        outputs = [[values[v].copy() for v in asked] for values in probes.run(samples)]
    finally:
        probes.close()
    for value, *arrays in zip(asked, *outputs, strict=True):
        if not any(np.isfinite(array).any() for array in arrays):
            raise InputError(
                f"the float network computes only infinities and NaN for '{value.name}' from these samples: are they "
                "scaled as the network expects?"
            )
    return outputs
