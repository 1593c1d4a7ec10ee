"""Products of two matrices that are both computed at run time, between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

import numpy as np

from tenon.network.graph.graph import Node, Operation, Value
from tenon.network.graph.types import DType
from tenon.network.ops.matmul import Gemm
from tenon.network.ops.quantised_values import integers_of
from tenon.network.ops.requantize import Factors
from tenon.network.passes.base import Match, attribute, make
from tenon.network.passes.integers.arithmetic import overflows, product_factors
from tenon.network.passes.integers.chain import FloatChain
from tenon.network.passes.integers.operands import TensorGrid, operand, transpose
from tenon.options import Arithmetic


def at_run_time(node: Node) -> bool:
    """Whether the second operand of a product of matrices is computed at run time, or a batch of them."""
    w = node.input(1)
    return w.type.rank != 2 or not (w.constant or integers_of(w))


def matmul(match: Match, chain: FloatChain, arithmetic: Arithmetic) -> Value | str:
    """A product of two matrices that are both computed at run time."""
    node = chain.core
    if chain.slope != 1:
        return "a LeakyRelu of a product of two matrices at run time is computed in float"
    a, b = operand(match, node.input(0)), operand(match, node.input(1))
    if isinstance(a, str) or isinstance(b, str):
        return str(a if isinstance(a, str) else b)
    sixteen = _are_wide(a.grid, b.grid, chain.grid, arithmetic)
    if why := _unsupported(chain, a.grid, b.grid, sixteen):
        return why
    rounded = arithmetic if _is_connected(node) or arithmetic != "litert" else "tflm"
    scales = a.grid.scale, np.array([b.grid.scale], np.float32), chain.grid.scale
    factors = product_factors(rounded, *scales, gemm=True, wide=sixteen)
    if isinstance(factors, str):
        return factors
    most = [max(abs(limit - x.grid.zero) for limit in x.grid.range) for x in (a, b)]
    largest = np.array([node.input(0).type.dims[-1] * most[0] * most[1]])
    if why := "" if sixteen else overflows(largest, factors):
        return why
    second = transpose(match, b.value, (1, 0), b.grid) if _is_connected(node) else b.value
    zeros, bounds = (a.grid.zero, b.grid.zero, chain.grid.zero), chain.bounds(away=arithmetic != "onnx")
    op = _operator(factors, zeros, bounds, chain.grid)
    return chain.finish(match, match.add(op, a.value, second, origin=node.origin))


def _is_connected(node: Node) -> bool:
    """Whether it is TFLite's FULLY_CONNECTED, which LiteRT rounds once; its kernels agree on the other products."""
    return isinstance(node.op, Gemm) and bool(attribute(node, "transB"))


def _are_wide(a: TensorGrid, b: TensorGrid, y: TensorGrid, arithmetic: Arithmetic) -> bool:
    """Whether a product of 16 bits is summed in 64 bits."""
    sixteen = a.dtype is y.dtype is DType.I16 and b.dtype in (DType.I8, DType.I16)
    return sixteen and not (a.zero or b.zero or y.zero) and arithmetic != "onnx"


def _unsupported(chain: FloatChain, a: TensorGrid, b: TensorGrid, sixteen: bool) -> str:
    if chain.scaled or a.steps or b.steps or chain.grid.steps:
        return "its numbers count steps"
    if {a.dtype, b.dtype, chain.grid.dtype} - {DType.I8, DType.U8} and not sixteen:
        return "products of two matrices of 16-bit integers are computed in float"
    if len(chain.core.inputs) > 2 and chain.core.inputs[2] is not None:
        return "a product of two matrices at run time, and a bias, is computed in float"
    return ""


def _operator(factors: Factors, zeros: tuple[int, int, int], bounds: tuple[int, int], y: TensorGrid) -> Operation:
    return make(
        "IntegerMatMul",
        rounding=factors.rounding,
        zeros=zeros,
        low=bounds[0],
        high=bounds[1],
        to=y.dtype.value,
        scale=y.scale,
        fixed=(0, 0) if factors.shifts is None else (int(factors.values[0]), int(factors.shifts[0])),
        factor=float(factors.values[0]) if factors.shifts is None else 1.0,
    )
