"""Sums and products of two quantised tensors, and functions of one as tables."""

from __future__ import annotations

from dataclasses import replace
from math import frexp, inf, isinf

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.conv import Conv
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.integer_arithmetic import HEADROOM, Fixed
from tenon.network.ops.integer_lookup import thresholds
from tenon.network.ops.integer_normalize import inverse_square_root
from tenon.network.ops.mask import Mask
from tenon.network.ops.pointwise import Add, Mul, Sub
from tenon.network.ops.quantised_values import bounds
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.network.ops.requantize import clamped, quantized_multiplier, rescaled, rounding_shift
from tenon.network.ops.shape import Identity
from tenon.network.ops.slice_gather import Pad
from tenon.network.ops.traits import selects
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.arithmetic import mul_factor, ratio_of, sum_factors, table_of
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.functions import function_16, is_squared_difference, squared_difference
from tenon.network.passes.integers.operands import (
    BYTES,
    Operand,
    TensorGrid,
    below_all,
    can_move,
    grid_of,
    moved,
    operand,
)
from tenon.network.passes.integers.products import product
from tenon.options import Arithmetic

_ROOT_BITS = 20
"""Bits behind the point of a reciprocal square root, before its scales are applied."""

HEADROOM_16 = 15
"""Bits that 16-bit operands of a sum are shifted up by before they are scaled."""


