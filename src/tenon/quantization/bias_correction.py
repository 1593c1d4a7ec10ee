"""Means of channels that quantisation shifted, put back by the biases.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.2, with the
means measured on samples in the quantised network ("empirical bias correction", its appendix D).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.ir.graph import Array, Graph
from tenon.quantization.calibration import Step
from tenon.quantization.insertion import Product
from tenon.quantization.samples import Sample
from tenon.quantization.simulation import ChannelMeans, Simulation, channel_axis

PASSES = 40
"""Most passes over the samples: layers beyond as many are corrected several at a time."""

POSITIONS = 4096
"""Of a layer's result that its means are measured on, at least, if there are as many."""

FEWEST = 32
"""Samples that means are measured on, at least, if there are as many."""


def correct(
    graph: Graph, made: Sequence[Product], simulation: Simulation, samples: Sequence[Sample], *, threads: int,
    step: Step,
) -> None:  # fmt: skip
    """Change the shifts of ``simulation`` such that each channel has the mean that it has in floats in ``graph``, of
    the products ``made`` that take a bias.

    Layers are corrected in their order, because a correction changes what the layers after it read.
    """
    layers = [i for i, each in enumerate(made) if each.takes_bias]
    axes = [channel_axis(each.node) for each in made]
    floats = ChannelMeans(graph, [each.node.output for each in made], axes, threads)
    try:
        known: dict[int, list[Array]] = {}
        groups = np.array_split(layers, min(PASSES, len(layers))) if layers else []
        for number, group in enumerate(groups):
            step("bias correction", number, len(groups))
            count = max(_enough(made[i], len(samples)) for i in group)
            if count not in known:
                known[count] = floats.over(samples[:count])
            means = simulation.means(samples[:count])
            for i in group:
                shift = simulation.shifts[i]
                simulation.shifts[i] = shift + (known[count][i] - means[i]).reshape(shift.shape).astype(np.float32)
    finally:
        floats.close()


def _enough(each: Product, count: int) -> int:
    """How many of ``count`` samples the means of a layer are measured on."""
    positions = each.node.output.type.size // each.channels
    return min(count, max(FEWEST, -(-POSITIONS // positions)))
