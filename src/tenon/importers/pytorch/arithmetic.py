"""ATen's arithmetic: element by element, comparisons, reductions, and what makes constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions import layers as layer_decompose
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, Operand
from tenon.importers.pytorch.context import TYPES, Context
from tenon.ir.graph import Value


# ------------------------------------------------------------------------------- element by element
def binary(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        a, b, factor = c.operand("self"), c.operand("other"), c.get("alpha", 1)
        return c.add(type, a, b if factor == 1 else c.add("Mul", b, c.full(factor)))

    return made


def logical(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, *(_truth(c, c.arguments.get(name)) for name in ("self", "other")))


def logical_not(c: Context) -> Value:
    return c.add("Not", _truth(c, c.x))


def _truth(c: Context, given: Any) -> Value:
    value = given if isinstance(given, Value) else c.builder.constant(np.array(given))
    return c.cast(value, np.dtype(bool))


def bitwise(type: str, of_truth: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        operands = [c.operand("self"), *([c.operand("other")] if "other" in c.arguments else [])]
        return c.add(of_truth if c.kind == "bool" else type, *operands)

    return made


def reverse_subtraction(c: Context) -> Value:
    b, factor = c.operand("self"), c.get("alpha", 1)
    return c.add("Sub", c.operand("other"), b if factor == 1 else c.add("Mul", b, c.full(factor)))


def division(c: Context) -> Value:
    a, b, mode = c.operand("self"), c.operand("other"), c.get("rounding_mode")
    if c.name == "floor_divide":
        mode = "floor"
    if mode == "floor" and c.numpy.kind in "iu":
        a = c.add("Sub", a, c.add("Mod", a, b, fmod=0))
    y = c.add("Div", a, b)
    if mode is None or c.numpy.kind in "iu":
        return y
    return c.add("Floor", y) if mode == "floor" else layer_decompose.truncated(c, y)


def remainder(c: Context) -> Value:
    """With the divisor's sign; ONNX's Mod has it for integers."""
    a, b = c.operand("self"), c.operand("other")
    if c.numpy.kind in "iu":
        return c.add("Mod", a, b, fmod=0)
    return layer_decompose.remainder(c, a, b)


def power(c: Context) -> Value:
    base, exponent = c.arguments.get("self"), c.arguments.get("exponent")
    if exponent == 2 and isinstance(base, Value):
        return c.add("Mul", c.cast(base), c.cast(base))
    return c.add("Pow", c.operand("self"), c.operand("exponent"))


def atan2(c: Context) -> Value:
    """The angle of the quotient, half a turn on where x < 0."""
    y, x = c.operand("self"), c.operand("other")
    zero = c.full(0)
    angle = c.add("Atan", c.add("Div", y, x))
    turn = c.add("Where", c.add("Less", y, zero), c.full(-math.pi), c.full(math.pi))
    turned = c.add("Where", c.add("Less", x, zero), c.add("Add", angle, turn), angle)
    nowhere = c.add("And", c.add("Equal", x, zero), c.add("Equal", y, zero))
    return c.add("Where", nowhere, zero, turned)


def logarithm(base: float) -> Callable[[Context], Value]:
    return lambda c: c.add("Mul", c.add("Log", c.cast(c.x)), c.full(1 / math.log(base)))


def log1p(c: Context) -> Value:
    """2 atanh(x / (2 + x)) near 0, where 1 + x would lose x's digits."""
    x = c.cast(c.x)
    near = c.add("Mul", c.add("Atanh", c.add("Div", x, c.add("Add", x, c.full(2)))), c.full(2))
    far = c.add("Log", c.add("Add", x, c.full(1)))
    return c.add("Where", c.add("Less", c.add("Abs", x), c.full(0.5)), near, far)


def expm1(c: Context) -> Value:
    """2 sinh(x / 2) exp(x / 2) near 0, where exp(x) - 1 would lose x's digits."""
    x = c.cast(c.x)
    half = c.add("Mul", x, c.full(0.5))
    near = c.add("Mul", c.add("Mul", c.add("Sinh", half), c.add("Exp", half)), c.full(2))
    far = c.add("Sub", c.add("Exp", x), c.full(1))
    return c.add("Where", c.add("Less", c.add("Abs", x), c.full(1)), near, far)


def power_of_two(c: Context) -> Value:
    return c.add("Exp", c.add("Mul", c.cast(c.x), c.full(math.log(2))))


def hypotenuse(c: Context) -> Value:
    return c.add("Sqrt", c.add("Add", *(c.add("Mul", v, v) for v in (c.operand("self"), c.operand("other")))))


def rounded(c: Context) -> Value:
    if c.numpy.kind in "iu":
        return c.x
    places = c.integer("decimals")
    if not places:
        return c.add("Round", c.x)
    factor = c.full(10.0 ** abs(places))
    there, back = ("Mul", "Div") if places > 0 else ("Div", "Mul")
    return c.add(back, c.add("Round", c.add(there, c.x, factor)), factor)


