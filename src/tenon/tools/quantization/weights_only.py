"""Weights of fewer bits beside activations in floats: no samples are needed.

The file becomes smaller; sums are those of floats.  Weights of 4 bits have a scale for each block of consecutive
weights of an output channel, as ``DequantizeLinear`` with ``block_size`` has them in ONNX (here rows of a matrix, which
a Reshape turns into the weights).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tenon.errors import ModelError
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.traits import is_product
from tenon.network.passes.base import make
from tenon.tools.quantization.insertion import weight_axis
from tenon.tools.quantization.rounding import FEW_BITS
from tenon.tools.quantization.scheme import QuantParams, Scheme, bits_of

SMALLEST = 64
"""Weights with fewer elements stay as they are."""

SHARES = np.linspace(1.1, 0.5, 25)
"""Factors for the scale of a row's greatest weight that are tried."""


def quantize_weights(graph: Graph, scheme: Scheme, exclude: tuple[str, ...] = ()) -> Graph:
    """``graph``, changed: weights of products in the type of the scheme.  Raises ModelError if it has none."""
    done: dict[Value, Value] = {}
    for node in graph:
        if str(node.origin.layer) in exclude or node.output.name in exclude or not has_weights(node):
            continue
        weights = node.input(1)
        if weights not in done:
            done[weights] = _stored(graph, node, scheme)
        graph.rewire(node, tuple(done[weights] if v is weights else v for v in node.inputs))
    if not done:
        raise ModelError(f"{graph.source or graph.name}: it has no weights of {SMALLEST} elements or more to quantise")
    return graph


def has_weights(node: Node) -> bool:
    """Whether it is a product by constant weights that are large enough to be stored in fewer bits."""
    if not is_product(node) or not node.input(1).constant:
        return False
    return node.input(1).type.size >= SMALLEST and (not isinstance(node.op, MatMul) or node.input(1).type.rank == 2)


def _stored(graph: Graph, node: Node, scheme: Scheme) -> Value:
    """The weights as floats again, of what the file stores."""
    data, name = node.input(1).array.astype(np.float32), node.input(1).name or f"{node.output.name}_weights"
    if scheme.weights in (DType.F16, DType.BF16):
        small = graph.constant(f"{name}_{scheme.weights.value}", data.astype(scheme.weights.numpy))
        return graph.add(make("Cast", to="f32"), [small], [name], node.origin, before=node).output
    axis = weight_axis(node)
    turned = np.moveaxis(data, axis, 0)
    rows = _rows(turned, scheme.block)
    grid = _finer(scheme.weight_grid(rows, 0), rows)
    inputs = [
        graph.constant(f"{name}_quantized", grid.quantised(rows, 0)),
        graph.constant(f"{name}_scale", grid.scale.reshape(-1, 1)),
        graph.constant(f"{name}_zero_point", grid.zero.reshape(-1, 1)),
    ]
    value = graph.add(make("DequantizeLinear"), inputs, [name], node.origin, before=node).output
    if rows.shape != turned.shape:
        shape = graph.constant(f"{name}_shape", np.array(turned.shape, np.int64))
        value = graph.add(make("Reshape"), [value, shape], [f"{name}_shaped"], node.origin, before=node).output
    if axis != 0:
        perm = (*range(1, axis + 1), 0, *range(axis + 1, turned.ndim))
        value = graph.add(make("Transpose", perm=perm), [value], [f"{name}_turned"], node.origin, before=node).output
    return value


def _finer(grid: QuantParams, rows: Array) -> QuantParams:
    """With the scale for each row that gives its weights the least squared error; of 8 bits as it is, as the greatest
    weight of a row counts more there than the steps of the others."""
    if bits_of(grid.dtype) > FEW_BITS:
        return grid
    least, scale = np.full(len(rows), np.inf), grid.scale
    for share in SHARES:
        tried = replace(grid, scale=(grid.scale * share).astype(np.float32))
        whole = tried.quantised(rows, 0).astype(np.float32) - tried.zero.astype(np.float32)[:, None]
        error = ((whole * tried.scale[:, None] - rows) ** 2).sum(1)
        better = error < least
        least, scale = np.where(better, error, least), np.where(better, tried.scale, scale)
    return replace(grid, scale=scale)


def _rows(turned: Array, block: int) -> Array:
    """A row for each output channel, or for each block of one, the longest that divides it, ``block`` at most."""
    whole = turned[0].size
    fitting = [length for length in range(min(block, whole), block // 4, -1) if whole % length == 0]
    return turned.reshape(-1, fitting[0] if fitting else whole)
