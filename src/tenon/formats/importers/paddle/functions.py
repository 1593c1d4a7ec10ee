"""Paddle's functions of numbers that few programs have, its norms, and its fake quantisation.

Definitions: paddle/phi/api/yaml and paddle/fluid/operators/fake_*quantize_op of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tenon.formats.decompositions.layers import finite, remainder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode, Result
from tenon.network.graph.graph import Value


def _one(type: str) -> Callable[[PaddleNode], Value]:
    return lambda node: node.add(type, node.x)


def _two(type: str) -> Callable[[PaddleNode], Value]:
    return lambda node: node.add(type, node.x, node.slot("Y"))


_STRAIGHT = 16.0
"""From here on softplus equals its argument in f32."""


def softplus(node: PaddleNode) -> Value:
    """The identity above the threshold."""
    beta, threshold = node.number("beta", 1.0), node.number("threshold", 20.0)
    scaled = node.x if beta == 1 else node.add("Mul", node.x, beta)
    y = node.add("Softplus", scaled)
    y = y if beta == 1 else node.add("Mul", y, 1 / (beta or 1.0))
    if threshold >= _STRAIGHT:
        return y
    return node.add("Where", node.add("Greater", scaled, threshold), node.x, y)


def soft_shrink(node: PaddleNode) -> Value:
    """Soft shrinkage: towards zero by lambda."""
    bound = node.number("lambda", 0.5)
    return node.add("Sub", node.x, node.add("Clip", node.x, -bound, bound))


def hard_shrink(node: PaddleNode) -> Value:
    bound = node.number("threshold", 0.5)
    return node.add("Where", node.add("Greater", node.add("Abs", node.x), bound), node.x, 0.0)


def thresholded(node: PaddleNode) -> Value:
    bound, other = node.number("threshold", 1.0), node.number("value")
    if not other:
        return node.add("ThresholdedRelu", node.x, alpha=bound)
    return node.add("Where", node.add("Greater", node.x, bound), node.x, other)


def maxout(node: PaddleNode) -> Value:
    groups, axis = node.integer("groups", 1), node.axis(node.integer("axis", 1), node.x_rank)
    if groups < 1 or node.dims[axis] % groups:
        raise RefusedError(f"{node.dims[axis]} channels do not make groups of {groups}")
    x = node.reshape(node.x, *node.dims[:axis], node.dims[axis] // groups, groups, *node.dims[axis + 1 :])
    return node.add("ReduceMax", x, node.ints(axis + 1), keepdims=0)


def _axes(node: PaddleNode, name: str = "axis") -> Value:
    every = node.integer("reduce_all") or not node.integers(name)
    return node.ints(*(range(node.x_rank) if every else node.integers(name)))


def norm(node: PaddleNode) -> Value:
    """p_norm: of one axis, or of all elements."""
    p, keep = node.number("porder", 2.0), node.integer("keepdim")
    x, axis = (node.reshape(node.x, -1), 0) if node.integer("asvector") else (node.x, node.integer("axis", -1))
    if p in (1, 2):
        return node.add("ReduceL1" if p == 1 else "ReduceL2", x, node.ints(axis), keepdims=keep)
    size = node.add("Abs", x)
    if math.isinf(p):
        return node.add("ReduceMax" if p > 0 else "ReduceMin", size, node.ints(axis), keepdims=keep)
    if p == 0:
        there = node.add("Cast", node.add("Greater", size, 0.0), to="f32")
        return node.add("ReduceSum", there, node.ints(axis), keepdims=keep)
    return node.add("Pow", node.add("ReduceSum", node.add("Pow", size, p), node.ints(axis), keepdims=keep), 1 / p)


def truth(kind: str) -> Callable[[PaddleNode], Value]:
    def import_node(node: PaddleNode) -> Value:
        remainder = node.add(
            kind, node.add("Cast", node.x, to="i32"), node.ints(*node.reduced), keepdims=node.integer("keep_dim")
        )
        return node.add("Cast", remainder, to="bool")

    return import_node


def modulo(node: PaddleNode) -> Value:
    """The remainder with the divisor's sign."""
    a, b = node.broadcast(node.x, node.slot("Y"), node.integer("axis", -1))
    if not node.builder.type(a).dtype.is_float:
        return node.add("Mod", a, b)
    return remainder(node, a, b)


