"""OneFlow's operations in ONNX operators: one function per operation, and ``OPERATORS``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import adaptive_pool, group_norm, sampled, unfolded
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, same, simple
from tenon.formats.importers.oneflow.data_movement import (
    bounded,
    expanded,
    filled,
    flatten,
    flipped,
    joined,
    narrow,
    pad,
    pad_ends,
    sliced,
    top,
    triangle,
)
from tenon.formats.importers.oneflow.node import OneflowNode
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType


def binary(type: str) -> Callable[[OneflowNode], Value]:
    return lambda node: node.add(type, *node.inputs)


def compared(type: str) -> Callable[[OneflowNode], Value]:
    """A comparison of pairs, or with a number, in the type of the result."""
    return lambda node: _as_declared(
        node, node.add(type, node.x, node.inputs[1] if len(node.inputs) > 1 else _operand(node))
    )


def _as_declared(node: OneflowNode, x: Value) -> Value:
    types = node.operation.types
    return node.add("Cast", x, to=str(types[0].dtype)) if types and types[0].dtype is not DType.BOOL else x


def scalar(type: str, *, swapped: bool = False) -> Callable[[OneflowNode], Value]:
    def import_node(node: OneflowNode) -> Value:
        pair = (node.x, _operand(node))
        return node.add(type, *(pair[::-1] if swapped else pair))

    return import_node


def _operand(node: OneflowNode) -> Array:
    number = node.number("float_operand") if node.flag("has_float_operand") else node.number("int_operand")
    return np.array(number, node.builder.type(node.x).dtype.numpy)


def matmul(node: OneflowNode) -> Value:
    flags = (node.flag(name) for name in ("transpose_a", "transpose_b"))
    x = node.add("MatMul", *(node.transpose_last(value, flag) for value, flag in zip(node.inputs, flags, strict=False)))
    return x if node.number("alpha", 1.0) == 1 else node.add("Mul", x, node.number("alpha", 1.0))


def perceptron(node: OneflowNode) -> Value:
    """x, then all weights, then all biases; ReLU between the layers."""
    count, x = len(node.inputs) // 2, node.x
    for i in range(1, count + 1):
        x = node.add("Add", node.add("MatMul", x, node.transpose_last(node.inputs[i])), node.inputs[count + i])
        x = node.add("Relu", x) if i < count or not node.flag("skip_final_activation") else x
    return x


def convolution(node: OneflowNode) -> Value:
    return node.add("Conv", *node.inputs[:3], **_window(node))


def deconvolution(node: OneflowNode) -> Value:
    extra = node.integers("output_padding") or [0] * (len(node.dims) - 2)
    return node.add("ConvTranspose", *node.inputs[:3], **_window(node), output_padding=extra)


def _window(node: OneflowNode) -> dict[str, Any]:
    """The attributes that convolutions and transposed ones share."""
    _first_channels(node)
    return {
        "group": int(node.number("groups", 1)),
        "strides": node.integers("strides"),
        "dilations": node.integers("dilation_rate"),
        "pads": node.integers("padding_before") * 2,
    }


def _first_channels(node: OneflowNode) -> None:
    if node.attributes.get("data_format", "channels_first") not in ("channels_first", "NCHW", "NCW", "NCDHW"):
        raise RefusedError(f"data_format {node.attributes['data_format']} is not supported")


def pooling(type: str) -> Callable[[OneflowNode], Value]:
    def import_node(node: OneflowNode) -> Value:
        _first_channels(node)
        include = {"count_include_pad": int(node.attributes.get("count_include_pad", True))} if type[0] == "A" else {}
        if node.number("divisor_override"):
            raise RefusedError("a divisor of its own is not supported")
        rest = {"dilations": node.integers("dilation")} if type[0] == "M" and node.integers("dilation") else {}
        return node.add(
            type,
            node.x,
            kernel_shape=node.integers("kernel_size"),
            strides=node.integers("stride"),
            pads=node.integers("padding") * 2,
            ceil_mode=int(node.flag("ceil_mode")),
            **include,
            **rest,
        )

    return import_node


def adaptive(average: bool) -> Callable[[OneflowNode], Value]:
    return lambda node: adaptive_pool(node, node.x, node.integers("output_size"), average=average)


def normalization(node: OneflowNode) -> Value:
    """Operands x, moving mean, moving variance, gamma, beta, and with a residual what is added before ReLU."""
    if len(node.inputs) not in (5, 6) or node.number("axis", 1) != 1 or node.flag("training"):
        raise RefusedError(f"{len(node.inputs)} operands on axis {node.number('axis', 1):g} are not supported")
    x, mean, variance, gamma, beta = node.inputs[:5]
    x = node.add("BatchNormalization", x, gamma, beta, mean, variance, epsilon=node.number("epsilon", 1e-5))
    return node.add("Add", x, node.inputs[5]) if len(node.inputs) == 6 else x


def layer_norm(node: OneflowNode) -> Value:
    """Operands x, beta and gamma, those that there are."""
    first = node.axis(int(node.number("begin_norm_axis", 1)), len(node.dims))
    rest = list(node.inputs[1:])
    beta = rest.pop(0) if node.flag("center") and rest else None
    gamma = rest.pop(0) if node.flag("scale") and rest else None
    ones = np.ones(node.dims[first:], np.float32)
    return node.add(
        "LayerNormalization",
        node.x,
        ones if gamma is None else gamma,
        beta,
        axis=first,
        epsilon=node.number("epsilon", 1e-5),
    )


def grouped(node: OneflowNode) -> Value:
    beta, gamma = (node.inputs[1], node.inputs[2]) if node.flag("affine") and len(node.inputs) == 3 else (None, None)
    x = group_norm(node, node.x, int(node.number("num_groups")), gamma, beta, node.number("epsilon", 1e-5))
    return node.add("Swish", x) if node.attributes.get("activation") == "silu" else x


def rms_norm(node: OneflowNode) -> Value:
    """Normalised over as many of the last axes as the weights have, or over the named ones."""
    count = len(node.integers("normalized_shape")) or (
        len(node.builder.dims(node.inputs[1])) if len(node.inputs) > 1 else 1
    )
    mean = node.add("ReduceMean", node.square(node.x), node.ints(*range(-count, 0)), keepdims=1)
    x = node.add("Div", node.x, node.add("Sqrt", node.add("Add", mean, node.number("epsilon", 1e-6))))
    return node.add("Mul", x, node.inputs[1]) if len(node.inputs) > 1 else x


def reduce(type: str) -> Callable[[OneflowNode], Value]:
    return lambda node: node.add(type, node.x, node.ints(*node.integers("axis")), keepdims=int(node.flag("keepdims")))


def variance(node: OneflowNode) -> Value:
    axes = node.integers("dim") or list(range(len(node.dims)))
    count = math.prod(node.dims[a] for a in axes)
    away = node.add("Sub", node.x, node.add("ReduceMean", node.x, node.ints(*axes), keepdims=1))
    total = node.add("ReduceSumSquare", away, node.ints(*axes), keepdims=int(node.flag("keepdim")))
    return node.add("Mul", total, 1 / max(1, count - node.flag("unbiased")))


def resized(mode: str) -> Callable[[OneflowNode], Value]:
    """Resized by factors of the last axes, or to a size."""

    def import_node(node: OneflowNode) -> Value:
        _first_channels(node)
        axes, size = len(node.dims) - 2, node.integers("output_size")
        names = ("scale_factor",) if axes == 1 else ("depth_scale", "height_scale", "width_scale")[3 - axes :]
        size = size or [int(n * node.number(name, 1.0)) for n, name in zip(node.dims[2:], names, strict=True)]
        centre = "asymmetric" if mode == "nearest" else "align_corners" if node.flag("align_corners") else "half_pixel"
        options = {"coordinate_transformation_mode": centre, "nearest_mode": "floor", "cubic_coeff_a": -0.75}
        return node.add("Resize", node.x, None, None, node.ints(*node.dims[:2], *size), mode=mode, **options)

    return import_node


def cast(node: OneflowNode) -> Value:
    return node.add("Cast", node.x, to=str(node.operation.types[0].dtype)) if node.operation.types else node.x


def argmax(node: OneflowNode) -> Value:
    return node.add("ArgMax", node.x, axis=len(node.dims) - 1, keepdims=0)


def masked(node: OneflowNode) -> Value:
    """A number where the mask is true."""
    value = node.number("float_operand") if node.flag("has_float_operand") else node.number("int_operand")
    mask = node.add("Cast", node.inputs[1], to="bool")
    return node.add("Where", mask, np.array(value, node.builder.type(node.x).dtype.numpy), node.x)


def grid_sample(node: OneflowNode) -> Value:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(str(node.attributes.get("interpolation_mode")), "nearest")
    padding = str(node.attributes.get("padding_mode", "zeros"))
    return sampled(node, node.x, node.inputs[1], mode, padding, corners=node.flag("align_corners"))


def windows(node: OneflowNode) -> Value:
    pads = node.integers("padding") * 2
    return unfolded(
        node, node.x, node.integers("kernel_size"), node.integers("strides"), pads, node.integers("dilation_rate")
    )


def quick_gelu(node: OneflowNode) -> Value:
    return node.add("Mul", node.x, node.add("Sigmoid", node.add("Mul", node.x, 1.702)))


def biased(type: str) -> Callable[[OneflowNode], Value]:
    """A bias along an axis, then an optional activation."""

    def import_node(node: OneflowNode) -> Value:
        x = node.add("Add", node.x, node.channels(node.inputs[1], node.x, int(node.number("axis", 1))))
        return node.add(type, x) if type else x

    return import_node


_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "sigmoid_v2": "Sigmoid",
    "tanh": "Tanh",
    "gelu": "Gelu",
    "silu": "Swish",
    "mish": "Mish",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "abs": "Abs",
    "negative": "Neg",
    "sign": "Sign",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "hardswish": "HardSwish",
    "selu": "Selu",
    "erf": "Erf",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "reciprocal": "Reciprocal",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
}
_BINARY = {
    **{
        f"broadcast_{name}": type
        for name, type in (
            ("add", "Add"),
            ("sub", "Sub"),
            ("mul", "Mul"),
            ("div", "Div"),
            ("maximum", "Max"),
            ("minimum", "Min"),
            ("pow", "Pow"),
        )
    },
    "add_n2": "Add",
    "add_n": "Sum",
    "multiply": "Mul",
    "elementwise_maximum": "Max",
    "elementwise_minimum": "Min",
    "scalar_add_by_tensor": "Add",
    "scalar_sub_by_tensor": "Sub",
    "scalar_mul_by_tensor": "Mul",
    "scalar_div_by_tensor": "Div",
}
_COMPARISONS = {
    "equal": "Equal",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "less": "Less",
    "less_equal": "LessOrEqual",
}

OPERATORS: dict[str, Callable[[OneflowNode], Outputs]] = {
    **dict.fromkeys(("output", "identity", "dropout", "amp_white_identity", "amp_black_identity"), same),
    **{name: simple(type) for name, type in _UNARY.items()},
    **{name: binary(type) for name, type in _BINARY.items()},
    **{f"broadcast_{name}": compared(type) for name, type in _COMPARISONS.items()},
    **{f"scalar_logical_{name}": compared(type) for name, type in _COMPARISONS.items()},
    "broadcast_not_equal": lambda node: _as_declared(node, node.chain(node.add("Equal", *node.inputs), "Not")),
    **{
        f"scalar_{name}": scalar(type)
        for name, type in (("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("pow", "Pow"))
    },
    "scalar_reverse_pow": scalar("Pow", swapped=True),
    "square": lambda node: node.square(node.x),
    "rsqrt": lambda node: node.chain(node.x, "Sqrt", "Reciprocal"),
    "log1p": lambda node: node.add("Log", node.add("Add", node.x, 1.0)),
    "expm1": lambda node: node.add("Sub", node.add("Exp", node.x), 1.0),
    "quick_gelu": quick_gelu,
    "fast_gelu": simple("Gelu", approximate="tanh"),
    "hardsigmoid": simple("HardSigmoid", alpha=1 / 6),
    "logsigmoid": lambda node: node.add("Neg", node.chain(node.x, "Neg", "Softplus")),
    "leaky_relu": lambda node: node.add("LeakyRelu", node.x, alpha=node.number("alpha", 0.01)),
    "elu": lambda node: node.add("Elu", node.x, alpha=node.number("alpha", 1.0)),
    "celu": lambda node: node.add("Celu", node.x, alpha=node.number("alpha", 1.0)),
    "prelu": lambda node: node.add("PRelu", node.x, node.channels(node.inputs[1], node.x)),
    "hardtanh": lambda node: node.add("Clip", node.x, node.number("min_val", -1.0), node.number("max_val", 1.0)),
    **dict.fromkeys(("clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max"), bounded),
    **dict.fromkeys(("matmul", "batch_matmul", "broadcast_matmul"), matmul),
    "cublas_fused_mlp": perceptron,
    "fused_matmul_bias": lambda node: node.add(
        "Add", node.add("MatMul", node.x, node.transpose_last(node.inputs[1])), node.inputs[2]
    ),
    "bias_add": biased(""),
    "fused_bias_add_gelu": biased("Gelu"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(("deconv1d", "deconv2d", "deconv3d"), deconvolution),
    **{
        f"{kind}{gap}pool_{n}d": pooling(type)
        for kind, type in (("max", "MaxPool"), ("avg", "AveragePool"))
        for gap in ("", "_")
        for n in (1, 2, 3)
    },
    **{f"adaptive_{kind}_pool{n}d": adaptive(kind == "avg") for kind in ("avg", "max") for n in (1, 2, 3)},
    **dict.fromkeys(("normalization", "normalization_infer"), normalization),
    "normalization_add_relu": lambda node: node.add("Relu", normalization(node)),
    "layer_norm": layer_norm,
    "group_norm": grouped,
    "rms_norm": rms_norm,
    "softmax": simple("Softmax", axis=-1),
    "log_softmax": simple("LogSoftmax", axis=-1),
    **{f"reduce_{kind}": reduce(f"Reduce{kind.title()}") for kind in ("mean", "sum", "max", "min", "prod")},
    "var": variance,
    "argmax": argmax,
    "top_k": top,
    **{
        f"upsample_{name}": resized(mode)
        for name, mode in (
            ("nearest_1d", "nearest"),
            ("nearest_2d", "nearest"),
            ("nearest_3d", "nearest"),
            ("linear_1d", "linear"),
            ("bilinear_2d", "linear"),
            ("bicubic_2d", "cubic"),
            ("trilinear_3d", "linear"),
        )
    },
    "pad": pad,
    "constant_pad": pad_ends("constant"),
    **{
        f"{kind}_pad{n}d": pad_ends(mode)
        for kind, mode, most in (("reflection", "reflect", 2), ("replication", "edge", 3), ("constant", "constant", 3))
        for n in range(1, most + 1)
    },
    "grid_sample": grid_sample,
    "unfold": windows,
    "flatten": flatten,
    "concat": joined,
    "cat": joined,
    "stack": lambda node: node.stack(node.inputs, int(node.number("axis"))),
    "slice": sliced,
    "narrow": narrow,
    "flip": flipped,
    "reshape": lambda node: node.reshape(node.x, *node.integers("shape")),
    "cast": cast,
    "constant": filled,
    "arange": filled,
    "transpose": lambda node: node.add("Transpose", node.x, perm=node.integers("perm")),
    "expand": expanded,
    "broadcast_like": expanded,
    "reshape_like": lambda node: node.reshape(node.x, *node.builder.dims(node.inputs[1])),
    "expand_dims": lambda node: node.add("Unsqueeze", node.x, node.ints(int(node.number("axis")))),
    "squeeze": lambda node: node.add("Squeeze", node.x, node.ints(*node.integers("axes"))),
    "where": lambda node: node.add("Where", node.add("Cast", node.x, to="bool"), *node.inputs[1:]),
    "masked_fill": masked,
    "gather": lambda node: node.add("Gather", *node.inputs, axis=int(node.number("axis"))),
    "dim_gather": lambda node: node.add("GatherElements", *node.inputs, axis=int(node.number("dim"))),
    "gather_nd": binary("GatherND"),
    "embedding": lambda node: node.add("Gather", *node.inputs, axis=0),
    "cumsum": lambda node: node.add("CumSum", node.x, node.ints(int(node.number("dim")))),
    "tril": triangle,
    "triu": triangle,
}
