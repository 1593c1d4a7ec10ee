"""Operators of other domains than the standard one: what ONNX Runtime's optimisers write, as ONNX's own.

Source: docs/ContribOperators.md of ONNX Runtime.  A domain of ``DOMAINS`` has the operators in its
table and those of ``SAME``, which are the standard ones; quantised ones, attention and QONNX have files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions.onnx.attention import ATTENTION
from tenon.formats.decompositions.onnx.contrib_quantized import QUANTIZED
from tenon.formats.decompositions.onnx.contrib_tensors import TENSORS
from tenon.formats.decompositions.onnx.grouped_attention import group_query_attention
from tenon.formats.decompositions.onnx.n_bits import block_product, in_blocks
from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.decompositions.onnx.qonnx import QONNX
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value

Results = Sequence[Value | None]

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


# ---------------------------------------------------------------------------------------------- activations
def _biased(node: OnnxNode) -> Value:
    """The first input, and the second added to it where there is one."""
    return node.add("Add", node.input(0), node.input(1)) if node.has(1) else node.input(0)


def _gelu(node: OnnxNode) -> Results:
    return [node.add("Gelu", _biased(node))]


def _fast_gelu(node: OnnxNode) -> Results:
    return [node.add("Gelu", _biased(node), approximate="tanh")]


def _quick_gelu(node: OnnxNode) -> Results:
    return [node.add("Swish", node.input(0), alpha=node.attributes.get("alpha", 1.702))]


def activated(node: OnnxNode, x: Value, name: str, numbers: Sequence[float]) -> Value:
    """An activation that is fused into another operator, with its parameters in the order of their definition."""
    given = [*numbers, *[None] * 2]

    def number(i: int, default: float) -> float:
        value = given[i]
        return default if value is None else value

    if name in ("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish"):
        return node.add(name, x)
    if name == "LeakyRelu":
        return node.add(name, x, alpha=number(0, 0.01))
    if name in ("Elu", "ThresholdedRelu"):
        return node.add(name, x, alpha=number(0, 1.0))
    if name == "HardSigmoid":
        return node.add(name, x, alpha=number(0, 0.2), beta=number(1, 0.5))
    if name == "Clip":
        low, high = number(0, float(np.finfo(np.float32).min)), number(1, float(np.finfo(np.float32).max))
        return node.add(name, x, node.typed_scalar("low", low), node.typed_scalar("high", high))
    raise RefusedError(f"the fused activation {name} is not supported")


# ------------------------------------------------------------------------------------------------ products
def _swapped(node: OnnxNode, x: Value, batch: int, last: int) -> Value:
    """An operand of FusedMatMul: the first dimension moved behind those of the batch, the last two swapped."""
    rank = x.type.rank
    if rank < 2:
        return x
    perm = [*range(1, rank - 1), 0, rank - 1] if batch else [*range(rank)]
    if last:
        perm[-2:] = perm[:-3:-1]
    return node.add("Transpose", x, perm=perm) if perm != [*range(rank)] else x


def _fused_mat_mul(node: OnnxNode) -> Results:
    node.dims_of(0), node.dims_of(1)
    flags = node.attributes
    a, b = (
        _swapped(node, node.input(i), flags.get(f"transBatch{name}", 0), flags.get(f"trans{name}", 0))
        for i, name in enumerate("AB")
    )
    y, alpha = node.add("MatMul", a, b), flags.get("alpha", 1.0)
    return [y if alpha == 1 else node.add("Mul", y, node.typed_scalar("alpha", alpha))]


def _fused_conv(node: OnnxNode) -> Results:
    """Inputs: X, W, bias, and Z, which is added before the activation."""
    attributes = dict(node.attributes)
    name, numbers = attributes.pop("activation", ""), attributes.pop("activation_params", ())
    y = node.add("Conv", *[v for v in node.inputs[:3] if v is not None], **attributes)
    if node.has(3):
        y = node.add("Add", y, node.input(3))
    return [activated(node, y, name, numbers) if name else y]


def _fused_gemm(node: OnnxNode) -> Results:
    attributes = dict(node.attributes)
    numbers = [attributes.pop(f"activation_{k}", None) for k in ("alpha", "beta", "gamma")]
    name = attributes.pop("activation", "")
    y = node.add("Gemm", *[v for v in node.inputs[:3] if v is not None], **attributes)
    return [activated(node, y, name, [n for n in numbers if n is not None]) if name else y]


def _mat_mul_n_bits(node: OnnxNode) -> Results:
    """Weights of few bits, in blocks along K with a scale each: stay so where products of 8 bits are wanted (accuracy
    level 4), else become floats when compiling."""
    n, k, block = (int(node.attributes[name]) for name in ("N", "K", "block_size"))
    bits = int(node.attributes.get("bits", 4))
    if node.attributes.get("accuracy_level", 0) == _INTEGERS and in_blocks(node):
        y = block_product(node)
        return [node.add("Add", y, node.input(5)) if node.has(5) else y]
    if bits not in (2, 4, 8) or node.has(4):
        raise RefusedError(f"{bits} bits, or an order of groups, are not supported", "2, 4 and 8 bits are")
    blocks = -(-k // block)
    codes = _unpacked(node.constant_input(1, "the weights").reshape(n, -1), bits, blocks * block).reshape(
        n, blocks, block
    )
    scales = node.constant_input(2, "the scales").astype(np.float32).reshape(n, blocks, 1)
    zero = np.full((n, blocks, 1), 1 << (bits - 1), np.float32)
    if node.has(3):
        given = node.constant_input(3, "the zero points")
        packed = given.dtype == np.uint8
        unpacked = _unpacked(given.reshape(n, -1), bits, blocks) if packed else given.reshape(n, blocks)
        zero = unpacked.astype(np.float32).reshape(n, blocks, 1)
    weights = ((codes.astype(np.float32) - zero) * scales).reshape(n, -1)[:, :k].T
    kind = node.input(0).type.dtype.numpy
    y = node.add("MatMul", node.input(0), node.constant(np.ascontiguousarray(weights.astype(kind)), "weights"))
    return [node.add("Add", y, node.input(5)) if node.has(5) else y]


_INTEGERS = 4
"""The accuracy level of activations in 8 bits."""


def _unpacked(data: Any, bits: int, count: int) -> Any:
    """The first ``count`` codes of each row of bytes, the first in the lowest bits."""
    parts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data.astype(np.uint8)[:, :, None] >> parts) & ((1 << bits) - 1)
    unpacked = codes.reshape(len(data), -1)
    if unpacked.shape[1] < count:
        raise RefusedError(f"holds {unpacked.shape[1]} codes in a row where {count} are needed")
    return unpacked[:, :count]


# ------------------------------------------------------------------------------------------- normalisation
def _simplified(node: OnnxNode, x: Value, gamma: Value, least: float) -> Value:
    """RMS normalisation along the last axis; ``least`` is the default epsilon."""
    epsilon = node.typed_scalar("epsilon", node.attributes.get("epsilon", least))
    square = node.add("ReduceMean", node.add("Mul", x, x), node.int_constant("last", [-1]), keepdims=1)
    root = node.add("Sqrt", node.add("Add", square, epsilon))
    return node.add("Mul", node.add("Div", x, root), gamma)


def _normalised(node: OnnxNode, x: Value, gamma: Value, beta: Value | None) -> Value:
    return node.add("LayerNormalization", x, gamma, beta, axis=-1, epsilon=node.attributes.get("epsilon", 1e-12))


def _skip(normalise: Callable[[OnnxNode, Value], Value], bias: int) -> Callable[[OnnxNode], Results]:
    """The sum of input, skip and bias, normalised; the mean and the deviation are not computed at inference."""

    def import_node(node: OnnxNode) -> Results:
        total = node.add("Add", node.input(0), node.input(1))
        if node.has(bias):
            total = node.add("Add", total, node.input(bias))
        return [normalise(node, total), None, None, total]

    return import_node


def _beta(node: OnnxNode) -> Value | None:
    return node.input(3) if node.has(3) else None


def _simplified_layer_normalization(node: OnnxNode) -> Results:
    rank = len(node.dims_of(0))
    if node.attributes.get("axis", -1) % rank != rank - 1:
        raise RefusedError("it normalises over several axes", "one, the last, is supported")
    return [_simplified(node, node.input(0), node.input(1), 1e-5)]


def _embed_layer_normalization(node: OnnxNode) -> Results:
    """Inputs: ids, segments, their tables behind them, gamma, beta, a mask, positions."""
    batch, length = node.dims_of(0)
    every = node.constant(np.arange(length, dtype=np.int32), "positions")
    positions = node.input(8) if node.has(8) else node.builder.sized_like(every, node.input(0))
    total = node.add("Gather", node.input(2), node.input(0), axis=0)
    total = node.add("Add", total, node.add("Gather", node.input(3), positions, axis=0))
    if node.has(1) and node.has(4):
        total = node.add("Add", total, node.add("Gather", node.input(4), node.input(1), axis=0))
    if node.has(7):
        mask = node.add("Cast", node.input(7), to="i32")
        count = node.add("ReduceSum", mask, node.int_constant("words", [1]), keepdims=0)
    elif node.builder.changes(node.input(0)):
        none = node.add("Cast", node.add("Sub", node.input(0), node.input(0)), to="i32")
        count = node.add("ReduceSum", none, node.int_constant("words", [1]), keepdims=0)
    else:
        count = node.constant(np.zeros(batch, np.int32), "count")
    return [_normalised(node, total, node.input(5), node.input(6)), count, total]


_skip_simplified = _skip(lambda node, x: _simplified(node, x, node.input(2), 1e-12), 3)

MICROSOFT: dict[str, Callable[[OnnxNode], Results]] = {
    **ATTENTION,
    **QUANTIZED,
    **TENSORS,
    "BiasGelu": _gelu,
    "EmbedLayerNormalization": _embed_layer_normalization,
    "FastGelu": _fast_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_mat_mul,
    "Gelu": _gelu,
    "GroupQueryAttention": group_query_attention,
    "MatMulNBits": _mat_mul_n_bits,
    "QuickGelu": _quick_gelu,
    "SkipLayerNormalization": _skip(lambda node, x: _normalised(node, x, node.input(2), _beta(node)), 4),
    "SkipSimplifiedLayerNormalization": _skip_simplified,
    "TransposeMatMul": _fused_mat_mul,
}

SIZED = frozenset(
    {
        "Attention",
        "BiasGelu",
        "DynamicQuantizeMatMul",
        "EmbedLayerNormalization",
        "FastGelu",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gelu",
        "GroupQueryAttention",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MultiHeadAttention",
        "QAttention",
        "QuickGelu",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "TransposeMatMul",
    }
)
"""Operators that read no extents of what they are given, or take extents that are known only at run time."""

SAME = frozenset({"GatherND", "GridSample", "Pad", "Trilu"})
"""Operators of com.microsoft that equal the standard ones of that name."""

RUNTIME = {"SimplifiedLayerNormalization": _simplified_layer_normalization}
"""Operators that ONNX Runtime adds to the standard domain."""

DOMAINS: Mapping[str, Mapping[str, Callable[[OnnxNode], Results]]] = {
    "": RUNTIME,
    "ai.onnx": RUNTIME,
    "com.microsoft": {**MICROSOFT, **RUNTIME},
    **dict.fromkeys(("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general"), QONNX),
}
