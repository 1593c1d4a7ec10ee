"""MACE's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: mace/ops of XiaoMi/mace and the options that its converter writes.  Images are NHWC, filters OIHW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.decompositions import layers
from tenon.formats.decompositions.layers import group_norm, mirrored
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs, full_windows, same
from tenon.formats.importers.mace.detection import DETECTION
from tenon.formats.importers.mace.node import MaceNode
from tenon.formats.importers.mace.speech import SPEECH
from tenon.network.graph.graph import Value


def activated(node: MaceNode, x: Value) -> Value:
    """The activation that an operator carries by its name."""
    kind, slope = node.text("activation"), node.number("activation_coefficient", node.number("leakyrelu_coefficient"))
    if kind in ("", "NOOP"):
        return x
    if kind == "PRELU":
        return node.add("PRelu", x, node.input(len(node.inputs) - 1))
    outputs: dict[str, Callable[[], Value]] = {
        "RELU": lambda: node.add("Relu", x),
        "RELUX": lambda: node.add("Clip", x, 0.0, node.number("max_limit", 6.0)),
        "TANH": lambda: node.add("Tanh", x),
        "SIGMOID": lambda: node.add("Sigmoid", x),
        "LEAKYRELU": lambda: node.add("LeakyRelu", x, alpha=slope),
        "ELU": lambda: node.add("Elu", x, alpha=slope or 1.0),
        "HARDSIGMOID": lambda: node.add(
            "HardSigmoid", x, alpha=node.number("hardsigmoid_alpha", 1 / 6), beta=node.number("hardsigmoid_beta", 0.5)
        ),
    }
    if kind not in outputs:
        raise RefusedError(f"the activation {kind} is not supported")
    return outputs[kind]()


def _window(node: MaceNode) -> dict[str, Any]:
    """Padding by rule, or in all of each axis, the smaller half first."""
    strides = node.integers("strides") or [1, 1]
    dilations = node.integers("dilations") or [1, 1]
    total = node.integers("padding_values")
    window: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if total:
        return window | {"pads": [total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2]}
    rule = node.integer("padding")
    if rule not in (0, 1, 3):
        raise RefusedError(f"padding {rule} is not supported")
    return window | {"auto_pad": {0: "VALID", 1: "SAME_UPPER", 3: "SAME_LOWER"}[rule]}


def convolution(node: MaceNode) -> Value:
    x = node.add(
        "Conv",
        node.channels_first(),
        node.filters(),
        *node.bias(),
        **_window(node),
        group=max(1, node.integer("group", 1)),
    )
    return activated(node, node.channels_last(x))


def depthwise(node: MaceNode) -> Value:
    """Filters are [multiplier, channels, h, w]."""
    filters = node.filters()
    multiplier, channels, h, w = node.builder.dims(filters)
    kernel = node.reshape(node.add("Transpose", filters, perm=(1, 0, 2, 3)), channels * multiplier, 1, h, w)
    x = node.add("Conv", node.channels_first(), kernel, *node.bias(), **_window(node), group=channels)
    return activated(node, node.channels_last(x))


def deconvolution(node: MaceNode) -> Value:
    """Filters are OIHW of the convolution that it is the transpose of here: [outputs, inputs, h, w], the outputs those
    of a group."""
    window = _window(node) | {"group": max(1, node.integer("group", 1))}
    kernel = node.add("Transpose", node.filters(), perm=(1, 0, 2, 3))
    shape = [int(n) for n in node.op.output_shape[0].dims] if node.op.output_shape else []
    if len(shape) == 4 and "pads" not in window:
        window["output_shape"] = shape[1:3]
    bias = [v for v in node.inputs[2:] if len(node.builder.dims(v)) == 1 and node.builder.type(v).dtype.is_float][:1]
    x = node.add("ConvTranspose", node.channels_first(), kernel, *bias, **window)
    return activated(node, node.channels_last(x))


def fully_connected(node: MaceNode) -> Value:
    """A convolution whose window is the whole image."""
    filters = node.filters()
    outputs, *inner = node.builder.dims(filters)
    x = node.channels_first() if len(node.dims) == 4 else node.x
    flat = node.reshape(x, node.dims[0], -1)
    y = node.add("Gemm", flat, node.reshape(filters, outputs, int(np.prod(inner))), *node.bias(), transB=1)
    return activated(node, node.reshape(y, node.dims[0], 1, 1, outputs))


def pooling(node: MaceNode) -> Value:
    window, kind = _window(node), node.integer("pooling_type")
    if kind not in (1, 2):
        raise RefusedError(f"pooling_type {kind} is not supported")
    del window["dilations"]
    window["kernel_shape"] = node.dims[1:3] if node.integer("global_pooling") else node.integers("kernels")
    if node.integer("round_mode") == 1 and "pads" in window:
        window["pads"] = full_windows(node.dims[1:3], window["kernel_shape"], window["strides"], window["pads"])
    return node.channels_last(node.add("AveragePool" if kind == 1 else "MaxPool", node.channels_first(), **window))


def batch_norm(node: MaceNode) -> Value:
    """Folded to a scale and an offset, or with mean and variance too."""
    if len(node.inputs) < 5:
        return activated(node, node.add("Add", node.add("Mul", node.x, node.input(1)), node.input(2)))
    scale, offset, mean, variance = (node.input(i) for i in range(1, 5))
    deviation = node.add("Sqrt", node.add("Add", variance, node.number("epsilon", 1e-5)))
    factor = node.add("Div", scale, deviation)
    x = node.add("Add", node.add("Mul", node.x, factor), node.add("Sub", offset, node.add("Mul", mean, factor)))
    return activated(node, x)


_UNARY = {6: "Neg", 7: "Abs", 13: "Sign"}
_ELTWISE = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Min", 5: "Max", 9: "Pow"}


def eltwise(node: MaceNode) -> Value:
    """An elementwise operator on two tensors, or on one and a number that is the first or second operand."""
    kind = node.integer("type")
    if kind in _UNARY:
        return node.add(_UNARY[kind], node.x)
    if len(node.inputs) == 1:
        number = node.value(node.number("scalar_input", 1.0))
        pair = (node.x, number) if node.integer("scalar_input_index", 1) else (number, node.x)
    else:
        pair = (node.input(0), node.input(1))
    a, b = pair
    assert b is not None
    weights = node.numbers("coeff")
    if kind == 0 and len(weights) == 2 and weights != [1.0, 1.0]:
        a, b = node.add("Mul", a, weights[0]), node.add("Mul", b, weights[1])
    if kind == 8:
        gap = node.add("Sub", a, b)
        return node.add("Mul", gap, gap)
    if kind == 10:
        return node.add("Cast", node.add("Equal", a, b), to="i32")
    if kind == 11:
        return node.add("Floor", node.add("Div", a, b))
    if kind == 12 and len(weights) == 2:
        return node.add("Clip", node.x, *weights)
    if kind not in _ELTWISE:
        raise RefusedError(f"type {kind} is not supported")
    return node.add(_ELTWISE[kind], a, b)


_REDUCTIONS = ("ReduceMean", "ReduceMin", "ReduceMax", "ReduceProd", "ReduceSum")


def reduce(node: MaceNode) -> Value:
    kind = node.integer("reduce_type")
    if not 0 <= kind < len(_REDUCTIONS):
        raise RefusedError(f"reduce_type {kind} is not supported")
    axes = node.integers("axis") or list(range(len(node.dims)))
    return node.add(_REDUCTIONS[kind], node.x, node.ints(*axes), keepdims=node.integer("keepdims"))


def squared_difference_mean(node: MaceNode) -> Value:
    gap = node.add("Sub", node.x, node.input(1))
    return node.add("ReduceMean", node.add("Mul", gap, gap), node.ints(1, 2), keepdims=1)


def matmul(node: MaceNode) -> Value:
    flags = (bool(node.integer(name)) for name in ("transpose_a", "transpose_b"))
    sides = [node.transpose_last(value, flag) for value, flag in zip(node.inputs, flags, strict=False)]
    x = node.add("MatMul", *sides)
    return node.add("Add", x, node.input(2)) if len(node.inputs) > 2 else x


def reshape(node: MaceNode) -> Value:
    if len(node.inputs) > 1:
        return node.add("Reshape", node.x, node.add("Cast", node.input(1), to="i64"))
    if "axis" in node.arguments and "shape" not in node.arguments:
        return _flattened(node)
    return node.reshape(node.x, *node.integers("shape"))


def _flattened(node: MaceNode) -> Value:
    """Caffe's: the axes of an image are counted with its channels first."""
    x = node.channels_first() if node.integer("has_data_format") and len(node.dims) == 4 else node.x
    dims = node.builder.dims(x)
    first, last = (
        node.axis(node.integer(name, default), len(dims)) for name, default in (("axis", 1), ("end_axis", -1))
    )
    return node.reshape(x, *dims[:first], -1, *dims[last + 1 :])


