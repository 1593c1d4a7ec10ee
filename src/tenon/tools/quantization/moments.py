"""First and second moments of what the weights of layers multiply, measured on samples of the float network.

The squared error of the sums that other weights make is a quadratic form of the second moments; the shift of their mean
is a linear form of the first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.passes.base import attribute
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.insertion import WeightedLayer
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.samples import Sample

ROWS = 192
"""Positions of an image that count, of each sample."""

SAMPLES = 128
"""Most samples that moments are measured on."""

COLUMNS = 2304
"""Most columns of a layer: larger ones are rounded to the nearest integers."""


ROUNDED = 1e-6
"""Share of the mean square of numbers below which their variance, a difference of sums, is rounding error."""


@dataclass(frozen=True)
class Moments:
    """Means of the columns that weights multiply and of their products: ``first`` [groups, columns]; ``second``
    [groups, columns, columns], None for layers of too many columns."""

    first: Array
    second: Array | None

    @property
    def covariance(self) -> Array:
        """The covariance [groups, columns, columns] of the inputs of a layer that has ``second``; zero where it is but
        the rounding error of that difference, as for samples that are all the same."""
        assert self.second is not None
        difference: Array = self.second - self.first[:, :, None] * self.first[:, None, :]
        variance, power = (np.trace(m, axis1=-2, axis2=-1) for m in (difference, self.second))
        covariance: Array = difference * (variance > ROUNDED * power)[:, None, None]
        return covariance


def moments(
    graph: Graph,
    made: Sequence[WeightedLayer],
    samples: Sequence[Sample],
    *,
    threads: int,
    step: Step,
    second: bool = True,
) -> dict[Node, Moments]:
    """The input moments of each layer with weights except transposed convolutions; without ``second``, which take long,
    first moments only."""
    nodes = [each.node for each in made if not isinstance(each.node.op, ConvTranspose)]
    first: dict[Node, Array] = {}
    squares: dict[Node, Array] = {}
    chosen = samples[:SAMPLES]
    if not nodes:
        return {}
    probes = Probes(graph, [node.input(0) for node in nodes], threads=threads)
    rng = np.random.default_rng(0)
    try:
        for i, values in enumerate(probes.run(chosen)):
            step("moments", i, len(chosen))
            for node in nodes:
                rows = rows_at(node, values[node.input(0)], chosen_positions(node, rng))
                share = 1 / (rows.shape[1] * len(chosen))
                first[node] = rows.sum(1, dtype=np.float64) * share + first.get(node, 0.0)
                if second and rows.shape[2] <= COLUMNS:
                    product = np.matmul(rows.transpose(0, 2, 1), rows)
                    squares[node] = product.astype(np.float64) * share + squares.get(node, 0.0)
    finally:
        probes.close()
    return {node: Moments(first[node], squares.get(node)) for node in nodes}


def mean_shift(each: WeightedLayer, known: Moments) -> Array:
    """By how much the integers of a product's weights shift the mean of each channel of its sums."""
    wrong = np.moveaxis(each.stored_weights() - each.node.input(1).array.astype(np.float64), each.axis, 0)
    groups = len(known.first)
    parts = wrong.reshape(groups, len(wrong) // groups, -1)
    shift: Array = np.matmul(parts, known.first[:, :, None]).reshape(-1)
    return shift


def chosen_positions(node: Node, rng: np.random.Generator) -> Array:
    """Positions of the result of a product at which its rows count, all of them if they are few."""
    y = node.output.type
    return _some(math.prod(y.dims[2:]) if isinstance(node.op, Conv) else y.size // y.dims[-1], rng)


def rows_at(node: Node, x: Array, chosen: Array) -> Array:
    """[groups, positions, columns]: what the weights multiply at the chosen positions of the result."""
    if not isinstance(node.op, Conv):
        return x.reshape(-1, x.shape[-1])[chosen][None]
    w = node.input(1).type.dims
    axes = node.op.axes(x.shape, w)
    pads = [(0, 0), (0, 0), *((max(0, a.before), max(0, a.after)) for a in axes)]
    padded, spatial = np.pad(x, pads), range(2, x.ndim)
    outs = tuple(a.out for a in axes)
    places = np.unravel_index(chosen, outs)
    taps = np.indices(w[2:]).reshape(len(outs), -1)
    index = tuple(
        at[:, None] * a.stride + max(0, -a.before) + tap[None] * a.dilation
        for at, tap, a in zip(places, taps, axes, strict=True)
    )
    windows = np.moveaxis(padded, 1, -1)[(0, *index)] if len(spatial) else padded  # [positions, taps, channels]
    groups = int(attribute(node, "group"))
    split = windows.transpose(0, 2, 1).reshape(len(windows), groups, -1)
    return split.transpose(1, 0, 2)


def results_at(node: Node, y: Array, chosen: Array) -> Array:
    """[groups, channels of a group, positions]: a tensor of the result's shape at the chosen positions."""
    if not isinstance(node.op, Conv):
        return y.reshape(-1, y.shape[-1])[chosen].T[None]
    groups = int(attribute(node, "group"))
    samples: Array = y[0].reshape(groups, y.shape[1] // groups, -1)[:, :, chosen]
    return samples


def _some(count: int, rng: np.random.Generator) -> Array:
    if count <= ROWS:
        return np.arange(count)
    return np.sort(rng.choice(count, ROWS, replace=False))
