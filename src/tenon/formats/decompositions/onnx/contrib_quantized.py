"""Quantised operators of com.microsoft: read through DequantizeLinear, computed, written through QuantizeLinear.

Products are sums of integers, scaled at the end.  Source: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from tenon.formats.decompositions.onnx.compose import COMPOSED
from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.decompositions.onnx.recurrent import lstm
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType

Results = Sequence[Value | None]


def _as(node: OnnxNode, type: str, inputs: Sequence[Value | None], **attributes: object) -> list[Value]:
    """The result of the standard operator of this name on these inputs."""
    outputs = COMPOSED[type](node.variant(type, inputs, attributes))
    return [value for value in outputs or () if value is not None]


def _optional(node: OnnxNode, i: int) -> Value | None:
    return node.input(i) if node.has(i) else None


def _real(node: OnnxNode, i: int) -> Value:
    """The numbers that input ``i``, its scale and its zero point behind it stand for."""
    return node.add("DequantizeLinear", node.input(i), node.input(i + 1), _optional(node, i + 2), to="f32")


def _stored(node: OnnxNode, y: Value, scale: int, like: DType) -> Value:
    """Numbers as integers, by the scale at input ``scale`` and the zero point behind it."""
    zero = _optional(node, scale + 1)
    return node.add("QuantizeLinear", y, node.input(scale), zero, to=like.value)


# --------------------------------------------------------------------------------- one operator between scales
def _binary(type: str) -> Callable[[OnnxNode], Results]:
    return lambda node: [_stored(node, node.add(type, _real(node, 0), _real(node, 3)), 6, node.input(0).type.dtype)]


def _unary(compute: Callable[[OnnxNode, Value], Value]) -> Callable[[OnnxNode], Results]:
    """Inputs: x, its scale and zero point, those of the result."""
    return lambda node: [_stored(node, compute(node, _real(node, 0)), 3, node.input(0).type.dtype)]


def _leaky_relu(node: OnnxNode, x: Value) -> Value:
    return node.add("LeakyRelu", x, alpha=node.attributes.get("alpha", 0.01))


def _softmax(node: OnnxNode, x: Value) -> Value:
    """Along one axis as since opset 13, or over all from the axis on as before."""
    axis, dims = node.attributes.get("axis", -1), x.type.dims
    if node.attributes.get("opset", 13) >= 13:
        return node.add("Softmax", x, axis=axis)
    flat = node.add("Softmax", node.add("Flatten", x, axis=axis % len(dims)), axis=-1)
    return node.add("Reshape", flat, node.int_constant("shape", dims))


def _turned(node: OnnxNode, x: Value, first: bool) -> Value:
    """Channels brought from the last axis to the second (``first``), or back."""
    rank = x.type.rank
    perm = [0, rank - 1, *range(1, rank - 1)] if first else [0, *range(2, rank), 1]
    return node.add("Transpose", x, perm=perm)


def _pool(type: str) -> Callable[[OnnxNode, Value], Value]:
    def compute(node: OnnxNode, x: Value) -> Value:
        attributes = dict(node.attributes)
        if not attributes.pop("channels_last", 0):
            return node.add(type, x, **attributes)
        return _turned(node, node.add(type, _turned(node, x, True), **attributes), False)

    return compute


def _nhwc_max_pool(node: OnnxNode) -> Results:
    y = node.add("MaxPool", _turned(node, node.input(0), True), **node.attributes)
    return [_turned(node, y, False)]


def _concat(node: OnnxNode) -> Results:
    """Inputs: the scale and the zero point of the result, then x, scale and zero point of each part."""
    parts = [_real(node, i) for i in range(2, len(node.inputs), 3)]
    y = node.add("Concat", *parts, axis=node.attributes["axis"])
    return [_stored(node, y, 0, node.input(2).type.dtype)]


def _where(node: OnnxNode) -> Results:
    y = node.add("Where", node.input(0), _real(node, 1), _real(node, 4))
    return [_stored(node, y, 7, node.input(1).type.dtype)]


# ------------------------------------------------------------------------------------------------- products
def _column(node: OnnxNode, parameter: Value, rank: int) -> Value:
    """A scale or zero point of the columns of a matrix of that rank, or of all of it."""
    if parameter.type.size == 1:
        return node.add("Reshape", parameter, node.int_constant("scalar", []))
    return (
        node.add("Unsqueeze", parameter, node.int_constant("row", [-2]))
        if 1 < parameter.type.rank < rank
        else parameter
    )


def _integers(node: OnnxNode, x: Value, zero: Value | None, rank: int) -> Value:
    """Integers less their zero point, in i32."""
    x = node.add("Cast", x, to="i32")
    if zero is None:
        return x
    return node.add("Sub", x, node.add("Cast", _column(node, zero, rank), to="i32"))


def dynamic(node: OnnxNode, x: Value) -> tuple[Value, Value]:
    """A tensor rounded to 256 steps between its own least and largest number: bytes less their zero point, in i32, and
    the step.

    As DynamicQuantizeLinear: the range includes zero, which is one of the steps.
    """
    zero, maximum = (node.constant(np.array(n, np.float32), stem) for stem, n in (("zero", 0), ("most", 255)))
    low = node.add("Min", node.add("ReduceMin", x, keepdims=0), zero)
    high = node.add("Max", node.add("ReduceMax", x, keepdims=0), zero)
    span = node.add("Div", node.add("Sub", high, low), maximum)
    one = node.constant(np.array(1, np.float32), "one")
    step = node.add("Where", node.add("Greater", span, zero), span, one)
    point = node.add("Round", node.add("Clip", node.add("Div", node.add("Neg", low), step), zero, maximum))
    point = node.add("Cast", point, to="u8")
    return _integers(node, node.add("QuantizeLinear", x, step, point, to="u8"), point, x.type.rank), step


def _scaled(node: OnnxNode, total: Value, scales: Sequence[Value], bias: int) -> Value:
    """A sum of integers times scales, which lie along its columns, and a bias."""
    y = node.add("Cast", total, to="f32")
    factor = scales[0] if len(scales) == 1 else node.add("Mul", *scales)
    y = node.add("Mul", y, factor)
    return node.add("Add", y, node.input(bias)) if node.has(bias) else y


def _dynamic_mat_mul(node: OnnxNode) -> Results:
    """Inputs: A in floats; B, its scale and zero point; a bias."""
    rank = len(node.dims_of(1))
    a, step = dynamic(node, node.input(0))
    b = _integers(node, node.input(1), _optional(node, 3), rank)
    scales = [step, _column(node, node.input(2), rank)]
    return [_scaled(node, node.add("MatMul", a, b), scales, 4)]


def _mat_mul_to_float(node: OnnxNode) -> Results:
    """Inputs: A, B, their scales, their zero points, a bias."""
    rank = len(node.dims_of(1))
    a = _integers(node, node.input(0), _optional(node, 4), node.input(0).type.rank)
    b = _integers(node, node.input(1), _optional(node, 5), rank)
    scales = [_column(node, node.input(2), rank), _column(node, node.input(3), rank)]
    return [_scaled(node, node.add("MatMul", a, b), scales, 6)]


def _mat_mul_16(node: OnnxNode) -> Results:
    a, b = (node.add("Cast", node.input(i), to="i32") for i in (0, 1))
    return [node.add("MatMul", a, b)]


def _gemm(node: OnnxNode) -> Results:
    """Inputs: A, B with scales and zero points, C in i32 by the product of the scales, those of a rounded result."""
    flags = node.attributes

    def transposed(x: Value, name: str) -> Value:
        return node.add("Transpose", x, perm=(1, 0)) if flags.get(name, 0) else x

    a = transposed(_integers(node, node.input(0), _optional(node, 2), 2), "transA")
    b = node.add("Cast", node.input(3), to="i32")
    b = node.add("Sub", transposed(b, "transB"), node.add("Cast", _column(node, node.input(5), 2), to="i32"))
    total = node.add("MatMul", a, b)
    if node.has(6):
        total = node.add("Add", total, node.input(6))
    alpha = node.constant(np.array(flags.get("alpha", 1.0), np.float32), "alpha")
    scales = [node.add("Mul", alpha, _column(node, node.input(1), 2)), _column(node, node.input(4), 2)]
    y = _scaled(node, total, scales, len(node.inputs))
    return [_stored(node, y, 7, node.input(8).type.dtype) if node.has(8) else y]


def _conv(node: OnnxNode) -> Results:
    """QLinearConv, with the channels where ``channels_last`` says."""
    attributes = dict(node.attributes)
    if not attributes.pop("channels_last", 0):
        return _as(node, "QLinearConv", node.inputs, **attributes)
    inputs = [_turned(node, node.input(0), True), *node.inputs[1:]]
    return [_turned(node, y, False) for y in _as(node, "QLinearConv", inputs, **attributes)]


def _dynamic_lstm(node: OnnxNode) -> Results:
    """LSTM whose products round their left operand as ``dynamic`` does and are sums of integers, scaled at the end.

    W and R stand transposed; their scales and zero points, inputs 8 to 11, are one for a direction or one for each of
    its columns.
    """
    if node.has(4):
        raise RefusedError("lengths of sequences are not supported")

    def part(x: Value, direction: int) -> Value:
        """Numbers of a direction, one or one for each of its columns."""
        if x.type.size == 1:
            return node.add("Reshape", x, node.int_constant("scalar", []))
        return node.add("Gather", x, node.constant(np.array(direction, np.int64), "direction"), axis=0)

    @cache
    def weights(i: int, direction: int) -> tuple[Value, Value]:
        """The weights of one direction in i32, less their zero point, and their scale."""
        scale, zero = (part(node.input(6 + 2 * i + k), direction) for k in (0, 1))
        index = node.constant(np.array(direction, np.int64), "direction")
        whole = node.add("Cast", node.add("Gather", node.input(i), index, axis=0), to="i32")
        return node.add("Sub", whole, node.add("Cast", zero, to="i32")), scale

    def multiply(x: Value, i: int, direction: int) -> Value:
        (rows, step), (w, scale) = dynamic(node, x), weights(i, direction)
        total = node.add("Cast", node.add("MatMul", rows, w), to="f32")
        return node.add("Mul", total, node.add("Mul", step, scale))

    turned = [node.add("Transpose", node.input(i), perm=(0, 2, 1)) for i in (1, 2)]  # of which shapes are read
    inputs = [node.input(0), *turned, *(_optional(node, i) for i in range(3, 8))]
    return lstm(node.variant("LSTM", inputs, node.attributes), multiply)


QUANTIZED: dict[str, Callable[[OnnxNode], Results]] = {
    "DequantizeLinear": lambda node: _as(node, "DequantizeLinear", node.inputs, **node.attributes),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "DynamicQuantizeMatMul": _dynamic_mat_mul,
    "MatMulInteger16": _mat_mul_16,
    "MatMulIntegerToFloat": _mat_mul_to_float,
    "NhwcMaxPool": _nhwc_max_pool,
    "QGemm": _gemm,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary(_pool("AveragePool")),
    "QLinearConcat": _concat,
    "QLinearConv": _conv,
    "QLinearGlobalAveragePool": _unary(_pool("GlobalAveragePool")),
    "QLinearLeakyRelu": _unary(_leaky_relu),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary(lambda node, x: node.add("Sigmoid", x)),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": lambda node: _as(node, "QuantizeLinear", node.inputs, **node.attributes),
}
