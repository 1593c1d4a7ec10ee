"""The least values of channels, moved into the biases of the layers that read them: it takes up no range of a tensor.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), 4.1.3, with the
least value observed on samples for the mean less three standard deviations of a normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.ops.activation import Relu
from tenon.network.ops.conv import Conv
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.move import Transpose
from tenon.network.ops.reduce import GlobalAveragePool, GlobalMaxPool, ReduceMean
from tenon.network.ops.shape import Flatten, Identity, Reshape, Squeeze
from tenon.network.passes.base import attribute
from tenon.tools.quantization.channel_groups import ChannelGroup, ChannelPlace, channel_groups
from tenon.tools.quantization.equalisation import channel_ranges, layer_bias, set_weights
from tenon.tools.quantization.insertion import weight_axis
from tenon.tools.quantization.placement import last
from tenon.tools.quantization.samples import Sample

LEAST = 0.05
"""Share of the range of a tensor by which it must shrink."""

_SHIFTED = (Flatten, GlobalAveragePool, GlobalMaxPool, Identity, ReduceMean, Relu, Reshape, Squeeze, Transpose)
"""Operators whose result of x - c is that of x, less c, where x is at least c and c is not negative."""


def absorbed(graph: Graph, samples: Sequence[Sample], threads: int) -> tuple[Graph, int]:
    """A copy with the same results on ``samples``, up to rounding, and the number of tensors whose range shrank."""
    copy, count = graph.copy(), 0
    groups = [group for group in channel_groups(copy) if _fits(group)]
    ends = [last(copy, group.makers[0]) for group in groups]
    if not groups:
        return copy, 0
    seen = channel_ranges(copy, {v: g.tensors[v] for v, g in zip(ends, groups, strict=True)}, samples, threads)
    for group, end in zip(groups, ends, strict=True):
        of = seen[end]
        offsets = np.maximum(of.low, 0.0)
        high = max(float(of.high.max()), 0.0)
        if float((of.high - offsets).max()) > (1 - LEAST) * high:
            continue
        count += 1
        maker = group.makers[0]
        set_weights(copy, maker, maker.input(1).array, layer_bias(maker) - offsets)
        for reader, at in group.readers:
            set_weights(copy, reader, reader.input(1).array, layer_bias(reader) + _sums(reader, at, offsets))
    return copy, count


def _fits(group: ChannelGroup) -> bool:
    """Whether one layer makes the channels, and what reads them can take offsets up in its bias."""
    inner = {v.producer for v in group.tensors} - {*group.makers, None}
    plain = all(node is not None and isinstance(node.op, _SHIFTED) for node in inner)
    with_bias = [isinstance(maker.op, Conv | Gemm) for maker in group.makers]
    return with_bias == [True] and plain and all(_takes_offset(reader) for reader, _ in group.readers)


def _takes_offset(node: Node) -> bool:
    """Whether it has a bias, and reads no zeros around the image, which would have to be offsets."""
    if isinstance(node.op, Gemm):
        return True
    if not isinstance(node.op, Conv):
        return False
    axes = node.op.axes(node.input(0).type.dims, node.input(1).type.dims)
    return all(a.before <= 0 and a.after <= 0 for a in axes)


def _sums(node: Node, at: ChannelPlace, offsets: Array) -> Array:
    """The sums that a layer makes of the offsets of its channels, for each output channel."""
    weights, each = node.input(1).array.astype(np.float64), np.repeat(offsets, at.repeat)
    rows = np.moveaxis(weights, weight_axis(node), 0)
    if isinstance(node.op, Gemm):
        product: Array = rows @ each
        return product
    parts = each.reshape(int(attribute(node, "group")), -1)
    own = np.repeat(parts, len(rows) // len(parts), axis=0)
    sums: Array = (rows.reshape(*own.shape, -1).sum(2) * own).sum(1)
    return sums