def pad(node: MaceNode) -> Value:
    """Before and after each axis."""
    widths, kind = node.integers("paddings"), node.integer("pad_type")
    if kind not in (0, 1, 2) or len(widths) != 2 * len(node.dims):
        raise RefusedError(f"paddings {widths} of type {kind} are not supported")
    if kind == 2:
        return mirrored(node, node.x, list(zip(widths[::2], widths[1::2], strict=True)))
    value = node.number("constant_value") if kind == 0 else None
    return node.add(
        "Pad", node.x, node.ints(*widths[::2], *widths[1::2]), value, mode="reflect" if kind else "constant"
    )


def resize(mode: str) -> Callable[[MaceNode], Value]:
    def import_node(node: MaceNode) -> Value:
        size = node.integers("size")
        if not size and len(node.inputs) > 1 and node.input(1).constant:
            size = [int(n) for n in node.input(1).array.ravel()]
        if len(size) != 2:
            _, h, w, _ = node.dims
            size = [int(h * node.number("height_scale", 1.0)), int(w * node.number("width_scale", 1.0))]
        half = node.integer("half_pixel_centers") or node.integer("coordinate_transformation_mode") == 1
        centre = "align_corners" if node.integer("align_corners") else "half_pixel" if half else "asymmetric"
        return node.channels_last(node.resize(node.channels_first(), size[0], size[1], mode, centre))

    return import_node


