"""Layers of several formats that ONNX has no operator for, as compositions of ONNX operators.

Images are [N, C, H, W].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext, Operand
from tenon.network.graph.graph import Value
from tenon.network.graph.types import I64

MAX_BINS = 1 << 10
"""Bins of an adaptive pooling along one axis."""


def remainder(node: NodeContext, a: Operand, b: Operand) -> Value:
    """The remainder of real numbers, with the divisor's sign."""
    return node.add("Sub", a, node.add("Mul", node.add("Floor", node.add("Div", a, b)), b))


def truncated(node: NodeContext, x: Value) -> Value:
    """Real numbers truncated towards zero."""
    return node.add("Mul", node.add("Sign", x), node.add("Floor", node.add("Abs", x)))


def finite(node: NodeContext, x: Value) -> Value:
    """Whether elements are numbers, and not infinite."""
    return node.add("Not", node.add("Or", node.add("IsNaN", x), node.add("IsInf", x)))


def one_hot(node: NodeContext, classes: Value, depth: int, values: Operand, axis: int = -1) -> Value:
    """``values`` (off, on) by integer class.  A negative class is none, where ONNX counts it from the end."""
    wide = classes if classes.typed and classes.type.dtype is I64 else node.add("Cast", classes, to="i64")
    beyond = np.array(depth, np.int64)
    known = node.add("Where", node.add("Less", wide, np.array(0, np.int64)), beyond, wide)
    return node.add("OneHot", known, node.ints(depth), values, axis=axis)


