"""Layers that several formats have and that no operator of ONNX stands for, in operators of ONNX.

Images are [N, C, H, W].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.decompositions.onnx_operator import spelled
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Emitter, Operand
from tenon.ir.graph import Value

MOST_BINS = 1 << 10
"""Bins of an adaptive pooling along one axis."""


def remainder(e: Emitter, a: Operand, b: Operand) -> Value:
    """Of real numbers, with the divisor's sign."""
    return e.add("Sub", a, e.add("Mul", e.add("Floor", e.add("Div", a, b)), b))


def truncated(e: Emitter, x: Value) -> Value:
    """Real numbers without what stands behind the point."""
    return e.add("Mul", e.add("Sign", x), e.add("Floor", e.add("Abs", x)))


def finite(e: Emitter, x: Value) -> Value:
    """Whether elements are numbers, and not infinite."""
    return e.add("Not", e.add("Or", e.add("IsNaN", x), e.add("IsInf", x)))


def adaptive_pool(e: Emitter, x: Value, sizes: Sequence[int], *, average: bool) -> Value:
    """Pooled to these sizes: bin i of k on an axis of n is floor(i n / k) .. ceil((i + 1) n / k), as PyTorch has it."""
    dims = e.builder.dims(x)[2:]
    if len(dims) != len(sizes) or not all(0 < k < MOST_BINS for k in sizes):
        raise RefusedError(f"{list(dims)} cannot be pooled to {list(sizes)}")
    if all(k == 1 for k in sizes):
        return e.add("GlobalAveragePool" if average else "GlobalMaxPool", x)
    if not any(n % k for n, k in zip(dims, sizes, strict=True)):
        window = [n // k for n, k in zip(dims, sizes, strict=True)]
        return e.add("AveragePool" if average else "MaxPool", x, kernel_shape=window, strides=window)
    for i, k in enumerate(sizes):
        x = _bins(e, x, 2 + i, k, "ReduceMean" if average else "ReduceMax")
    return x


def _bins(e: Emitter, x: Value, axis: int, count: int, reduce: str) -> Value:
    n = e.builder.dims(x)[axis]
    bounds = [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]
    if all(b - a == 1 and a == i for i, (a, b) in enumerate(bounds)):
        return x
    parts = [e.add(reduce, e.slice(x, [a], [b], [axis]), e.ints(axis), keepdims=1) for a, b in bounds]
    return e.add("Concat", *parts, axis=axis)


def group_norm(e: Emitter, x: Value, groups: int, gamma: Operand, beta: Operand, epsilon: float) -> Value:
    """Groups of channels made to mean 0 and variance 1, then scaled channel by channel where vectors are given."""
    n, channels, *rest = e.builder.dims(x)
    if groups < 1 or channels % groups:
        raise RefusedError(f"{channels} channels do not make {groups} groups")
    ones = np.ones(groups, np.float32)
    y = e.add("InstanceNormalization", e.reshape(x, n, groups, -1), ones, 0 * ones, epsilon=epsilon)
    y = e.reshape(y, n, channels, *rest)
    y = y if gamma is None else e.add("Mul", y, e.channels(gamma, y))
    return y if beta is None else e.add("Add", y, e.channels(beta, y))


def space_to_batch(e: Emitter, x: Value, block: tuple[int, int], pads: Sequence[int]) -> Value:
    """Positions modulo ``block`` move to the front of the batch; ``pads`` are top, left, bottom, right."""
    if any(pads):
        x = e.add("Pad", x, e.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0)
    (n, channels, h, w), (down, across) = e.builder.dims(x), block
    if min(block) < 1 or h % down or w % across:
        raise RefusedError(f"an image of {h}x{w} does not divide into blocks of {down}x{across}")
    apart = e.reshape(x, n, channels, h // down, down, w // across, across)
    moved = e.add("Transpose", apart, perm=(3, 5, 0, 1, 2, 4))
    return e.reshape(moved, down * across * n, channels, h // down, w // across)


def batch_to_space(e: Emitter, x: Value, block: tuple[int, int], crops: Sequence[int]) -> Value:
    """The inverse; ``crops`` are top, left, bottom, right."""
    (n, channels, h, w), (down, across) = e.builder.dims(x), block
    if min(block) < 1 or n % (down * across):
        raise RefusedError(f"a batch of {n} does not divide into blocks of {down}x{across}")
    apart = e.reshape(x, down, across, n // (down * across), channels, h, w)
    whole = e.add("Transpose", apart, perm=(2, 3, 4, 0, 5, 1))
    y = e.reshape(whole, n // (down * across), channels, h * down, w * across)
    return e.slice(y, crops[:2], [h * down - crops[2], w * across - crops[3]], [2, 3]) if any(crops) else y


def affine_grid(e: Emitter, theta: Value, size: tuple[int, int], *, corners: bool = True) -> Value:
    """[N, h, w, 2]: where the matrices ``theta`` [N, 6] send the places (x, y) of a picture of -1 .. 1."""
    if not all(0 < n < 1 << 14 for n in size):
        raise RefusedError(f"a grid of {list(size)} is impossible")
    rows, columns = (_line(n, corners) for n in size)
    y, x = np.meshgrid(rows, columns, indexing="ij")
    places = np.stack([x.ravel(), y.ravel(), np.ones(x.size)]).astype(np.float32)
    moved = e.add("MatMul", e.reshape(theta, -1, 2, 3), places)
    return e.reshape(e.add("Transpose", moved, perm=(0, 2, 1)), -1, *size, 2)


def _line(n: int, corners: bool) -> np.ndarray:
    """Places -1 .. 1 of n pixels: their centres, or the first and the last on the ends."""
    if corners:
        return np.linspace(-1, 1, n)
    return np.asarray((2 * np.arange(n) + 1) / n - 1)


def sampled(e: Emitter, x: Value, grid: Value, mode: str, padding: str, *, corners: bool) -> Value:
    """ONNX's GridSample on a grid [N, h, w, 2] of places -1 .. 1; linear, nearest or cubic."""
    options = {"mode": mode, "padding_mode": padding, "align_corners": int(corners)}
    return spelled(e.builder, "GridSample", [x, grid], 1, **options)[0]


def region_head(e: Emitter, x: Value, boxes: int, classes: int, coords: int = 4, *, softmax: bool = True) -> Value:
    """YOLO v2's head: logistic centre and objectness, softmax (or logistic) classes; sizes stay raw."""
    dims = e.builder.dims(x)
    if len(dims) != 4 or dims[1] != boxes * (coords + 1 + classes) or coords < 3 or classes < 1:
        raise RefusedError(f"takes {list(dims)} for {boxes} boxes of {coords} numbers and {classes} classes")
    parts = e.reshape(x, dims[0], boxes, coords + 1 + classes, math.prod(dims[2:]))
    centre, size, sure, kinds = e.split(parts, 2, [2, coords - 2, 1, classes])
    kinds = e.add("Softmax", kinds, axis=2) if softmax else e.add("Sigmoid", kinds)
    joined = e.add("Concat", e.add("Sigmoid", centre), size, e.add("Sigmoid", sure), kinds, axis=2)
    return e.reshape(joined, *dims)


def mirrored(e: Emitter, x: Value, widths: Sequence[tuple[int, int]]) -> Value:
    """Padded before and after each axis by what lies behind a mirror on the edge, the edge itself included."""
    dims = e.builder.dims(x)
    for axis, ((before, after), n) in enumerate(zip(widths, dims, strict=True)):
        if not (0 <= before <= n and 0 <= after <= n):
            raise RefusedError(f"an axis of {n} cannot be mirrored by {before} and {after}")
        first = [e.slice(x, [before - 1], [-n - 1], [axis], [-1])] if before else []
        last = [e.slice(x, [n - 1], [n - 1 - after - (2 * n if after == n else 0)], [axis], [-1])] if after else []
        x = e.add("Concat", *first, x, *last, axis=axis) if before or after else x
    return x


def unfolded(
    e: Emitter, x: Value, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Value:
    """[N, C * taps, places]: what every place of a window sees, channel by channel, zeros outside.

    ``pads`` are top, left, bottom, right.
    """
    taps = math.prod(kernel)
    if not 0 < taps <= MOST_BINS or min(*strides, *dilations) < 1:
        raise RefusedError(f"windows of {list(kernel)} with strides {list(strides)} are not supported")
    if any(pads):
        x = e.add("Pad", x, e.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), 0.0)
    n, channels, *sizes = e.builder.dims(x)
    rows, columns = (
        (m - (k - 1) * d - 1) // s + 1 for m, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    )
    parts = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            first = [i * dilations[0], j * dilations[1]]
            last = [first[0] + (rows - 1) * strides[0] + 1, first[1] + (columns - 1) * strides[1] + 1]
            part = e.slice(x, first, last, [2, 3], strides)
            parts.append(e.reshape(part, n, channels, 1, rows * columns))
    return e.reshape(e.add("Concat", *parts, axis=2), n, channels * taps, rows * columns)


def deformed(e: Emitter, inputs: Sequence[Value | None], window: dict[str, object], offset_group: int) -> Value:
    """A convolution whose windows' places move: x, weights, offsets (down, across), bias, factors.

    ``window`` has ONNX's strides, pads, dilations and group.
    """
    return spelled(e.builder, "DeformConv", inputs, 1, **window, offset_group=offset_group)[0]


def kept_of_each_class(
    e: Emitter, boxes: Value, scores: Value, classes: Value | None, overlap: float
) -> tuple[Value, Value]:
    """Numbers i64 [n] of the boxes (corners [n, 4]) that no better one of their class covers, and how many count.

    ``scores`` are [n], -inf for what is no candidate, ``classes`` f32 [n]; None lets all compete.  To keep classes
    apart, boxes are moved apart by two extents of all of them for each number.
    """
    count = e.builder.dims(boxes)[0]
    if classes is not None:
        low, high = (e.add(kind, boxes, keepdims=0) for kind in ("ReduceMin", "ReduceMax"))
        span = e.add("Max", e.add("Sub", high, low), 1e-12)
        placed = e.add("Div", e.add("Sub", boxes, low), span)
        boxes = e.add("Add", placed, e.reshape(e.add("Mul", classes, 2.0), count, 1))
    rows, found = e.builder.adds(
        "NonMaxSuppression",
        2,
        e.reshape(boxes, 1, count, 4),
        e.reshape(scores, 1, 1, count),
        e.ints(count),
        e.builder.floats(overlap),
        e.builder.floats(float(np.finfo(np.float32).min)),
    )
    return e.reshape(e.slice(rows, [2], [3], [1]), count), found
