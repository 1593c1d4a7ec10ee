"""GroupQueryAttention of com.microsoft: attention of ONNX Runtime's generative models over a cache.

Source: docs/ContribOperators.md of ONNX Runtime.  One sequence at a time: the tokens before those of a run are all rows
of the past keys, and a run whose lengths say otherwise (a padded batch) ends with an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.sizes import Expression, expression

Results = Sequence[Value | None]

_PAST, _LENGTHS, _TOTAL, _COSINES, _POSITIONS, _BIAS = 3, 5, 6, 7, 9, 10


def _check(node: OnnxNode) -> None:
    """Raise RefusedError for variants that are not computed."""
    flags = node.attributes
    if flags.get("smooth_softmax", 0) > 0 or (len(node.inputs) > _BIAS and any(node.has(i) for i in range(_BIAS, 14))):
        raise RefusedError("a bias of the scores, sinks of heads and smooth softmax are not supported")
    if flags.get("qk_output", 0):
        raise RefusedError("giving out the scores is not supported")
    if node.dims_of(0)[0] != 1:
        raise RefusedError(f"a batch of {node.dims_of(0)[0]} sequences is not supported", "bind the batch to 1")
    if node.has(_POSITIONS):
        raise RefusedError("positions of its own are not supported", "leave out position_ids")


def _projections(node: OnnxNode) -> tuple[list[Value], int]:
    """Queries, keys and values [1, S, heads, size], and their size."""
    heads, key_heads = (int(node.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    counts = (heads, key_heads, key_heads)
    width = node.dims_of(0)[2]
    if node.has(1):
        size, flat = width // heads, [node.input(i) for i in range(3)]
    else:
        size = width // (heads + 2 * key_heads)
        flat = list(node.split(node.input(0), 2, [n * size for n in counts]))
    shapes = (node.int_constant("heads", [0, 0, n, size]) for n in counts)
    return [node.add("Reshape", x, shape) for x, shape in zip(flat, shapes, strict=True)], size


def _past(node: OnnxNode) -> Expression:
    """The tokens before those of the run."""
    sizes = node.builder.writer.sizes
    return sizes.of(node.input(_PAST))[2] if node.has(_PAST) else expression(0)


def _checked(node: OnnxNode, past: Expression, length: Expression) -> Value:
    """The tokens before those of the run, where the stated length of the sequence is that of the cache."""
    sizes, origin = node.builder.writer.sizes, node.origin
    known = sizes.number(past, origin)
    if not node.has(_LENGTHS):
        return known
    stated = node.add("Reshape", node.add("Cast", node.input(_LENGTHS), to="i64"), node.int_constant("scalar", []))
    last = sizes.number(past + length - 1, origin)
    difference = node.add("Bounded", node.add("Sub", stated, last), least=0, most=0)
    return node.add("Add", known, difference)


def _rotated(node: OnnxNode, heads: Sequence[Value], past: Value, length: Expression) -> list[Value]:
    """Heads turned by the angles of their positions."""
    places = node.constant(np.arange(node.dims_of(0)[1], dtype=np.int64), "places")
    places = node.builder.writer.sizes.state(places, [length])
    positions = node.add("Add", places, past)
    tables = [node.add("Gather", node.input(i), positions, axis=0) for i in (_COSINES, _COSINES + 1)]
    interleaved = int(node.attributes.get("rotary_interleaved", 0))
    return [node.add("RotateHeads", x, *tables, interleaved=interleaved) for x in heads]


def group_query_attention(node: OnnxNode) -> Results:
    """Inputs: queries (or queries, keys and values in one), keys, values, past keys and values, the number of the last
    token of the sequence, the length with the past, cosines, sines, positions, a bias."""
    _check(node)
    (q, k, v), size = _projections(node)
    past, length = _past(node), node.builder.writer.sizes.of(node.input(0))[1]
    before = _checked(node, past, length)
    if node.attributes.get("do_rotary", 0):
        q, k = _rotated(node, (q, k), before, length)
    present = [node.add("Transpose", x, perm=(0, 2, 1, 3)) for x in (k, v)]
    if node.has(_PAST):
        present = [node.add("Concat", node.input(_PAST + i), x, axis=2) for i, x in enumerate(present)]
    window = int(node.attributes.get("local_window_size", -1))
    y = node.add(
        "CachedAttention",
        q,
        *present,
        before,
        scale=node.attributes.get("scale", 0.0) or 1 / math.sqrt(size),
        window=max(window, 0),
        softcap=node.attributes.get("softcap", 0.0),
    )
    flat = node.int_constant("flat", [0, 0, int(node.attributes["num_heads"]) * size])
    return [node.add("Reshape", y, flat), *present]
