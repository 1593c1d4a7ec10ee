"""Caffe2's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: the operator catalogue of Caffe2, caffe2/operators of pytorch/pytorch.  Images are NCHW.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions.layers import batch_to_space, group_norm, space_to_batch, unfolded
from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, full_windows, same, simple
from tenon.importers.caffe2.data_movement import ELEMENTS
from tenon.importers.shared.named_arguments import Arguments
from tenon.ir.graph import Value
from tenon.ir.writer import is_known
from tenon.wire.protobuf import Message


def looks_like_name(data: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z][A-Za-z0-9_]{1,63}", data) is not None


class Context(Arguments):
    """The operator about to be made.  ``blind`` says that weights are in no file, so that shapes are not known."""

    def __init__(self, builder: GraphBuilder, blind: bool) -> None:
        super().__init__(builder)
        self.blind = blind

    def begin(self, op: Message) -> bool:
        """Whether the operator can be made: the types of its inputs are known."""
        self.read(op)
        if self.text("order", "NCHW") not in ("NCHW", "NHWC"):
            raise RefusedError(f"the order {self.text('order')} is not supported")
        return self.blind or all(is_known(v) for v in self.inputs)


def images(made: Callable[[Context], Value]) -> Callable[[Context], Value]:
    """What reads pictures; those of the order NHWC, and weights of four axes with them, are turned and turned back."""

    def turned(c: Context) -> Value:
        if c.text("order", "NCHW") == "NCHW":
            return made(c)
        weights = c.op.type.startswith(("Conv", "Int8Conv"))
        for i in range(2 if weights else 1):
            c.inputs[i] = c.add("Transpose", c.input(i), perm=(0, 3, 1, 2))
        return c.add("Transpose", made(c), perm=(0, 2, 3, 1))

    return turned


def _pair(c: Context, name: str, default: int) -> tuple[int, int]:
    many = c.integers(name + "s")
    if len(many) == 2:
        return many[0], many[1]
    both = c.integer(name, many[0] if len(many) == 1 else default)
    return c.integer(name + "_h", both), c.integer(name + "_w", both)


def _window(c: Context) -> dict[str, Any]:
    kernel = _pair(c, "kernel", 0)
    if min(kernel) < 1 or max(kernel) > 1 << 15:
        raise RefusedError(f"a window of {list(kernel)} is impossible")
    window: dict[str, Any] = {"kernel_shape": kernel, "strides": _pair(c, "stride", 1)}
    pads = c.integers("pads")
    if len(pads) != 4:
        pad = c.integer("pad")
        pads = [c.integer(f"pad_{side}", pad) for side in "tlbr"]
    legacy = c.integer("legacy_pad")
    if legacy in (1, 2):
        return window | {"auto_pad": "VALID" if legacy == 1 else "SAME_UPPER"}
    if legacy == 3 and len(c.dims) == 4:
        pads = full_windows(c.dims[2:], kernel, window["strides"], pads)
    return window | {"pads": pads}


def convolution(c: Context) -> Value:
    window = _window(c) | {"dilations": _pair(c, "dilation", 1), "group": max(1, c.integer("group", 1))}
    return c.add("Conv", *c.inputs, **window)


def deconvolution(c: Context) -> Value:
    window = _window(c) | {"output_padding": _pair(c, "adj", 0), "group": max(1, c.integer("group", 1))}
    return c.add("ConvTranspose", *c.inputs, **window)


def fully_connected(c: Context) -> Value:
    """Y = X W^T + b; FCTransposed has W already so."""
    x = c.as_matrix(c.x, c.integer("axis", 1))
    weights = c.as_matrix(c.input(1), c.integer("axis_w", 1))
    return c.add("Gemm", x, weights, *c.inputs[2:3], transB=int(c.op.type != "FCTransposed"))


def pooling(type: str, whole: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        if c.integer("global_pooling"):
            return c.add(whole, c.x)
        include = {"count_include_pad": c.integer("count_include_pad")} if type == "AveragePool" else {}
        return c.add(type, c.x, **_window(c), **include)

    return made


def batch_norm(c: Context) -> Value:
    return c.add("BatchNormalization", *c.inputs[:5], epsilon=c.number("epsilon", 1e-5))


def lrn(c: Context) -> Value:
    return c.add(
        "LRN", c.x, size=c.integer("size"), alpha=c.number("alpha"), beta=c.number("beta"), bias=c.number("bias", 1.0)
    )


def concat(c: Context) -> Value:
    axis = c.integer("axis", 1 if c.text("order", "NCHW") == "NCHW" else 3)
    return c.stacked(c.inputs, axis) if c.integer("add_axis") else c.add("Concat", *c.inputs, axis=axis)


def split(c: Context) -> Sequence[Value]:
    axis, sizes = c.axis(c.integer("axis", 1), len(c.dims)), c.integers("split")
    return c.split(c.x, axis, sizes) if sizes else c.equal_parts(c.x, axis, len(c.op.output))


def reshape(c: Context) -> Value:
    """0 keeps an axis; the second output, the old shape, is for training."""
    shape = c.integers("shape")
    if not shape and len(c.inputs) > 1:
        return c.add("Reshape", c.x, c.add("Cast", c.input(1), to="i64"))
    return c.reshape(c.x, *shape)


def transpose(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=c.integers("axes") or range(len(c.dims))[::-1])


def slices(c: Context) -> Value:
    """Ends of -1 reach to the end."""
    starts, ends = c.integers("starts"), c.integers("ends")
    bounds = [n + 1 + e if e < 0 else e for n, e in zip(c.dims, ends, strict=False)]
    return c.slice(c.x, starts, bounds, range(len(starts)))


def pad_image(c: Context) -> Value:
    mode = {"constant": "constant", "edge": "edge", "reflect": "reflect"}.get(c.text("mode", "constant"), "")
    pads = c.integers("pads") or [c.integer(f"pad_{side}", c.integer("pad")) for side in "tlbr"]
    if not mode or len(pads) != 4:
        raise RefusedError("only constant, edge and reflect padding of images is supported")
    value = c.number("value") if mode == "constant" else None
    return c.add("Pad", c.x, c.ints(0, 0, *pads[:2], 0, 0, *pads[2:]), value, mode=mode)


def resize(mode: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        high, wide = (c.number(f"{side}_scale", c.number("scale", 1.0)) for side in ("height", "width"))
        h, w = c.dims[2:]
        centre = "asymmetric" if mode == "nearest" else "align_corners"
        return c.resized(c.x, int(h * high), int(w * wide), mode, centre)

    return made


def layer_norm(c: Context) -> Value:
    """From ``axis`` on; vectors of that shape may scale and shift it."""
    axis = c.axis(c.integer("axis", 1), len(c.dims))
    shape = c.dims[axis:]
    given = [c.reshape(v, *shape) for v in c.inputs[1:3]]
    scale = given[0] if given else np.ones(shape, np.float32)
    return c.add("LayerNormalization", c.x, scale, *given[1:], axis=axis, epsilon=c.number("epsilon", 1e-5))


def affine(c: Context) -> Value:
    return c.add("Add", c.add("Mul", c.x, c.channels(c.input(1), c.x)), c.channels(c.input(2), c.x))


def columns(c: Context) -> Value:
    window, dilation, (n, _, h, w) = _window(c), _pair(c, "dilation", 1), c.image(c.x)
    if "pads" not in window:
        raise RefusedError("pads of old are not supported")
    kernel, pads, strides = window["kernel_shape"], window["pads"], window["strides"]
    spans = zip((h, w), pads[:2], pads[2:], kernel, dilation, strides, strict=True)
    size = [(m + p + q - (k - 1) * d - 1) // s + 1 for m, p, q, k, d, s in spans]
    return c.reshape(unfolded(c, c.x, kernel, strides, pads, dilation), n, -1, *size)


def blocks(c: Context) -> Value:
    size = (c.integer("block_size", 2),) * 2
    pads = [c.integer(f"pad_{side}", c.integer("pad")) for side in "tlbr"]
    return (space_to_batch if c.op.type == "SpaceToBatch" else batch_to_space)(c, c.x, size, pads)


# --------------------------------------------------------------------------------------------- regions
def roi_pool(c: Context) -> Value:
    return c.add(
        "MaxRoiPool",
        c.x,
        c.input(1),
        pooled_shape=(c.integer("pooled_h", 1), c.integer("pooled_w", 1)),
        spatial_scale=c.number("spatial_scale", 1.0),
    )


def roi_align(c: Context) -> Value:
    """Regions [R, 5] with the number of their picture first, or [R, 4] of the only one."""
    count, width = c.builder.dims(c.input(1))
    picture = c.value(np.zeros(count, np.int64))
    if width == 5:
        picture = c.reshape(c.add("Cast", c.slice(c.input(1), [0], [1], [1]), to="i64"), count)
    regions = c.slice(c.input(1), [width - 4], [width], [1])
    centre = "half_pixel" if c.integer("aligned") else "output_half_pixel"
    return c.add(
        "RoiAlign",
        c.x,
        regions,
        picture,
        output_height=c.integer("pooled_h", 1),
        output_width=c.integer("pooled_w", 1),
        spatial_scale=c.number("spatial_scale", 1.0),
        sampling_ratio=max(0, c.integer("sampling_ratio", -1)),
        coordinate_transformation_mode=centre,
    )


# ----------------------------------------------------------------------------------- eight-bit integers
def _then_relu(made: Callable[[Context], Made]) -> Callable[[Context], Made]:
    return lambda c: c.add("Relu", whole) if isinstance(whole := made(c), Value) else whole


def quantised(made: Callable[[Context], Made], *after: str) -> Callable[[Context], Made]:
    """The same on real numbers, which are then rounded and limited as the integers of its result are."""
    return lambda c: rounded(c, c.chain(whole, *after)) if isinstance(whole := made(c), Value) else whole


def rounded(c: Context, x: Value) -> Value:
    scale, zero = c.number("Y_scale"), float(c.integer("Y_zero_point"))
    if not scale > 0:
        return x
    low, high = (0 - zero) * scale, (255 - zero) * scale
    return c.add("Mul", c.add("Round", c.add("Mul", c.add("Clip", x, low, high), 1 / scale)), scale)


def clip(c: Context) -> Value:
    return c.add("Clip", c.x, c.number("min", -3.4e38), c.number("max", 3.4e38))


def normalize(c: Context) -> Value:
    length = c.add("ReduceL2", c.x, c.ints(c.integer("axis", -1)), keepdims=1)
    return c.add("Div", c.x, c.add("Max", length, 1e-12))


def reduce(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        axes = c.integers("axes") or list(range(len(c.dims)))
        return c.add(type, c.x, c.ints(*axes), keepdims=c.integer("keepdims", 1))

    return made


def arg(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, axis=c.integer("axis", -1), keepdims=c.integer("keepdims", 1))


def matmul(c: Context) -> Value:
    flags = (bool(c.integer(name)) for name in ("trans_a", "trans_b"))
    return c.add("MatMul", *(c.swapped(value, flag) for value, flag in zip(c.inputs, flags, strict=True)))


def softmax(c: Context) -> Value:
    """Over everything from ``axis`` on."""
    flat = c.as_matrix(c.x, c.integer("axis", 1))
    return c.reshape(c.add("Softmax", flat, axis=1), *c.dims)


OPERATORS: dict[str, Callable[[Context], Made]] = {
    **ELEMENTS,
    "Conv": images(convolution),
    "ConvTranspose": images(deconvolution),
    "FC": fully_connected,
    "FCTransposed": fully_connected,
    "MaxPool": images(pooling("MaxPool", "GlobalMaxPool")),
    "AveragePool": images(pooling("AveragePool", "GlobalAveragePool")),
    "SpatialBN": images(batch_norm),
    "LRN": images(lrn),
    "InstanceNorm": images(lambda c: c.add("InstanceNormalization", *c.inputs, epsilon=c.number("epsilon", 1e-5))),
    "GroupNorm": images(
        lambda c: group_norm(c, c.x, c.integer("group", 32), c.input(1), c.input(2), c.number("epsilon", 1e-5))
    ),
    "LayerNorm": layer_norm,
    "AffineChannel": images(affine),
    "Im2Col": images(columns),
    "SpaceToBatch": images(blocks),
    "BatchToSpace": images(blocks),
    "RoIPool": images(roi_pool),
    "RoIAlign": images(roi_align),
    "Relu": simple("Relu"),
    "LeakyRelu": lambda c: c.add("LeakyRelu", c.x, alpha=c.number("alpha", 0.01)),
    "PRelu": lambda c: c.add("PRelu", c.x, c.channels(c.input(1), c.x)),
    "Sigmoid": simple("Sigmoid"),
    "Tanh": simple("Tanh"),
    "Elu": lambda c: c.add("Elu", c.x, alpha=c.number("alpha", 1.0)),
    "Selu": lambda c: c.add("Selu", c.x, alpha=c.number("alpha", 1.6732632), gamma=c.number("scale", 1.050701)),
    "Softplus": simple("Softplus"),
    "Softsign": simple("Softsign"),
    "Swish": simple("Swish"),
    "Gelu": lambda c: c.add("Gelu", c.x, approximate="tanh" if c.integer("fast_gelu") else "none"),
    "Exp": simple("Exp"),
    "Log": simple("Log"),
    "Sqrt": simple("Sqrt"),
    "Abs": simple("Abs"),
    "Floor": simple("Floor"),
    "Ceil": simple("Ceil"),
    "Negative": simple("Neg"),
    "Sqr": lambda c: c.add("Mul", c.x, c.x),
    "Sin": simple("Sin"),
    "Cos": simple("Cos"),
    "Clip": clip,
    "Scale": lambda c: c.add("Mul", c.x, c.number("scale", 1.0)),
    "Pow": lambda c: c.add("Pow", c.x, c.number("exponent") if "exponent" in c.arguments else c.input(1)),
    "Sum": lambda c: c.fold("Add", c.inputs),
    "Max": lambda c: c.fold("Max", c.inputs),
    "Min": lambda c: c.fold("Min", c.inputs),
    "MatMul": matmul,
    "BatchMatMul": matmul,
    "Concat": concat,
    "DepthConcat": concat,
    "Split": split,
    "DepthSplit": split,
    "Reshape": reshape,
    "Transpose": transpose,
    "Slice": slices,
    "PadImage": images(pad_image),
    "Flatten": lambda c: c.as_matrix(c.x),
    "FlattenToVec": lambda c: c.reshape(c.x, -1),
    "ExpandDims": lambda c: c.add("Unsqueeze", c.x, c.ints(*c.integers("dims"))),
    "Squeeze": lambda c: c.add("Squeeze", c.x, c.ints(*c.integers("dims"))),
    "ChannelShuffle": images(lambda c: c.shuffled(c.x, c.integer("group", 1))),
    "ResizeNearest": images(resize("nearest")),
    "UpsampleNearest": images(resize("nearest")),
    "UpsampleBilinear": images(resize("linear")),
    "ResizeBilinear": images(resize("linear")),
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
    "NCHW2NHWC": lambda c: c.add("Transpose", c.x, perm=(0, 2, 3, 1)),
    "NHWC2NCHW": lambda c: c.add("Transpose", c.x, perm=(0, 3, 1, 2)),
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
    "Int8Quantize": lambda c: rounded(c, c.x),
    "Int8Dequantize": same,
    "Int8MaxPoolRelu": quantised(OPERATORS["MaxPool"], "Relu"),
    "Int8AveragePoolRelu": quantised(OPERATORS["AveragePool"], "Relu"),
}
