"""Quotients, L2 normalisation and LogSoftmax between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Node, Operation, Value
from tenon.network.graph.types import DType
from tenon.network.ops.convert import Cast
from tenon.network.ops.integer_log_softmax import LEAST_SCALE
from tenon.network.ops.integer_normalize import LONGEST
from tenon.network.ops.pointwise import Max
from tenon.network.ops.reduce import ReduceL2, ReduceSum
from tenon.network.ops.requantize import quantized_multiplier
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.float_results import integer_scores
from tenon.network.passes.integers.operands import Operand, operand, transpose
from tenon.network.passes.integers.pools import sized_mean
from tenon.options import Arithmetic

LARGEST_SHIFT = 30
"""Quotients are multiplied by less than this power of two."""

EPSILON = 1e-5
"""At most the bound below the length that an L2 normalisation divides by."""


def divide(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """A Div of two quantised tensors, an L2 normalisation, or a mean over extents known at run time."""
    node, grid = chain.core, chain.grid
    total, count = node.input(0).producer, node.input(1).producer
    if arithmetic == "onnx":
        counted = count is not None and isinstance(count.op, Cast) and count.output.type.size == 1
        if counted and total is not None and isinstance(total.op, ReduceSum):
            return sized_mean(match, chain, total)
        return "quotients are computed in float"
    if chain.scaled:
        return "a factor stands between its result and its quantisation"
    axis = _normalized_axis(node)
    if axis is not None:
        return _l2_normalization(match, chain, axis)
    a, b = (operand(match, node.input(i), (grid.dtype,)) for i in (0, 1))
    if isinstance(a, str) or isinstance(b, str):
        return str(a if isinstance(a, str) else b)
    wide = grid.dtype is DType.I16 and not (a.grid.zero or b.grid.zero or grid.zero)
    if not a.grid.dtype is b.grid.dtype is grid.dtype or not (wide or grid.dtype in (DType.I8, DType.U8)):
        return "only quotients of integers of one type, of 16 bits without zero points, are computed in integers"
    if a.grid.steps or b.grid.steps or grid.steps:
        return "its values are quantisation steps"
    precision = np.float32 if arithmetic == "litert" else np.float64
    scales = [precision(g.scale) for g in (a.grid, b.grid, grid)]
    factor = quantized_multiplier(float(scales[0] / (scales[1] * scales[2])))
    if factor[1] > LARGEST_SHIFT:
        return f"its quotients are multiplied by more than {1 << LARGEST_SHIFT}"
    low, high = chain.bounds(away=True)
    op = make(
        "IntegerDiv",
        scales=(a.grid.scale, b.grid.scale, grid.scale),
        zeros=(a.grid.zero, b.grid.zero, grid.zero),
        low=low,
        high=high,
        to=grid.dtype.value,
        factor=factor,
    )
    return chain.finish(match, match.add(op, a.value, b.value, origin=node.origin))


def _normalized_axis(node: Node) -> int | None:
    """The axis along which a Div divides by the length of its first operand, or by a small number if that is larger."""
    bounded = node.input(1).producer
    if bounded is None or not isinstance(bounded.op, Max) or len(bounded.inputs) != 2:
        return None
    length, least = bounded.input(0).producer, bounded.input(1)
    if length is None or not isinstance(length.op, ReduceL2) or length.input(0) is not node.input(0):
        return None
    axes = length.inputs[1].data if len(length.inputs) > 1 and length.inputs[1] is not None else None
    if axes is None or axes.size != 1 or not attribute(length, "keepdims"):
        return None
    small = least.constant and least.type.size == 1 and abs(float(least.array.reshape(()))) <= EPSILON
    return int(axes.reshape(())) % node.output.type.rank if small else None


def _l2_normalization(match: Match, chain: FloatChain, axis: int) -> Value | str:
    x = operand(match, chain.core.input(0))
    if isinstance(x, str):
        return x
    grid = chain.grid
    middle = 0 if grid.dtype is DType.I8 else 128
    usual = grid.scale == 1 / 128 and grid.zero == middle and x.grid.dtype is grid.dtype
    if x.grid.dtype not in (DType.I8, DType.U8) or not usual or chain.bounds(away=True) != grid.range:
        return "only L2 normalisation of 8 bits to a scale of 1/128 is computed in integers"
    if x.value.type.dims[axis] > LONGEST:
        return f"the squares of {x.value.type.dims[axis]} elements are too many for 32 bits"
    return _along(match, chain, x, axis, make("IntegerL2Normalization", x_zero=x.grid.zero))


def log_softmax(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """LogSoftmax of i8, for a result of the scale 1/16; that of ONNX Runtime gives floats."""
    node, grid = chain.core, chain.grid
    if arithmetic == "onnx":
        return "" if integer_scores(match, node) else "the logarithm of softmax is computed in float"
    x = operand(match, node.input(0))
    if isinstance(x, str):
        return x
    usual = grid.scale == 1 / 16 and grid.zero == grid.range[1] and x.grid.dtype is grid.dtype is DType.I8
    plain = not (chain.scaled or x.grid.steps or grid.steps) and chain.bounds(away=True) == grid.range
    axis = attribute(node, "axis") % node.output.type.rank
    if not usual or not plain or x.grid.scale <= LEAST_SCALE or x.value.type.dims[axis] >= 1 << 12:
        return "only the logarithm of softmax of i8 to a scale of 1/16 is computed in integers"
    return _along(match, chain, x, axis, make("IntegerLogSoftmax", x_scale=x.grid.scale))


def _along(match: Match, chain: FloatChain, x: Operand, axis: int, op: Operation) -> Value:
    """An operator on rows of the last axis, along any axis."""
    rank, origin = x.value.type.rank, chain.core.origin
    if axis == rank - 1:
        return chain.finish(match, match.add(op, x.value, origin=origin))
    there = (*(i for i in range(rank) if i != axis), axis)
    back = tuple(int(i) for i in np.argsort(there))
    made = match.add(op, transpose(match, x.value, there, x.grid), origin=origin)
    return chain.finish(match, transpose(match, made, back, chain.grid))
