"""Values of quantised graphs: integers of dequantised constants, and bounds that stand for activations."""

from __future__ import annotations

from collections.abc import Container
from math import inf

import numpy as np

from tenon.network.graph.graph import Array, Node, Stored, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.activation import Clip, LeakyRelu, Relu
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear


def bounds(node: Node) -> tuple[float, float] | None:
    """The bounds of a Relu or of a Clip by constants."""
    if isinstance(node.op, Relu):
        return 0.0, inf
    if not isinstance(node.op, Clip):
        return None
    given = [*node.inputs[1:], None, None][:2]
    if any(v is not None and v.data is None for v in given):
        return None
    low, high = (None if v is None or v.data is None else float(v.data.reshape(-1)[0]) for v in given)
    return -inf if low is None else low, inf if high is None else high


def slope(node: Node) -> float | None:
    """The slope of a LeakyRelu for negative numbers if it is from 0 to 1, so that the result is max(x, slope * x); else
    None."""
    alpha = node.op.alpha if isinstance(node.op, LeakyRelu) else -1.0
    return alpha if 0 <= alpha <= 1 else None


def integers_of(value: Value) -> Stored | None:
    """The integers of a dequantised constant, whether or not its DequantizeLinear is folded already."""
    node = value.producer
    if node is None or not isinstance(node.op, DequantizeLinear):
        return value.stored
    if not all(v is None or v.constant for v in node.inputs):
        return value.stored
    data, zero = node.input(0).array, node.inputs[2] if len(node.inputs) > 2 else None
    return Stored(data, node.input(1).array, np.zeros((), data.dtype) if zero is None else zero.array)


def dequantised(value: Value) -> Array:
    """A constant as floats."""
    stored = integers_of(value)
    if stored is None:
        return value.array
    real = (stored.data.astype(np.int64) - stored.zero.astype(np.int64)).astype(np.float32) * stored.scale
    return np.asarray(real, np.float32)


def scalar_grid(node: Node, dtypes: Container[DType]) -> tuple[Quant, DType] | None:
    """The one constant scale and zero point of a QuantizeLinear or DequantizeLinear and the type of its integers, None
    if it has several or another type than ``dtypes``."""
    stored = node.output if isinstance(node.op, QuantizeLinear) else node.input(0)
    scale, zero = node.input(1).data, node.inputs[2] if len(node.inputs) > 2 else None
    if scale is None or scale.size != 1 or (zero is not None and (zero.data is None or zero.data.size != 1)):
        return None
    if stored.type.dtype not in dtypes:
        return None
    offset = 0 if zero is None or zero.data is None else int(zero.data.reshape(-1)[0])
    return Quant((float(np.float32(scale.reshape(-1)[0])),), (offset,)), stored.type.dtype
