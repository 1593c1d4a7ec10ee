"""Paddle's functions of numbers that few programs have, its norms, and its fake quantisation.

Definitions: paddle/phi/api/yaml and paddle/fluid/operators/fake_*quantize_op of PaddlePaddle/Paddle.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tenon.decompositions.layers import finite, remainder
from tenon.graph_builder.errors import RefusedError
from tenon.importers.paddle.context import Context, Result
from tenon.ir.graph import Value


def _one(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x)


def _two(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, c.input("Y"))


_STRAIGHT = 16.0
"""From here on softplus is its argument in f32."""


def softplus(c: Context) -> Value:
    """Past the threshold it is what it is given."""
    beta, threshold = c.number("beta", 1.0), c.number("threshold", 20.0)
    scaled = c.x if beta == 1 else c.add("Mul", c.x, beta)
    y = c.add("Softplus", scaled)
    y = y if beta == 1 else c.add("Mul", y, 1 / (beta or 1.0))
    if threshold >= _STRAIGHT:
        return y
    return c.add("Where", c.add("Greater", scaled, threshold), c.x, y)


def soft_shrink(c: Context) -> Value:
    """Towards zero by lambda, and no further."""
    bound = c.number("lambda", 0.5)
    return c.add("Sub", c.x, c.add("Clip", c.x, -bound, bound))


def hard_shrink(c: Context) -> Value:
    bound = c.number("threshold", 0.5)
    return c.add("Where", c.add("Greater", c.add("Abs", c.x), bound), c.x, 0.0)


def thresholded(c: Context) -> Value:
    bound, other = c.number("threshold", 1.0), c.number("value")
    if not other:
        return c.add("ThresholdedRelu", c.x, alpha=bound)
    return c.add("Where", c.add("Greater", c.x, bound), c.x, other)


def maxout(c: Context) -> Value:
    groups, axis = c.integer("groups", 1), c.axis(c.integer("axis", 1), len(c.dims))
    if groups < 1 or c.dims[axis] % groups:
        raise RefusedError(f"{c.dims[axis]} channels do not make groups of {groups}")
    x = c.reshape(c.x, *c.dims[:axis], c.dims[axis] // groups, groups, *c.dims[axis + 1 :])
    return c.add("ReduceMax", x, c.ints(axis + 1), keepdims=0)


def _axes(c: Context, name: str = "axis") -> Value:
    every = c.integer("reduce_all") or not c.numbers(name)
    return c.ints(*(range(len(c.dims)) if every else c.numbers(name)))


def norm(c: Context) -> Value:
    """p_norm: of one axis, or of all elements."""
    p, keep = c.number("porder", 2.0), c.integer("keepdim")
    x, axis = (c.reshape(c.x, -1), 0) if c.integer("asvector") else (c.x, c.integer("axis", -1))
    if p in (1, 2):
        return c.add("ReduceL1" if p == 1 else "ReduceL2", x, c.ints(axis), keepdims=keep)
    size = c.add("Abs", x)
    if math.isinf(p):
        return c.add("ReduceMax" if p > 0 else "ReduceMin", size, c.ints(axis), keepdims=keep)
    if p == 0:
        there = c.add("Cast", c.add("Greater", size, 0.0), to="f32")
        return c.add("ReduceSum", there, c.ints(axis), keepdims=keep)
    return c.add("Pow", c.add("ReduceSum", c.add("Pow", size, p), c.ints(axis), keepdims=keep), 1 / p)


def truth(kind: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        found = c.add(kind, c.add("Cast", c.x, to="i32"), c.ints(*c.reduced), keepdims=c.integer("keep_dim"))
        return c.add("Cast", found, to="bool")

    return made


def modulo(c: Context) -> Value:
    """The remainder with the divisor's sign."""
    a, b = c.broadcast(c.x, c.input("Y"), c.integer("axis", -1))
    if not c.builder.type(a).dtype.is_float:
        return c.add("Mod", a, b)
    return remainder(c, a, b)


