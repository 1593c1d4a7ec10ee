"""SVDF of 8-bit integers: features are requantised to the type of the state, and filtered over time with wide sums.

TFLite Micro's and LiteRT's reference kernels agree on it: both requantisations multiply by 31 bits and round twice, and
the operator's activation is ignored.  Source: tensorflow/lite/micro/kernels/svdf_common.cc, EvalIntegerSvdfReference.
"""

from __future__ import annotations

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.content import TfliteTensor
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits, quantized_multipliers

INPUT, FEATURES, FILTERS, BIAS, STATE = range(5)
LARGEST_SHIFT = 7
"""Sums are multiplied by at most this power of two."""


def in_integers(node: TfliteNode) -> bool:
    """Whether the operands are those of the kernel of integers: 8 bits, but for filters and state of 8 or 16 bits."""
    wanted = {INPUT: (DType.I8,), FEATURES: (DType.I8,), FILTERS: (DType.I8, DType.I16), STATE: (DType.I8, DType.I16)}
    if not all(node.has(k) for k in wanted):
        return False
    tensors = {k: _tensor(node, k) for k in wanted}
    scalar = all(t.quant is not None and t.quant.scalar and not t.broken for t in (*tensors.values(), node.output()))
    constant = all(tensors[k].data is not None for k in (FEATURES, FILTERS))
    types = all(tensors[k].dtype in dtypes for k, dtypes in wanted.items()) and node.output().dtype is DType.I8
    return scalar and constant and types and all(_zero(tensors[k]) == 0 for k in (FEATURES, FILTERS, STATE))


def integer_svdf(node: TfliteNode) -> Outputs:
    builder, features, filters = node.builder, _tensor(node, FEATURES).data, _tensor(node, FILTERS).data
    state, y = _tensor(node, STATE), node.output()
    assert features is not None
    assert filters is not None
    (count, memory), rank = filters.shape, node.integer("rank")
    if rank < 1 or count % rank:
        raise RefusedError(f"{count} filters do not make units of {rank}")
    units = count // rank
    rows = builder.reshape(node.stored(INPUT), (-1, features.shape[1]))
    batch = builder.dims(rows)[0]
    x_scale, features_scale, filters_scale = (np.float32(_scale(_tensor(node, k))) for k in (INPUT, FEATURES, FILTERS))
    fresh = _product(
        node,
        "IntegerGemm",
        rows,
        (features, np.zeros(count, np.int32)),
        float(x_scale * features_scale / np.float32(_scale(state))),
        state,
        x_zero=_zero(_tensor(node, INPUT)),
    )
    fresh = builder.reshape(fresh, (batch, count, 1))
    before = builder.reshape(node.stored_state(STATE), (batch, count, memory))
    after = builder.add("Concat", builder.slice(before, [1], [memory], [2]), fresh, axis=2) if memory > 1 else fresh
    node.keep(STATE, builder.reshape(after, (batch, count * memory)))
    taps = filters.reshape(units, rank, memory)
    sums = float(np.float32(_scale(state)) * filters_scale / np.float32(_scale(y)))
    result = _product(node, "IntegerWideConv", after, (taps, _bias(node, units)), sums, y, group=units)
    return builder.reshape(result, (batch, units))


def _product(
    node: TfliteNode,
    op: str,
    x: Value,
    constants: tuple[Array, Array],
    factor: float,
    to: TfliteTensor,
    **attributes: int,
) -> Value:
    multipliers, shifts = quantized_multipliers([factor])
    if shifts[0] > LARGEST_SHIFT:
        raise RefusedError(f"its sums are multiplied by {factor}: the scale of '{to.name}' is too small")
    low, high = limits(to.dtype)
    names = zip(("weights", "bias", "multipliers", "shifts"), (*constants, multipliers, shifts), strict=True)
    given = (node.builder.constant(np.ascontiguousarray(data), name) for name, data in names)
    return node.builder.add(
        op, x, *given, zero=_zero(to), low=low, high=high, to=to.dtype.value, scale=_scale(to), **attributes
    )


def _bias(node: TfliteNode, units: int) -> Array:
    if not node.has(BIAS):
        return np.zeros(units, np.int64)
    data = node.constant_input(BIAS)
    if data.dtype != np.int32 or data.shape != (units,):
        raise RefusedError(f"its bias {data.dtype}{list(data.shape)} is not i32 [{units}]")
    return data.astype(np.int64)


def _tensor(node: TfliteNode, k: int) -> TfliteTensor:
    return node.importer.content.tensors[node.index(k)]


def _scale(tensor: TfliteTensor) -> float:
    assert tensor.quant is not None
    return tensor.quant.scale[0]


def _zero(tensor: TfliteTensor) -> int:
    assert tensor.quant is not None
    return tensor.quant.zero_point[0]
