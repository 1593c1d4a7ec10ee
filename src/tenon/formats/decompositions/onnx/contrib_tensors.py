"""Operators of com.microsoft on whole tensors: rotary embedding, crops, distances, inverses, unique elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.crop_and_resize import Crops
from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value

Results = Sequence[Value | None]

LARGEST_INVERSE = 64
"""Rows of a matrix whose inverse is computed, in as many steps."""


# ----------------------------------------------------------------------------------------------- embeddings
def _rotary_embedding(node: OnnxNode) -> Results:
    """Inputs: heads [batch, heads, length, size] or words [batch, length, heads * size], positions [batch, length] or
    the first one [1], tables of cosines and sines [positions, half of what is turned]."""
    attributes, dims = node.attributes, node.dims_of(0)
    if attributes.get("is_packed_batching", 0):
        raise RefusedError("a batch of packed sequences is not supported")
    half = node.dims_of(2)[1]
    length, axis = (dims[1], 2) if len(dims) == 3 else (dims[2], 1)
    x, size = node.input(0), dims[-1]
    if len(dims) == 3:
        heads = attributes.get("num_heads", 0) or dims[-1] // (2 * half)
        size = dims[-1] // heads
        x = node.reshape(x, dims[0], length, heads, size)
    positions = node.input(1)
    if node.dims_of(1) in ((1,), ()):
        start = node.reshape(positions, 1, 1)
        positions = node.add("Add", start, node.constant(np.arange(length, dtype=np.int64)[None], "places"))
    cosine, sine = (
        node.add("Unsqueeze", node.add("Gather", node.input(k), positions, axis=0), node.int_constant("head", [axis]))
        for k in (2, 3)
    )
    turned, *rest = node.split(x, 3, [2 * half, size - 2 * half]) if size > 2 * half else [x]
    turned = _turned(node, turned, cosine, sine, half, interleaved=bool(attributes.get("interleaved", 0)))
    y = node.add("Concat", turned, *rest, axis=3) if rest else turned
    return [node.reshape(y, *dims) if len(dims) == 3 else y]


def _turned(node: OnnxNode, x: Value, cosine: Value, sine: Value, half: int, *, interleaved: bool) -> Value:
    """Pairs of the last axis (neighbours if ``interleaved``, else from its two halves) turned by angles."""
    dims = node.builder.dims(x)
    if interleaved:
        a, b = node.unstack(node.reshape(x, *dims[:3], half, 2), 4)
    else:
        a, b = node.split(x, 3, [half, half])
    first = node.add("Sub", node.add("Mul", a, cosine), node.add("Mul", b, sine))
    second = node.add("Add", node.add("Mul", a, sine), node.add("Mul", b, cosine))
    if interleaved:
        return node.reshape(node.stack([first, second], 4), *dims)
    return node.add("Concat", first, second, axis=3)


# --------------------------------------------------------------------------------------------------- images
def _crop_and_resize(node: OnnxNode) -> Results:
    """Inputs: images [N, C, H, W], boxes, the numbers of their images, rows and columns of the crops."""
    rows, columns = (int(n) for n in node.constant_input(3, "the size of the crops").ravel())
    node.image(node.input(0)), node.dims_of(1)
    numbers = node.add("Cast", node.input(2), to="i64")
    outside = float(node.attributes.get("extrapolation_value", 0.0))
    crops = Crops(node, node.input(0), node.input(1), numbers, rows, columns, outside)
    return [crops.cropped(node.attributes.get("mode", "bilinear"))]


# -------------------------------------------------------------------------------------------------- matrices
def _distances(node: OnnxNode) -> Results:
    """The distance of every row of the first matrix from every row of the second one."""
    metric = node.attributes.get("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise RefusedError(f"the metric {metric} is not supported", "sqeuclidean and euclidean are")
    node.dims_of(0), node.dims_of(1)
    a, b = (node.add("Unsqueeze", node.input(k), node.int_constant("axis", [1 - k])) for k in (0, 1))
    kind = "ReduceSumSquare" if metric == "sqeuclidean" else "ReduceL2"
    return [node.add(kind, node.add("Sub", a, b), node.int_constant("last", [2]), keepdims=0)]


def _inverse(node: OnnxNode) -> Results:
    """By elimination with the identity beside the matrix; the largest element of a column becomes its pivot."""
    *outer, n, columns = node.dims_of(0)
    if n != columns or not 0 < n <= LARGEST_INVERSE:
        raise RefusedError(f"inverses are of square matrices of at most {LARGEST_INVERSE} rows, not {n}x{columns}")
    identity = np.broadcast_to(np.eye(n), (*outer, n, n)).astype(node.input(0).type.dtype.numpy)
    work = node.add("Concat", node.input(0), node.constant(np.ascontiguousarray(identity), "identity"), axis=-1)
    places = node.constant(np.arange(n, dtype=np.int64)[:, None], "rows")
    for k in range(n):
        work = _eliminated(node, work, places, k, len(outer))
    return [node.split(work, len(outer) + 1, [n, n])[1]]


def _eliminated(node: OnnxNode, work: Value, places: Value, k: int, rank: int) -> Value:
    """Column ``k`` made that of the identity: rows swapped, the pivot's divided by it, multiples of it subtracted."""
    zero, rows, here = node.typed_scalar("zero", 0), node.int_constant("axis", [rank]), node.int_constant("k", [k])
    column = node.add("Gather", work, here, axis=rank + 1)
    above, none = node.add("Less", places, here), node.typed_scalar("none", -1)
    candidates = node.add("Where", above, none, node.add("Abs", column))
    pivot = node.add("ArgMax", candidates, axis=rank, keepdims=1)  # [..., 1, 1]
    chosen, own = node.add("Equal", places, pivot), node.add("Equal", places, here)
    top = node.add("ReduceSum", node.add("Where", chosen, work, zero), rows, keepdims=1)
    old = node.add("Gather", work, here, axis=rank)
    swapped = node.add("Where", chosen, old, work)
    top = node.add("Div", top, node.add("Gather", top, here, axis=rank + 1))
    factors = node.add("Gather", swapped, here, axis=rank + 1)
    return node.add("Where", own, top, node.add("Sub", swapped, node.add("Mul", factors, top)))


# -------------------------------------------------------------------------------------------------- elements
def _expand_dims(node: OnnxNode) -> Results:
    axis = int(node.constant_input(1, "the axis").item())
    return [node.add("Unsqueeze", node.input(0), node.int_constant("axis", [axis]))]


def _unique(node: OnnxNode) -> Results:
    """Elements in the order of their first occurrence, which of them each one is, and how often each occurs."""
    inner = node.variant("Unique", node.inputs, {"sorted": 0})
    values, _, inverse, counts = node.builder.data_dependent(inner, [0, 0, None, 0])
    return [values, inverse, counts]


TENSORS: dict[str, Callable[[OnnxNode], Results]] = {
    "CDist": _distances,
    "CropAndResize": _crop_and_resize,
    "ExpandDims": _expand_dims,
    "Inverse": _inverse,
    "RotaryEmbedding": _rotary_embedding,
    "Unique": _unique,
}
