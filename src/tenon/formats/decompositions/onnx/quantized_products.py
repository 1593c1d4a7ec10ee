"""ONNX's convolutions and matrix products of integers.

QLinearConv and QLinearMatMul by scales that are known are products between DequantizeLinear and QuantizeLinear, which
``passes.integers`` makes integers of again; by others they are products in i32, scaled at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.network.graph.graph import Value

Results = Sequence[Value | None]


def per_axis(node: OnnxNode, parameter: Value, rank: int, axis: int) -> Value:
    """A scale or zero point along an axis, to meet a tensor of that rank; per-tensor ones as scalars."""
    if parameter.type.size == 1:
        return node.add("Reshape", parameter, node.int_constant("scalar", []))
    if parameter.type.rank != 1:
        return parameter
    shape = [1] * rank
    shape[axis] = -1
    return node.add("Reshape", parameter, node.int_constant("column", shape))


def _centred(node: OnnxNode, i: int, zero: int, rank: int, axis: int) -> Value:
    """Input ``i`` less its zero point, as i32."""
    x = node.add("Cast", node.input(i), to="i32")
    if not node.has(zero):
        return x
    point = per_axis(node, node.input(zero), rank, axis)
    return node.add("Sub", x, node.add("Cast", point, to="i32"))


def mat_mul_integer(node: OnnxNode) -> Results:
    a = _centred(node, 0, 2, len(node.dims_of(0)), len(node.dims_of(0)) - 2)
    b = _centred(node, 1, 3, len(node.dims_of(1)), len(node.dims_of(1)) - 1)
    return [node.add("MatMul", a, b)]


def conv_integer(node: OnnxNode) -> Results:
    rank = len(node.dims_of(0))
    return [node.add("Conv", _centred(node, 0, 2, rank, 1), _centred(node, 1, 3, rank, 0), **node.attributes)]


# ----------------------------------------------------------------------------------------- with scales
def _known(node: OnnxNode, columns: int) -> bool:
    """Whether scales and zero points are constants: of x and y one number, of the weights at most ``columns``."""
    given = [node.input(i) for i in (1, 2, 4, 5, 6, 7)]
    sizes = [v.type.size for v in given]
    single = all(sizes[i] == 1 for i in (0, 1, 4, 5))
    return single and all(v.constant for v in given) and all(n in (1, columns) for n in sizes[2:4])


def _real(node: OnnxNode, i: int, axis: int) -> Value:
    """The numbers that input ``i``, its scale and its zero point behind it stand for."""
    rank = len(node.dims_of(i))
    scale, zero = (per_axis(node, node.input(k), rank, axis) for k in (i + 1, i + 2))
    return node.add("DequantizeLinear", node.input(i), node.add("Cast", scale, to="f32"), zero, to="f32")


def _stored(node: OnnxNode, real: Value) -> Value:
    scale, zero = (per_axis(node, node.input(k), real.type.rank, 1) for k in (6, 7))
    return node.add("QuantizeLinear", real, node.add("Cast", scale, to="f32"), zero, to=zero.type.dtype.value)


def _rescaled(node: OnnxNode, total: Value, scales: Sequence[Value], y_scale: Value, y_zero: Value) -> Value:
    """An i32 total as the output's quantised numbers."""
    real = node.add("Cast", total, to="f32")
    for scale in scales:
        real = node.add("Mul", real, node.add("Cast", scale, to="f32"))
    y_scale = node.add("Cast", y_scale, to="f32")
    return node.add("QuantizeLinear", real, y_scale, y_zero, to=y_zero.type.dtype.value)


def q_linear_mat_mul(node: OnnxNode) -> Results:
    rank = len(node.dims_of(0)), len(node.dims_of(3))
    if rank[1] >= 2 and _known(node, node.dims_of(3)[-1] if rank[1] == 2 else 1):
        return [_stored(node, node.add("MatMul", _real(node, 0, 0), _real(node, 3, 1)))]
    a, b = _centred(node, 0, 2, rank[0], rank[0] - 2), _centred(node, 3, 5, rank[1], rank[1] - 1)
    total = node.add("MatMul", a, b)
    scales = [
        per_axis(node, node.input(1), rank[0], rank[0] - 2),
        per_axis(node, node.input(4), rank[1], rank[1] - 1),
    ]
    y_scale, y_zero = (per_axis(node, node.input(i), rank[0], rank[0] - 1) for i in (6, 7))
    return [_rescaled(node, total, scales, y_scale, y_zero)]


def q_linear_conv(node: OnnxNode) -> Results:
    rank = len(node.dims_of(0))
    if _known(node, node.dims_of(3)[0]) and (not node.has(8) or node.input(8).constant):
        bias = [_real_bias(node)] if node.has(8) else []
        return [_stored(node, node.add("Conv", _real(node, 0, 1), _real(node, 3, 0), *bias, **node.attributes))]
    x, w = _centred(node, 0, 2, rank, 1), _centred(node, 3, 5, rank, 0)
    operands = [x, w, node.input(8)] if node.has(8) else [x, w]
    total = node.add("Conv", *operands, **node.attributes)
    scales = [per_axis(node, node.input(i), rank, 1) for i in (1, 4)]
    y_scale, y_zero = (per_axis(node, node.input(i), rank, 1) for i in (6, 7))
    return [_rescaled(node, total, scales, y_scale, y_zero)]


def _real_bias(node: OnnxNode) -> Value:
    """The bias, which counts products of the scales of x and weights."""
    x, w = (node.input(i).array.astype(np.float32).reshape(-1) for i in (1, 4))
    scale = x * w
    constant = node.constant(scale if scale.size > 1 else scale.reshape(()), "bias_scale")
    return node.add("DequantizeLinear", node.input(8), constant, None, to="f32")