def split(node: MaceNode) -> Sequence[Value]:
    axis, sizes = node.axis(node.integer("axis", 3), len(node.dims)), node.integers("size_splits")
    return node.split(node.x, axis, sizes) if sizes else node.equal_parts(node.x, axis, len(node.op.output))


_FAR = 2**31 - 1
"""A bound past every axis."""


def strided_slice(node: MaceNode) -> Value:
    """begin, end and strides are inputs; bits of the masks leave an end open or drop an axis of one element."""
    given = [[int(n) for n in node.input(i).array.ravel()] for i in range(1, len(node.inputs))]
    begin, end = given[:2]
    steps = given[2] if len(given) > 2 else [1] * len(begin)
    if node.integer("ellipsis_mask") or node.integer("new_axis_mask"):
        raise RefusedError("ellipses and new axes are not supported")
    open_begin, open_end, drop = (node.integer(f"{name}_mask") for name in ("begin", "end", "shrink_axis"))
    first = [(0 if steps[i] > 0 else _FAR) if open_begin >> i & 1 else b for i, b in enumerate(begin)]
    last = [(_FAR if steps[i] > 0 else -_FAR) if open_end >> i & 1 else e for i, e in enumerate(end)]
    last = [b + 1 or _FAR if drop >> i & 1 else e for i, (b, e) in enumerate(zip(first, last, strict=True))]
    x = node.slice(node.x, first, last, range(len(first)), steps)
    removed_axes = [i for i in range(len(first)) if drop >> i & 1]
    return node.add("Squeeze", x, node.ints(*removed_axes)) if removed_axes else x


def slices(node: MaceNode) -> Value:
    """Starts, ends, axes and steps are options or inputs."""
    given = [node.integers(name) for name in ("starts", "ends", "axes", "steps")]
    for i, value in enumerate(node.inputs[1:5]):
        given[i] = [int(n) for n in value.array.ravel()]
    starts, ends, axes, steps = given
    return node.slice(node.x, starts, ends, axes or range(len(starts)), steps or [1] * len(starts))


