"""TensorFlow's operators on images: convolutions, pooling, resizing, and patches.

Source: the documentation of tf.raw_ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import numpy as np

from tenon.formats.decompositions.crop_and_resize import Crops
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.shared.tensorflow_family import each
from tenon.formats.importers.tensorflow.importer import TensorflowNode
from tenon.network.graph.graph import Array, Value

OperatorFunction = Callable[[TensorflowNode], Outputs]

MAX_TAPS = 1 << 10
"""Taps of a window that is written as slices."""


def first(node: TensorflowNode) -> bool:
    """Whether this node's tensors are NCHW."""
    layout = node.text("data_format", "NHWC")
    if layout not in ("NHWC", "NCHW", "NDHWC", "NCDHW"):
        raise RefusedError(f"data_format {layout} is not supported")
    return layout[1] == "C"


def image(node: TensorflowNode, k: int = 0) -> Value:
    return node.builder.last(node.input(k)) if first(node) else node.input(k)


def back(node: TensorflowNode, y: Value) -> Value:
    return node.builder.first(y) if first(node) else y


def spatial(node: TensorflowNode, name: str) -> list[int]:
    return _inner(node, node.integers(name) or [1, 1, 1, 1])


def _inner(node: TensorflowNode, numbers: list[int]) -> list[int]:
    """The entries for the spatial axes, from a list with one for each axis."""
    return numbers[2:] if first(node) else numbers[1:-1]


def padding(node: TensorflowNode) -> str | list[int]:
    padding = node.text("padding", "VALID")
    if padding != "EXPLICIT":
        return padding
    pads = node.integers("explicit_paddings")
    return [*_inner(node, pads[::2]), *_inner(node, pads[1::2])]


def _convolved(node: TensorflowNode, x: Value, weights: Value, group: int) -> Outputs:
    y = node.builder.conv(
        x,
        weights,
        strides=spatial(node, "strides"),
        dilations=spatial(node, "dilations"),
        padding=padding(node),
        group=group,
    )
    return back(node, y)


