"""Channels that share one grid brought to similar ranges, without a change of what the network computes.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.1, extended by
the ranges of activations and by limits for each channel (ReLU6).  Channels that are constant on all samples are
computed by their bias alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.ops.conv import Conv
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.pointwise import Add
from tenon.network.ops.quantised_values import bounds
from tenon.network.ops.traits import is_product
from tenon.network.passes.base import attribute, make
from tenon.tools.quantization.channel_groups import ChannelGroup, ChannelPlace, channel_groups, has_own_weights
from tenon.tools.quantization.insertion import weight_axis
from tenon.tools.quantization.placement import addends, last, rounded_result
from tenon.tools.quantization.probes import Probes
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.simulation import channel_axis

SWEEPS = 12
"""Times that each group is brought into balance with its neighbours."""

MOST = 2.0**12
"""Between the factors of two channels of a tensor."""

ROOM = 1.25
"""How far above the observed maximum of a channel its values may be without saturation."""


@dataclass(frozen=True)
class ChannelRange:
    """The least and the greatest value of each channel of a tensor, over samples and positions."""

    low: Array
    high: Array

    @property
    def magnitude(self) -> Array:
        largest: Array = np.maximum(np.abs(self.low), np.abs(self.high))
        return largest

    @property
    def middle(self) -> Array:
        centre: Array = (self.low + self.high) / 2
        return centre


def channel_ranges(
    graph: Graph, places: Mapping[Value, ChannelPlace], samples: Sequence[Sample], threads: int
) -> dict[Value, ChannelRange]:
    """Ranges of the channels of tensors on samples."""
    ranges: dict[Value, ChannelRange] = {}
    probes = Probes(graph, list(places), threads=threads)
    try:
        for values in probes.run(samples):
            for value, array in values.items():
                at = places[value]
                rows = np.moveaxis(array, at.axis, 0).reshape(array.shape[at.axis] // at.repeat, -1)
                low, high = rows.min(1).astype(np.float64), rows.max(1).astype(np.float64)
                if value in ranges:
                    low, high = np.minimum(low, ranges[value].low), np.maximum(high, ranges[value].high)
                ranges[value] = ChannelRange(low, high)
    finally:
        probes.close()
    return ranges


# ------------------------------------------------------------------------------------------------ constant channels
def silenced(graph: Graph, samples: Sequence[Sample], threads: int) -> tuple[Graph, int]:
    """A copy whose filters with constant results on all samples have weights of zero, and their number.

    Such filters compute the constant by their bias.  They often have the greatest weights of a layer: what
    normalisation with a variance near zero leaves.
    """
    copy = graph.copy()
    nodes = [n for n in copy if isinstance(n.op, Conv | Gemm) and has_own_weights(n)]
    ends = {last(copy, node): ChannelPlace(channel_axis(node)) for node in nodes}
    seen = channel_ranges(copy, ends, samples, threads)
    count = 0
    for node in nodes:
        of, axis = seen[last(copy, node)], weight_axis(node)
        constant = of.high - of.low <= 1e-6 * max(float(of.magnitude.max()), 1e-30)
        if not constant.any() or constant.all():
            continue
        weights = np.moveaxis(node.input(1).array.copy(), axis, 0)
        constant &= _magnitudes(weights) > 0
        weights[constant] = 0
        count += int(constant.sum())
        set_weights(copy, node, np.moveaxis(weights, 0, axis), np.where(constant, of.middle, layer_bias(node)))
    return copy, count


# ------------------------------------------------------------------------------------------------ equalisation
def equalised(
    graph: Graph, samples: Sequence[Sample], *, per_channel: bool, threads: int, strength: float = 1.0
) -> tuple[Graph, int]:
    """A copy with channels scaled to similar ranges, and the number of tensors that were scaled.

    ``per_channel``: weights have a scale for each output channel, so that only activations gain, and the weights that
    read them pay.  ``strength`` is the exponent of the factors: 1 for equal ranges.
    """
    copy = graph.copy()
    groups = channel_groups(copy)
    stored = [_stored(copy, group) for group in groups]
    seen = channel_ranges(copy, {v: at for each in stored for v, at in each.items()}, samples, threads)
    state = _ScaledLayers(copy, per_channel)
    factors = [np.ones(group.channels) for group in groups]
    for _ in range(1 if per_channel else SWEEPS):
        for i, group in enumerate(groups):
            above = np.max([_shares(seen[v].magnitude * factors[i]) for v in stored[i]], axis=0)
            scales = state.factors(group, above) ** strength
            if per_channel and group.limited:
                scales = _within_limit(scales, above)
            state.apply(group, scales)
            factors[i] = factors[i] * scales
    state.store()
    for group, total in zip(groups, factors, strict=True):
        for node in group.limited:
            at = group.tensors[node.output].axis
            _limit(copy, node, at, total, float((seen[node.output].magnitude * total).max()))
    return copy, sum(bool(np.ptp(total) > 1e-3 * total.max()) for total in factors)


def _stored(graph: Graph, group: ChannelGroup) -> dict[Value, ChannelPlace]:
    """The tensors of a group that get a grid of their own, and the results of its Clip nodes."""
    producers = [v.producer for v in group.tensors if v.producer]
    makers = [node for node in producers if is_product(node) or isinstance(node.op, Add)]
    added = addends(graph)
    ends = [rounded_result(graph, node, (), added) for node in makers]
    ends += [node.output for node in group.limited]
    return {v: group.tensors[v] for v in dict.fromkeys(ends)}


def _shares(magnitudes: Array) -> Array:
    shares: Array = magnitudes / max(float(magnitudes.max()), 1e-30)
    return shares


def _within_limit(factors: Array, above: Array) -> Array:
    """Factors of at least 1, by which no channel exceeds the limit of the others."""
    most = np.maximum(1 / np.maximum(ROOM * above, 1e-30), 1.0)
    limited: Array = np.clip(factors / factors[above.argmax()], 1.0, most)
    return limited


class _ScaledLayers:
    """Weights and biases of products in f64 while they are scaled."""

    def __init__(self, graph: Graph, per_channel: bool) -> None:
        self.graph, self.per_channel = graph, per_channel
        self.weights: dict[Node, Array] = {}
        self.biases: dict[Node, Array] = {}

    def _of(self, node: Node) -> Array:
        if node not in self.weights:
            self.weights[node] = node.input(1).array.astype(np.float64)
            self.biases[node] = layer_bias(node)
        return self.weights[node]

    def factors(self, group: ChannelGroup, above: Array) -> Array:
        """By which each channel is multiplied; ``above`` are the magnitudes of activations over the greatest."""
        for maker in () if self.per_channel else group.makers:
            above = np.maximum(above, _shares(_magnitudes(np.moveaxis(self._of(maker), weight_axis(maker), 0))))
        below, free = np.zeros(group.channels), True
        for reader, at in group.readers:
            columns = self._columns(reader, at)
            if columns is not None:
                free = False
                below = np.maximum(below, _shares(columns))
        usable = above > 1e-9 if free else (above > 1e-9) & (below > 1e-9)
        if not usable.any():
            return np.ones(group.channels)
        ratio = (1.0 if free else below[usable]) / above[usable]
        scales = ratio if free else np.sqrt(ratio)
        result = np.ones(group.channels)
        result[usable] = np.clip(scales / np.exp(np.log(scales).mean()), 1 / MOST, MOST)
        return result

    def _columns(self, node: Node, at: ChannelPlace) -> Array | None:
        """The greatest magnitude of the weights that read each channel; None where their grid does not depend on the
        other channels."""
        weights, groups = self._of(node), _groups(node)
        if isinstance(node.op, Conv) and groups > 1:
            rows = _magnitudes(weights)
            if self.per_channel and weights.shape[1] == 1:
                return None
            each = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], -1)
            if self.per_channel:
                each = each / np.maximum(rows.reshape(groups, -1, 1, 1), 1e-30)
            largest: Array = np.abs(each).max((1, 3)).reshape(-1)
            return largest
        columns = np.moveaxis(weights, _in_axis(node), 0)
        if self.per_channel:
            rows = _magnitudes(np.moveaxis(weights, weight_axis(node), 0))
            shape = [1] * weights.ndim
            shape[weight_axis(node)] = -1
            columns = np.moveaxis(weights / np.maximum(rows.reshape(shape), 1e-30), _in_axis(node), 0)
        most: Array = _magnitudes(columns).reshape(-1, at.repeat).max(1)
        return most

    def apply(self, group: ChannelGroup, factors: Array) -> None:
        for maker in group.makers:
            weights, axis = self._of(maker), weight_axis(maker)
            self.weights[maker] = weights * _along(factors, axis, weights.ndim)
            self.biases[maker] = self.biases[maker] * factors
        for reader, at in group.readers:
            weights, each = self._of(reader), np.repeat(factors, at.repeat)
            groups = _groups(reader)
            if isinstance(reader.op, Conv) and groups > 1:
                parts = weights.reshape(groups, weights.shape[0] // groups, weights.shape[1], -1)
                parts = parts / each.reshape(groups, 1, weights.shape[1], 1)
                self.weights[reader] = parts.reshape(weights.shape)
            else:
                self.weights[reader] = weights / _along(each, _in_axis(reader), weights.ndim)

    def store(self) -> None:
        for node, weights in self.weights.items():
            set_weights(self.graph, node, weights, self.biases[node])


def _limit(graph: Graph, node: Node, axis: int, factors: Array, most: float) -> None:
    """Let a Clip have the limit of each channel times its factor; ``most`` is the greatest value of all channels."""
    limits = bounds(node)
    assert limits is not None
    each = limits[1] * factors
    least = float(each.min())
    x, y = node.input(0), node.output
    if least >= most * (1 - 1e-6):  # channels of higher limits saturate at the range of the tensor
        high = graph.constant(f"{y.name}_limit", np.array(max(least, most), np.float32))
        graph.rewire(node, (x, node.input(1), high))
        return
    values = _along(np.minimum(each, most), axis, y.type.rank).astype(np.float32)
    limit = graph.constant(f"{y.name}_limits", values)
    relu = graph.add(make("Relu"), [x], [f"{y.name}_relu"], node.origin, before=node)
    lowest = graph.add(make("Min"), [relu.output, limit], [f"{y.name}_limited"], node.origin, before=node)
    graph.replace(y, lowest.output)
    name = y.name
    graph.remove(node)
    lowest.output.name = name


# ------------------------------------------------------------------------------------------------ weights
def _magnitudes(rows: Array) -> Array:
    largest: Array = np.abs(rows).reshape(len(rows), -1).max(1)
    return largest


def _along(factors: Array, axis: int, rank: int) -> Array:
    return factors.reshape([-1 if i == axis else 1 for i in range(rank)])


def _groups(node: Node) -> int:
    return int(attribute(node, "group")) if isinstance(node.op, Conv) else 1


def _in_axis(node: Node) -> int:
    return 1 - weight_axis(node)


def layer_bias(node: Node) -> Array:
    """The bias of each output channel, in f64; zeros where a layer has none."""
    channels = node.input(1).array.shape[weight_axis(node)]
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if given is None:
        return np.zeros(channels)
    return np.broadcast_to(given.array.reshape(-1), (channels,)).astype(np.float64)


def set_weights(graph: Graph, node: Node, weights: Array, bias: Array) -> None:
    """Give a layer other weights and, unless it is a MatMul, another bias."""
    w = graph.constant(node.input(1).name, weights.astype(np.float32))
    inputs: list[Value | None] = [node.input(0), w]
    if not isinstance(node.op, MatMul):
        given = node.inputs[2] if len(node.inputs) > 2 else None
        inputs.append(graph.constant(given.name if given else f"{node.output.name}_bias", bias.astype(np.float32)))
    graph.rewire(node, inputs)
