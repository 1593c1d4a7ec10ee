"""Quantised operators of com.microsoft: read through DequantizeLinear, computed, written through QuantizeLinear.

Products are sums of integers, scaled at the end.  Source of their meaning: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tenon.decompositions.onnx.compose import COMPOSED
from tenon.decompositions.onnx.node import OnnxNode
from tenon.decompositions.onnx.recurrent import lstm
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Value
from tenon.ir.types import DType

Results = Sequence[Value | None]


def _as(layer: OnnxNode, type: str, inputs: Sequence[Value | None], **attributes: object) -> list[Value]:
    """What the standard operator of that name makes of these inputs."""
    made = COMPOSED[type](replace(layer, type=type, inputs=list(inputs), attributes=dict(attributes)))
    return [value for value in made or () if value is not None]


def _optional(layer: OnnxNode, i: int) -> Value | None:
    return layer.input(i) if layer.has(i) else None


def _real(layer: OnnxNode, i: int) -> Value:
    """The numbers that input ``i``, its scale and its zero point behind it stand for."""
    return layer.emit("DequantizeLinear", layer.input(i), layer.input(i + 1), _optional(layer, i + 2), to="f32")


def _stored(layer: OnnxNode, y: Value, scale: int, like: DType) -> Value:
    """Numbers as integers, by the scale at input ``scale`` and the zero point behind it."""
    zero = _optional(layer, scale + 1)
    return layer.emit("QuantizeLinear", y, layer.input(scale), zero, to=like.value)


# --------------------------------------------------------------------------------- one operator between scales
def _binary(type: str) -> Callable[[OnnxNode], Results]:
    return lambda layer: [
        _stored(layer, layer.emit(type, _real(layer, 0), _real(layer, 3)), 6, layer.input(0).type.dtype)
    ]


def _unary(compute: Callable[[OnnxNode, Value], Value]) -> Callable[[OnnxNode], Results]:
    """Inputs: x, its scale and zero point, those of the result."""
    return lambda layer: [_stored(layer, compute(layer, _real(layer, 0)), 3, layer.input(0).type.dtype)]


def _leaky_relu(layer: OnnxNode, x: Value) -> Value:
    return layer.emit("LeakyRelu", x, alpha=layer.attributes.get("alpha", 0.01))


def _softmax(layer: OnnxNode, x: Value) -> Value:
    """Along one axis as since opset 13, or over all from the axis on as before."""
    axis, dims = layer.attributes.get("axis", -1), x.type.dims
    if layer.attributes.get("opset", 13) >= 13:
        return layer.emit("Softmax", x, axis=axis)
    flat = layer.emit("Softmax", layer.emit("Flatten", x, axis=axis % len(dims)), axis=-1)
    return layer.emit("Reshape", flat, layer.ints("shape", dims))


def _turned(layer: OnnxNode, x: Value, first: bool) -> Value:
    """Channels brought from the last axis to the second (``first``), or back."""
    rank = x.type.rank
    perm = [0, rank - 1, *range(1, rank - 1)] if first else [0, *range(2, rank), 1]
    return layer.emit("Transpose", x, perm=perm)


def _pool(type: str) -> Callable[[OnnxNode, Value], Value]:
    def compute(layer: OnnxNode, x: Value) -> Value:
        attributes = dict(layer.attributes)
        if not attributes.pop("channels_last", 0):
            return layer.emit(type, x, **attributes)
        return _turned(layer, layer.emit(type, _turned(layer, x, True), **attributes), False)

    return compute


def _nhwc_max_pool(layer: OnnxNode) -> Results:
    y = layer.emit("MaxPool", _turned(layer, layer.input(0), True), **layer.attributes)
    return [_turned(layer, y, False)]


def _concat(layer: OnnxNode) -> Results:
    """Inputs: the scale and the zero point of the result, then x, scale and zero point of each part."""
    parts = [_real(layer, i) for i in range(2, len(layer.inputs), 3)]
    y = layer.emit("Concat", *parts, axis=layer.attributes["axis"])
    return [_stored(layer, y, 0, layer.input(2).type.dtype)]


def _where(layer: OnnxNode) -> Results:
    y = layer.emit("Where", layer.input(0), _real(layer, 1), _real(layer, 4))
    return [_stored(layer, y, 7, layer.input(1).type.dtype)]


# ------------------------------------------------------------------------------------------------- products
def _column(layer: OnnxNode, parameter: Value, rank: int) -> Value:
    """A scale or zero point of the columns of a matrix of that rank, or of all of it."""
    if parameter.type.size == 1:
        return layer.emit("Reshape", parameter, layer.ints("scalar", []))
    return layer.emit("Unsqueeze", parameter, layer.ints("row", [-2])) if 1 < parameter.type.rank < rank else parameter


def _whole(layer: OnnxNode, x: Value, zero: Value | None, rank: int) -> Value:
    """Integers less their zero point, in i32."""
    x = layer.emit("Cast", x, to="i32")
    if zero is None:
        return x
    return layer.emit("Sub", x, layer.emit("Cast", _column(layer, zero, rank), to="i32"))


def dynamic(layer: OnnxNode, x: Value) -> tuple[Value, Value]:
    """A tensor rounded to 256 steps between its own least and largest number: whole numbers around zero, the step.

    As DynamicQuantizeLinear: the range includes zero, which is one of the steps.
    """
    zero, most = (layer.constant(stem, np.array(n, np.float32)) for stem, n in (("zero", 0), ("most", 255)))
    low = layer.emit("Min", layer.emit("ReduceMin", x, keepdims=0), zero)
    high = layer.emit("Max", layer.emit("ReduceMax", x, keepdims=0), zero)
    span = layer.emit("Div", layer.emit("Sub", high, low), most)
    one = layer.constant("one", np.array(1, np.float32))
    step = layer.emit("Where", layer.emit("Greater", span, zero), span, one)
    point = layer.emit("Round", layer.emit("Clip", layer.emit("Div", layer.emit("Neg", low), step), zero, most))
    moved = layer.emit("Add", layer.emit("Round", layer.emit("Div", x, step)), point)
    return layer.emit("Sub", layer.emit("Clip", moved, zero, most), point), step


def _scaled(layer: OnnxNode, total: Value, scales: Sequence[Value], bias: int) -> Value:
    """A sum of integers times scales, which lie along its columns, and a bias."""
    y = layer.emit("Cast", total, to="f32")
    factor = scales[0] if len(scales) == 1 else layer.emit("Mul", *scales)
    y = layer.emit("Mul", y, factor)
    return layer.emit("Add", y, layer.input(bias)) if layer.has(bias) else y


def _dynamic_mat_mul(layer: OnnxNode) -> Results:
    """Inputs: A in floats; B, its scale and zero point; a bias."""
    rank = len(layer.dims(1))
    a, step = dynamic(layer, layer.input(0))
    b = layer.emit("Cast", _whole(layer, layer.input(1), _optional(layer, 3), rank), to="f32")
    scales = [step, _column(layer, layer.input(2), rank)]
    return [_scaled(layer, layer.emit("MatMul", a, b), scales, 4)]


def _mat_mul_to_float(layer: OnnxNode) -> Results:
    """Inputs: A, B, their scales, their zero points, a bias."""
    rank = len(layer.dims(1))
    a = _whole(layer, layer.input(0), _optional(layer, 4), len(layer.dims(0)))
    b = _whole(layer, layer.input(1), _optional(layer, 5), rank)
    scales = [_column(layer, layer.input(2), rank), _column(layer, layer.input(3), rank)]
    return [_scaled(layer, layer.emit("MatMul", a, b), scales, 6)]


def _mat_mul_16(layer: OnnxNode) -> Results:
    a, b = (layer.emit("Cast", layer.input(i), to="i32") for i in (0, 1))
    return [layer.emit("MatMul", a, b)]


def _gemm(layer: OnnxNode) -> Results:
    """Inputs: A, B with scales and zero points, C in i32 by the product of the scales, those of a rounded result."""
    flags = layer.attributes

    def turned(x: Value, name: str) -> Value:
        return layer.emit("Transpose", x, perm=(1, 0)) if flags.get(name, 0) else x

    a = turned(_whole(layer, layer.input(0), _optional(layer, 2), 2), "transA")
    b = layer.emit("Cast", layer.input(3), to="i32")
    b = layer.emit("Sub", turned(b, "transB"), layer.emit("Cast", _column(layer, layer.input(5), 2), to="i32"))
    total = layer.emit("MatMul", a, b)
    if layer.has(6):
        total = layer.emit("Add", total, layer.input(6))
    alpha = layer.constant("alpha", np.array(flags.get("alpha", 1.0), np.float32))
    scales = [layer.emit("Mul", alpha, _column(layer, layer.input(1), 2)), _column(layer, layer.input(4), 2)]
    y = _scaled(layer, total, scales, len(layer.inputs))
    return [_stored(layer, y, 7, layer.input(8).type.dtype) if layer.has(8) else y]


def _conv(layer: OnnxNode) -> Results:
    """QLinearConv, with the channels where ``channels_last`` says."""
    attributes = dict(layer.attributes)
    if not attributes.pop("channels_last", 0):
        return _as(layer, "QLinearConv", layer.inputs, **attributes)
    inputs = [_turned(layer, layer.input(0), True), *layer.inputs[1:]]
    return [_turned(layer, y, False) for y in _as(layer, "QLinearConv", inputs, **attributes)]


def _dynamic_lstm(layer: OnnxNode) -> Results:
    """LSTM whose products round their left operand as ``dynamic`` does.

    W and R stand transposed; their scales and zero points, inputs 8 to 11, are one for a direction or one for each of
    its columns.
    """
    if layer.has(4):
        raise RefusedError("lengths of sequences are not supported")

    def weights(i: int, scale: int) -> Value:
        w = layer.emit("Cast", layer.input(i), to="f32")
        shape = layer.ints("columns", [layer.dims(i)[0], 1, -1])
        point = layer.emit("Reshape", layer.emit("Cast", layer.input(scale + 1), to="f32"), shape)
        real = layer.emit("Mul", layer.emit("Sub", w, point), layer.emit("Reshape", layer.input(scale), shape))
        return layer.emit("Transpose", real, perm=(0, 2, 1))

    def rounded(x: Value) -> Value:
        return layer.emit("Mul", *dynamic(layer, x))

    inputs = [layer.input(0), weights(1, 8), weights(2, 10), *(_optional(layer, i) for i in range(3, 8))]
    return lstm(replace(layer, type="LSTM", inputs=inputs), rounded)


QUANTIZED: dict[str, Callable[[OnnxNode], Results]] = {
    "DequantizeLinear": lambda layer: _as(layer, "DequantizeLinear", layer.inputs, **layer.attributes),
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
    "QLinearSigmoid": _unary(lambda layer, x: layer.emit("Sigmoid", x)),
    "QLinearSoftmax": _unary(_softmax),
    "QLinearWhere": _where,
    "QuantizeLinear": lambda layer: _as(layer, "QuantizeLinear", layer.inputs, **layer.attributes),
}
