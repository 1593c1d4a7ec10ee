"""QuantizeLinear and DequantizeLinear around the operators of a float graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.ops.conv import ConvTranspose
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.quantised_pairs import read_through_integers
from tenon.network.ops.requantize import limits
from tenon.network.passes.base import attribute, make
from tenon.network.passes.integers.operands import weights
from tenon.tools.quantization.placement import Placement, root
from tenon.tools.quantization.scheme import QuantParams, Scheme


@dataclass(frozen=True)
class WeightedLayer:
    """An operator with weights: its grids, the weights as integers, and the bias (of zeros where there is none)."""

    node: Node
    x: QuantParams
    w: QuantParams
    weights: Array
    bias: Array
    axis: int

    @property
    def channels(self) -> int:
        return self.bias.size

    def steps(self) -> Array:
        """The scales of the sums, in f32, one for each output channel."""
        return np.broadcast_to(self.x.scale * self.w.scale, (self.channels,)).astype(np.float32)

    def stored_weights(self) -> Array:
        """The real numbers that the integers of the weights stand for, in f64."""
        shape = [-1 if i == self.axis else 1 for i in range(self.weights.ndim)] if self.w.scale.size > 1 else []
        scale, zero = (a.astype(np.float64).reshape(shape) for a in (self.w.scale, self.w.zero))
        real: Array = (self.weights.astype(np.float64) - zero) * scale
        return real

    @property
    def takes_bias(self) -> bool:
        """Whether it has a bias, or can be given one."""
        return not isinstance(self.node.op, MatMul) or self.node.input(0).type.rank == 2


def products(placed: Placement, grids: Mapping[Value, QuantParams], scheme: Scheme) -> list[WeightedLayer]:
    added = {value: grids[other] for value, other in placed.added.items()}
    outer = scheme.of_outer_weights()
    return [
        _product(node, grids[root(node.input(0))], outer if node in placed.outer else scheme, added.get(node.output))
        for node in placed.products
    ]


ADDED_STEP = 2.0**14
"""Most sums that are a step of what is added to them."""


def _product(node: Node, x: QuantParams, scheme: Scheme, added: QuantParams | None) -> WeightedLayer:
    data, axis = node.input(1).array.astype(np.float32), weight_axis(node)
    groups = attribute(node, "group") if isinstance(node.op, ConvTranspose) else 1
    channels = data.shape[axis] * groups
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = np.zeros(channels) if given is None else np.broadcast_to(given.array.reshape(-1), (channels,))
    bias = bias.astype(np.float64)
    stored = _trained_weights(node, axis, scheme)
    if stored is not None and groups == 1:
        return WeightedLayer(node, x, stored[0], stored[1], bias, axis)
    w = scheme.weight_grid(data, axis)
    if groups > 1 and w.scale.size > 1:  # one scale for all: its channels are counted within the groups
        w = QuantParams(w.scale.max(keepdims=True), w.zero[:1], w.dtype)
    least = np.abs(bias if w.scale.size > 1 else np.abs(bias).max(keepdims=True)) / (2.0**30 * x.scale)
    if added is not None:
        least = np.maximum(least, added.scale / (ADDED_STEP * x.scale))
    w = QuantParams(np.maximum(w.scale, least).astype(np.float32), w.zero, w.dtype)
    return WeightedLayer(node, x, w, w.quantised(data, axis if w.scale.size > 1 else None), bias, axis)


def _trained_weights(node: Node, axis: int, scheme: Scheme) -> tuple[QuantParams, Array] | None:
    """The grid and the integers of weights that were integers of the scheme already, as training leaves them."""
    stored = weights(node.input(1), axis)
    if isinstance(stored, str) or stored.steps or (scheme.symmetric_weights and stored.zero):
        return None
    (least, most), zero = limits(scheme.weights), stored.zero
    held = least <= min(int(stored.data.min()), zero) and max(int(stored.data.max()), zero) <= most
    if not held or (stored.scales.size > 1 and not scheme.per_channel):
        return None
    zeros = np.full(stored.scales.shape, zero, scheme.weights.numpy)
    return QuantParams(stored.scales, zeros, scheme.weights), stored.data.astype(scheme.weights.numpy)


def weight_axis(node: Node) -> int:
    """The axis of output channels."""
    if isinstance(node.op, Gemm):
        return 0 if attribute(node, "transB") else 1
    return {"Conv": 0, "ConvTranspose": 1, "MatMul": 1}[node.op.name]


def insert(
    graph: Graph, placed: Placement, made: list[WeightedLayer], grids: Mapping[Value, QuantParams], scheme: Scheme
) -> dict[Value, Value]:
    """Change ``graph``, whose nodes and values ``placed`` and ``made`` have; returns the tensors that readers get."""
    shared: dict[tuple[int, bytes, bytes], Value] = {}
    for each in made:
        _weigh(graph, each, shared)
    for node, i in placed.constants:
        _constant(graph, node, i, placed.scheme_of(root(node.input(1 - i)), scheme))
    return {value: around(graph, value, grids[value]) for value in placed.tensors}


def around(graph: Graph, value: Value, grid: QuantParams) -> Value:
    """Let all readers of ``value`` read its integers, dequantised; an output keeps its name."""
    scale = graph.constant(f"{value.name}_scale", grid.scale.reshape(()))
    zero = graph.constant(f"{value.name}_zero_point", grid.zero.reshape(()))
    return read_through_integers(graph, value, scale, zero)


def _dequantised(graph: Graph, node: Node, name: str, data: Array, scale: Array, zero: Array | None) -> Value:
    inputs = [graph.constant(f"{name}_quantized", data), graph.constant(f"{name}_scale", scale)]
    if zero is not None:
        inputs.append(graph.constant(f"{name}_zero_point", zero))
    return graph.add(make("DequantizeLinear"), inputs, [name], before=node).output


def _weigh(graph: Graph, each: WeightedLayer, shared: dict[tuple[int, bytes, bytes], Value]) -> None:
    """Weights and bias of a product as integers; ``shared`` has those of products with the same weights (of the steps
    of a recurrent layer)."""
    node, stem = each.node, each.node.output.name
    shape = [-1 if i == each.axis else 1 for i in range(each.weights.ndim)] if each.w.scale.size > 1 else []
    name = node.input(1).name or f"{stem}_weights"
    key = id(node.input(1)), each.weights.tobytes(), each.w.scale.tobytes()
    if key not in shared:
        scale, zero = each.w.scale.reshape(shape), each.w.zero.reshape(shape)
        shared[key] = _dequantised(graph, node, name, each.weights, scale, zero)
    w = shared[key]
    if isinstance(node.op, MatMul) and each.takes_bias and each.bias.any():
        node.op = make("Gemm")
    inputs: list[Value | None] = [node.input(0), w]
    if not isinstance(node.op, MatMul):
        steps = each.steps()
        whole = np.clip(np.rint(each.bias / steps), -(2**31), 2**31 - 1).astype(np.int32)
        inputs.append(_dequantised(graph, node, f"{stem}_bias", whole, steps, None))
    graph.rewire(node, inputs)


def _constant(graph: Graph, node: Node, i: int, scheme: Scheme) -> None:
    """Another constant operand, with one scale."""
    value = node.input(i)
    data = value.array.astype(np.float32)
    grid = scheme.activation_grid(float(data.min(initial=0.0)), float(data.max(initial=0.0)))
    scale, zero = grid.scale.reshape(()), grid.zero.reshape(())
    new = _dequantised(graph, node, value.name or f"{node.output.name}_operand", grid.quantised(data), scale, zero)
    graph.rewire(node, tuple(new if j == i else v for j, v in enumerate(node.inputs)))
