"""ATen's arithmetic: element by element, comparisons, reductions, and what makes constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions import layers as layer_decompose
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Operand, Outputs
from tenon.formats.importers.pytorch.node import TYPES, PytorchNode
from tenon.network.graph.graph import Value


# ------------------------------------------------------------------------------- element by element
def binary(type: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        a, b, factor = node.operand("self"), node.operand("other"), node.get("alpha", 1)
        return node.add(type, a, b if factor == 1 else node.add("Mul", b, node.full(factor)))

    return import_node


def logical(type: str) -> Callable[[PytorchNode], Value]:
    return lambda node: node.add(type, *(_truth(node, node.attributes.get(name)) for name in ("self", "other")))


def logical_not(node: PytorchNode) -> Value:
    return node.add("Not", _truth(node, node.x))


def _truth(node: PytorchNode, given: Any) -> Value:
    value = given if isinstance(given, Value) else node.builder.constant(np.array(given))
    return node.cast(value, np.dtype(bool))


def bitwise(type: str, of_truth: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        operands = [node.operand("self"), *([node.operand("other")] if "other" in node.attributes else [])]
        return node.add(of_truth if node.kind == "bool" else type, *operands)

    return import_node


def reverse_subtraction(node: PytorchNode) -> Value:
    b, factor = node.operand("self"), node.get("alpha", 1)
    return node.add("Sub", node.operand("other"), b if factor == 1 else node.add("Mul", b, node.full(factor)))


def division(node: PytorchNode) -> Value:
    a, b, mode = node.operand("self"), node.operand("other"), node.get("rounding_mode")
    if node.name == "floor_divide":
        mode = "floor"
    if mode == "floor" and node.numpy.kind in "iu":
        a = node.add("Sub", a, node.add("Mod", a, b, fmod=0))
    y = node.add("Div", a, b)
    if mode is None or node.numpy.kind in "iu":
        return y
    return node.add("Floor", y) if mode == "floor" else layer_decompose.truncated(node, y)


def remainder(node: PytorchNode) -> Value:
    """With the divisor's sign; ONNX's Mod has it for integers."""
    a, b = node.operand("self"), node.operand("other")
    if node.numpy.kind in "iu":
        return node.add("Mod", a, b, fmod=0)
    return layer_decompose.remainder(node, a, b)


def power(node: PytorchNode) -> Value:
    base, exponent = node.attributes.get("self"), node.attributes.get("exponent")
    if exponent == 2 and isinstance(base, Value):
        return node.add("Mul", node.cast(base), node.cast(base))
    return node.add("Pow", node.operand("self"), node.operand("exponent"))


def atan2(node: PytorchNode) -> Value:
    """atan2 by the angle of the quotient, plus pi where x < 0."""
    y, x = node.operand("self"), node.operand("other")
    zero = node.full(0)
    angle = node.add("Atan", node.add("Div", y, x))
    half_turn = node.add("Where", node.add("Less", y, zero), node.full(-math.pi), node.full(math.pi))
    angle_of_quadrant = node.add("Where", node.add("Less", x, zero), node.add("Add", angle, half_turn), angle)
    nowhere = node.add("And", node.add("Equal", x, zero), node.add("Equal", y, zero))
    return node.add("Where", nowhere, zero, angle_of_quadrant)


def logarithm(base: float) -> Callable[[PytorchNode], Value]:
    return lambda node: node.add("Mul", node.add("Log", node.cast(node.x)), node.full(1 / math.log(base)))


def log1p(node: PytorchNode) -> Value:
    """2 atanh(x / (2 + x)) near 0, where 1 + x would lose x's digits."""
    x = node.cast(node.x)
    near = node.add("Mul", node.add("Atanh", node.add("Div", x, node.add("Add", x, node.full(2)))), node.full(2))
    far = node.add("Log", node.add("Add", x, node.full(1)))
    return node.add("Where", node.add("Less", node.add("Abs", x), node.full(0.5)), near, far)