def _conv(node: TensorflowNode) -> Outputs:
    builder, x = node.builder, image(node)
    rank = builder.type(x).rank
    w = builder.transpose(node.input(1), (rank - 1, rank - 2, *range(rank - 2)))
    return _convolved(node, x, w, builder.dims(x)[-1] // max(1, builder.dims(w)[1]))


def _depthwise_conv(node: TensorflowNode) -> Outputs:
    h, w, c, m = node.builder.dims(node.input(1))
    weights = node.builder.transpose(node.builder.reshape(node.input(1), (h, w, 1, c * m)), (3, 2, 0, 1))
    return _convolved(node, image(node), weights, c)


def _backprop(node: TensorflowNode, weights: Value, group: int = 1) -> Outputs:
    """The gradient of a convolution: operands are the extents of the result, weights and the image."""
    sizes, x = node.constant_integers(0), image(node, 2)
    whole = len(sizes) == node.builder.type(x).rank
    y = node.builder.conv_transpose(
        x,
        weights,
        None,
        _inner(node, sizes) if whole else sizes,
        strides=spatial(node, "strides"),
        dilations=spatial(node, "dilations") if node.integers("dilations") else (),
        padding=padding(node),
        group=group,
    )
    return back(node, y)


def _conv_backprop(node: TensorflowNode) -> Outputs:
    rank = node.builder.type(node.input(1)).rank
    return _backprop(node, node.builder.transpose(node.input(1), (rank - 1, rank - 2, *range(rank - 2))))


def _depthwise_backprop(node: TensorflowNode) -> Outputs:
    h, w, c, m = node.builder.dims(node.input(1))
    weights = node.builder.transpose(node.builder.reshape(node.input(1), (h, w, c * m, 1)), (2, 3, 0, 1))
    return _backprop(node, weights, c)


def _pool(kind: str) -> OperatorFunction:
    def function(node: TensorflowNode) -> Outputs:
        kernel, strides = spatial(node, "ksize"), spatial(node, "strides")
        return back(node, node.builder.pool(kind, image(node), kernel, strides, padding(node)))

    return function


def _resize(mode: str) -> OperatorFunction:
    return lambda node: node.builder.resize(
        node.builder.add("Cast", node.x, to="f32") if mode != "nearest" else node.x,
        node.constant_integers(1),
        mode,
        align_corners=node.flag("align_corners"),
        half_pixel=node.flag("half_pixel_centers"),
    )


_FUSED = {"Relu": "Relu", "Elu": "Elu", "Tanh": "Tanh", "Sigmoid": "Sigmoid", "Gelu": "Gelu", "GeluExact": "Gelu"}


def fused(node: TensorflowNode, y: Value) -> Value:
    """Apply what a fused operator of the graph optimiser does to its product; further operands are its parameters."""
    builder, at, channels = node.builder, 2, 1 if first(node) else -1
    for name in (bytes(s).decode() for s in node.message("fused_ops").list.s):
        if name == "BiasAdd":
            y = builder.add("Add", y, _along(node, node.input(at), y, channels))
            at += 1
        elif name == "FusedBatchNorm":
            scale, offset, mean, variance = (node.input(at + k) for k in range(4))
            epsilon = builder.number(node.number("epsilon", 1e-4), y)
            factor = builder.add("Div", scale, builder.add("Sqrt", builder.add("Add", variance, epsilon)))
            shift = builder.add("Sub", offset, builder.add("Mul", mean, factor))
            scaled = builder.add("Mul", y, _along(node, factor, y, channels))
            y, at = builder.add("Add", scaled, _along(node, shift, y, channels)), at + 4
        elif name == "Relu6":
            y = builder.clip(y, 0, 6)
        elif name == "LeakyRelu":
            y = builder.add("LeakyRelu", y, alpha=node.number("leakyrelu_alpha", 0.2))
        elif name in _FUSED:
            options = {"approximate": "tanh"} if name == "GeluApproximate" else {}
            y = builder.add(_FUSED[name], y, **options)
        else:
            raise RefusedError(f"the fused operator {name} is not supported")
    return y


def _along(node: TensorflowNode, vector: Value, like: Value, axis: int) -> Value:
    """A vector that broadcasts along one axis."""
    rank = node.builder.type(like).rank
    return node.builder.reshape(vector, (-1, *(1,) * (rank - 1 - axis % rank)))


def _with_fused(function: OperatorFunction) -> OperatorFunction:
    def import_node(node: TensorflowNode) -> Outputs:
        y = function(node)
        assert isinstance(y, Value)
        return fused(node, y)

    return import_node


def _pool_with_sizes(kind: str) -> OperatorFunction:
    """The window is an operand."""

    def function(node: TensorflowNode) -> Outputs:
        kernel, strides = (_inner(node, node.constant_integers(k)) for k in (1, 2))
        return back(node, node.builder.pool(kind, image(node), kernel, strides, padding(node)))

    return function


def _pool_with_argmax(node: TensorflowNode) -> Outputs:
    """Places count (row, column, channel), and images where the graph says so."""
    builder, x = node.builder, node.x
    n, h, w, c = builder.dims(x)
    kernel, strides = spatial(node, "ksize"), spatial(node, "strides")
    pads = builder.pads(x, kernel, strides, (1, 1), padding(node))
    window = {"kernel_shape": tuple(kernel), "strides": tuple(strides), "pads": pads}
    y, indices = (builder.last(v) for v in builder.adds("MaxPoolWithIndices", 2, builder.first(x), **window))
    plane = np.arange(n).reshape(n, 1, 1, 1) * c + np.arange(c)
    offset = np.arange(c) + (np.arange(n).reshape(n, 1, 1, 1) * h * w * c if node.flag("include_batch_in_index") else 0)
    inside = builder.add("Sub", indices, builder.constant((plane * h * w).astype(np.int64), "planes"))
    numbers = builder.add("Mul", inside, builder.constant(np.array(c, np.int64), "channels"))
    numbers = builder.add("Add", numbers, builder.constant(np.asarray(offset, np.int64), "offset"))
    to = node.dtype("Targmax").value if "Targmax" in node.node.attr else "i64"
    return y, numbers if to == "i64" else builder.add("Cast", numbers, to=to)


def _taps(node: TensorflowNode, x: Value, kernel: tuple[int, int], names: tuple[str, str], fill: float) -> list[Value]:
    """The taps of a window, row by row: [N, rows, columns, C] each."""
    builder, strides, rates = node.builder, *(tuple(spatial(node, name)) for name in names)
    if kernel[0] * kernel[1] > MAX_TAPS:
        raise RefusedError(f"windows of {list(kernel)} are not supported")
    pads = builder.pads(x, kernel, strides, rates, padding(node))
    widths = np.array([(0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)])
    wide = builder.pad(x, widths, builder.number(fill, x)) if any(pads) else x
    counts = [
        (n - (k - 1) * r - 1) // s + 1
        for n, k, s, r in zip(builder.dims(wide)[1:3], kernel, strides, rates, strict=True)
    ]
    slices = []
    for index in product(*map(range, kernel)):
        begin = [p * r for p, r in zip(index, rates, strict=True)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, counts, strides, strict=True)]
        slices.append(builder.slice(wide, begin, end, [1, 2], strides))
    return slices


