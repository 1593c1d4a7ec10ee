"""MegEngine's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: dnn/src/common/opr_param_defs.py and imperative/src of MegEngine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.layers import adaptive_pool
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import same
from tenon.formats.importers.megengine.data_movement import (
    axes_of_structs,
    cumsum,
    dimshuffle,
    one_hot_picked,
    pad,
    picked,
    reshape,
    shape_of,
    sorted_,
    split,
    subtensor,
    top,
)
from tenon.formats.importers.megengine.node import MegengineNode
from tenon.network.graph.graph import Value

_UNARY = {
    0: "Relu",
    1: "Abs",
    2: "Acos",
    3: "Asin",
    4: "Ceil",
    5: "Cos",
    6: "Exp",
    8: "Floor",
    9: "Log",
    11: "Neg",
    12: "Sigmoid",
    13: "Sin",
    14: "Tanh",
    40: "Tanh",
    42: "Round",
    45: "Erf",
    49: "HardSwish",
    52: "Not",
    56: "Swish",
    58: "Gelu",
}
_BINARY = {16: "Add", 18: "Max", 19: "Min", 21: "Mul", 22: "Pow", 24: "Sub", 27: "Div", 53: "And", 54: "Or", 55: "Xor"}
_COMPARISONS = {29: "Less", 30: "LessOrEqual", 31: "Equal"}
_FUSED = {37: "Relu", 38: "Sigmoid", 39: "Tanh", 51: "HardSwish"}


def elemwise(node: MegengineNode) -> Value:
    """By mode; some fuse an addition or a product with the operators after it."""
    mode, given = node.field(0, "u32"), list(node.inputs)
    if mode in _UNARY:
        return node.add(_UNARY[mode], node.x)
    if mode in _BINARY and len(given) == 2:
        return node.add(_BINARY[mode], *given)
    if mode in _COMPARISONS and len(given) == 2:
        return node.add("Cast", node.add(_COMPARISONS[mode], *given), to="f32")
    if mode in _FUSED and len(given) == 2:
        return node.add(_FUSED[mode], node.add("Add", *given))
    if mode == 17 and len(given) == 2:
        return node.chain(node.add("Div", *given), "Floor")
    if mode == 20 and len(given) == 2:
        return node.add("Mod", *given, fmod=1)
    if mode == 25 and len(given) == 2:
        return node.add("Mul", node.add("Cast", node.add("Greater", node.x, 0.0), to="f32"), given[1])
    if mode == 28 and len(given) == 2:
        high = node.add("Max", *given)
        return node.add(
            "Add", high, node.add("Log", node.fold("Add", [node.add("Exp", node.add("Sub", v, high)) for v in given]))
        )
    if mode == 34 and len(given) == 3:
        return node.add("Mul", node.add("Cast", node.add("LessOrEqual", *given[:2]), to="f32"), given[2])
    if mode == 47:
        return node.add("Sub", node.builder.scalar(1.0), node.add("Erf", node.x))
    if mode == 35 and len(given) == 3:
        return node.add("Add", node.add("Mul", *given[:2]), given[2])
    if mode == 36 and len(given) == 4:
        return node.add("Add", node.add("Mul", *given[:2]), node.add("Mul", *given[2:]))
    if mode in (7, 10):
        return (
            node.add("Sub", node.add("Exp", node.x), 1.0)
            if mode == 7
            else node.add("Log", node.add("Add", node.x, 1.0))
        )
    raise RefusedError(f"mode {mode} with {len(given)} inputs is not supported")


def matrix_mul(node: MegengineNode) -> Value:
    sides = (node.transpose_last(value, bool(node.field(i, "bool"))) for i, value in enumerate(node.inputs[:2]))
    return node.add("MatMul", *sides)


_REDUCTIONS = ("ReduceSum", "ReduceSumSquare", "ReduceProd", "ReduceMin", "ReduceMax", "ReduceMean")


def reduce(node: MegengineNode) -> Value:
    mode, axis = node.field(0, "u32"), node.field(1, "i32", 2**31 - 1)
    if mode >= len(_REDUCTIONS) or len(node.inputs) != 1:
        raise RefusedError(f"mode {mode} with {len(node.inputs)} inputs is not supported")
    return node.add(_REDUCTIONS[mode], node.x, node.ints(node.axis(axis, len(node.dims))), keepdims=1)


def _pair(node: MegengineNode, slot: int, default: int) -> tuple[int, int]:
    return node.field(slot, "u32", default), node.field(slot + 1, "u32", default)


def convolution(node: MegengineNode) -> Value:
    """Weights of five axes are those of groups."""
    weights, group = _grouped(node, node.field(0, "u32"))
    bias = [node.reshape(value, -1) for value in node.inputs[2:3]]
    return node.add(
        "Conv",
        node.x,
        weights,
        *bias,
        group=group,
        pads=_pair(node, 1, 0) * 2,
        strides=_pair(node, 3, 1),
        dilations=_pair(node, 5, 1),
    )


def pooling(node: MegengineNode) -> Value:
    mode = node.field(0, "u32")
    if mode > 2:
        raise RefusedError(f"mode {mode} is not supported")
    window = {"pads": _pair(node, 1, 0) * 2, "strides": _pair(node, 3, 2), "kernel_shape": _pair(node, 5, 2)}
    if mode == 0:
        return node.add("MaxPool", node.x, **window)
    return node.add("AveragePool", node.x, count_include_pad=int(mode == 1), **window)


def conv_bias(node: MegengineNode) -> Value:
    """With an activation, and perhaps what is added before it."""
    kinds = {0: "", 1: "Relu", 2: "Sigmoid", 3: "HardSwish"}
    kind = node.field(0, "u32")
    if kind not in kinds or node.field(3, "u32"):
        raise RefusedError(f"activation {kind} in format {node.field(3, 'u32')} is not supported")
    weights, group = _grouped(node, node.field(1, "u32"))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    flat = bias is not None and math.prod(node.builder.dims(bias)) == node.builder.dims(weights)[0]
    x = node.add(
        "Conv",
        node.x,
        weights,
        node.reshape(bias, -1) if bias is not None and flat else None,
        group=group,
        pads=_pair(node, 4, 0) * 2,
        strides=_pair(node, 6, 1),
        dilations=_pair(node, 8, 1),
    )
    for more in [*([] if flat or bias is None else [bias]), *node.inputs[3:]]:
        x = node.add("Add", x, more)
    return node.add(kinds[kind], x) if kinds[kind] else x


def _grouped(node: MegengineNode, mode: int, at: int = 1) -> tuple[Value, int]:
    """Weights of four axes and how many groups they are of; those of five axes are of groups."""
    weights = node.inputs[at]
    dims = node.builder.dims(weights)
    if mode != 0 or len(dims) not in (4, 5):
        raise RefusedError("only cross-correlation of images is supported")
    if len(dims) == 4:
        return weights, 1
    return node.reshape(weights, dims[0] * dims[1], *dims[2:]), dims[0]


def deconvolution(node: MegengineNode) -> Value:
    """Inputs: weights, the input, and perhaps the size of the result."""
    weights, group = _grouped(node, node.field(0, "u32"), 0)
    pads, strides, dilations = _pair(node, 1, 0), _pair(node, 3, 1), _pair(node, 5, 1)
    more = (0, 0)
    if len(node.inputs) > 2:
        size = node.builder.dims(node.inputs[2])[2:]
        kernel = node.builder.dims(weights)[2:]
        given = node.builder.dims(node.inputs[1])[2:]
        spans = zip(size, given, kernel, pads, strides, dilations, strict=True)
        rest = [n - ((m - 1) * s + (k - 1) * d + 1 - 2 * p) for n, m, k, p, s, d in spans]
        more = (rest[0], rest[1])
    return node.add(
        "ConvTranspose",
        node.inputs[1],
        weights,
        group=group,
        pads=pads * 2,
        strides=strides,
        dilations=dilations,
        output_padding=more,
    )


def adaptive(node: MegengineNode) -> Value:
    if node.field(0, "u32") > 2:
        raise RefusedError(f"mode {node.field(0, 'u32')} is not supported")
    sizes = [int(n) for n in node.constant_input(1).ravel()]
    return adaptive_pool(node, node.x, sizes * (2 if len(sizes) == 1 else 1), average=node.field(0, "u32") > 0)


def batch_norm(node: MegengineNode) -> Value:
    """x, scale, bias, mean, variance: with the statistics given."""
    if len(node.inputs) != 5 or node.field(1, "u32") != 1 or node.field(0, "u32") != 2:
        raise RefusedError("only inference with statistics of channels is supported")
    flat = [node.reshape(v, -1) for v in node.inputs[1:]]
    return node.add("BatchNormalization", node.x, *flat, epsilon=node.float_field(2, 1e-4, "f64"))


def layer_norm(node: MegengineNode) -> Sequence[Value]:
    count = node.field(2, "u64", 1)
    axis = len(node.dims) - count
    if not 0 <= axis < len(node.dims):
        raise RefusedError(f"{count} axes of {len(node.dims)} are not supported")
    scale = node.inputs[1] if len(node.inputs) > 1 else np.ones(node.dims[axis:], np.float32)
    y = node.add("LayerNormalization", node.x, scale, *node.inputs[2:3], axis=axis, epsilon=node.float_field(1, 1e-5))
    return [y, *[node.builder.constant(np.zeros(0, np.float32))] * 2]


def arg(type: str) -> Callable[[MegengineNode], Value]:
    return lambda node: node.add("Cast", node.add(type, node.x, axis=node.field(0, "i32"), keepdims=1), to="i32")


_FORMATS = {0: True, 1: False}
"""Whether the channels come first."""


def resize(node: MegengineNode) -> Value:
    """To the size in the second input; channels are last unless the format is NCHW."""
    imode, format = node.field(0, "u32", 1), node.field(1, "u32", 1)
    if imode not in (0, 1, 3) or format not in _FORMATS:
        raise RefusedError(f"mode {imode} in format {format} is not supported")
    x = node.x if _FORMATS[format] else node.add("Transpose", node.x, perm=(0, 3, 1, 2))
    high, wide = (int(n) for n in node.constant_input(1).ravel())
    centre = "asymmetric" if imode == 0 else "half_pixel"
    x = node.resize(x, high, wide, {0: "nearest", 1: "linear", 3: "cubic"}[imode], centre)
    return x if _FORMATS[format] else node.add("Transpose", x, perm=(0, 2, 3, 1))


def roi_align(node: MegengineNode) -> Value:
    """Regions [R, 5], the number of their image first; so many samples in every bin."""
    if node.field(0, "u32") != 1 or node.field(1, "u32") or node.field(6, "u32", 2) != node.field(7, "u32", 2):
        raise RefusedError(
            "only averages of the same number of samples in both directions, channels first, are supported"
        )
    image_index, regions = node.split(node.inputs[1], 1, [1, 4])
    offset = node.float_field(3)
    if offset not in (0.0, 0.5):
        raise RefusedError(f"an offset of {offset:g} is not supported")
    return node.add(
        "RoiAlign",
        node.x,
        regions,
        node.reshape(node.add("Cast", image_index, to="i64"), -1),
        spatial_scale=node.float_field(2, 1.0),
        output_height=node.field(4, "u32", 1),
        output_width=node.field(5, "u32", 1),
        sampling_ratio=node.field(6, "u32", 2),
        coordinate_transformation_mode="half_pixel" if offset else "output_half_pixel",
    )


def lrn(node: MegengineNode) -> Value:
    """The sum is not divided by how many there are."""
    n = node.field(0, "u32", 5)
    return node.add(
        "LRN",
        node.x,
        size=n,
        alpha=node.float_field(2, 1e-4) * n,
        beta=node.float_field(3, 0.75),
        bias=node.float_field(1, 2.0),
    )


def converted(node: MegengineNode) -> Value:
    if node.wanted is None:
        raise RefusedError("integers with a scale are not supported")
    return node.add("Cast", node.x, to=str(node.wanted))


OPERATORS: dict[str, Callable[[MegengineNode], Value | Sequence[Value]]] = {
    "Elemwise": elemwise,
    "MatrixMul": matrix_mul,
    "BatchedMatrixMul": matrix_mul,
    "Reduce": reduce,
    "Convolution": convolution,
    "Pooling": pooling,
    "Dimshuffle": dimshuffle,
    "Reshape": reshape,
    "Concat": lambda node: node.add("Concat", *node.inputs, axis=node.field(0, "i32")),
    "PowC": lambda node: node.add("Pow", node.x, node.float_field(0)),
    "Softmax": lambda node: node.add("Softmax", node.x, axis=node.field(0, "i32", -1)),
    "ConvBiasForward": conv_bias,
    "ConvolutionBackwardData": deconvolution,
    "AdaptivePooling": adaptive,
    "BatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "AxisAddRemove": axes_of_structs,
    "Subtensor": subtensor,
    "IndexingMultiAxisVec": picked,
    "IndexingOneHot": one_hot_picked,
    "Split": split,
    "GetVarShape": shape_of,
    "Broadcast": lambda node: node.add("Expand", node.x, node.ints(*(int(n) for n in node.constant_input(1).ravel()))),
    "TopK": top,
    "Argsort": sorted_,
    "Argmax": arg("ArgMax"),
    "Argmin": arg("ArgMin"),
    "Cumsum": cumsum,
    "Resize": resize,
    "Padding": pad,
    "ROIAlign": roi_align,
    "LRN": lrn,
    "TypeCvt": converted,
    "Where": lambda node: node.add("Where", node.add("Cast", node.x, to="bool"), *node.inputs[1:]),
    **dict.fromkeys(("Copy", "Identity", "Dropout", "MarkNoBroadcastElemwise"), same),
}