def expm1(node: PytorchNode) -> Value:
    """2 sinh(x / 2) exp(x / 2) near 0, where exp(x) - 1 would lose x's digits."""
    x = node.cast(node.x)
    half = node.add("Mul", x, node.full(0.5))
    near = node.add("Mul", node.add("Mul", node.add("Sinh", half), node.add("Exp", half)), node.full(2))
    far = node.add("Sub", node.add("Exp", x), node.full(1))
    return node.add("Where", node.add("Less", node.add("Abs", x), node.full(1)), near, far)


def power_of_two(node: PytorchNode) -> Value:
    return node.add("Exp", node.add("Mul", node.cast(node.x), node.full(math.log(2))))


def hypotenuse(node: PytorchNode) -> Value:
    return node.add(
        "Sqrt", node.add("Add", *(node.add("Mul", v, v) for v in (node.operand("self"), node.operand("other"))))
    )


def rounded(node: PytorchNode) -> Value:
    if node.numpy.kind in "iu":
        return node.x
    indices = node.integer("decimals")
    if not indices:
        return node.add("Round", node.x)
    factor = node.full(10.0 ** abs(indices))
    there, back = ("Mul", "Div") if indices > 0 else ("Div", "Mul")
    return node.add(back, node.add("Round", node.add(there, node.x, factor)), factor)


def whole(type: str) -> Callable[[PytorchNode], Value]:
    """Floor, Ceil and the like, which leave integers unchanged."""
    return lambda node: (
        node.x
        if node.numpy.kind in "iu"
        else layer_decompose.truncated(node, node.x)
        if not type
        else node.add(type, node.x)
    )


def softplus(node: PytorchNode) -> Value:
    """log(1 + exp(beta x)) / beta; x itself above a threshold (at 20 they are equal in f32)."""
    beta, threshold = node.get("beta", 1), node.number("threshold", 20)
    scaled = node.x if beta == 1 else node.add("Mul", node.x, node.full(beta))
    y = node.add("Softplus", scaled)
    y = y if beta == 1 else node.add("Div", y, node.full(beta))
    return y if threshold >= 20 else node.add("Where", node.add("Greater", scaled, node.full(threshold)), node.x, y)


def prelu(node: PytorchNode) -> Value:
    """One slope, or one per channel."""
    slope = node.reshape(node.get("weight"), -1)
    if not node.dims:
        return node.add(
            "Where", node.add("Less", node.x, node.full(0)), node.add("Mul", node.x, node.add("Squeeze", slope)), node.x
        )
    return node.add("PRelu", node.x, node.channels(slope, node.x) if node.builder.dims(slope)[0] > 1 else slope)


