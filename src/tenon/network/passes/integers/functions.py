"""Functions of one quantised tensor that are no tables: those of 16 bits, and PRELU."""

from __future__ import annotations

from math import inf, isinf
from typing import Literal

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.activation import LeakyRelu, Sigmoid, Tanh
from tenon.network.ops.integer_arithmetic import Fixed
from tenon.network.ops.integer_functions import argument, interpolation_table
from tenon.network.ops.pointwise import Abs, Exp, Log, Mul, Neg, Sub
from tenon.network.ops.quantised_values import bounds
from tenon.network.ops.requantize import quantized_multiplier
from tenon.network.passes.base import Match, make
from tenon.network.passes.integers.arithmetic import ratio_of
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.operands import BYTES, TensorGrid, operand
from tenon.options import Arithmetic

LARGEST_RATIO = 2.0**13
"""Numbers of 16 bits are scaled up by less."""

INTERPOLATED = (Exp, Log)
"""Functions of 16 bits that LiteRT interpolates in tables of 513 entries."""

FRACTIONS = 2.0**-15
"""The scale of what sigmoid, tanh and softmax of 16 bits give."""


def function_16(
    match: Match, value: Value, given: TensorGrid, grid: TensorGrid, steps: list[Node], arithmetic: Arithmetic
) -> Value | str:
    """``value``, requantised, with at most one function in between: of 16 bits before or after."""
    if arithmetic == "onnx" or {given.dtype, grid.dtype} - {DType.I8, DType.U8, DType.I16}:
        return "functions of 16-bit integers are computed in float"
    if len(steps) > 1:
        return "several functions of 16-bit integers in a row are computed in float"
    node = steps[0] if steps else None
    origin = match.root.origin if node is None else node.origin
    if node is not None and isinstance(node.op, Sigmoid | Tanh):
        return _sigmoid(match, value, given, grid, node)
    if node is not None and isinstance(node.op, INTERPOLATED):
        return _interpolated(match, value, given, grid, node)
    if node is not None and isinstance(node.op, Neg):
        return _negative(match, value, given, grid, node)
    ratio = given.scale / grid.scale if node is None else ratio_of(arithmetic, given.scale, grid.scale)
    if ratio >= LARGEST_RATIO:
        return "16-bit integers are scaled up by more than 2**13"
    low, high = grid.range
    above = below = quantized_multiplier(ratio)
    if node is not None and (limits := bounds(node)) is not None:
        low, high = (int(np.clip(_on_grid(limit, grid), *grid.range)) for limit in limits)
    elif node is not None and isinstance(node.op, LeakyRelu) and node.op.alpha >= 0:
        alpha = float(np.float32(node.op.alpha))
        below = quantized_multiplier(ratio_of(arithmetic, given.scale, grid.scale, alpha))
    elif node is not None and not isinstance(node.op, Abs):
        return "functions of 16-bit integers are computed in float"
    absolute = node is not None and isinstance(node.op, Abs)
    op = make(
        "IntegerRescale",
        zeros=(given.zero, grid.zero),
        above=above,
        below=below,
        absolute=int(absolute),
        low=low,
        high=high,
        to=grid.dtype.value,
        scale=grid.scale,
    )
    return match.add(op, value, origin=origin)


def _on_grid(bound: float, grid: TensorGrid) -> float:
    """A bound as an integer of a grid, ties away from zero."""
    if isinf(bound):
        return -inf if bound < 0 else inf
    steps = float(np.float32(bound) / np.float32(grid.scale))
    return float(np.sign(steps) * np.floor(abs(steps) + 0.5)) + grid.zero


def _sigmoid(match: Match, value: Value, given: TensorGrid, grid: TensorGrid, node: Node) -> Value | str:
    kind: Literal["sigmoid", "tanh"] = "sigmoid" if isinstance(node.op, Sigmoid) else "tanh"
    usual = grid.scale == FRACTIONS and given.dtype is grid.dtype is DType.I16 and not (given.zero or grid.zero)
    fixed = argument(given.scale, kind) if usual else None
    if fixed is None:
        return f"{kind} of 16-bit integers is computed in float but for results of the scale 2**-15"
    op = make("IntegerSigmoid", function=kind, multiplier=fixed[0], right=fixed[1])
    return match.add(op, value, origin=node.origin)


def _interpolated(match: Match, value: Value, given: TensorGrid, grid: TensorGrid, node: Node) -> Value | str:
    """A function by a table that LiteRT computes in f32; TFLite Micro has no such kernel."""
    if {given.dtype, grid.dtype} != {DType.I16} or given.zero or grid.zero:
        return "functions of 16-bit integers with zero points are computed in float"
    low, high = (float(np.float32(given.scale) * np.float32(limit)) for limit in given.range)
    least, most = (np.float32(grid.scale) * np.float32(limit) for limit in grid.range)
    units = np.float32(1 << 16) / (most - least)  # as LiteRT has them, a little more than one over the scale

    def function(x: Array) -> Array:
        (y,) = node.op.evaluate([np.maximum(x, np.finfo(np.float32).tiny) if isinstance(node.op, Log) else x])
        return np.where(x <= 0, float(least), y) if isinstance(node.op, Log) else y

    table = interpolation_table(function, low, high, DType.F32, float(units))
    op = make("IntegerInterpolation", scale=grid.scale)
    return match.add(op, value, match.constant("table", table), origin=node.origin)