def _patches(node: TensorflowNode) -> Outputs:
    high, wide = spatial(node, "ksizes")
    parts = _taps(node, node.x, (high, wide), ("strides", "rates"), 0)
    return node.builder.add("Concat", *parts, axis=3) if len(parts) > 1 else parts[0]


def _dilation(node: TensorflowNode) -> Outputs:
    """The greatest sum of an image and a filter [h, w, C] in every window; padding never wins."""
    builder, w = node.builder, node.input(1)
    high, wide, _ = builder.dims(w)
    parts = _taps(node, node.x, (high, wide), ("strides", "rates"), float(np.finfo(np.float32).min))
    rows = builder.unpack(builder.reshape(w, (high * wide, -1)), 0)
    sums = [builder.add("Add", part, row) for part, row in zip(parts, rows, strict=True)]
    return builder.add("Max", *sums)


def _crop_and_resize(node: TensorflowNode) -> Outputs:
    builder, (rows, columns) = node.builder, node.constant_integers(3)
    numbers = builder.add("Cast", node.input(2), to="i64")
    outside = node.number("extrapolation_value", 0.0)
    crops = Crops(node, builder.first(node.x), node.input(1), numbers, rows, columns, outside)
    return builder.last(crops.cropped(node.text("method", "bilinear")))


def _area(n: int, count: int) -> Array:
    """[n, count]: the share of each element in each of ``count`` equal parts of an axis."""
    bounds = np.linspace(0, n, count + 1)
    cells = np.arange(n)[:, None]
    overlap = np.minimum(bounds[1:], cells + 1) - np.maximum(bounds[:-1], cells)
    return np.asarray(np.maximum(overlap, 0) * count / n, np.float32)


def _resize_area(node: TensorflowNode) -> Outputs:
    builder, x = node.builder, node.builder.add("Cast", node.x, to="f32")
    n, h, w, c = builder.dims(x)
    high, wide = node.constant_integers(1)
    if node.flag("align_corners") or not (0 < high < 1 << 14 and 0 < wide < 1 << 14):
        raise RefusedError(f"an image of {h}x{w} cannot be made one of {high}x{wide} by areas")
    y = builder.reshape(
        builder.add("MatMul", builder.constant(_area(h, high).T.copy(), "rows"), builder.reshape(x, (n, h, w * c))),
        (n * high, w, c),
    )
    return builder.reshape(
        builder.add("MatMul", builder.constant(_area(w, wide).T.copy(), "columns"), y), (n, high, wide, c)
    )


def _blocks(node: TensorflowNode) -> tuple[list[int], Array]:
    size = node.integer("block_size")
    if not 0 < size < math.prod(node.builder.dims(node.x)) + 1:
        raise RefusedError(f"blocks of {size} are impossible")
    return [size, size], node.constant_input(1)


WINDOWS: dict[str, OperatorFunction] = {
    **dict.fromkeys(("Conv2D", "Conv3D"), _conv),
    "DepthwiseConv2dNative": _depthwise_conv,
    "Conv2DBackpropInput": _conv_backprop,
    "Conv3DBackpropInputV2": _conv_backprop,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_backprop,
    "_FusedConv2D": _with_fused(_conv),
    "_FusedDepthwiseConv2dNative": _with_fused(_depthwise_conv),
    **each(_pool, "AvgPool:AveragePool AvgPool3D:AveragePool MaxPool:MaxPool MaxPool3D:MaxPool"),
    "MaxPoolV2": _pool_with_sizes("MaxPool"),
    "MaxPoolWithArgmax": _pool_with_argmax,
    **each(_resize, "ResizeBilinear:linear ResizeNearestNeighbor:nearest ResizeBicubic:cubic"),
    "ResizeArea": _resize_area,
    "CropAndResize": _crop_and_resize,
    "ExtractImagePatches": _patches,
    "Dilation2D": _dilation,
    "SpaceToBatch": lambda node: node.builder.space_to_batch(node.x, *_blocks(node)),
    "BatchToSpace": lambda node: node.builder.batch_to_space(node.x, *_blocks(node)),
}
