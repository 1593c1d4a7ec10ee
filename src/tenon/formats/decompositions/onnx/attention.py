"""Attention, MultiHeadAttention and QAttention of com.microsoft, as products and a softmax.

Source: docs/ContribOperators.md of ONNX Runtime.  Heads are called N, their size H, the batch B, the
length of the queries S, of the past P, of keys with the past T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.sized_node import FIX

Results = Sequence[Value | None]


def _heads(node: OnnxNode, x: Value) -> Value:
    """[B, S, N * H] as [B, N, S, H]."""
    n, width = node.attributes["num_heads"], x.type.dims[2]
    parts = node.add("Reshape", x, node.int_constant("heads", [0, 0, n, width // n]))
    return node.add("Transpose", parts, perm=(0, 2, 1, 3))


def _cut(node: OnnxNode, x: Value, sizes: Sequence[int], axis: int) -> Sequence[Value]:
    return node.adds("Split", len(sizes), x, node.int_constant("sizes", sizes), axis=axis)


def _picked(node: OnnxNode, x: Value, i: int, axis: int = 0) -> Value:
    return node.add("Gather", x, node.constant(np.array(i, np.int64), "which"), axis=axis)


def _behind(node: OnnxNode, past: Value | None, x: Value) -> Value:
    return x if past is None else node.add("Concat", past, x, axis=2)


def _keep(node: OnnxNode, mask: Value, batch: int, total: int, scores: Value) -> Value:
    """The positions that a mask keeps, as bool that broadcasts to [B, N, S, T].

    [B, T] and [B, S, T] hold a number above 0 for what is kept, [B] counts it, and [2 * B] has its ends, then where it
    begins.
    """
    if mask.type.rank == 1:
        if node.builder.changes(mask):
            raise RefusedError("a mask of one axis for a batch whose size is known only at run time", FIX)
        place = node.constant(np.arange(total, dtype=mask.type.dtype.numpy), "place")
        place = node.builder.sized_like(place, scores)
        parts = mask.type.dims[0] // max(batch, 1)
        if parts not in (1, 2):
            raise RefusedError(f"a mask of {mask.type.dims[0]} numbers for a batch of {batch}", "give one of 2 axes")
        ends = _cut(node, mask, [batch] * parts, 0) if parts > 1 else [mask]
        rows = [node.add("Reshape", end, node.int_constant("rows", [batch, 1, 1, 1])) for end in ends]
        inside = node.add("Less", place, rows[0])
        return inside if parts == 1 else node.add("And", inside, node.add("GreaterOrEqual", place, rows[1]))
    if mask.type.rank not in (2, 3):
        raise RefusedError(f"a mask of {mask.type.rank} axes is not supported", "give one of 1 to 3 axes")
    kept = node.add("Greater", mask, node.constant(np.zeros((), mask.type.dtype.numpy), "zero"))
    return node.add("Unsqueeze", kept, node.int_constant("heads", [1, 2] if mask.type.rank == 2 else [1]))


def attend(node: OnnxNode, q: Value, k: Value, v: Value, mask: Value | None, bias: Value | None) -> Value:
    """softmax(q k^T * scale + masks) v as [B, S, N * H], for q [B, N, S, H], k [B, N, T, H], v [B, N, T, H']."""
    flags = node.attributes
    (batch, heads, _, size), total = q.type.dims, k.type.dims[2]
    scale = flags.get("scale") or 1 / math.sqrt(size)
    scores = node.add("MatMul", q, node.add("Transpose", k, perm=(0, 1, 3, 2)))
    kind = q.type.dtype.numpy
    scores = node.add("Mul", scores, node.constant(np.array(scale, kind), "scale"))
    if mask is not None:
        kept = _keep(node, mask, batch, total, scores)
        numbers = {"nothing": 0.0, "out": flags.get("mask_filter_value", -10000.0)}
        nothing, out = (node.constant(np.array(n, kind), stem) for stem, n in numbers.items())
        scores = node.add("Add", scores, node.add("Where", kept, nothing, out))
    if flags.get("unidirectional", 0):
        seen = _seen(node, q, k, scores)
        lowest = node.constant(np.array(-6e4 if kind == np.float16 else -3e38, kind), "lowest")
        scores = node.add("Where", seen, scores, lowest)
    if bias is not None:
        scores = node.add("Add", scores, bias)
    y = node.add("MatMul", node.add("Softmax", scores, axis=-1), v)
    y = node.add("Transpose", y, perm=(0, 2, 1, 3))
    return node.add("Reshape", y, node.int_constant("whole", [0, 0, heads * v.type.dims[3]]))


def _seen(node: OnnxNode, q: Value, k: Value, scores: Value) -> Value:
    """The keys that each query may look at, [S, T] of bool: those up to its own, the last query's is the last key."""
    sizes = node.builder.writer.sizes
    past = sizes.of(k)[2] - sizes.of(q)[2]
    queries, keys = np.arange(q.type.dims[2])[:, None], np.arange(k.type.dims[2])
    if past.known:
        return node.builder.sized_like(node.constant(keys <= queries + past.number, "seen"), scores)
    last = node.add("Add", node.constant(queries, "queries"), sizes.number(past, node.origin))
    return node.builder.sized_like(node.add("LessOrEqual", node.constant(keys, "keys"), last), scores)


def _attended(node: OnnxNode, projected: Value, past: int, mask: int, bias: int) -> Results:
    """Attention after its projection: [B, S, queries + keys + values] to the output, and the keys and values."""
    if node.attributes.get("do_rotary", 0) or node.attributes.get("past_present_share_buffer", 0):
        raise RefusedError("rotary embeddings and shared past key/value buffers are not supported")
    width = projected.type.dims[2]
    sizes = node.attributes.get("qkv_hidden_sizes") or [width // 3] * 3
    q, k, v = (_heads(node, part) for part in _cut(node, projected, sizes, 2))
    if node.has(past):
        k, v = (_behind(node, _picked(node, node.input(past), i), x) for i, x in enumerate((k, v)))
    y = attend(node, q, k, v, *(node.input(i) if node.has(i) else None for i in (mask, bias)))
    if len(node.outputs) < 2:
        return [y]
    first = node.int_constant("first", [0])
    return [y, node.add("Concat", *(node.add("Unsqueeze", x, first) for x in (k, v)), axis=0)]


def _attention(node: OnnxNode) -> Results:
    """Inputs: x, weights, bias, mask, past, what is added to the scores."""
    node.dims_of(0)
    projected = node.add("MatMul", node.input(0), node.input(1))
    if node.has(2):
        projected = node.add("Add", projected, node.input(2))
    return _attended(node, projected, 4, 3, 5)


def _q_attention(node: OnnxNode) -> Results:
    """Inputs: x, weights, bias, their scales, mask, their zero points, past; x and weights are of eight bits."""
    x, w = (
        node.add(
            "DequantizeLinear",
            node.input(i),
            node.input(i + 3),
            node.input(i + 6) if node.has(i + 6) else None,
            to="f32",
        )
        for i in (0, 1)
    )
    return _attended(node, node.add("Add", node.add("MatMul", x, w), node.input(2)), 8, 5, len(node.inputs))


def _multi_head(node: OnnxNode) -> Results:
    """Inputs: queries, keys, values, bias, mask, what is added to the scores, past keys and values."""
    query = node.input(0)
    if len(node.dims_of(0)) != 3:
        raise RefusedError("queries, keys and values in one tensor are not supported", "give them as separate tensors")
    if not node.has(2):
        raise RefusedError("keys and values in one tensor are not supported", "give them as separate tensors")
    if any(node.has(i) for i in (8, 9)):
        raise RefusedError("past key/value buffers are not supported")
    given = [query, node.input(1), node.input(2)]
    if node.has(3):
        widths = [query.type.dims[2]] * 2
        widths.append(node.dims_of(3)[0] - sum(widths))
        parts = zip(given, _cut(node, node.input(3), widths, 0), strict=True)
        given = [node.add("Add", x, part) if x.type.rank == 3 else x for x, part in parts]
    q, k, v = (_heads(node, x) if x.type.rank == 3 else x for x in given)
    k, v = (_behind(node, node.input(i) if node.has(i) else None, x) for i, x in ((6, k), (7, v)))
    return [attend(node, q, k, v, *(node.input(i) if node.has(i) else None for i in (4, 5))), k, v]


ATTENTION: dict[str, Callable[[OnnxNode], Results]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "QAttention": _q_attention,
}