def _negative(match: Match, value: Value, given: TensorGrid, grid: TensorGrid, node: Node) -> Value | str:
    """Neg, saturated; TFLite's kernels ignore scales, which converters make equal."""
    if not given.same(grid) or given.zero:
        return "Neg of 16-bit integers with zero points or to another scale is computed in float"
    wide = match.add(make("Neg"), match.add(make("Cast", to="i32"), value), origin=node.origin)
    bounded = match.add("Min", wide, match.constant("most", np.array(grid.range[1], np.int32)))
    return match.add(make("Cast", to=grid.dtype.value), bounded)


def softmax_16(
    match: Match, chain: FloatChain, x: Value, given: TensorGrid, beta: float, arithmetic: Arithmetic
) -> Value | str:
    """Softmax over the last axis of 16 bits, for a result of the scale 2**-15."""
    factor = given.scale * beta / (10.0 / 65535.0)
    if given.zero or chain.grid.zero or chain.grid.scale != FRACTIONS or not 0 < factor < LARGEST_RATIO:
        return "only softmax of 16 bits over the last axis to a scale of 2**-15 is computed in integers"
    op = make(
        "IntegerSoftmax16", factor=quantized_multiplier(factor), computed="f64" if arithmetic == "litert" else "f32"
    )
    return chain.finish(match, match.add(op, x, origin=chain.core.origin))


def prelu(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """PRELU by slopes of 8 bits."""
    node, y = chain.core, chain.grid
    if arithmetic == "onnx" or chain.scaled or chain.bounds(away=True) != y.range:
        return "PRelu is computed in float"
    a, slopes = operand(match, node.input(0)), operand(match, node.input(1))
    if isinstance(a, str) or isinstance(slopes, str):
        return str(a if isinstance(a, str) else slopes)
    if {a.grid.dtype, slopes.grid.dtype, y.dtype} - {DType.I8, DType.U8} or a.grid.steps or y.steps:
        return "PRelu of 16-bit integers is computed in float"
    ratios = tuple(ratio_of(arithmetic, a.grid.scale, y.scale, alpha) for alpha in (1.0, slopes.grid.scale))
    if max(ratios) >= 2.0**7:
        return "its result has so small a scale that its operands would be scaled up"
    factors: list[Fixed] = [quantized_multiplier(ratio) for ratio in ratios]
    op = make(
        "IntegerPRelu",
        scales=(a.grid.scale, slopes.grid.scale, y.scale),
        zeros=(a.grid.zero, slopes.grid.zero, y.zero),
        low=y.range[0],
        high=y.range[1],
        to=y.dtype.value,
        above=factors[0],
        below=factors[1],
    )
    return chain.finish(match, match.add(op, a.value, slopes.value, origin=node.origin))


def squared_difference(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """A Sub times itself."""
    y = chain.grid
    minus = chain.core.input(0).producer
    assert minus is not None
    constants = (DType.I16,) if y.dtype is DType.I16 else BYTES
    a, b = (operand(match, minus.input(i), constants) for i in (0, 1))
    if isinstance(a, str) or isinstance(b, str):
        return str(a if isinstance(a, str) else b)
    kinds = {a.grid.dtype, b.grid.dtype, y.dtype}
    wide = kinds == {DType.I16} and not (a.grid.zero or b.grid.zero or y.zero)
    if arithmetic == "onnx" or not (kinds <= {DType.I8, DType.U8} or wide) or a.grid.steps or b.grid.steps or y.steps:
        return "squares of differences are computed in float"
    most, headroom = 2 * max(a.grid.scale, b.grid.scale), 0 if wide else 7
    numbers = (a.grid.scale / most, b.grid.scale / most, most * most / ((1 << 2 * headroom) * y.scale))
    factors = tuple(map(quantized_multiplier, numbers))
    if factors[2][1] > 0:
        return "its result has so small a scale that its operands would be scaled up"
    low, high = chain.bounds(away=True)
    op = make(
        "IntegerSquaredDifference",
        scales=(a.grid.scale, b.grid.scale, y.scale),
        low=low,
        high=high,
        to=y.dtype.value,
        zeros=(a.grid.zero, b.grid.zero, y.zero),
        factors=factors,
        headroom=headroom,
    )
    return chain.finish(match, match.add(op, a.value, b.value, origin=chain.core.origin))


def is_squared_difference(node: Node) -> bool:
    """Whether a node is the product of a difference with itself."""
    if not isinstance(node.op, Mul) or node.input(0) is not node.input(1):
        return False
    minus = node.input(0).producer
    return minus is not None and isinstance(minus.op, Sub)


__all__ = ["function_16", "is_squared_difference", "prelu", "softmax_16", "squared_difference"]