def clamp(node: PytorchNode) -> Value:
    low, high = (node.get(a, node.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
    if node.name == "hardtanh":
        low, high = node.get("min_val", -1), node.get("max_val", 1)
    x = node.cast(node.x)
    if not isinstance(low, Value) and not isinstance(high, Value):
        bounds: list[Operand] = [None if v is None else node.full(v) for v in (low, high)]
        return node.add("Clip", x, *bounds)
    for type, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            x = node.add(type, x, node.cast(bound) if isinstance(bound, Value) else node.full(bound))
    return x


# -------------------------------------------------------------------------------------- comparisons
def compare(type: str, negated: bool = False) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        y = node.add(type, *node.pair())
        return node.add("Not", y) if negated else y

    return import_node


def where(node: PytorchNode) -> Value:
    return node.add("Where", node.get("condition"), node.operand("self"), node.operand("other"))


def masked_fill(node: PytorchNode) -> Value:
    return node.add("Where", node.get("mask"), node.operand("value"), node.x)


# --------------------------------------------------------------------------------------- reductions
def reduce(type: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        if not node.dims:
            return node.cast(node.x)
        return node.add(type, node.cast(node.x), node.ints(*node.axes()), keepdims=int(node.flag("keepdim")))

    return import_node


def extreme(type: str, index: str) -> Callable[[PytorchNode], Outputs]:
    """The extreme of two tensors, of all elements, or of an axis, with its index."""

    def import_node(node: PytorchNode) -> Outputs:
        if "other" in node.attributes:
            return binary(type.removeprefix("Reduce"))(node)
        if not node.dims:
            return [node.x, node.builder.constant(np.array(0, np.int64))] if "dim" in node.attributes else node.x
        if "dim" not in node.attributes:
            return node.add(type, node.x, node.ints(*range(node.x_rank)), keepdims=0)
        keep, dim = int(node.flag("keepdim")), node.dim()
        values = node.add(type, node.x, node.ints(dim), keepdims=keep)
        return [values, node.add(index, node.x, axis=dim, keepdims=keep)] if 1 in node.read else [values]

    return import_node


def any_of(type: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        truth = node.add("Cast", _truth(node, node.x), to="i32")
        if node.dims:
            truth = node.add(type, truth, node.ints(*node.axes()), keepdims=int(node.flag("keepdim")))
        return node.add("Cast", truth, to="bool")

    return import_node


def variance(node: PytorchNode) -> Value:
    return moments(node)[0]


def variance_and_mean(node: PytorchNode) -> Outputs:
    return moments(node)


def moments(node: PytorchNode) -> Sequence[Value]:
    axes = node.axes()
    count = math.prod(node.dims[a] for a in axes)
    keep = int(node.flag("keepdim"))
    mean = node.add("ReduceMean", node.x, node.ints(*axes), keepdims=1)
    gap = node.add("Sub", node.x, mean)
    total = node.add("ReduceSum", node.add("Mul", gap, gap), node.ints(*axes), keepdims=keep)
    spare = node.number("correction", int(node.flag("unbiased", True)))
    variance = node.add("Mul", total, node.full(1 / max(1e-30, count - spare)))
    return [variance, mean if keep else node.add("Squeeze", mean, node.ints(*axes))]


def vector_norm(node: PytorchNode) -> Value:
    order, axes, keep = node.number("ord", 2), node.ints(*node.axes()), int(node.flag("keepdim"))
    x = node.cast(node.x)
    if order in (1, 2):
        return node.add("ReduceL1" if order == 1 else "ReduceL2", x, axes, keepdims=keep)
    if math.isinf(order):
        return node.add("ReduceMax" if order > 0 else "ReduceMin", node.add("Abs", x), axes, keepdims=keep)
    if not order:
        return node.add(
            "ReduceSum", node.cast(node.add("Not", node.add("Equal", x, node.full(0)))), axes, keepdims=keep
        )
    total = node.add("ReduceSum", node.add("Pow", node.add("Abs", x), node.full(order)), axes, keepdims=keep)
    return node.add("Pow", total, node.full(1 / order))


def distances(node: PytorchNode) -> Value:
    """The distances of all pairs of rows of two matrices."""
    first, second, order = node.get("x1"), node.get("x2"), node.number("p", 2)
    gap = node.add("Sub", node.add("Unsqueeze", first, node.ints(-2)), node.add("Unsqueeze", second, node.ints(-3)))
    if order not in (1, 2):
        raise RefusedError(f"distances with the exponent {order} are not supported")
    return node.add("ReduceL1" if order == 1 else "ReduceL2", gap, node.ints(-1), keepdims=0)


def softmax(type: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        if not node.dims:
            return node.builder.constant(node.full(int(type == "Softmax")))
        return node.add(type, node.cast(node.x), axis=node.dim())

    return import_node


def arg(type: str) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        if node.get("dim") is None:
            return node.reshape(node.add(type, node.reshape(node.x, -1), axis=0, keepdims=0), *node.shape)
        if not node.dims:
            return node.builder.constant(np.array(0, np.int64))
        return node.add(type, node.x, axis=node.dim(), keepdims=int(node.flag("keepdim")))

    return import_node


def running(type: str) -> Callable[[PytorchNode], Value]:
    return lambda node: (
        node.add(type, node.cast(node.x), np.array(node.dim(), np.int64)) if node.dims else node.cast(node.x)
    )


def ranked(node: PytorchNode) -> Outputs:
    """The k-th smallest along an axis and its index; the median is the lower one of two."""
    if not node.dims:
        return [node.x, node.builder.constant(np.array(0, np.int64))]
    whole = node.name == "median" and "dim" not in node.attributes
    x, dim = (node.reshape(node.x, -1), 0) if whole else (node.x, node.dim("dim", -1))
    size = node.builder.dims(x)[dim]
    k = (size + 1) // 2 if node.name == "median" else node.integer("k", 1)
    smallest = node.builder.adds("TopK", 2, x, node.ints(k), axis=dim, largest=0, sorted=1)
    last = [node.slice(y, [k - 1], [k], [dim]) for y in smallest]
    last = last if node.flag("keepdim") else [node.add("Squeeze", y, node.ints(dim)) for y in last]
    return last[0] if whole else last


def sort(node: PytorchNode) -> Outputs:
    if not node.dims:
        return [node.x, node.builder.constant(np.array(0, np.int64))]
    dim, count = node.dim("dim", -1), node.get("k")
    largest = node.flag("descending") if count is None else node.flag("largest", True)
    count = node.dims[dim] if count is None else int(count)
    return node.builder.adds("TopK", 2, node.x, node.ints(count), axis=dim, largest=int(largest), sorted=1)


# ---------------------------------------------------------------------------------------- constants
def filled(node: PytorchNode) -> Value:
    number = {"zeros": 0, "ones": 1, "empty": 0}.get(node.name.removeprefix("new_").removesuffix("_like"))
    number = node.get("fill_value", node.get("s", node.get("value", 0))) if number is None else number
    if isinstance(number, Value):
        return node.add("Expand", node.cast(number), node.ints(*node.shape))
    return node.builder.constant(np.broadcast_to(node.full(number), node.shape), "filled")


def arange(node: PytorchNode) -> Value:
    start, end, step = node.get("start", 0), node.get("end"), node.get("step", 1)
    return node.builder.constant(np.arange(start, end, step).astype(node.numpy), "range")


def eye(node: PytorchNode) -> Value:
    return node.builder.constant(np.eye(*node.shape, dtype=node.numpy), "eye")


# ------------------------------------------------------------------------------------- quantisation
def quantize(node: PytorchNode) -> Value:
    """torch.ao's: the integers may be held to fewer than their type has."""
    y = node.add("QuantizeLinear", node.x, *_grid(node, node.numpy), to=TYPES[node.kind])
    low, high, held = node.integer("quant_min"), node.integer("quant_max"), np.iinfo(node.numpy)
    return y if (low, high) == (held.min, held.max) else node.add("Clip", y, node.full(low), node.full(high))


def dequantize(node: PytorchNode) -> Value:
    return node.add(
        "DequantizeLinear", node.x, *_grid(node, node.builder.type(node.x).dtype.numpy), to=TYPES[node.kind]
    )


def _grid(node: PytorchNode, integers: np.dtype[Any]) -> tuple[Operand, Operand]:
    """Scale, and zero point in the type of the integers; for all, or for each slice of an axis."""
    each = "channel" in node.name
    given = (node.get("scales"), node.get("zero_points", 0)) if each else (node.get("scale"), node.get("zero_point", 0))
    scale, zero = (
        node.cast(v, like) if isinstance(v, Value) else np.array(v, like)
        for v, like in zip(given, (np.dtype(np.float32), integers), strict=True)
    )
    return (
        (node.channels(scale, node.x, node.dim("axis")), node.channels(zero, node.x, node.dim("axis")))
        if each
        else (scale, zero)
    )
