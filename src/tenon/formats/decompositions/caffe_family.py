"""Layers of Caffe that ncnn, Tengine and ports of Darknet adopted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.network.graph.graph import Value

UNARY: dict[int, tuple[str, ...]] = {
    0: ("Abs",),
    1: ("Neg",),
    2: ("Floor",),
    3: ("Ceil",),
    5: ("Sqrt",),
    6: ("Sqrt", "Reciprocal"),
    7: ("Exp",),
    8: ("Log",),
    9: ("Sin",),
    10: ("Cos",),
    11: ("Tan",),
    12: ("Asin",),
    13: ("Acos",),
    14: ("Atan",),
    15: ("Reciprocal",),
    16: ("Tanh",),
}
"""Unary functions by ncnn's and Tengine's codes; 4 is the square."""


def unary(node: NodeContext, x: Value, kind: int, more: dict[int, tuple[str, ...]] | None = None) -> Value:
    """Raises RefusedError for a kind that is neither in ``UNARY`` nor in ``more``."""
    types = {**UNARY, **(more or {})}
    if kind == 4:
        return node.square(x)
    if kind not in types:
        raise RefusedError(f"the function of type {kind} is not supported")
    return node.chain(x, *types[kind])


def rectified(node: NodeContext, x: Value, slope: float) -> Value:
    """A ReLU, leaky unless the slope is 0."""
    return node.add("LeakyRelu", x, alpha=slope) if slope else node.add("Relu", x)


def exceeds(node: NodeContext, x: Value, threshold: float) -> Value:
    """1.0 where an element is above the threshold, else 0.0."""
    return node.add("Cast", node.add("Greater", x, threshold), to="f32")


def affine(node: NodeContext, x: Value, scale: float, shift: float) -> Value:
    y = x if scale == 1 else node.add("Mul", x, scale)
    return y if shift == 0 else node.add("Add", y, shift)


def power(node: NodeContext, x: Value, exponent: float, scale: float, shift: float) -> Value:
    """(scale x + shift) ^ exponent."""
    y = affine(node, x, scale, shift)
    return y if exponent == 1 else node.add("Pow", y, exponent)


def exponential(node: NodeContext, x: Value, base: float, scale: float, shift: float) -> Value:
    """base ^ (scale x + shift); the base -1 is e."""
    rate = _log_of(base)
    return node.add("Exp", affine(node, x, scale * rate, shift * rate))


def logarithm(node: NodeContext, x: Value, base: float, scale: float, shift: float) -> Value:
    """The logarithm of scale x + shift to a base; -1 is e."""
    return affine(node, node.add("Log", affine(node, x, scale, shift)), 1 / _log_of(base), 0.0)


def _log_of(base: float) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise RefusedError(f"the base {base} is impossible")
    return 1.0 if base == -1 else math.log(base)


def eltwise(node: NodeContext, type: str, values: Sequence[Value], coefficients: Sequence[float] = ()) -> Value:
    """The values combined by an operator; the terms of a sum may have coefficients.  Raises RefusedError."""
    if type == "Add" and coefficients:
        if len(coefficients) != len(values):
            raise RefusedError(f"it has {len(coefficients)} coefficients for {len(values)} inputs")
        values = [affine(node, value, factor, 0.0) for value, factor in zip(values, coefficients, strict=True)]
    return node.fold(type, values)


def mean_variance(node: NodeContext, x: Value, *, across_channels: bool, eps: float | None) -> Value:
    """Every plane (or image) minus its mean and over its standard deviation plus ``eps``; None leaves that out."""
    axes = node.ints(*range(1 if across_channels else 2, node.builder.rank(x)))
    centred = node.add("Sub", x, node.add("ReduceMean", x, axes))
    if eps is None:
        return centred
    deviation = node.add("Sqrt", node.add("ReduceMean", node.square(centred), axes))
    return node.add("Div", centred, node.add("Add", deviation, eps))


def l2_normalised(node: NodeContext, x: Value, axes: Sequence[int], eps: float) -> Value:
    """L2-normalised: divided by the root of the sum of squares plus ``eps``."""
    squares = node.add("ReduceSumSquare", x, node.ints(*axes))
    return node.add("Div", x, node.add("Sqrt", node.add("Add", squares, eps)))


def local_response(
    node: NodeContext, x: Value, size: int, alpha: float, beta: float, k: float, *, within: bool
) -> Value:
    """Over (k + alpha mean of squares) ^ beta of the ``size`` channels around, or of the square of positions around
    ``within`` a channel, zeros beyond its edge."""
    if not within:
        return node.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)
    low, high = size // 2, (size - 1) // 2
    mean = node.add(
        "AveragePool",
        node.square(x),
        kernel_shape=(size, size),
        strides=(1, 1),
        pads=(low, low, high, high),
        count_include_pad=1,
    )
    return node.add("Div", x, node.add("Pow", affine(node, mean, alpha, k), beta))


def cut(node: NodeContext, x: Value, axis: int, points: Sequence[int], count: int) -> Sequence[Value]:
    """The ``count`` parts between points on an axis; without points they are equal.  Raises RefusedError."""
    if not points:
        return node.equal_parts(x, axis, count)
    extent = node.builder.dims(x)[axis]
    sizes = [b - a for a, b in zip([0, *points], [*points, extent], strict=True)]
    if len(sizes) != count or min(sizes) < 1:
        raise RefusedError(f"an axis of {extent} is cut at {list(points)} to make {count} parts")
    return node.split(x, axis, sizes)


def reorg(node: NodeContext, x: Value, stride: int, *, reverse: bool = False) -> Value:
    """Darknet's: blocks of pixels become channels (space to depth), or with ``reverse`` channels become blocks.

    Darknet takes the buffer [C, H, W] for one of [C / s², H s, W s], gathers blocks of that, and calls the result
    [C s², H / s, W / s]; the weights behind it were trained with that order.
    """
    n, c, h, w = node.image(x)
    if stride < 1 or c % (stride * stride) or (not reverse and (h % stride or w % stride)):
        raise RefusedError(f"{c} channels of {h}x{w} pixels cannot be rearranged by {stride}")
    inner = (n, c // (stride * stride), h * stride, w * stride)
    if reverse:
        return node.add("DepthToSpace", x, blocksize=stride)
    result = node.add("SpaceToDepth", node.reshape(x, *inner), blocksize=stride)
    return node.reshape(result, n, c * stride * stride, h // stride, w // stride)