def whole(type: str) -> Callable[[Context], Value]:
    """Floor and its like, which leave integers as they are."""
    return lambda c: (
        c.x if c.numpy.kind in "iu" else layer_decompose.truncated(c, c.x) if not type else c.add(type, c.x)
    )


def softplus(c: Context) -> Value:
    """log(1 + exp(beta x)) / beta; beyond a threshold x itself, which 20 makes no difference to."""
    beta, threshold = c.get("beta", 1), c.number("threshold", 20)
    scaled = c.x if beta == 1 else c.add("Mul", c.x, c.full(beta))
    y = c.add("Softplus", scaled)
    y = y if beta == 1 else c.add("Div", y, c.full(beta))
    return y if threshold >= 20 else c.add("Where", c.add("Greater", scaled, c.full(threshold)), c.x, y)


def prelu(c: Context) -> Value:
    """One slope, or one per channel."""
    slope = c.reshape(c.get("weight"), -1)
    if not c.dims:
        return c.add("Where", c.add("Less", c.x, c.full(0)), c.add("Mul", c.x, c.add("Squeeze", slope)), c.x)
    return c.add("PRelu", c.x, c.channels(slope, c.x) if c.builder.dims(slope)[0] > 1 else slope)


def clamp(c: Context) -> Value:
    low, high = (c.get(a, c.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
    if c.name == "hardtanh":
        low, high = c.get("min_val", -1), c.get("max_val", 1)
    x = c.cast(c.x)
    if not isinstance(low, Value) and not isinstance(high, Value):
        bounds: list[Operand] = [None if v is None else c.full(v) for v in (low, high)]
        return c.add("Clip", x, *bounds)
    for type, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            x = c.add(type, x, c.cast(bound) if isinstance(bound, Value) else c.full(bound))
    return x


# -------------------------------------------------------------------------------------- comparisons
def compare(type: str, negated: bool = False) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        y = c.add(type, *c.pair())
        return c.add("Not", y) if negated else y

    return made


def where(c: Context) -> Value:
    return c.add("Where", c.get("condition"), c.operand("self"), c.operand("other"))


def masked_fill(c: Context) -> Value:
    return c.add("Where", c.get("mask"), c.operand("value"), c.x)


# --------------------------------------------------------------------------------------- reductions
def reduce(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        if not c.dims:
            return c.cast(c.x)
        return c.add(type, c.cast(c.x), c.ints(*c.axes()), keepdims=int(c.flag("keepdim")))

    return made


def extreme(type: str, place: str) -> Callable[[Context], Made]:
    """The extreme of two tensors, of all elements, or of an axis, with its place."""

    def made(c: Context) -> Made:
        if "other" in c.arguments:
            return binary(type.removeprefix("Reduce"))(c)
        if not c.dims:
            return [c.x, c.builder.constant(np.array(0, np.int64))] if "dim" in c.arguments else c.x
        if "dim" not in c.arguments:
            return c.add(type, c.x, c.ints(*range(len(c.dims))), keepdims=0)
        keep, dim = int(c.flag("keepdim")), c.dim()
        values = c.add(type, c.x, c.ints(dim), keepdims=keep)
        return [values, c.add(place, c.x, axis=dim, keepdims=keep)] if 1 in c.read else [values]

    return made


def any_of(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        truth = c.add("Cast", _truth(c, c.x), to="i32")
        if c.dims:
            truth = c.add(type, truth, c.ints(*c.axes()), keepdims=int(c.flag("keepdim")))
        return c.add("Cast", truth, to="bool")

    return made


def variance(c: Context) -> Value:
    return _moments(c)[0]


def variance_and_mean(c: Context) -> Made:
    return _moments(c)


def _moments(c: Context) -> Sequence[Value]:
    axes = c.axes()
    count = math.prod(c.dims[a] for a in axes)
    keep = int(c.flag("keepdim"))
    mean = c.add("ReduceMean", c.x, c.ints(*axes), keepdims=1)
    gap = c.add("Sub", c.x, mean)
    total = c.add("ReduceSum", c.add("Mul", gap, gap), c.ints(*axes), keepdims=keep)
    spare = c.number("correction", int(c.flag("unbiased", True)))
    found = c.add("Mul", total, c.full(1 / max(1e-30, count - spare)))
    return [found, mean if keep else c.add("Squeeze", mean, c.ints(*axes))]


def vector_norm(c: Context) -> Value:
    order, axes, keep = c.number("ord", 2), c.ints(*c.axes()), int(c.flag("keepdim"))
    x = c.cast(c.x)
    if order in (1, 2):
        return c.add("ReduceL1" if order == 1 else "ReduceL2", x, axes, keepdims=keep)
    if math.isinf(order):
        return c.add("ReduceMax" if order > 0 else "ReduceMin", c.add("Abs", x), axes, keepdims=keep)
    if not order:
        return c.add("ReduceSum", c.cast(c.add("Not", c.add("Equal", x, c.full(0)))), axes, keepdims=keep)
    total = c.add("ReduceSum", c.add("Pow", c.add("Abs", x), c.full(order)), axes, keepdims=keep)
    return c.add("Pow", total, c.full(1 / order))


def distances(c: Context) -> Value:
    """Of all pairs of rows of two matrices."""
    first, second, order = c.get("x1"), c.get("x2"), c.number("p", 2)
    gap = c.add("Sub", c.add("Unsqueeze", first, c.ints(-2)), c.add("Unsqueeze", second, c.ints(-3)))
    if order not in (1, 2):
        raise RefusedError(f"distances with the exponent {order} are not supported")
    return c.add("ReduceL1" if order == 1 else "ReduceL2", gap, c.ints(-1), keepdims=0)


def softmax(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        if not c.dims:
            return c.builder.constant(c.full(int(type == "Softmax")))
        return c.add(type, c.cast(c.x), axis=c.dim())

    return made


def arg(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        if c.get("dim") is None:
            return c.reshape(c.add(type, c.reshape(c.x, -1), axis=0, keepdims=0), *c.shape)
        if not c.dims:
            return c.builder.constant(np.array(0, np.int64))
        return c.add(type, c.x, axis=c.dim(), keepdims=int(c.flag("keepdim")))

    return made


def running(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.cast(c.x), np.array(c.dim(), np.int64)) if c.dims else c.cast(c.x)


def ranked(c: Context) -> Made:
    """The k-th smallest along an axis and its place; the median is the lower one of two."""
    if not c.dims:
        return [c.x, c.builder.constant(np.array(0, np.int64))]
    whole = c.name == "median" and "dim" not in c.arguments
    x, dim = (c.reshape(c.x, -1), 0) if whole else (c.x, c.dim("dim", -1))
    size = c.builder.dims(x)[dim]
    k = (size + 1) // 2 if c.name == "median" else c.integer("k", 1)
    found = c.builder.adds("TopK", 2, x, c.ints(k), axis=dim, largest=0, sorted=1)
    last = [c.slice(y, [k - 1], [k], [dim]) for y in found]
    last = last if c.flag("keepdim") else [c.add("Squeeze", y, c.ints(dim)) for y in last]
    return last[0] if whole else last


def sort(c: Context) -> Made:
    if not c.dims:
        return [c.x, c.builder.constant(np.array(0, np.int64))]
    dim, count = c.dim("dim", -1), c.get("k")
    largest = c.flag("descending") if count is None else c.flag("largest", True)
    count = c.dims[dim] if count is None else int(count)
    return c.builder.adds("TopK", 2, c.x, c.ints(count), axis=dim, largest=int(largest), sorted=1)


# ---------------------------------------------------------------------------------------- constants
def filled(c: Context) -> Value:
    number = {"zeros": 0, "ones": 1, "empty": 0}.get(c.name.removeprefix("new_").removesuffix("_like"))
    number = c.get("fill_value", c.get("s", c.get("value", 0))) if number is None else number
    if isinstance(number, Value):
        return c.add("Expand", c.cast(number), c.ints(*c.shape))
    return c.builder.constant(np.broadcast_to(c.full(number), c.shape), "filled")


def arange(c: Context) -> Value:
    start, end, step = c.get("start", 0), c.get("end"), c.get("step", 1)
    return c.builder.constant(np.arange(start, end, step).astype(c.numpy), "range")


def eye(c: Context) -> Value:
    return c.builder.constant(np.eye(*c.shape, dtype=c.numpy), "eye")


# ------------------------------------------------------------------------------------- quantisation
def quantize(c: Context) -> Value:
    """torch.ao's: the integers may be held to fewer than their type has."""
    y = c.add("QuantizeLinear", c.x, *_grid(c, c.numpy), to=TYPES[c.kind])
    low, high, held = c.integer("quant_min"), c.integer("quant_max"), np.iinfo(c.numpy)
    return y if (low, high) == (held.min, held.max) else c.add("Clip", y, c.full(low), c.full(high))


def dequantize(c: Context) -> Value:
    return c.add("DequantizeLinear", c.x, *_grid(c, c.builder.type(c.x).dtype.numpy), to=TYPES[c.kind])


def _grid(c: Context, integers: np.dtype[Any]) -> tuple[Operand, Operand]:
    """Scale, and zero point in the type of the integers; for all, or for each slice of an axis."""
    each = "channel" in c.name
    given = (c.get("scales"), c.get("zero_points", 0)) if each else (c.get("scale"), c.get("zero_point", 0))
    scale, zero = (
        c.cast(v, like) if isinstance(v, Value) else np.array(v, like)
        for v, like in zip(given, (np.dtype(np.float32), integers), strict=True)
    )
    return (c.channels(scale, c.x, c.dim("axis")), c.channels(zero, c.x, c.dim("axis"))) if each else (scale, zero)