def floor_division(c: Context) -> Value:
    a, b = c.broadcast(c.x, c.input("Y"), c.integer("axis", -1))
    if not c.builder.type(a).dtype.is_float:
        return c.add("Div", c.add("Sub", a, c.add("Mod", a, b)), b)
    return c.add("Floor", c.add("Div", a, b))


def logit(c: Context) -> Value:
    eps = c.number("eps", 1e-6)
    x = c.add("Clip", c.x, eps, 1 - eps) if eps else c.x
    return c.add("Log", c.add("Div", x, c.add("Sub", 1.0, x)))


def weighted_product(c: Context) -> Value:
    """addmm: beta times the first, plus alpha times the product of the others."""
    y = c.add("MatMul", c.input("X"), c.input("Y"))
    return c.add("Add", c.add("Mul", c.input("Input"), c.number("Beta", 1.0)), c.add("Mul", y, c.number("Alpha", 1.0)))


def dot(c: Context) -> Value:
    return c.add("ReduceSum", c.add("Mul", c.x, c.input("Y")), c.ints(-1), keepdims=0)


def in_between(c: Context) -> Value:
    return c.add("Add", c.x, c.add("Mul", c.input("Weight"), c.add("Sub", c.input("Y"), c.x)))


# -------------------------------------------------------------------------------------------------- quantisation
def _scale(c: Context, value: Value, rank: int) -> tuple[Value, int]:
    """One step of the grid, shaped to broadcast, and how many steps there are on either side."""
    most = (1 << (c.integer("bit_length", 8) - 1)) - 1
    step = c.add("Div", value, float(most))
    count, axis = math.prod(c.builder.dims(value)), c.integer("quant_axis", -1)
    if count == 1 or axis < 0:
        return c.reshape(step, *(1,) * (0 if count == 1 else rank - 1), *(() if count == 1 else (-1,))), most
    return c.reshape(step, -1, *(1,) * (rank - 1 - axis)), most


def _counted(c: Context, step: Value, most: int) -> Value:
    """Numbers of steps; what is rounded away from zero (``round_type`` 1) has as many below zero as above."""
    away = c.integer("round_type", int(c.type != "quantize_linear"))
    low = float(-most if away else -most - 1)
    return c.add("Clip", c.add("Round", c.add("Div", c.x, step)), low, float(most))


def quantize(c: Context) -> Result:
    """Numbers of steps."""
    step, most = _scale(c, c.input("Scale", "InScale"), len(c.dims))
    y = _counted(c, step, most)
    return {"Y": y} if c.type == "quantize_linear" else {"Out": y}


def dequantize(c: Context) -> Result:
    step, _ = _scale(c, c.input("Scale"), len(c.dims))
    y = c.add("Mul", c.add("Cast", c.x, to="f32"), step)
    return {"Y": y} if c.type == "dequantize_linear" else {"Out": y}


def round_trip(c: Context) -> Value:
    """Rounded to the grid of a learnt range."""
    step, most = _scale(c, c.input("InScale"), len(c.dims))
    return c.add("Mul", _counted(c, step, most), step)


def round_trip_of_itself(c: Context) -> Value:
    """Rounded to the grid of its own range, of all of it or of each element of an axis."""
    axis = c.integer("quant_axis") if c.type.startswith("fake_channel_wise") else None
    axes = [a for a in range(len(c.dims)) if a != axis]
    most = (1 << (c.integer("bit_length", 8) - 1)) - 1
    size = c.add("ReduceMax", c.add("Abs", c.x), c.ints(*axes), keepdims=1)
    step = c.add("Div", c.add("Max", size, 1e-12), float(most))
    return c.add("Mul", _counted(c, step, most), step)