def binary(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """An Add, a Sub or a Mul of two quantised tensors."""
    node = chain.core
    if chain.scaled:
        return "a factor stands between its result and its quantisation"
    if is_squared_difference(node):
        return squared_difference(match, chain, arithmetic)
    constants: tuple[DType, ...] = (DType.I16,) if chain.grid.dtype is DType.I16 else BYTES
    if arithmetic == "onnx":
        constants = (*BYTES, DType.I16)
    a, b = (operand(match, node.input(i), constants) for i in (0, 1))
    for sums, other in ((node.input(0), b), (node.input(1), a)):
        if isinstance(node.op, Add) and not isinstance(other, str) and _takes_addend(match, sums, other):
            assert sums.producer is not None
            return product(match, replace(chain, core=sums.producer), arithmetic, other)
    if isinstance(a, str) or isinstance(b, str):
        return str(a if isinstance(a, str) else b)
    kinds = {a.grid.dtype, b.grid.dtype, chain.grid.dtype}
    if not kinds <= {*BYTES, *((DType.I16,) if arithmetic == "onnx" else ())} and kinds != {DType.I16}:
        return "sums and products of 8-bit by 16-bit integers are computed in float"
    if a.grid.steps or b.grid.steps or chain.grid.steps:
        return "its values are quantisation steps"
    low, high = chain.bounds(away=arithmetic != "onnx")
    scales = (a.grid.scale, b.grid.scale, chain.grid.scale)
    if kinds == {DType.I16} and (why := _unfit_in_16_bits(node, arithmetic, (a.grid, b.grid, chain.grid))):
        return why
    common = {
        "rounding": "float" if arithmetic == "onnx" else "double",
        "scales": scales,
        "low": low,
        "high": high,
        "zeros": (a.grid.zero, b.grid.zero, chain.grid.zero),
        "to": chain.grid.dtype.value,
    }
    if isinstance(node.op, Mul):
        factor = mul_factor(arithmetic, *scales)
        if isinstance(factor, str):
            return factor
        op = make("IntegerMul", **common, factor=(0, 0) if arithmetic == "onnx" else factor)
    else:
        headroom = HEADROOM_16 if kinds == {DType.I16} else HEADROOM
        factors = ((0, 0),) * 3 if arithmetic == "onnx" else sum_factors(*scales, headroom)
        if isinstance(factors, str):
            return factors
        op = make("IntegerAdd", **common, factors=factors, headroom=headroom, subtract=int(isinstance(node.op, Sub)))
    return chain.finish(match, match.add(op, a.value, b.value, origin=node.origin))


def _takes_addend(match: Match, sums: Value, other: Operand) -> bool:
    """Whether ``sums`` are those of a convolution of images that nothing else reads, which ``other`` can be added to
    before they are rounded."""
    conv = sums.producer
    bytes = other.grid.dtype in BYTES and not other.grid.steps and not other.value.constant
    image = 3 <= sums.type.rank <= 4 and other.value.type.dims == sums.type.dims
    return conv is not None and isinstance(conv.op, Conv) and match.sole(sums) and bytes and image


def _unfit_in_16_bits(node: Node, arithmetic: Arithmetic, grids: tuple[TensorGrid, ...]) -> str:
    """Why operands of 16 bits are not added or multiplied, or nothing."""
    if arithmetic == "onnx":
        return ""
    if any(g.zero for g in grids):
        return "sums and products of 16-bit integers with zero points are computed in float"
    if arithmetic == "litert" and not isinstance(node.op, Mul) and all(frexp(g.scale)[0] == 0.5 for g in grids):
        return "sums of 16-bit integers whose scales are powers of two are computed in float"
    return ""


# ------------------------------------------------------------------------------------------------ tables
def table(match: Match, arithmetic: Arithmetic) -> Value | str | None:
    """A chain of unary functions of an 8-bit tensor between two grids, as a table of 256 results. None if there is
    none.
    """
    grid = grid_of(match.root)
    if isinstance(grid, str):
        return grid
    value, before, steps, after = match.root.input(0), list[Node](), list[Node](), list[Node]()
    while value.producer is not None and not isinstance(value.producer.op, DequantizeLinear):
        node = value.producer
        if only_variable(node) is not None:
            if before and any(selects(n) or isinstance(n.op, Mask | Pad) for n in before):
                return "a choice or a padding stands between functions"
            steps.append(node)
            after += before
            before = []
        elif (can_move(node) or below_all(node, before)) and value is node.output:
            before.append(node)
        else:
            return None
        if isinstance(node.op, Identity) or only_variable(node) is None or match.sole(value):
            value = node.input(only_variable(node) or 0)
        else:
            return f"the float result of {node.op.name} is read by others too"
    if value.producer is None:
        return None
    source = operand(match, value)
    if isinstance(source, str):
        return source
    return _looked_up(match, source, grid, (before, steps, after), arithmetic)


def only_variable(node: Node) -> int | None:
    """The index of the only operand of a pointwise operator that is not a constant scalar."""
    if not isinstance(node.op, Pointwise) or isinstance(node.op, Cast | QuantizeLinear | DequantizeLinear):
        return None
    variable = [i for i, v in enumerate(node.inputs) if v is not None and not v.constant]
    single = all(v is None or not v.constant or v.type.size == 1 for v in node.inputs)
    alone = len(variable) == 1 or (len(variable) > 1 and len({id(node.inputs[i]) for i in variable}) == 1)
    floats = node.output.type.dtype is DType.F32
    return variable[0] if variable and alone and single and floats else None


def _looked_up(
    match: Match,
    source: Operand,
    grid: TensorGrid,
    chains: tuple[list[Node], list[Node], list[Node]],
    arithmetic: Arithmetic,
) -> Value | str:
    """``chains`` are the data movement before the functions, the functions, and the data movement after, each last node
    first.
    """
    before, steps, after = chains
    given, value = source.grid, _moved_all(match, before, source.value, source.grid)
    if steps or not given.same(grid):
        if (given.steps or grid.steps) and steps:
            return "its values are quantisation steps"
        if arithmetic == "onnx" and given.dtype is DType.I16 and grid.dtype in BYTES:
            result = _by_thresholds(match, value, given, grid, steps)
            return result if isinstance(result, str) else _moved_all(match, after, result, grid)
        if {given.dtype, grid.dtype} - {DType.I8, DType.U8}:
            result = function_16(match, value, given, grid, steps, arithmetic)
            if isinstance(result, str):
                return result
            return _moved_all(match, after, result, grid)
        codes = _table(given, grid, steps[::-1], arithmetic)
        constant = match.constant("table", codes.astype(grid.dtype.numpy))
        op = make("Lookup", scale=grid.scale, zero=grid.zero)
        value = match.add(op, value, constant, origin=steps[0].origin if steps else match.root.origin)
    return _moved_all(match, after, value, grid)


def _by_thresholds(match: Match, value: Value, given: TensorGrid, grid: TensorGrid, steps: list[Node]) -> Value | str:
    """Functions of 16 bits, last first, that ascend."""
    real = applied(reals(given).astype(np.float64), steps[::-1]).astype(np.float32)
    table = thresholds(table_of(real, grid.scale, grid.zero, grid.range, away=False), grid.range[0])
    if table is None:
        return "functions of 16-bit integers that do not ascend are computed in float"
    op = make("LookupThresholds", to=grid.dtype.value, scale=grid.scale, zero=grid.zero)
    origin = steps[0].origin if steps else match.root.origin
    return match.add(op, value, match.constant("thresholds", table), origin=origin)


def _moved_all(match: Match, nodes: list[Node], value: Value, grid: TensorGrid) -> Value:
    """The integers after data movement, last node first."""
    for node in reversed(nodes):
        value = moved(match, node, value, grid)
    return value


def _table(given: TensorGrid, grid: TensorGrid, steps: list[Node], arithmetic: Arithmetic) -> Array:
    """The integers of ``grid`` for every integer of ``given``, in ascending order."""
    low, high = given.range
    if arithmetic != "onnx":
        codes = np.arange(low, high + 1, dtype=np.int64)
        exact = _in_fixed_point(codes - given.zero, given, grid, steps, arithmetic)
        if exact is not None:
            return clamped(exact + grid.zero, *grid.range, grid.dtype)
    real = applied(reals(given), steps)
    return table_of(real, grid.scale, grid.zero, grid.range, away=arithmetic != "onnx")


def reals(given: TensorGrid) -> Array:
    """f32: the numbers of all integers of a grid, in ascending order."""
    low, high = given.range
    return (np.arange(low, high + 1) - given.zero).astype(np.float32) * np.float32(given.scale)


def applied(real: Array, steps: list[Node]) -> Array:
    """Functions of numbers, in the type of these; ``steps`` are in order."""
    for node in steps:
        at = only_variable(node)
        assert at is not None
        variable = node.input(at)
        arrays = [
            None if v is None else real if v is variable else v.array.reshape(()).astype(real.dtype)
            for v in node.inputs
        ]
        (real,) = node.op.evaluate(arrays)
    return real


def _in_fixed_point(
    x: Array, given: TensorGrid, grid: TensorGrid, steps: list[Node], arithmetic: Arithmetic
) -> Array | None:
    """Requantisation, Relu, Clip, LeakyRelu, HardSwish, Abs and roots as TFLite's kernels compute them; None for
    another function."""
    names = [node.op.name for node in steps]
    if names[:1] == ["Sqrt"]:
        return _root(x, given, grid, names, arithmetic)
    ratio = ratio_of(arithmetic, given.scale, grid.scale) if names else given.scale / grid.scale
    if ratio >= 2**7 or len(names) > 1:
        return None
    if not names or names[0] in ("Relu", "Clip"):
        scaled = rescaled(x, *quantized_multiplier(ratio), "double")
        low, high = (bounds(steps[0]) or (-inf, inf)) if names else (-inf, inf)
        return np.clip(scaled, _on_grid(low, grid), _on_grid(high, grid))
    if names[0] == "LeakyRelu":
        alpha = float(np.float32(attribute(steps[0], "alpha")))
        if alpha >= 0:
            factors = ratio, ratio_of(arithmetic, given.scale, grid.scale, alpha)
            above, below = (rescaled(x, *quantized_multiplier(f), "double") for f in factors)
            return np.where(x >= 0, above, below)
    if names[0] == "Abs":
        return rescaled(np.abs(x), *quantized_multiplier(ratio), "double")
    return hard_swish(x, given.scale, grid.scale) if names[0] == "HardSwish" else None


def _root(x: Array, given: TensorGrid, grid: TensorGrid, names: list[str], arithmetic: Arithmetic) -> Array | None:
    """Sqrt as in LiteRT, which truncates in f32 and has no results below zero, or its reciprocal in fixed point."""
    if names == ["Sqrt"] and arithmetic == "litert":
        real = np.sqrt(np.float32(given.scale) * np.maximum(x, 0).astype(np.float32))
        return np.where(x < 0, -(1 << 16), np.trunc(real / np.float32(grid.scale)).astype(np.int64))
    if names != ["Sqrt", "Reciprocal"]:
        return None
    multiplier, right = inverse_square_root(np.maximum(x, 0))
    wide = rescaled(np.ones_like(x), multiplier, _ROOT_BITS - right, "double")
    factor, shift = quantized_multiplier(1.0 / float(np.sqrt(np.float32(given.scale)) * np.float32(grid.scale)))
    return np.where(x > 0, rescaled(wide, factor, shift - _ROOT_BITS, "double"), 1 << 16)


def _on_grid(bound: float, grid: TensorGrid) -> float:
    """A bound in steps from the zero point, ties away from zero."""
    if isinf(bound):
        return bound
    steps = float(np.float32(bound) / np.float32(grid.scale))
    return float(np.sign(steps) * np.floor(abs(steps) + 0.5))


def hard_swish(x: Array, scale: float, result: float) -> Array | None:
    """x * min(max(x + 3, 0), 6) / 6 of 8-bit steps in 16 bits, as TFLite's reference kernel does.

    Source: HardSwish of tensorflow/lite/kernels/internal/reference/hard_swish.h, whose comments derive it.
    """
    fine = np.float32(scale) / np.float32(128)
    outer, shift = _in_16_bits(float(fine / np.float32(result)))
    inner, exponent = _in_16_bits(float(fine / (np.float32(3) / np.float32(32768))))
    if shift > 0:
        return None
    wide = x << 7
    part = wide if exponent <= 0 else np.clip(wide << (exponent - 1), -32768, 32767)
    part = doubling_high_16(part, inner)
    part = np.clip(part << 1, -32768, 32767) if exponent > 0 else rounding_shift(part, -exponent)
    part = (part + (1 << 15)) >> 1
    product = part * doubling_high_16(wide, outer)
    return rounding_shift(np.sign(product) * (np.abs(product) >> 15), -shift)


def _in_16_bits(factor: float) -> Fixed:
    """A multiplier of 15 bits and a shift to the left."""
    multiplier, shift = quantized_multiplier(factor)
    return min((multiplier + (1 << 15)) >> 16, 32767), shift


def doubling_high_16(a: Array, b: int) -> Array:
    """``a * b / 2**15``, ties rounded up."""
    result: Array = (a.astype(np.int64) * b + (1 << 14)) >> 15
    return result
