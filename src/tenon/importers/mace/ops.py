"""MACE's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: mace/ops of XiaoMi/mace and the options that its converter writes.  Images are NHWC, filters OIHW.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.decompositions.layers import group_norm, mirrored
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made, full_windows, same
from tenon.importers.mace.context import Context
from tenon.importers.mace.detection import DETECTION
from tenon.importers.mace.speech import SPEECH
from tenon.ir.graph import Value


def activated(c: Context, x: Value) -> Value:
    """The activation that an operator carries by its name."""
    kind, slope = c.text("activation"), c.number("activation_coefficient", c.number("leakyrelu_coefficient"))
    if kind in ("", "NOOP"):
        return x
    if kind == "PRELU":
        return c.add("PRelu", x, c.input(len(c.inputs) - 1))
    made: dict[str, Callable[[], Value]] = {
        "RELU": lambda: c.add("Relu", x),
        "RELUX": lambda: c.add("Clip", x, 0.0, c.number("max_limit", 6.0)),
        "TANH": lambda: c.add("Tanh", x),
        "SIGMOID": lambda: c.add("Sigmoid", x),
        "LEAKYRELU": lambda: c.add("LeakyRelu", x, alpha=slope),
        "ELU": lambda: c.add("Elu", x, alpha=slope or 1.0),
        "HARDSIGMOID": lambda: c.add(
            "HardSigmoid", x, alpha=c.number("hardsigmoid_alpha", 1 / 6), beta=c.number("hardsigmoid_beta", 0.5)
        ),
    }
    if kind not in made:
        raise RefusedError(f"the activation {kind} is not supported")
    return made[kind]()


def _window(c: Context) -> dict[str, Any]:
    """Padding by rule, or in all of each axis, the smaller half first."""
    strides = c.integers("strides") or [1, 1]
    dilations = c.integers("dilations") or [1, 1]
    total = c.integers("padding_values")
    window: dict[str, Any] = {"strides": strides, "dilations": dilations}
    if total:
        return window | {"pads": [total[0] // 2, total[1] // 2, total[0] - total[0] // 2, total[1] - total[1] // 2]}
    rule = c.integer("padding")
    if rule not in (0, 1, 3):
        raise RefusedError(f"padding {rule} is not supported")
    return window | {"auto_pad": {0: "VALID", 1: "SAME_UPPER", 3: "SAME_LOWER"}[rule]}


def convolution(c: Context) -> Value:
    x = c.add("Conv", c.channels_first(), c.filters(), *c.bias(), **_window(c), group=max(1, c.integer("group", 1)))
    return activated(c, c.channels_last(x))


def depthwise(c: Context) -> Value:
    """Filters are [multiplier, channels, h, w]."""
    filters = c.filters()
    multiplier, channels, h, w = c.builder.dims(filters)
    kernel = c.reshape(c.add("Transpose", filters, perm=(1, 0, 2, 3)), channels * multiplier, 1, h, w)
    x = c.add("Conv", c.channels_first(), kernel, *c.bias(), **_window(c), group=channels)
    return activated(c, c.channels_last(x))


def deconvolution(c: Context) -> Value:
    """Filters are OIHW of the convolution that it is the transpose of here: [outputs, inputs, h, w], the outputs those
    of a group."""
    window = _window(c) | {"group": max(1, c.integer("group", 1))}
    kernel = c.add("Transpose", c.filters(), perm=(1, 0, 2, 3))
    shape = [int(n) for n in c.op.output_shape[0].dims] if c.op.output_shape else []
    if len(shape) == 4 and "pads" not in window:
        window["output_shape"] = shape[1:3]
    bias = [v for v in c.inputs[2:] if len(c.builder.dims(v)) == 1 and c.builder.type(v).dtype.is_float][:1]
    x = c.add("ConvTranspose", c.channels_first(), kernel, *bias, **window)
    return activated(c, c.channels_last(x))


def fully_connected(c: Context) -> Value:
    """A convolution whose window is the whole image."""
    filters = c.filters()
    outputs, *inner = c.builder.dims(filters)
    x = c.channels_first() if len(c.dims) == 4 else c.x
    flat = c.reshape(x, c.dims[0], -1)
    y = c.add("Gemm", flat, c.reshape(filters, outputs, int(np.prod(inner))), *c.bias(), transB=1)
    return activated(c, c.reshape(y, c.dims[0], 1, 1, outputs))


def pooling(c: Context) -> Value:
    window, kind = _window(c), c.integer("pooling_type")
    if kind not in (1, 2):
        raise RefusedError(f"pooling_type {kind} is not supported")
    del window["dilations"]
    window["kernel_shape"] = c.dims[1:3] if c.integer("global_pooling") else c.integers("kernels")
    if c.integer("round_mode") == 1 and "pads" in window:
        window["pads"] = full_windows(c.dims[1:3], window["kernel_shape"], window["strides"], window["pads"])
    return c.channels_last(c.add("AveragePool" if kind == 1 else "MaxPool", c.channels_first(), **window))


def batch_norm(c: Context) -> Value:
    """Folded to a scale and an offset, or with mean and variance too."""
    if len(c.inputs) < 5:
        return activated(c, c.add("Add", c.add("Mul", c.x, c.input(1)), c.input(2)))
    scale, offset, mean, variance = (c.input(i) for i in range(1, 5))
    deviation = c.add("Sqrt", c.add("Add", variance, c.number("epsilon", 1e-5)))
    factor = c.add("Div", scale, deviation)
    x = c.add("Add", c.add("Mul", c.x, factor), c.add("Sub", offset, c.add("Mul", mean, factor)))
    return activated(c, x)


_SINGLES = {6: "Neg", 7: "Abs", 13: "Sign"}
_ELTWISE = {0: "Add", 1: "Sub", 2: "Mul", 3: "Div", 4: "Min", 5: "Max", 9: "Pow"}


def eltwise(c: Context) -> Value:
    """Of two tensors, or of one and a number that stands first or second."""
    kind = c.integer("type")
    if kind in _SINGLES:
        return c.add(_SINGLES[kind], c.x)
    if len(c.inputs) == 1:
        number = c.value(c.number("scalar_input", 1.0))
        pair = (c.x, number) if c.integer("scalar_input_index", 1) else (number, c.x)
    else:
        pair = (c.input(0), c.input(1))
    a, b = pair
    assert b is not None
    weights = c.numbers("coeff")
    if kind == 0 and len(weights) == 2 and weights != [1.0, 1.0]:
        a, b = c.add("Mul", a, weights[0]), c.add("Mul", b, weights[1])
    if kind == 8:
        gap = c.add("Sub", a, b)
        return c.add("Mul", gap, gap)
    if kind == 10:
        return c.add("Cast", c.add("Equal", a, b), to="i32")
    if kind == 11:
        return c.add("Floor", c.add("Div", a, b))
    if kind == 12 and len(weights) == 2:
        return c.add("Clip", c.x, *weights)
    if kind not in _ELTWISE:
        raise RefusedError(f"type {kind} is not supported")
    return c.add(_ELTWISE[kind], a, b)


_REDUCTIONS = ("ReduceMean", "ReduceMin", "ReduceMax", "ReduceProd", "ReduceSum")


def reduce(c: Context) -> Value:
    kind = c.integer("reduce_type")
    if not 0 <= kind < len(_REDUCTIONS):
        raise RefusedError(f"reduce_type {kind} is not supported")
    axes = c.integers("axis") or list(range(len(c.dims)))
    return c.add(_REDUCTIONS[kind], c.x, c.ints(*axes), keepdims=c.integer("keepdims"))


def squared_difference_mean(c: Context) -> Value:
    gap = c.add("Sub", c.x, c.input(1))
    return c.add("ReduceMean", c.add("Mul", gap, gap), c.ints(1, 2), keepdims=1)


def matmul(c: Context) -> Value:
    flags = (bool(c.integer(name)) for name in ("transpose_a", "transpose_b"))
    sides = [c.swapped(value, flag) for value, flag in zip(c.inputs, flags, strict=False)]
    x = c.add("MatMul", *sides)
    return c.add("Add", x, c.input(2)) if len(c.inputs) > 2 else x


def reshape(c: Context) -> Value:
    if len(c.inputs) > 1:
        return c.add("Reshape", c.x, c.add("Cast", c.input(1), to="i64"))
    if "axis" in c.arguments and "shape" not in c.arguments:
        return _flattened(c)
    return c.reshape(c.x, *c.integers("shape"))


def _flattened(c: Context) -> Value:
    """Caffe's: the axes of an image are counted with its channels first."""
    x = c.channels_first() if c.integer("has_data_format") and len(c.dims) == 4 else c.x
    dims = c.builder.dims(x)
    first, last = (c.axis(c.integer(name, default), len(dims)) for name, default in (("axis", 1), ("end_axis", -1)))
    return c.reshape(x, *dims[:first], -1, *dims[last + 1 :])