def dequantize_max(c: Context) -> Value:
    """x times scale over the greatest number; a product may have a scale of each channel and one of the input."""
    if c.type == "fake_dequantize_max_abs":
        return c.add("Mul", c.x, c.add("Div", c.input("Scale"), c.number("max_range", 127.0)))
    x, axis = c.x, c.integer("quant_axis", 1 if len(c.slots["Scales"]) > 1 else 0)
    for bits, scale in zip(c.numbers("quant_bits"), c.slots["Scales"], strict=False):
        step = c.add("Div", c.reshape(scale, -1), float((1 << (bits - 1)) - 1))
        one = math.prod(c.builder.dims(scale)) == 1
        x = c.add("Mul", x, step if one else c.channels(step, x, axis))
    return x


FUNCTIONS: dict[str, Callable[[Context], Result]] = {
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
    "mv": lambda c: c.add("MatMul", c.x, c.input("Vec")),
    "not_equal": lambda c: c.add("Not", c.add("Equal", c.x, c.input("Y"))),
    "softplus": softplus,
    "softshrink": soft_shrink,
    "hard_shrink": hard_shrink,
    "maxout": maxout,
    "tanh_shrink": lambda c: c.add("Sub", c.x, c.add("Tanh", c.x)),
    "logsigmoid": lambda c: c.add("Neg", c.add("Softplus", c.add("Neg", c.x))),
    "stanh": lambda c: c.add(
        "Mul", c.add("Tanh", c.add("Mul", c.x, c.number("scale_a", 0.67))), c.number("scale_b", 1.7159)
    ),
    "brelu": lambda c: c.add("Clip", c.x, c.number("t_min"), c.number("t_max", 24.0)),
    "hardtanh": lambda c: c.add("Clip", c.x, c.number("t_min", -1.0), c.number("t_max", 1.0)),
    "soft_relu": lambda c: c.add(
        "Softplus", c.add("Clip", c.x, -c.number("threshold", 40.0), c.number("threshold", 40.0))
    ),
    "thresholded_relu": thresholded,
    "celu": lambda c: c.add("Celu", c.x, alpha=c.number("alpha", 1.0)),
    "logit": logit,
    "expm1": lambda c: c.add("Sub", c.add("Exp", c.x), 1.0),
    "log1p": lambda c: c.add("Log", c.add("Add", c.x, 1.0)),
    "log2": lambda c: c.add("Mul", c.add("Log", c.x), 1 / math.log(2)),
    "log10": lambda c: c.add("Mul", c.add("Log", c.x), 1 / math.log(10)),
    "isfinite_v2": lambda c: finite(c, c.x),
    "elementwise_mod": modulo,
    "elementwise_floordiv": floor_division,
    "reduce_all": truth("ReduceMin"),
    "reduce_any": truth("ReduceMax"),
    "p_norm": norm,
    "frobenius_norm": lambda c: c.add("ReduceL2", c.x, _axes(c, "dim"), keepdims=c.integer("keep_dim")),
    "logsumexp": lambda c: c.add("ReduceLogSumExp", c.x, _axes(c), keepdims=c.integer("keepdim")),
    "squared_l2_norm": lambda c: c.reshape(c.add("ReduceSumSquare", c.x, keepdims=0), 1),
    "addmm": weighted_product,
    "dot": dot,
    "lerp": in_between,
    "quantize_linear": quantize,
    "dequantize_linear": dequantize,
    **dict.fromkeys(("fake_quantize_moving_average_abs_max", "fake_quantize_range_abs_max"), quantize),
    "fake_quantize_dequantize_moving_average_abs_max": round_trip,
    **dict.fromkeys(
        ("fake_quantize_dequantize_abs_max", "fake_channel_wise_quantize_dequantize_abs_max"), round_trip_of_itself
    ),
    **dict.fromkeys(("fake_dequantize_max_abs", "fake_channel_wise_dequantize_max_abs"), dequantize_max),
    "moving_average_abs_max_scale": lambda c: c.x,
}
