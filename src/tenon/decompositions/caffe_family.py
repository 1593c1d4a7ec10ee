"""Layers that Caffe brought up and other formats took over: what ncnn, Tengine and Darknet's ports mean by them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Emitter
from tenon.ir.graph import Value

UNARY: dict[int, tuple[str, ...]] = {
    0: ("Abs",), 1: ("Neg",), 2: ("Floor",), 3: ("Ceil",), 5: ("Sqrt",), 6: ("Sqrt", "Reciprocal"), 7: ("Exp",),
    8: ("Log",), 9: ("Sin",), 10: ("Cos",), 11: ("Tan",), 12: ("Asin",), 13: ("Acos",), 14: ("Atan",),
    15: ("Reciprocal",), 16: ("Tanh",),
}  # fmt: skip
"""Functions of one number, as ncnn and Tengine count them; 4 is the square."""


def unary(e: Emitter, x: Value, kind: int, more: dict[int, tuple[str, ...]] | None = None) -> Value:
    """Raises RefusedError for a kind that is neither in ``UNARY`` nor in ``more``."""
    types = {**UNARY, **(more or {})}
    if kind == 4:
        return e.square(x)
    if kind not in types:
        raise RefusedError(f"the function of type {kind} is not supported")
    return e.chain(x, *types[kind])


def rectified(e: Emitter, x: Value, slope: float) -> Value:
    """A ReLU, leaky unless the slope is 0."""
    return e.add("LeakyRelu", x, alpha=slope) if slope else e.add("Relu", x)


def exceeds(e: Emitter, x: Value, threshold: float) -> Value:
    """1.0 where an element is above the threshold, else 0.0."""
    return e.add("Cast", e.add("Greater", x, threshold), to="f32")


def affine(e: Emitter, x: Value, scale: float, shift: float) -> Value:
    y = x if scale == 1 else e.add("Mul", x, scale)
    return y if shift == 0 else e.add("Add", y, shift)


def power(e: Emitter, x: Value, exponent: float, scale: float, shift: float) -> Value:
    """(scale x + shift) ^ exponent."""
    y = affine(e, x, scale, shift)
    return y if exponent == 1 else e.add("Pow", y, exponent)


def exponential(e: Emitter, x: Value, base: float, scale: float, shift: float) -> Value:
    """base ^ (scale x + shift); the base -1 is e."""
    rate = _log_of(base)
    return e.add("Exp", affine(e, x, scale * rate, shift * rate))


def logarithm(e: Emitter, x: Value, base: float, scale: float, shift: float) -> Value:
    """The logarithm of scale x + shift to a base; -1 is e."""
    return affine(e, e.add("Log", affine(e, x, scale, shift)), 1 / _log_of(base), 0.0)


def _log_of(base: float) -> float:
    if base != -1 and (base <= 0 or base == 1):
        raise RefusedError(f"the base {base} is impossible")
    return 1.0 if base == -1 else math.log(base)


def eltwise(e: Emitter, type: str, values: Sequence[Value], coefficients: Sequence[float] = ()) -> Value:
    """The values combined by an operator; of a sum each may have a coefficient.  Raises RefusedError."""
    if type == "Add" and coefficients:
        if len(coefficients) != len(values):
            raise RefusedError(f"it has {len(coefficients)} coefficients for {len(values)} inputs")
        values = [affine(e, value, factor, 0.0) for value, factor in zip(values, coefficients, strict=True)]
    return e.fold(type, values)


def mean_variance(e: Emitter, x: Value, *, across_channels: bool, eps: float | None) -> Value:
    """Every plane (or picture) less its mean and over its standard deviation plus ``eps``; None leaves that out."""
    axes = e.ints(*range(1 if across_channels else 2, len(e.builder.dims(x))))
    centred = e.add("Sub", x, e.add("ReduceMean", x, axes))
    if eps is None:
        return centred
    deviation = e.add("Sqrt", e.add("ReduceMean", e.square(centred), axes))
    return e.add("Div", centred, e.add("Add", deviation, eps))


def of_length_one(e: Emitter, x: Value, axes: Sequence[int], eps: float) -> Value:
    """Divided by the root of the sum of squares, which ``eps`` is added to."""
    squares = e.add("ReduceSumSquare", x, e.ints(*axes))
    return e.add("Div", x, e.add("Sqrt", e.add("Add", squares, eps)))


def local_response(e: Emitter, x: Value, size: int, alpha: float, beta: float, k: float, *, within: bool) -> Value:
    """Over (k + alpha mean of squares) ^ beta of the ``size`` channels around, or of the square of places around
    ``within`` a channel, zeros beyond its edge."""
    if not within:
        return e.add("LRN", x, size=size, alpha=alpha, beta=beta, bias=k)
    low, high = size // 2, (size - 1) // 2
    mean = e.add(
        "AveragePool",
        e.square(x),
        kernel_shape=(size, size),
        strides=(1, 1),
        pads=(low, low, high, high),
        count_include_pad=1,
    )
    return e.add("Div", x, e.add("Pow", affine(e, mean, alpha, k), beta))


def cut(e: Emitter, x: Value, axis: int, points: Sequence[int], count: int) -> Sequence[Value]:
    """The ``count`` parts between points on an axis; without points they are equal.  Raises RefusedError."""
    if not points:
        return e.equal_parts(x, axis, count)
    extent = e.builder.dims(x)[axis]
    sizes = [b - a for a, b in zip([0, *points], [*points, extent], strict=True)]
    if len(sizes) != count or min(sizes) < 1:
        raise RefusedError(f"an axis of {extent} is cut at {list(points)} to make {count} parts")
    return e.split(x, axis, sizes)


def reorg(e: Emitter, x: Value, stride: int, *, reverse: bool = False) -> Value:
    """Darknet's: squares of pixels become channels, or with ``reverse`` channels squares.

    Darknet takes the buffer [C, H, W] for one of [C / s², H s, W s], gathers squares of that, and calls the result
    [C s², H / s, W / s]; the weights behind it were trained with that order.
    """
    n, c, h, w = e.image(x)
    if stride < 1 or c % (stride * stride) or (not reverse and (h % stride or w % stride)):
        raise RefusedError(f"{c} channels of {h}x{w} pixels cannot be rearranged by {stride}")
    inner = (n, c // (stride * stride), h * stride, w * stride)
    if reverse:
        return e.add("DepthToSpace", x, blocksize=stride)
    made = e.add("SpaceToDepth", e.reshape(x, *inner), blocksize=stride)
    return e.reshape(made, n, c * stride * stride, h // stride, w // stride)