def mean_variance(node: MaceNode) -> Value:
    """Epsilon is added to the deviation."""
    axes = node.ints(*((1, 2, 3) if node.integer("across_channels") else (1, 2)))
    x = node.add("Sub", node.x, node.add("ReduceMean", node.x, axes, keepdims=1))
    if not node.integer("normalize_variance", 1):
        return x
    deviation = node.add("Sqrt", node.add("ReduceMean", node.add("Mul", x, x), axes, keepdims=1))
    return node.add("Div", x, node.add("Add", deviation, node.number("epsilon", 1e-9)))


def normalised_groups(node: MaceNode) -> Value:
    x = group_norm(node, node.channels_first(), node.integer("group_num", 32), None, None, node.number("epsilon", 1e-5))
    return node.channels_last(x)


def cumulative(node: MaceNode) -> Value:
    axis = np.array(node.axis(node.integer("axis"), len(node.dims)), np.int64)
    return node.add("CumSum", node.x, axis, **{name: node.integer(name) for name in ("exclusive", "reverse")})


def channel_shuffle(node: MaceNode) -> Value:
    return node.channels_last(node.channel_shuffle(node.channels_first(), node.integer("group", 1)))


def rearranged(type: str, **attributes: Any) -> Callable[[MaceNode], Value]:
    return lambda node: node.channels_last(
        node.add(type, node.channels_first(), blocksize=node.integer("block_size", 1), **attributes)
    )


def local_response(node: MaceNode) -> Value:
    size = 2 * node.integer("depth_radius", 5) + 1
    return node.channels_last(
        node.add(
            "LRN",
            node.channels_first(),
            size=size,
            alpha=node.number("alpha", 1.0) * size,
            beta=node.number("beta", 0.5),
            bias=node.number("bias", 1.0),
        )
    )


def arg(node: MaceNode) -> Value:
    axis = (
        int(node.input(1).array.ravel()[0])
        if len(node.inputs) > 1 and node.input(1).constant
        else node.integer("axis", -1)
    )
    type = "ArgMin" if node.integer("argmin") else "ArgMax"
    return node.add("Cast", node.add(type, node.x, axis=axis, keepdims=node.integer("keepdims", 0)), to="i32")


def _blocks(node: MaceNode, name: str) -> tuple[int, int, list[int]]:
    """Height and width of the blocks, and what is added or cut: (top, bottom, left, right)."""
    block, edges = node.integers("block_shape"), node.integers(name) or [0] * 4
    if len(block) != 2 or len(edges) != 4 or min(*block, *edges) < 0 or not all(block) or len(node.dims) != 4:
        raise RefusedError(f"blocks {block} with {name} {edges} of {list(node.dims)} are not supported")
    return block[0], block[1], edges


