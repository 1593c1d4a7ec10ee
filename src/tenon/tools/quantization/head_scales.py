"""Scales of their own for the kinds of channels that a network's last products compute.

A detector's last convolution has positions, sizes and scores of boxes in one tensor, whose ranges differ: one scale for
all is as coarse as the widest needs.  Weights and biases bring each kind to the same range, and a multiplication and an
addition in floats bring it back.  Channels are of one kind if the same operators read them, after data movement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv
from tenon.network.ops.matmul import Gemm
from tenon.network.passes.base import make
from tenon.tools.quantization.channel_groups import ChannelPlace, has_own_weights
from tenon.tools.quantization.equalisation import channel_ranges, layer_bias, set_weights
from tenon.tools.quantization.insertion import weight_axis
from tenon.tools.quantization.placement import before_products, is_always_integer, last
from tenon.tools.quantization.samples import Sample
from tenon.tools.quantization.simulation import channel_axis

NEAR = 1e-3
"""Least width of the range of a kind, over that of the widest."""


def with_head_scales(graph: Graph, samples: Sequence[Sample], threads: int) -> tuple[Graph, int]:
    """A copy with the same results, up to rounding, and the number of products whose kinds of channels were scaled."""
    copy = graph.copy()
    needed = before_products(copy)
    heads = {node: kinds for node in copy if node not in needed and (kinds := _kinds_of_head(copy, node))}
    if not heads:
        return copy, 0
    seen = channel_ranges(copy, {n.output: ChannelPlace(channel_axis(n)) for n in heads}, samples, threads)
    for node, kinds in heads.items():
        low, high = seen[node.output].low, seen[node.output].high
        half, middle = np.ones_like(low), np.zeros_like(low)
        for kind in kinds:
            least, most = float(low[kind].min()), float(high[kind].max())
            half[kind], middle[kind] = (most - least) / 2, (most + least) / 2
        half = np.maximum(half, max(NEAR * float(half.max()), 1e-30))
        _scale(copy, node, 1 / half, middle)
    return copy, len(heads)


def _kinds_of_head(graph: Graph, node: Node) -> list[Array]:
    """The channels of each kind, if there are several and only arithmetic in floats reads them."""
    if not isinstance(node.op, Conv | Gemm) or not has_own_weights(node) or last(graph, node) is not node.output:
        return []
    axis, dims = channel_axis(node), node.output.type.dims
    numbers = np.arange(dims[axis]).reshape([-1 if i == axis else 1 for i in range(len(dims))])
    readers: list[set[int]] = [set() for _ in range(dims[axis])]
    todo = [(node.output, np.broadcast_to(numbers, dims))]
    while todo:
        value, channels = todo.pop()
        if graph.is_output(value):
            return []
        for reader in dict.fromkeys(value.uses):
            if is_always_integer(reader):
                return []
            if _moves(reader, value):
                data = [channels, *(v.array for v in reader.inputs[1:] if v is not None)]
                todo += zip(reader.outputs, reader.evaluate(data), strict=True)
                continue
            for channel in np.unique(channels):
                readers[channel].add(graph.position(reader))
    kinds = sorted({tuple(sorted(each)) for each in readers})
    return [np.array([i for i, each in enumerate(readers) if tuple(sorted(each)) == kind]) for kind in kinds] * (
        len(kinds) > 1
    )


def _moves(node: Node, value: Value) -> bool:
    """Whether ``node`` only moves the elements of ``value``."""
    others = node.inputs[1:]
    fixed = all(v is not None and v.constant for v in others)
    return isinstance(node.op, Operator) and node.op.moves and node.input(0) is value and fixed


def _scale(graph: Graph, node: Node, factors: Array, offsets: Array) -> None:
    """Let a product compute (y - ``offsets``) * ``factors`` of each channel, and what reads it get y."""
    axis, weights = weight_axis(node), node.input(1).array.astype(np.float64)
    shape = [-1 if i == axis else 1 for i in range(weights.ndim)]
    y, bias = node.output, (layer_bias(node) - offsets) * factors
    readers = list(dict.fromkeys(y.uses))
    set_weights(graph, node, weights * factors.reshape(shape), bias)
    along = [-1 if i == channel_axis(node) else 1 for i in range(y.type.rank)]
    before = min(readers, key=graph.position)
    value = y
    for name, numbers in (("Mul", 1 / factors), ("Add", offsets)):
        constant = graph.constant(f"{y.name}_{name.lower()}", numbers.reshape(along).astype(np.float32))
        made = graph.add(make(name), [value, constant], [f"{y.name}_{name.lower()}_result"], node.origin, before=before)
        value = made.output
    for reader in readers:
        graph.rewire(reader, tuple(value if v is y else v for v in reader.inputs))