def pad(c: Context) -> Value:
    """Before and after each axis."""
    widths, kind = c.integers("paddings"), c.integer("pad_type")
    if kind not in (0, 1, 2) or len(widths) != 2 * len(c.dims):
        raise RefusedError(f"paddings {widths} of type {kind} are not supported")
    if kind == 2:
        return mirrored(c, c.x, list(zip(widths[::2], widths[1::2], strict=True)))
    value = c.number("constant_value") if kind == 0 else None
    return c.add("Pad", c.x, c.ints(*widths[::2], *widths[1::2]), value, mode="reflect" if kind else "constant")


def resize(mode: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        size = c.integers("size")
        if not size and len(c.inputs) > 1 and c.input(1).constant:
            size = [int(n) for n in c.input(1).array.ravel()]
        if len(size) != 2:
            _, h, w, _ = c.dims
            size = [int(h * c.number("height_scale", 1.0)), int(w * c.number("width_scale", 1.0))]
        half = c.integer("half_pixel_centers") or c.integer("coordinate_transformation_mode") == 1
        centre = "align_corners" if c.integer("align_corners") else "half_pixel" if half else "asymmetric"
        return c.channels_last(c.resized(c.channels_first(), size[0], size[1], mode, centre))

    return made


def split(c: Context) -> Sequence[Value]:
    axis, sizes = c.axis(c.integer("axis", 3), len(c.dims)), c.integers("size_splits")
    return c.split(c.x, axis, sizes) if sizes else c.equal_parts(c.x, axis, len(c.op.output))


_FAR = 2**31 - 1
"""A bound past every axis."""


def strided_slice(c: Context) -> Value:
    """begin, end and strides are inputs; bits of the masks leave an end open or drop an axis of one element."""
    given = [[int(n) for n in c.input(i).array.ravel()] for i in range(1, len(c.inputs))]
    begin, end = given[:2]
    steps = given[2] if len(given) > 2 else [1] * len(begin)
    if c.integer("ellipsis_mask") or c.integer("new_axis_mask"):
        raise RefusedError("ellipses and new axes are not supported")
    open_begin, open_end, drop = (c.integer(f"{name}_mask") for name in ("begin", "end", "shrink_axis"))
    first = [(0 if steps[i] > 0 else _FAR) if open_begin >> i & 1 else b for i, b in enumerate(begin)]
    last = [(_FAR if steps[i] > 0 else -_FAR) if open_end >> i & 1 else e for i, e in enumerate(end)]
    last = [b + 1 or _FAR if drop >> i & 1 else e for i, (b, e) in enumerate(zip(first, last, strict=True))]
    x = c.slice(c.x, first, last, range(len(first)), steps)
    gone = [i for i in range(len(first)) if drop >> i & 1]
    return c.add("Squeeze", x, c.ints(*gone)) if gone else x


def slices(c: Context) -> Value:
    """Starts, ends, axes and steps are options or inputs."""
    given = [c.integers(name) for name in ("starts", "ends", "axes", "steps")]
    for i, value in enumerate(c.inputs[1:5]):
        given[i] = [int(n) for n in value.array.ravel()]
    starts, ends, axes, steps = given
    return c.slice(c.x, starts, ends, axes or range(len(starts)), steps or [1] * len(starts))


def mean_variance(c: Context) -> Value:
    """Epsilon is added to the deviation."""
    axes = c.ints(*((1, 2, 3) if c.integer("across_channels") else (1, 2)))
    x = c.add("Sub", c.x, c.add("ReduceMean", c.x, axes, keepdims=1))
    if not c.integer("normalize_variance", 1):
        return x
    deviation = c.add("Sqrt", c.add("ReduceMean", c.add("Mul", x, x), axes, keepdims=1))
    return c.add("Div", x, c.add("Add", deviation, c.number("epsilon", 1e-9)))


def normalised_groups(c: Context) -> Value:
    x = group_norm(c, c.channels_first(), c.integer("group_num", 32), None, None, c.number("epsilon", 1e-5))
    return c.channels_last(x)


def cumulative(c: Context) -> Value:
    axis = np.array(c.axis(c.integer("axis"), len(c.dims)), np.int64)
    return c.add("CumSum", c.x, axis, **{name: c.integer(name) for name in ("exclusive", "reverse")})


def channel_shuffle(c: Context) -> Value:
    return c.channels_last(c.shuffled(c.channels_first(), c.integer("group", 1)))


def rearranged(type: str, **attributes: Any) -> Callable[[Context], Value]:
    return lambda c: c.channels_last(
        c.add(type, c.channels_first(), blocksize=c.integer("block_size", 1), **attributes)
    )


def local_response(c: Context) -> Value:
    size = 2 * c.integer("depth_radius", 5) + 1
    return c.channels_last(
        c.add(
            "LRN",
            c.channels_first(),
            size=size,
            alpha=c.number("alpha", 1.0) * size,
            beta=c.number("beta", 0.5),
            bias=c.number("bias", 1.0),
        )
    )


def arg(c: Context) -> Value:
    axis = int(c.input(1).array.ravel()[0]) if len(c.inputs) > 1 and c.input(1).constant else c.integer("axis", -1)
    type = "ArgMin" if c.integer("argmin") else "ArgMax"
    return c.add("Cast", c.add(type, c.x, axis=axis, keepdims=c.integer("keepdims", 0)), to="i32")


def _blocks(c: Context, name: str) -> tuple[int, int, list[int]]:
    """Height and width of the blocks, and what is added or cut: (top, bottom, left, right)."""
    block, edges = c.integers("block_shape"), c.integers(name) or [0] * 4
    if len(block) != 2 or len(edges) != 4 or min(*block, *edges) < 0 or not all(block) or len(c.dims) != 4:
        raise RefusedError(f"blocks {block} with {name} {edges} of {list(c.dims)} are not supported")
    return block[0], block[1], edges


def space_to_batch(c: Context) -> Value:
    """The rows and columns of the blocks become pictures of their own, row by row, before the pictures there are."""
    down, across, (top, bottom, left, right) = _blocks(c, "paddings")
    x = c.add("Pad", c.x, c.ints(0, top, left, 0, 0, bottom, right, 0))
    n, h, w, channels = c.builder.dims(x)
    if h % down or w % across:
        raise RefusedError(f"{h} x {w} pixels do not make whole blocks of {down} x {across}")
    x = c.reshape(x, n, h // down, down, w // across, across, channels)
    x = c.add("Transpose", x, perm=(2, 4, 0, 1, 3, 5))
    return c.reshape(x, down * across * n, h // down, w // across, channels)


def batch_to_space(c: Context) -> Value:
    down, across, (top, bottom, left, right) = _blocks(c, "crops")
    n, h, w, channels = c.dims
    if n % (down * across):
        raise RefusedError(f"{n} pictures do not make blocks of {down} x {across}")
    x = c.reshape(c.x, down, across, n // (down * across), h, w, channels)
    x = c.reshape(c.add("Transpose", x, perm=(2, 3, 0, 4, 1, 5)), n // (down * across), h * down, w * across, channels)
    return c.slice(x, [top, left], [h * down - bottom, w * across - right], [1, 2])


def crop(c: Context) -> Value:
    """To the extents of a second input, from an offset on, where that is not negative."""
    offsets, wanted = c.integers("offset"), c.builder.dims(c.input(1))
    if len(offsets) != len(c.dims) or len(wanted) != len(c.dims):
        raise RefusedError(f"offsets {offsets} for {list(c.dims)} are not supported")
    axes = [i for i, offset in enumerate(offsets) if offset >= 0]
    return c.slice(c.x, [offsets[i] for i in axes], [offsets[i] + wanted[i] for i in axes], axes)


def reverse(c: Context) -> Value:
    axes = [int(n) for n in c.input(1).array.ravel()]
    return c.slice(c.x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))


def one_hot(c: Context) -> Value:
    values = np.array([c.number("off_value"), c.number("on_value", 1.0)], np.float32)
    return c.add("OneHot", c.add("Cast", c.x, to="i64"), c.ints(c.integer("depth")), values, axis=c.integer("axis", -1))


OPERATORS: dict[str, Callable[[Context], Made]] = {
    "Activation": lambda c: activated(c, c.x),
    "AddN": lambda c: c.fold("Add", c.inputs),
    "ArgMax": arg,
    "BatchToSpaceND": batch_to_space,
    "BatchNorm": batch_norm,
    "BiasAdd": lambda c: c.add("Add", c.x, c.input(1)),
    "Cast": same,
    "ChannelShuffle": channel_shuffle,
    "Concat": lambda c: c.add("Concat", *c.inputs, axis=c.integer("axis", 3)),
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
    "ExpandDims": lambda c: c.add("Unsqueeze", c.x, c.ints(c.integer("axis"))),
    "FullyConnected": fully_connected,
    "Gather": lambda c: c.add("Gather", c.x, c.add("Cast", c.input(1), to="i64"), axis=c.integer("axis")),
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
    "Unstack": lambda c: c.unstacked(c.x, c.integer("axis")),
    "Fill": lambda c: c.add("Expand", c.input(1), c.add("Cast", c.x, to="i64")),
    "Shape": lambda c: c.add("Cast", c.add("Shape", c.x), to="i32"),
    "Softmax": lambda c: c.add("LogSoftmax" if c.integer("use_log") else "Softmax", c.x, axis=-1),
    "SpaceToDepth": rearranged("SpaceToDepth"),
    "Split": split,
    "SqrDiffMean": squared_difference_mean,
    "Squeeze": lambda c: c.add("Squeeze", c.x, c.ints(*c.integers("axis")) if c.integers("axis") else None),
    "Stack": lambda c: c.stacked(c.inputs, c.integer("axis")),
    "StridedSlice": strided_slice,
    "Tile": lambda c: c.add("Tile", c.x, c.add("Cast", c.input(1), to="i64")),
    "Transpose": lambda c: c.add("Transpose", c.x, perm=c.integers("dims")),
    "Unsqueeze": lambda c: c.add("Unsqueeze", c.x, c.ints(*c.integers("axis"))),
}