def adaptive_pool(node: NodeContext, x: Value, sizes: Sequence[int], *, average: bool) -> Value:
    """Pooled to these sizes: bin i of k on an axis of n is floor(i n / k) .. ceil((i + 1) n / k), as PyTorch has it."""
    dims = node.builder.dims(x)[2:]
    if len(dims) != len(sizes) or not all(0 < k < MAX_BINS for k in sizes):
        raise RefusedError(f"{list(dims)} cannot be pooled to {list(sizes)}")
    if all(k == 1 for k in sizes):
        return node.add("GlobalAveragePool" if average else "GlobalMaxPool", x)
    if not any(n % k for n, k in zip(dims, sizes, strict=True)):
        window = [n // k for n, k in zip(dims, sizes, strict=True)]
        return node.add("AveragePool" if average else "MaxPool", x, kernel_shape=window, strides=window)
    for i, k in enumerate(sizes):
        x = _bins(node, x, 2 + i, k, "ReduceMean" if average else "ReduceMax")
    return x


def _bins(node: NodeContext, x: Value, axis: int, count: int, reduce: str) -> Value:
    n = node.builder.dims(x)[axis]
    bounds = [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]
    if all(b - a == 1 and a == i for i, (a, b) in enumerate(bounds)):
        return x
    parts = [node.add(reduce, node.slice(x, [a], [b], [axis]), node.ints(axis), keepdims=1) for a, b in bounds]
    return node.add("Concat", *parts, axis=axis)


def group_norm(node: NodeContext, x: Value, groups: int, gamma: Operand, beta: Operand, epsilon: float) -> Value:
    """Group normalisation, then scale and offset by channel where vectors are given."""
    n, channels, *rest = node.builder.dims(x)
    if groups < 1 or channels % groups:
        raise RefusedError(f"{channels} channels cannot be divided into {groups} groups")
    ones = np.ones(groups, np.float32)
    y = node.add("InstanceNormalization", node.reshape(x, n, groups, -1), ones, 0 * ones, epsilon=epsilon)
    y = node.reshape(y, n, channels, *rest)
    y = y if gamma is None else node.add("Mul", y, node.channels(gamma, y))
    return y if beta is None else node.add("Add", y, node.channels(beta, y))


def space_to_batch(node: NodeContext, x: Value, block: tuple[int, int], pads: Sequence[int]) -> Value:
    """Positions modulo ``block`` move to the front of the batch; ``pads`` are top, left, bottom, right."""
    if any(pads):
        x = node.add("Pad", x, node.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0)
    (n, channels, h, w), (down, across) = node.builder.dims(x), block
    if min(block) < 1 or h % down or w % across:
        raise RefusedError(f"an image of {h}x{w} does not divide into blocks of {down}x{across}")
    class_offset = node.reshape(x, n, channels, h // down, down, w // across, across)
    moved = node.add("Transpose", class_offset, perm=(3, 5, 0, 1, 2, 4))
    return node.reshape(moved, down * across * n, channels, h // down, w // across)


def batch_to_space(node: NodeContext, x: Value, block: tuple[int, int], crops: Sequence[int]) -> Value:
    """The inverse; ``crops`` are top, left, bottom, right."""
    (n, channels, h, w), (down, across) = node.builder.dims(x), block
    if min(block) < 1 or n % (down * across):
        raise RefusedError(f"a batch of {n} does not divide into blocks of {down}x{across}")
    class_offset = node.reshape(x, down, across, n // (down * across), channels, h, w)
    whole = node.add("Transpose", class_offset, perm=(2, 3, 4, 0, 5, 1))
    y = node.reshape(whole, n // (down * across), channels, h * down, w * across)
    return node.slice(y, crops[:2], [h * down - crops[2], w * across - crops[3]], [2, 3]) if any(crops) else y


def affine_grid(node: NodeContext, theta: Value, size: tuple[int, int], *, corners: bool = True) -> Value:
    """[N, h, w, 2]: the positions (x, y) in -1 .. 1 transformed by the matrices ``theta`` [N, 6]."""
    if not all(0 < n < 1 << 14 for n in size):
        raise RefusedError(f"a grid of {list(size)} is impossible")
    rows, columns = (_line(n, corners) for n in size)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    positions = np.stack([x.ravel(), y.ravel(), np.ones(x.size)]).astype(np.float32)
    moved = node.add("MatMul", node.reshape(theta, -1, 2, 3), positions)
    return node.reshape(node.add("Transpose", moved, perm=(0, 2, 1)), -1, *size, 2)


def _line(n: int, corners: bool) -> np.ndarray:
    """Coordinates in -1 .. 1 of n pixels: their centres, or with corners aligned."""
    if corners:
        return np.linspace(-1, 1, n)
    return np.asarray((2 * np.arange(n) + 1) / n - 1)


def sampled(node: NodeContext, x: Value, grid: Value, mode: str, padding: str, *, corners: bool) -> Value:
    """ONNX's GridSample on a grid [N, h, w, 2] of coordinates in -1 .. 1; linear, nearest or cubic."""
    options = {"mode": mode, "padding_mode": padding, "align_corners": int(corners)}
    return decomposed(node.builder, "GridSample", [x, grid], 1, **options)[0]


def region_head(
    node: NodeContext, x: Value, boxes: int, classes: int, coords: int = 4, *, softmax: bool = True
) -> Value:
    """YOLO v2's head: logistic centre and objectness, softmax (or logistic) classes; sizes stay raw."""
    dims = node.builder.dims(x)
    if len(dims) != 4 or dims[1] != boxes * (coords + 1 + classes) or coords < 3 or classes < 1:
        raise RefusedError(f"takes {list(dims)} for {boxes} boxes of {coords} numbers and {classes} classes")
    parts = node.reshape(x, dims[0], boxes, coords + 1 + classes, math.prod(dims[2:]))
    centre, size, sure, kinds = node.split(parts, 2, [2, coords - 2, 1, classes])
    kinds = node.add("Softmax", kinds, axis=2) if softmax else node.add("Sigmoid", kinds)
    joined = node.add("Concat", node.add("Sigmoid", centre), size, node.add("Sigmoid", sure), kinds, axis=2)
    return node.reshape(joined, *dims)


def mirrored(node: NodeContext, x: Value, widths: Sequence[tuple[int, int]]) -> Value:
    """Symmetric padding before and after each axis: mirrored with the edge included."""
    dims = node.builder.dims(x)
    for axis, ((before, after), n) in enumerate(zip(widths, dims, strict=True)):
        if not (0 <= before <= n and 0 <= after <= n):
            raise RefusedError(f"an axis of {n} cannot be mirrored by {before} and {after}")
        first = [node.slice(x, [before - 1], [-n - 1], [axis], [-1])] if before else []
        last = [node.slice(x, [n - 1], [n - 1 - after - (2 * n if after == n else 0)], [axis], [-1])] if after else []
        x = node.add("Concat", *first, x, *last, axis=axis) if before or after else x
    return x


def unfolded(
    node: NodeContext,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> Value:
    """[N, C * taps, positions]: the elements of every window (im2col), channel by channel, zeros outside.

    ``pads`` are top, left, bottom, right.
    """
    taps = math.prod(kernel)
    if not 0 < taps <= MAX_BINS or min(*strides, *dilations) < 1:
        raise RefusedError(f"windows of {list(kernel)} with strides {list(strides)} are not supported")
    if any(pads):
        x = node.add("Pad", x, node.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0)
    n, channels, *sizes = node.builder.dims(x)
    rows, columns = (
        (m - (k - 1) * d - 1) // s + 1 for m, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    )
    parts = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            first = [i * dilations[0], j * dilations[1]]
            last = [first[0] + (rows - 1) * strides[0] + 1, first[1] + (columns - 1) * strides[1] + 1]
            part = node.slice(x, first, last, [2, 3], strides)
            parts.append(node.reshape(part, n, channels, 1, rows * columns))
    return node.reshape(node.add("Concat", *parts, axis=2), n, channels * taps, rows * columns)


def deformed(node: NodeContext, inputs: Sequence[Value | None], window: dict[str, object], offset_group: int) -> Value:
    """Deformable convolution: x, weights, offsets (down, across), bias, factors.

    ``window`` has ONNX's strides, pads, dilations and group.
    """
    return decomposed(node.builder, "DeformConv", inputs, 1, **window, offset_group=offset_group)[0]


def nms_by_class(
    node: NodeContext, boxes: Value, scores: Value, classes: Value | None, overlap: float
) -> tuple[Value, Value]:
    """NMS class by class: indices i64 [n] of the boxes (corners [n, 4]) that stay, and their count.

    ``scores`` are [n], -inf for boxes that are no candidates, ``classes`` f32 [n]; None is one class for all.  Boxes of
    different classes are offset by more than the extent of all boxes, so that they cannot overlap.
    """
    count = node.builder.dims(boxes)[0]
    if classes is not None:
        low, high = (node.add(kind, boxes, keepdims=0) for kind in ("ReduceMin", "ReduceMax"))
        span = node.add("Max", node.add("Sub", high, low), 1e-12)
        placed = node.add("Div", node.add("Sub", boxes, low), span)
        boxes = node.add("Add", placed, node.reshape(node.add("Mul", classes, 2.0), count, 1))
    rows, kept_count = node.builder.adds(
        "NonMaxSuppression",
        2,
        node.reshape(boxes, 1, count, 4),
        node.reshape(scores, 1, 1, count),
        node.ints(count),
        node.constant(np.array([overlap], np.float32), "floats"),
        node.constant(np.array([np.finfo(np.float32).min], np.float32), "floats"),
    )
    return node.reshape(node.slice(rows, [2], [3], [1]), count), kept_count