def floor_division(node: PaddleNode) -> Value:
    a, b = node.broadcast(node.x, node.slot("Y"), node.integer("axis", -1))
    if not node.builder.type(a).dtype.is_float:
        return node.add("Div", node.add("Sub", a, node.add("Mod", a, b)), b)
    return node.add("Floor", node.add("Div", a, b))


def logit(node: PaddleNode) -> Value:
    eps = node.number("eps", 1e-6)
    x = node.add("Clip", node.x, eps, 1 - eps) if eps else node.x
    return node.add("Log", node.add("Div", x, node.add("Sub", 1.0, x)))


def weighted_product(node: PaddleNode) -> Value:
    """addmm: beta times the first, plus alpha times the product of the others."""
    y = node.add("MatMul", node.slot("X"), node.slot("Y"))
    return node.add(
        "Add",
        node.add("Mul", node.slot("Input"), node.number("Beta", 1.0)),
        node.add("Mul", y, node.number("Alpha", 1.0)),
    )


def dot(node: PaddleNode) -> Value:
    return node.add("ReduceSum", node.add("Mul", node.x, node.slot("Y")), node.ints(-1), keepdims=0)


def in_between(node: PaddleNode) -> Value:
    return node.add("Add", node.x, node.add("Mul", node.slot("Weight"), node.add("Sub", node.slot("Y"), node.x)))


# -------------------------------------------------------------------------------------------------- quantisation
def _scale(node: PaddleNode, value: Value, rank: int) -> tuple[Value, int]:
    """The step of the quantisation, shaped to broadcast, and the number of steps on either side."""
    maximum = (1 << (node.integer("bit_length", 8) - 1)) - 1
    step = node.add("Div", value, float(maximum))
    count, axis = math.prod(node.builder.dims(value)), node.integer("quant_axis", -1)
    if count == 1 or axis < 0:
        return node.reshape(step, *(1,) * (0 if count == 1 else rank - 1), *(() if count == 1 else (-1,))), maximum
    return node.reshape(step, -1, *(1,) * (rank - 1 - axis)), maximum


def _counted(node: PaddleNode, step: Value, maximum: int) -> Value:
    """Quantised integers; rounding away from zero (``round_type`` 1) uses a symmetric range."""
    away = node.integer("round_type", int(node.type != "quantize_linear"))
    low = float(-maximum if away else -maximum - 1)
    return node.add("Clip", node.add("Round", node.add("Div", node.x, step)), low, float(maximum))


def quantize(node: PaddleNode) -> Result:
    """Quantised integers."""
    step, maximum = _scale(node, node.slot("Scale", "InScale"), node.x_rank)
    y = _counted(node, step, maximum)
    return {"Y": y} if node.type == "quantize_linear" else {"Out": y}


def dequantize(node: PaddleNode) -> Result:
    step, _ = _scale(node, node.slot("Scale"), node.x_rank)
    y = node.add("Mul", node.add("Cast", node.x, to="f32"), step)
    return {"Y": y} if node.type == "dequantize_linear" else {"Out": y}


def quantize_dequantize(node: PaddleNode) -> Value:
    """Fake quantisation by a learnt range."""
    step, maximum = _scale(node, node.slot("InScale"), node.x_rank)
    return node.add("Mul", _counted(node, step, maximum), step)


def dynamic_quantize_dequantize(node: PaddleNode) -> Value:
    """Fake quantisation by the tensor's own range, per tensor or per channel."""
    axis = node.integer("quant_axis") if node.type.startswith("fake_channel_wise") else None
    axes = [a for a in range(node.x_rank) if a != axis]
    maximum = (1 << (node.integer("bit_length", 8) - 1)) - 1
    size = node.add("ReduceMax", node.add("Abs", node.x), node.ints(*axes), keepdims=1)
    step = node.add("Div", node.add("Max", size, 1e-12), float(maximum))
    return node.add("Mul", _counted(node, step, maximum), step)


def dequantize_max(node: PaddleNode) -> Value:
    """x times scale over the greatest number; a product may have a scale of each channel and one of the input."""
    if node.type == "fake_dequantize_max_abs":
        return node.add("Mul", node.x, node.add("Div", node.slot("Scale"), node.number("max_range", 127.0)))
    x, axis = node.x, node.integer("quant_axis", 1 if len(node.slots["Scales"]) > 1 else 0)
    for bits, scale in zip(node.integers("quant_bits"), node.slots["Scales"], strict=False):
        step = node.add("Div", node.reshape(scale, -1), float((1 << (bits - 1)) - 1))
        one = math.prod(node.builder.dims(scale)) == 1
        x = node.add("Mul", x, step if one else node.channels(step, x, axis))
    return x


