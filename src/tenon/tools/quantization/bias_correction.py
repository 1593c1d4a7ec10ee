"""Means of channels that quantisation shifted, put back by the biases.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.2, with the
means measured on samples in the quantised network ("empirical bias correction", its appendix D).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.network.graph.graph import Array, Graph
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.simulation import ChannelMeans, Simulation, channel_axis

POSITIONS = 4096
"""Positions of a layer's result, at least, that its means are measured on where it has as many."""

FEWEST = 32
"""Samples that means are measured on, at least, if there are as many, of networks of up to ``MANY`` layers; with more
layers, fewer, because each takes a pass over them."""

MANY = 40


def correct(
    graph: Graph,
    made: Sequence[WeightedLayer],
    simulation: Simulation,
    samples: Sequence[Sample],
    *,
    threads: int,
    step: Step,
) -> None:
    """Change the shifts of ``simulation`` such that each channel has the mean that it has in floats in ``graph``, of
    the products ``made`` that take a bias.

    Layers are corrected in their order and one at a time, because a correction changes what the layers after it read:
    of two at once, the second would make up once more for what the first has put back.
    """
    layers = [i for i, each in enumerate(made) if each.takes_bias]
    axes = [channel_axis(each.node) for each in made]
    floats = ChannelMeans(graph, [each.node.output for each in made], axes, threads)
    try:
        known: dict[int, list[Array]] = {}
        for number, i in enumerate(layers):
            step("bias correction", number, len(layers))
            count = min(len(samples), _enough(made[i], len(layers)))
            if count not in known:
                known[count] = floats.over(samples[:count])
            wrong = known[count][i] - simulation.means(samples[:count])[i]
            simulation.shifts[i] = simulation.shifts[i] + wrong.reshape(simulation.shifts[i].shape).astype(np.float32)
    finally:
        floats.close()


def _enough(each: WeightedLayer, layers: int) -> int:
    """How many samples the means of a layer are measured on, in a network of so many layers."""
    positions = each.node.output.type.size // each.channels
    return max(min(FEWEST, -(-FEWEST * MANY // layers)), -(-POSITIONS // positions))
