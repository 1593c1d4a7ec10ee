"""Attention, MultiHeadAttention and QAttention of com.microsoft, spelled out in products and a softmax.

Source of their meaning: docs/ContribOperators.md of ONNX Runtime.  Heads are called N, their size H, the batch B, the
length of the queries S, of the past P, of keys with the past T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Value

Results = Sequence[Value | None]


def _heads(layer: OnnxNode, x: Value) -> Value:
    """[B, S, N * H] as [B, N, S, H]."""
    b, s, width = x.type.dims
    n = layer.attributes["num_heads"]
    parts = layer.emit("Reshape", x, layer.ints("heads", [b, s, n, width // n]))
    return layer.emit("Transpose", parts, perm=(0, 2, 1, 3))


def _cut(layer: OnnxNode, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    return layer.maker.emit_all(layer, "Split", [x, layer.ints("sizes", sizes)], len(sizes), axis=axis)


def _picked(layer: OnnxNode, x: Value, i: int, axis: int = 0) -> Value:
    return layer.emit("Gather", x, layer.constant("which", np.array(i, np.int64)), axis=axis)


def _behind(layer: OnnxNode, past: Value | None, x: Value) -> Value:
    return x if past is None else layer.emit("Concat", past, x, axis=2)


def _keep(layer: OnnxNode, mask: Value, batch: int, total: int) -> Value:
    """What a mask keeps, as bool that broadcasts to [B, N, S, T].

    [B, T] and [B, S, T] hold a number above 0 for what is kept, [B] counts it, and [2 * B] has its ends, then where it
    begins.
    """
    if mask.type.rank == 1:
        place = layer.constant("place", np.arange(total, dtype=mask.type.dtype.numpy))
        parts = mask.type.dims[0] // max(batch, 1)
        if parts not in (1, 2):
            raise RefusedError(f"a mask of {mask.type.dims[0]} numbers for a batch of {batch}", "give one of 2 axes")
        ends = _cut(layer, mask, [batch] * parts, 0) if parts > 1 else [mask]
        rows = [layer.emit("Reshape", end, layer.ints("rows", [batch, 1, 1, 1])) for end in ends]
        inside = layer.emit("Less", place, rows[0])
        return inside if parts == 1 else layer.emit("And", inside, layer.emit("GreaterOrEqual", place, rows[1]))
    if mask.type.rank not in (2, 3):
        raise RefusedError(f"a mask of {mask.type.rank} axes is not supported", "give one of 1 to 3 axes")
    kept = layer.emit("Greater", mask, layer.constant("zero", np.zeros((), mask.type.dtype.numpy)))
    return layer.emit("Unsqueeze", kept, layer.ints("heads", [1, 2] if mask.type.rank == 2 else [1]))


def attend(layer: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None) -> Value:
    """softmax(q k^T * scale + masks) v as [B, S, N * H], for q [B, N, S, H], k [B, N, T, H], v [B, N, T, H']."""
    flags = layer.attributes
    (batch, heads, length, size), total = q.type.dims, k.type.dims[2]
    scale = flags.get("scale") or 1 / math.sqrt(size)
    scores = layer.emit("MatMul", q, layer.emit("Transpose", k, perm=(0, 1, 3, 2)))
    kind = q.type.dtype.numpy
    scores = layer.emit("Mul", scores, layer.constant("scale", np.array(scale, kind)))
    if mask is not None:
        kept = _keep(layer, mask, batch, total)
        numbers = {"nothing": 0.0, "out": flags.get("mask_filter_value", -10000.0)}
        nothing, out = (layer.constant(stem, np.array(n, kind)) for stem, n in numbers.items())
        scores = layer.emit("Add", scores, layer.emit("Where", kept, nothing, out))
    if flags.get("unidirectional", 0):
        seen = np.arange(total) <= np.arange(length)[:, None] + total - length
        lowest = layer.constant("lowest", np.array(-6e4 if kind == np.float16 else -3e38, kind))
        scores = layer.emit("Where", layer.constant("seen", seen), scores, lowest)
    if bias is not None:
        scores = layer.emit("Add", scores, bias)
    y = layer.emit("MatMul", layer.emit("Softmax", scores, axis=-1), v)
    y = layer.emit("Transpose", y, perm=(0, 2, 1, 3))
    return layer.emit("Reshape", y, layer.ints("whole", [batch, length, heads * v.type.dims[3]]))


def _attended(layer: OnnxNode, projected: Value, past: int, mask: int, bias: int) -> Results:
    """What Attention does behind its product: [B, S, queries + keys + values] to the output, and what was seen."""
    if layer.attributes.get("do_rotary", 0) or layer.attributes.get("past_present_share_buffer", 0):
        raise RefusedError("rotary embeddings and shared buffers of the past are not supported")
    width = projected.type.dims[2]
    sizes = layer.attributes.get("qkv_hidden_sizes") or [width // 3] * 3
    q, k, v = (_heads(layer, part) for part in _cut(layer, projected, sizes, 2))
    if layer.has(past):
        k, v = (_behind(layer, _picked(layer, layer.input(past), i), x) for i, x in enumerate((k, v)))
    y = attend(layer, q, k, v, *(layer.input(i) if layer.has(i) else None for i in (mask, bias)))
    if len(layer.outputs) < 2:
        return [y]
    first = layer.ints("first", [0])
    return [y, layer.emit("Concat", *(layer.emit("Unsqueeze", x, first) for x in (k, v)), axis=0)]


def _attention(layer: OnnxNode) -> Results:
    """Inputs: x, weights, bias, mask, past, what is added to the scores."""
    layer.dims(0)
    projected = layer.emit("MatMul", layer.input(0), layer.input(1))
    if layer.has(2):
        projected = layer.emit("Add", projected, layer.input(2))
    return _attended(layer, projected, 4, 3, 5)


def _q_attention(layer: OnnxNode) -> Results:
    """Inputs: x, weights, bias, their scales, mask, their zero points, past; x and weights are of eight bits."""
    x, w = (
        layer.emit(
            "DequantizeLinear",
            layer.input(i),
            layer.input(i + 3),
            layer.input(i + 6) if layer.has(i + 6) else None,
            to="f32",
        )
        for i in (0, 1)
    )
    return _attended(layer, layer.emit("Add", layer.emit("MatMul", x, w), layer.input(2)), 8, 5, len(layer.inputs))


def _multi_head(layer: OnnxNode) -> Results:
    """Inputs: queries, keys, values, bias, mask, what is added to the scores, past keys and values."""
    query = layer.input(0)
    if len(layer.dims(0)) != 3:
        raise RefusedError("queries, keys and values in one tensor are not supported", "give them apart")
    if not layer.has(2):
        raise RefusedError("keys and values in one tensor are not supported", "give them apart")
    if any(layer.has(i) for i in (8, 9)):
        raise RefusedError("buffers of the past are not supported")
    given = [query, layer.input(1), layer.input(2)]
    if layer.has(3):
        widths = [query.type.dims[2]] * 2
        widths.append(layer.dims(3)[0] - sum(widths))
        parts = zip(given, _cut(layer, layer.input(3), widths, 0), strict=True)
        given = [layer.emit("Add", x, part) if x.type.rank == 3 else x for x, part in parts]
    q, k, v = (_heads(layer, x) if x.type.rank == 3 else x for x in given)
    k, v = (_behind(layer, layer.input(i) if layer.has(i) else None, x) for i, x in ((6, k), (7, v)))
    return [attend(layer, q, k, v, *(layer.input(i) if layer.has(i) else None for i in (4, 5))), k, v]


ATTENTION: dict[str, Callable[[OnnxNode], Results]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "QAttention": _q_attention,
}
