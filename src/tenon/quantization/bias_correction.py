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


def correct(
    floats: Sequence[Array], simulation: Simulation, samples: Sequence[Sample], taking: Sequence[bool], *, step: Step
) -> None:
    """Change the shifts of ``simulation`` such that each channel has the mean ``floats`` that it has in floats, of the
    layers that are ``taking`` a bias.

    Layers are corrected in their order, because a correction changes what the layers after it read.
    """
    layers = np.flatnonzero(taking)
    groups = np.array_split(layers, max(1, min(PASSES, len(layers))))
    for number, group in enumerate(groups):
        step("bias correction", number, len(groups))
        means = simulation.means(samples)
        for i in group:
            shift = simulation.shifts[i]
            simulation.shifts[i] = shift + (floats[i] - means[i]).reshape(shift.shape).astype(np.float32)


def float_means(graph: Graph, made: Sequence[Product], samples: Sequence[Sample], threads: int) -> list[Array]:
    """Of each product in floats, the mean of each channel."""
    means = ChannelMeans(
        graph, [each.node.output for each in made], [channel_axis(each.node) for each in made], threads
    )
    try:
        return means.over(samples)
    finally:
        means.close()
