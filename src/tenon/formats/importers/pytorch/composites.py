"""ATen's operators above the core ones, which a program has that was not decomposed: products of tensors by letters,
single steps of recurrent layers, windows, and elements chosen or combined by indices."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.recurrent_layers import CUDNN, Direction, run
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.node import PytorchNode
from tenon.network.graph.graph import Value

_I64 = np.dtype(np.int64)


# ------------------------------------------------------------------------------------------------ products
def einsum(node: PytorchNode) -> Value:
    operands, equation = node.get("tensors", []), str(node.get("equation", "")).replace(" ", "")
    if not operands or not all(isinstance(v, Value) for v in operands):
        raise RefusedError("its operands are not tensors")
    return node.add("Einsum", *(node.cast(v) for v in operands), equation=equation)


def tensordot(node: PytorchNode) -> Value:
    """Sums of products over pairs of axes, by ONNX's Einsum."""
    x, y = node.x, node.get("other")
    ranks = [node.builder.rank(v) for v in (x, y)]
    pairs = [
        [node.axis(int(a), rank) for a in node.get(name, [])]
        for name, rank in zip(("dims_self", "dims_other"), ranks, strict=True)
    ]
    if sum(ranks) > len(string.ascii_letters) or len(pairs[0]) != len(pairs[1]):
        raise RefusedError(f"it sums over the axes {pairs[0]} and {pairs[1]}")
    left, right = list(string.ascii_letters[: ranks[0]]), list(string.ascii_letters[ranks[0] : sum(ranks)])
    for a, b in zip(*pairs, strict=True):
        right[b] = left[a]
    kept = [c for c in left if c not in right] + [c for c in right if c not in left]
    return node.add("Einsum", x, y, equation=f"{''.join(left)},{''.join(right)}->{''.join(kept)}")


def outer(node: PytorchNode) -> Value:
    other = "vec2" if "vec2" in node.attributes else "other"
    x, y = node.cast(node.x), node.cast(node.get(other))
    return node.add("Mul", node.reshape(x, -1, 1), node.reshape(y, 1, -1))


# ----------------------------------------------------------------------------------------------- recurrence
def cell(kind: str, activation: str = "") -> Callable[[PytorchNode], Sequence[Value] | Value]:
    """One step of a recurrent layer: of x [N, I] and its states [N, H]."""

    def import_node(node: PytorchNode) -> Sequence[Value] | Value:
        given = node.get("hx")
        states = [node.add("Unsqueeze", v, node.ints(0)) for v in (given if isinstance(given, list) else [given])]
        w, r = node.get("w_ih"), node.get("w_hh")
        zeros = np.zeros(node.builder.dims(w)[0], np.float32)
        biases = [node.get(name, zeros) for name in ("b_ih", "b_hh")]
        x = node.add("Unsqueeze", node.attributes["input"], node.ints(0))
        options = {"activations": (activation,)} if activation else {}
        result = run(node, kind, x, [[Direction(w, r, *biases)]], CUDNN[kind], states, **options)
        after = [node.add("Squeeze", state, node.ints(0)) for state in result.states]
        return after if kind == "LSTM" else after[0]

    return import_node


# --------------------------------------------------------------------------------------------------- windows
def im2col(node: PytorchNode) -> Value:
    """Windows of images as columns: [N, channels * elements of a window, windows]."""
    kernel, dilation, padding, stride = (
        node.per_axis(name, 2, default)
        for name, default in (("kernel_size", 1), ("dilation", 1), ("padding", 0), ("stride", 1))
    )
    x = node.x if node.x_rank == 4 else node.add("Unsqueeze", node.x, node.ints(0))
    if any(padding):
        x = node.add("Pad", x, node.ints(0, 0, *padding, 0, 0, *padding))
    n, channels, *sizes = node.builder.dims(x)
    counts = []
    for axis, (size, k, d, s) in enumerate(zip(sizes, kernel, dilation, stride, strict=True)):
        counts.append((size - (k - 1) * d - 1) // s + 1)
        at = np.arange(k)[:, None] * d + np.arange(max(0, counts[-1])) * s
        x = node.add("Gather", x, node.constant(at.astype(np.int64), "windows"), axis=2 + 2 * axis)
    if min(counts) < 1:
        raise RefusedError(f"windows of {kernel} do not fit {sizes}")
    y = node.add("Transpose", x, perm=(0, 1, 2, 4, 3, 5))
    y = node.reshape(y, n, channels * math.prod(kernel), math.prod(counts))
    return y if node.x_rank == 4 else node.add("Squeeze", y, node.ints(0))


# --------------------------------------------------------------------------------------------------- indices
def take(node: PytorchNode) -> Value:
    """Elements of the flattened tensor."""
    return node.add("Gather", node.reshape(node.x, -1), node.cast(node.get("index"), _I64), axis=0)


def take_along_dim(node: PytorchNode) -> Value:
    index = node.cast(node.get("indices"), _I64)
    if node.get("dim") is None:
        return node.add("Gather", node.reshape(node.x, -1), node.reshape(index, -1), axis=0)
    axis = node.dim()
    shape = list(np.broadcast_shapes(*([*d[:axis], 1, *d[axis + 1 :]] for d in (node.dims, node.builder.dims(index)))))
    x, at = (
        node.add("Expand", v, node.ints(*shape[:axis], node.builder.dims(v)[axis], *shape[axis + 1 :]))
        for v in (node.x, index)
    )
    return node.add("GatherElements", x, at, axis=axis)


def index_write(node: PytorchNode) -> Value:
    """Slices of ``source`` (or a number) added to, or put in the place of, those at ``index`` along an axis."""
    axis, index = node.dim(), node.reshape(node.cast(node.get("index"), _I64), -1)
    source = node.get("source")
    count = node.builder.dims(index)[0]
    shape = [*node.dims[:axis], count, *node.dims[axis + 1 :]] if node.dims else [count]
    if not isinstance(source, Value):
        value = node.get("value", 0)
        source = node.cast(value) if isinstance(value, Value) else node.value(node.full(value))
    source = node.add("Expand", node.cast(source), node.ints(*shape))
    alpha = node.get("alpha", 1)
    if alpha != 1:
        source = node.add("Mul", source, node.full(alpha))
    at = node.add(
        "Expand", node.reshape(index, *(-1 if i == axis else 1 for i in range(len(shape)))), node.ints(*shape)
    )
    x = node.x if node.dims else node.reshape(node.x, 1)
    how = "add" if node.name == "index_add" else "none"
    result = node.add("ScatterElements", x, at, source, axis=axis, reduction=how)
    return result if node.dims else node.reshape(result)