def space_to_batch(node: MaceNode) -> Value:
    """The rows and columns of the blocks become images of their own, row by row, before the images there are."""
    down, across, (top, bottom, left, right) = _blocks(node, "paddings")
    x = node.add("Pad", node.x, node.ints(0, top, left, 0, 0, bottom, right, 0))
    n, h, w, channels = node.builder.dims(x)
    if h % down or w % across:
        raise RefusedError(f"{h} x {w} pixels do not make whole blocks of {down} x {across}")
    x = node.reshape(x, n, h // down, down, w // across, across, channels)
    x = node.add("Transpose", x, perm=(2, 4, 0, 1, 3, 5))
    return node.reshape(x, down * across * n, h // down, w // across, channels)


def batch_to_space(node: MaceNode) -> Value:
    down, across, (top, bottom, left, right) = _blocks(node, "crops")
    n, h, w, channels = node.dims
    if n % (down * across):
        raise RefusedError(f"{n} images cannot be divided into blocks of {down} x {across}")
    x = node.reshape(node.x, down, across, n // (down * across), h, w, channels)
    x = node.reshape(
        node.add("Transpose", x, perm=(2, 3, 0, 4, 1, 5)), n // (down * across), h * down, w * across, channels
    )
    return node.slice(x, [top, left], [h * down - bottom, w * across - right], [1, 2])


def crop(node: MaceNode) -> Value:
    """To the extents of a second input, from an offset on, where that is not negative."""
    offsets, wanted = node.integers("offset"), node.builder.dims(node.input(1))
    if len(offsets) != len(node.dims) or len(wanted) != len(node.dims):
        raise RefusedError(f"offsets {offsets} for {list(node.dims)} are not supported")
    axes = [i for i, offset in enumerate(offsets) if offset >= 0]
    return node.slice(node.x, [offsets[i] for i in axes], [offsets[i] + wanted[i] for i in axes], axes)


def reverse(node: MaceNode) -> Value:
    axes = [int(n) for n in node.input(1).array.ravel()]
    return node.slice(node.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def one_hot(node: MaceNode) -> Value:
    """OneHot of class numbers in float; a fraction is no class."""
    values = np.array([node.number("off_value"), node.number("on_value", 1.0)], np.float32)
    number = node.add("Cast", node.x, to="i64")
    whole = node.add("Equal", node.add("Cast", number, to="f32"), node.add("Cast", node.x, to="f32"))
    known = node.add("Where", whole, number, np.array(-1, np.int64))
    return layers.one_hot(node, known, node.integer("depth"), values, node.integer("axis", -1))


OPERATORS: dict[str, Callable[[MaceNode], Outputs]] = {
    "Activation": lambda node: activated(node, node.x),
    "AddN": lambda node: node.fold("Add", node.inputs),
    "ArgMax": arg,
    "BatchToSpaceND": batch_to_space,
    "BatchNorm": batch_norm,
    "BiasAdd": lambda node: node.add("Add", node.x, node.input(1)),
    "Cast": same,
    "ChannelShuffle": channel_shuffle,
    "Concat": lambda node: node.add("Concat", *node.inputs, axis=node.integer("axis", 3)),
    "Conv2D": convolution,
    "Cumsum": cumulative,
    "Deconv2D": deconvolution,
    "DepthwiseDeconv2d": deconvolution,
    "Dequantize": same,
    "GroupNorm": normalised_groups,
    "MVNorm": mean_variance,
    "Quantize": same,
    "ResizeBicubic": resize("cubic"),
    "ScalarMath": eltwise,
    "Slice": slices,
    **DETECTION,
    **SPEECH,
    "DepthToSpace": rearranged("DepthToSpace", mode="DCR"),
    "DepthwiseConv2d": depthwise,
    "Eltwise": eltwise,
    "ExpandDims": lambda node: node.add("Unsqueeze", node.x, node.ints(node.integer("axis"))),
    "FullyConnected": fully_connected,
    "Gather": lambda node: node.add(
        "Gather", node.x, node.add("Cast", node.input(1), to="i64"), axis=node.integer("axis")
    ),
    "Identity": same,
    "LocalResponseNorm": local_response,
    "MatMul": matmul,
    "Pad": pad,
    "Pooling": pooling,
    "Reduce": reduce,
    "Reshape": reshape,
    "ResizeBilinear": resize("linear"),
    "ResizeNearestNeighbor": resize("nearest"),
    "Crop": crop,
    "Reverse": reverse,
    "OneHot": one_hot,
    "SpaceToBatchND": space_to_batch,
    "Unstack": lambda node: node.unstack(node.x, node.integer("axis")),
    "Fill": lambda node: node.add("Expand", node.input(1), node.add("Cast", node.x, to="i64")),
    "Shape": lambda node: node.add("Cast", node.add("Shape", node.x), to="i32"),
    "Softmax": lambda node: node.add("LogSoftmax" if node.integer("use_log") else "Softmax", node.x, axis=-1),
    "SpaceToDepth": rearranged("SpaceToDepth"),
    "Split": split,
    "SqrDiffMean": squared_difference_mean,
    "Squeeze": lambda node: node.add(
        "Squeeze", node.x, node.ints(*node.integers("axis")) if node.integers("axis") else None
    ),
    "Stack": lambda node: node.stack(node.inputs, node.integer("axis")),
    "StridedSlice": strided_slice,
    "Tile": lambda node: node.add("Tile", node.x, node.add("Cast", node.input(1), to="i64")),
    "Transpose": lambda node: node.add("Transpose", node.x, perm=node.integers("dims")),
    "Unsqueeze": lambda node: node.add("Unsqueeze", node.x, node.ints(*node.integers("axis"))),
}
