"""Caffe2's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: the operator catalogue of Caffe2, caffe2/operators of pytorch/pytorch.  Images are NCHW.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions.layers import batch_to_space, group_norm, space_to_batch, unfolded
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, full_windows, same, simple
from tenon.formats.importers.caffe2.data_movement import ELEMENTS
from tenon.formats.importers.caffe2.node import Caffe2Node
from tenon.network.graph.graph import Value


def looks_like_name(data: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z][A-Za-z0-9_]{1,63}", data) is not None


def channels_first_images(result: Callable[[Caffe2Node], Value]) -> Callable[[Caffe2Node], Value]:
    """For operators on images: those of the order NHWC are transposed to NCHW, with weights of four axes, and the
    result is transposed back."""

    def transposed(node: Caffe2Node) -> Value:
        if node.text("order", "NCHW") == "NCHW":
            return result(node)
        weights = node.op.type.startswith(("Conv", "Int8Conv"))
        for i in range(2 if weights else 1):
            node.inputs[i] = node.add("Transpose", node.input(i), perm=(0, 3, 1, 2))
        return node.add("Transpose", result(node), perm=(0, 2, 3, 1))

    return transposed


def _pair(node: Caffe2Node, name: str, default: int) -> tuple[int, int]:
    many = node.integers(name + "s")
    if len(many) == 2:
        return many[0], many[1]
    both = node.integer(name, many[0] if len(many) == 1 else default)
    return node.integer(name + "_h", both), node.integer(name + "_w", both)


def _window(node: Caffe2Node) -> dict[str, Any]:
    kernel = _pair(node, "kernel", 0)
    if min(kernel) < 1 or max(kernel) > 1 << 15:
        raise RefusedError(f"a window of {list(kernel)} is impossible")
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": _pair(node, "stride", 1)}
    pads = node.integers("pads")
    if len(pads) != 4:
        pad = node.integer("pad")
        pads = [node.integer(f"pad_{side}", pad) for side in "tlbr"]
    legacy = node.integer("legacy_pad")
    if legacy in (1, 2):
        return window | {"auto_pad": "VALID" if legacy == 1 else "SAME_UPPER"}
    if legacy == 3 and len(node.dims) == 4:
        pads = full_windows(node.dims[2:], kernel, window["strides"], pads)
    return window | {"pads": pads}


def convolution(node: Caffe2Node) -> Value:
    window = _window(node) | {"dilations": _pair(node, "dilation", 1), "group": max(1, node.integer("group", 1))}
    return node.add("Conv", *node.inputs, **window)


def deconvolution(node: Caffe2Node) -> Value:
    window = _window(node) | {"output_padding": _pair(node, "adj", 0), "group": max(1, node.integer("group", 1))}
    return node.add("ConvTranspose", *node.inputs, **window)


def fully_connected(node: Caffe2Node) -> Value:
    """Y = X W^T + b; FCTransposed has W already so."""
    x = node.as_matrix(node.x, node.integer("axis", 1))
    weights = node.as_matrix(node.input(1), node.integer("axis_w", 1))
    return node.add("Gemm", x, weights, *node.inputs[2:3], transB=int(node.op.type != "FCTransposed"))


def pooling(type: str, whole: str) -> Callable[[Caffe2Node], Value]:
    def import_node(node: Caffe2Node) -> Value:
        if node.integer("global_pooling"):
            return node.add(whole, node.x)
        include = {"count_include_pad": node.integer("count_include_pad")} if type == "AveragePool" else {}
        return node.add(type, node.x, **_window(node), **include)

    return import_node


def batch_norm(node: Caffe2Node) -> Value:
    return node.add("BatchNormalization", *node.inputs[:5], epsilon=node.number("epsilon", 1e-5))


def lrn(node: Caffe2Node) -> Value:
    return node.add(
        "LRN",
        node.x,
        size=node.integer("size"),
        alpha=node.number("alpha"),
        beta=node.number("beta"),
        bias=node.number("bias", 1.0),
    )


def concat(node: Caffe2Node) -> Value:
    axis = node.integer("axis", 1 if node.text("order", "NCHW") == "NCHW" else 3)
    return node.stack(node.inputs, axis) if node.integer("add_axis") else node.add("Concat", *node.inputs, axis=axis)


def split(node: Caffe2Node) -> Sequence[Value]:
    axis, sizes = node.axis(node.integer("axis", 1), len(node.dims)), node.integers("split")
    return node.split(node.x, axis, sizes) if sizes else node.equal_parts(node.x, axis, len(node.op.output))


def reshape(node: Caffe2Node) -> Value:
    """0 keeps an axis; the second output, the old shape, is for training."""
    shape = node.integers("shape")
    if not shape and len(node.inputs) > 1:
        return node.add("Reshape", node.x, node.add("Cast", node.input(1), to="i64"))
    return node.reshape(node.x, *shape)


def transpose(node: Caffe2Node) -> Value:
    return node.add("Transpose", node.x, perm=node.integers("axes") or range(len(node.dims))[::-1])


def slices(node: Caffe2Node) -> Value:
    """Ends of -1 reach to the end."""
    starts, ends = node.integers("starts"), node.integers("ends")
    bounds = [n + 1 + e if e < 0 else e for n, e in zip(node.dims, ends, strict=False)]
    return node.slice(node.x, starts, bounds, range(len(starts)))


def pad_image(node: Caffe2Node) -> Value:
    mode = {"constant": "constant", "edge": "edge", "reflect": "reflect"}.get(node.text("mode", "constant"), "")
    pads = node.integers("pads") or [node.integer(f"pad_{side}", node.integer("pad")) for side in "tlbr"]
    if not mode or len(pads) != 4:
        raise RefusedError("only constant, edge and reflect padding of images is supported")
    value = node.number("value") if mode == "constant" else None
    return node.add("Pad", node.x, node.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), value, mode=mode)


def resize(mode: str) -> Callable[[Caffe2Node], Value]:
    def import_node(node: Caffe2Node) -> Value:
        high, wide = (node.number(f"{side}_scale", node.number("scale", 1.0)) for side in ("height", "width"))
        h, w = node.dims[2:]
        centre = "asymmetric" if mode == "nearest" else "align_corners"
        return node.resize(node.x, int(h * high), int(w * wide), mode, centre)

    return import_node


def layer_norm(node: Caffe2Node) -> Value:
    """From ``axis`` on; vectors of that shape may scale and shift it."""
    axis = node.axis(node.integer("axis", 1), len(node.dims))
    shape = node.dims[axis:]
    given = [node.reshape(v, *shape) for v in node.inputs[1:3]]
    scale = given[0] if given else np.ones(shape, np.float32)
    return node.add("LayerNormalization", node.x, scale, *given[1:], axis=axis, epsilon=node.number("epsilon", 1e-5))


def affine(node: Caffe2Node) -> Value:
    return node.add(
        "Add", node.add("Mul", node.x, node.channels(node.input(1), node.x)), node.channels(node.input(2), node.x)
    )


def columns(node: Caffe2Node) -> Value:
    window, dilation, (n, _, h, w) = _window(node), _pair(node, "dilation", 1), node.image(node.x)
    if "pads" not in window:
        raise RefusedError("pads of old are not supported")
    kernel, pads, strides = window["kernel_shape"], window["pads"], window["strides"]
    spans = zip((h, w), pads[:2], pads[2:], kernel, dilation, strides, strict=True)
    size = [(m + p + q - (k - 1) * d - 1) // s + 1 for m, p, q, k, d, s in spans]
    return node.reshape(unfolded(node, node.x, kernel, strides, pads, dilation), n, -1, *size)


def blocks(node: Caffe2Node) -> Value:
    size = (node.integer("block_size", 2),) * 2
    pads = [node.integer(f"pad_{side}", node.integer("pad")) for side in "tlbr"]
    return (space_to_batch if node.op.type == "SpaceToBatch" else batch_to_space)(node, node.x, size, pads)


# --------------------------------------------------------------------------------------------- regions
def roi_pool(node: Caffe2Node) -> Value:
    return node.add(
        "MaxRoiPool",
        node.x,
        node.input(1),
        pooled_shape=(node.integer("pooled_h", 1), node.integer("pooled_w", 1)),
        spatial_scale=node.number("spatial_scale", 1.0),
    )


def roi_align(node: Caffe2Node) -> Value:
    """Regions [R, 5] with the number of their image first, or [R, 4] of the only one."""
    count, width = node.builder.dims(node.input(1))
    image_indices = node.value(np.zeros(count, np.int64))
    if width == 5:
        image_indices = node.reshape(node.add("Cast", node.slice(node.input(1), [0], [1], [1]), to="i64"), count)
    regions = node.slice(node.input(1), [width - 4], [width], [1])
    centre = "half_pixel" if node.integer("aligned") else "output_half_pixel"
    return node.add(
        "RoiAlign",
        node.x,
        regions,
        image_indices,
        output_height=node.integer("pooled_h", 1),
        output_width=node.integer("pooled_w", 1),
        spatial_scale=node.number("spatial_scale", 1.0),
        sampling_ratio=max(0, node.integer("sampling_ratio", -1)),
        coordinate_transformation_mode=centre,
    )


# ----------------------------------------------------------------------------------- eight-bit integers
def _then_relu(result: Callable[[Caffe2Node], Outputs]) -> Callable[[Caffe2Node], Outputs]:
    return lambda node: node.add("Relu", whole) if isinstance(whole := result(node), Value) else whole


def quantised(result: Callable[[Caffe2Node], Outputs], *after: str) -> Callable[[Caffe2Node], Outputs]:
    """The same on real numbers, which are then rounded and limited as the integers of its result are."""
    return lambda node: rounded(node, node.chain(whole, *after)) if isinstance(whole := result(node), Value) else whole


def rounded(node: Caffe2Node, x: Value) -> Value:
    scale, zero = node.number("Y_scale"), float(node.integer("Y_zero_point"))
    if not scale > 0:
        return x
    low, high = (0 - zero) * scale, (255 - zero) * scale
    return node.add("Mul", node.add("Round", node.add("Mul", node.add("Clip", x, low, high), 1 / scale)), scale)


def clip(node: Caffe2Node) -> Value:
    return node.add("Clip", node.x, node.number("min", -3.4e38), node.number("max", 3.4e38))


def normalize(node: Caffe2Node) -> Value:
    length = node.add("ReduceL2", node.x, node.ints(node.integer("axis", -1)), keepdims=1)
    return node.add("Div", node.x, node.add("Max", length, 1e-12))


def reduce(type: str) -> Callable[[Caffe2Node], Value]:
    def import_node(node: Caffe2Node) -> Value:
        axes = node.integers("axes") or list(range(len(node.dims)))
        return node.add(type, node.x, node.ints(*axes), keepdims=node.integer("keepdims", 1))

    return import_node


def arg(type: str) -> Callable[[Caffe2Node], Value]:
    return lambda node: node.add(type, node.x, axis=node.integer("axis", -1), keepdims=node.integer("keepdims", 1))


def matmul(node: Caffe2Node) -> Value:
    flags = (bool(node.integer(name)) for name in ("trans_a", "trans_b"))
    return node.add(
        "MatMul", *(node.transpose_last(value, flag) for value, flag in zip(node.inputs, flags, strict=True))
    )


def softmax(node: Caffe2Node) -> Value:
    """Over everything from ``axis`` on."""
    flat = node.as_matrix(node.x, node.integer("axis", 1))
    return node.reshape(node.add("Softmax", flat, axis=1), *node.dims)


OPERATORS: dict[str, Callable[[Caffe2Node], Outputs]] = {
    **ELEMENTS,
    "Conv": channels_first_images(convolution),
    "ConvTranspose": channels_first_images(deconvolution),
    "FC": fully_connected,
    "FCTransposed": fully_connected,
    "MaxPool": channels_first_images(pooling("MaxPool", "GlobalMaxPool")),
    "AveragePool": channels_first_images(pooling("AveragePool", "GlobalAveragePool")),
    "SpatialBN": channels_first_images(batch_norm),
    "LRN": channels_first_images(lrn),
    "InstanceNorm": channels_first_images(
        lambda node: node.add("InstanceNormalization", *node.inputs, epsilon=node.number("epsilon", 1e-5))
    ),
    "GroupNorm": channels_first_images(
        lambda node: group_norm(
            node, node.x, node.integer("group", 32), node.input(1), node.input(2), node.number("epsilon", 1e-5)
        )
    ),
    "LayerNorm": layer_norm,
    "AffineChannel": channels_first_images(affine),
    "Im2Col": channels_first_images(columns),
    "SpaceToBatch": channels_first_images(blocks),
    "BatchToSpace": channels_first_images(blocks),
    "RoIPool": channels_first_images(roi_pool),
    "RoIAlign": channels_first_images(roi_align),
    "Relu": simple("Relu"),
    "LeakyRelu": lambda node: node.add("LeakyRelu", node.x, alpha=node.number("alpha", 0.01)),
    "PRelu": lambda node: node.add("PRelu", node.x, node.channels(node.input(1), node.x)),
    "Sigmoid": simple("Sigmoid"),
    "Tanh": simple("Tanh"),
    "Elu": lambda node: node.add("Elu", node.x, alpha=node.number("alpha", 1.0)),
    "Selu": lambda node: node.add(
        "Selu", node.x, alpha=node.number("alpha", 1.6732632), gamma=node.number("scale", 1.050701)
    ),
    "Softplus": simple("Softplus"),
    "Softsign": simple("Softsign"),
    "Swish": simple("Swish"),
    "Gelu": lambda node: node.add("Gelu", node.x, approximate="tanh" if node.integer("fast_gelu") else "none"),
    "Exp": simple("Exp"),
    "Log": simple("Log"),
    "Sqrt": simple("Sqrt"),
    "Abs": simple("Abs"),
    "Floor": simple("Floor"),
    "Ceil": simple("Ceil"),
    "Negative": simple("Neg"),
    "Sqr": lambda node: node.add("Mul", node.x, node.x),
    "Sin": simple("Sin"),
    "Cos": simple("Cos"),
    "Clip": clip,
    "Scale": lambda node: node.add("Mul", node.x, node.number("scale", 1.0)),
    "Pow": lambda node: node.add(
        "Pow", node.x, node.number("exponent") if "exponent" in node.arguments else node.input(1)
    ),
    "Sum": lambda node: node.fold("Add", node.inputs),
    "Max": lambda node: node.fold("Max", node.inputs),
    "Min": lambda node: node.fold("Min", node.inputs),
    "MatMul": matmul,
    "BatchMatMul": matmul,
    "Concat": concat,
    "DepthConcat": concat,
    "Split": split,
    "DepthSplit": split,
    "Reshape": reshape,
    "Transpose": transpose,
    "Slice": slices,
    "PadImage": channels_first_images(pad_image),
    "Flatten": lambda node: node.as_matrix(node.x),
    "FlattenToVec": lambda node: node.reshape(node.x, -1),
    "ExpandDims": lambda node: node.add("Unsqueeze", node.x, node.ints(*node.integers("dims"))),
    "Squeeze": lambda node: node.add("Squeeze", node.x, node.ints(*node.integers("dims"))),
    "ChannelShuffle": channels_first_images(lambda node: node.channel_shuffle(node.x, node.integer("group", 1))),
    "ResizeNearest": channels_first_images(resize("nearest")),
    "UpsampleNearest": channels_first_images(resize("nearest")),
    "UpsampleBilinear": channels_first_images(resize("linear")),
    "ResizeBilinear": channels_first_images(resize("linear")),
    "Normalize": normalize,
    "Softmax": softmax,
    "ArgMax": arg("ArgMax"),
    "ArgMin": arg("ArgMin"),
    "ReduceMean": reduce("ReduceMean"),
    "ReduceSum": reduce("ReduceSum"),
    "ReduceMax": reduce("ReduceMax"),
    "ReduceMin": reduce("ReduceMin"),
    "ReduceL1": reduce("ReduceL1"),
    "ReduceL2": reduce("ReduceL2"),
    "Dropout": same,
    "Copy": same,
    "Alias": same,
    "StopGradient": same,
    "EnsureCPUOutput": same,
    "CopyGPUToCPU": same,
    "CopyCPUToGPU": same,
    "NCHW2NHWC": lambda node: node.add("Transpose", node.x, perm=(0, 2, 3, 1)),
    "NHWC2NCHW": lambda node: node.add("Transpose", node.x, perm=(0, 3, 1, 2)),
}
OPERATORS |= {f"{name}Relu": _then_relu(OPERATORS[name]) for name in ("Conv", "FC", "Sum", "Add")}
OPERATORS |= {
    f"Int8{name}": quantised(OPERATORS[name])
    for name in (
        "Conv",
        "ConvRelu",
        "ConvTranspose",
        "FC",
        "FCRelu",
        "Sum",
        "SumRelu",
        "Add",
        "AddRelu",
        "MaxPool",
        "AveragePool",
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Softmax",
        "Concat",
        "Reshape",
        "Flatten",
        "Slice",
        "Transpose",
        "ResizeNearest",
        "ChannelShuffle",
    )
}
OPERATORS |= {
    "Int8Quantize": lambda node: rounded(node, node.x),
    "Int8Dequantize": same,
    "Int8MaxPoolRelu": quantised(OPERATORS["MaxPool"], "Relu"),
    "Int8AveragePoolRelu": quantised(OPERATORS["AveragePool"], "Relu"),
}