FUNCTIONS: dict[str, Callable[[PaddleNode], Result]] = {
    **{
        name: _one(type)
        for name, type in (
            ("acos", "Acos"),
            ("acosh", "Acosh"),
            ("asin", "Asin"),
            ("asinh", "Asinh"),
            ("atan", "Atan"),
            ("atanh", "Atanh"),
            ("cosh", "Cosh"),
            ("sinh", "Sinh"),
            ("tan", "Tan"),
            ("isnan_v2", "IsNaN"),
            ("isinf_v2", "IsInf"),
            ("bitwise_not", "BitwiseNot"),
        )
    },
    **{
        name: _two(type)
        for name, type in (
            ("logical_xor", "Xor"),
            ("bitwise_and", "BitwiseAnd"),
            ("bitwise_or", "BitwiseOr"),
            ("bitwise_xor", "BitwiseXor"),
        )
    },
    "mv": lambda node: node.add("MatMul", node.x, node.slot("Vec")),
    "not_equal": lambda node: node.add("Not", node.add("Equal", node.x, node.slot("Y"))),
    "softplus": softplus,
    "softshrink": soft_shrink,
    "hard_shrink": hard_shrink,
    "maxout": maxout,
    "tanh_shrink": lambda node: node.add("Sub", node.x, node.add("Tanh", node.x)),
    "logsigmoid": lambda node: node.add("Neg", node.add("Softplus", node.add("Neg", node.x))),
    "stanh": lambda node: node.add(
        "Mul", node.add("Tanh", node.add("Mul", node.x, node.number("scale_a", 0.67))), node.number("scale_b", 1.7159)
    ),
    "brelu": lambda node: node.add("Clip", node.x, node.number("t_min"), node.number("t_max", 24.0)),
    "hardtanh": lambda node: node.add("Clip", node.x, node.number("t_min", -1.0), node.number("t_max", 1.0)),
    "soft_relu": lambda node: node.add(
        "Softplus", node.add("Clip", node.x, -node.number("threshold", 40.0), node.number("threshold", 40.0))
    ),
    "thresholded_relu": thresholded,
    "celu": lambda node: node.add("Celu", node.x, alpha=node.number("alpha", 1.0)),
    "logit": logit,
    "expm1": lambda node: node.add("Sub", node.add("Exp", node.x), 1.0),
    "log1p": lambda node: node.add("Log", node.add("Add", node.x, 1.0)),
    "log2": lambda node: node.add("Mul", node.add("Log", node.x), 1 / math.log(2)),
    "log10": lambda node: node.add("Mul", node.add("Log", node.x), 1 / math.log(10)),
    "isfinite_v2": lambda node: finite(node, node.x),
    "elementwise_mod": modulo,
    "elementwise_floordiv": floor_division,
    "reduce_all": truth("ReduceMin"),
    "reduce_any": truth("ReduceMax"),
    "p_norm": norm,
    "frobenius_norm": lambda node: node.add("ReduceL2", node.x, _axes(node, "dim"), keepdims=node.integer("keep_dim")),
    "logsumexp": lambda node: node.add("ReduceLogSumExp", node.x, _axes(node), keepdims=node.integer("keepdim")),
    "squared_l2_norm": lambda node: node.reshape(node.add("ReduceSumSquare", node.x, keepdims=0), 1),
    "addmm": weighted_product,
    "dot": dot,
    "lerp": in_between,
    "quantize_linear": quantize,
    "dequantize_linear": dequantize,
    **dict.fromkeys(("fake_quantize_moving_average_abs_max", "fake_quantize_range_abs_max"), quantize),
    "fake_quantize_dequantize_moving_average_abs_max": quantize_dequantize,
    **dict.fromkeys(
        ("fake_quantize_dequantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max"),
        dynamic_quantize_dequantize,
    ),
    **dict.fromkeys(("fake_dequantize_max_abs", "fake_channel_wise_dequantize_max_abs"), dequantize_max),
    "moving_average_abs_max_scale": lambda node: node.x,
}
