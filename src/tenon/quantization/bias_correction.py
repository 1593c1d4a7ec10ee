"""Means of channels that quantisation shifted, put back by the biases.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.2, with the
means measured on samples in the quantised network ("empirical bias correction", its appendix D).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tenon.ir.graph import Array, Graph
from tenon.quantization.calibration import Step
from tenon.quantization.insertion import Product
from tenon.quantization.probes import Probes
from tenon.quantization.samples import Sample
from tenon.quantization.simulation import Simulation, channel_axis, mean_of_channels

PASSES = 24
"""Most passes over the samples: layers beyond as many are corrected several at a time."""


def corrected(
    graph: Graph, made: list[Product], simulation: Simulation, samples: Sequence[Sample], *, threads: int, step: Step
) -> list[Product]:
    """The products with biases such that each channel has the mean that it has in ``graph``, which is in floats.

    Layers are corrected in their order, because a correction changes what the layers after it read.
    """
    floats = _means(graph, made, samples, threads)
    groups = np.array_split(np.arange(len(made)), min(PASSES, len(made)))
    for number, group in enumerate(groups):
        step("bias correction", number, len(groups))
        means = simulation.means(samples)
        for i in group:
            shift = simulation.shifts[i]
            simulation.shifts[i] = shift + (floats[i] - means[i]).reshape(shift.shape).astype(np.float32)
    return [
        replace(each, bias=each.bias + shift.reshape(-1).astype(np.float64))
        for each, shift in zip(made, simulation.shifts, strict=True)
    ]


def _means(graph: Graph, made: Sequence[Product], samples: Sequence[Sample], threads: int) -> list[Array]:
    """Of each product in floats, the mean of each channel."""
    results = [each.node.output for each in made]
    totals = [np.zeros(each.channels) for each in made]
    probes = Probes(graph, results, threads=threads)
    try:
        for values in probes.run(samples):
            for i, each in enumerate(made):
                totals[i] += mean_of_channels(values[results[i]], channel_axis(each.node))
    finally:
        probes.close()
    return [total / len(samples) for total in totals]
