"""TensorFlow's operators in ONNX's: one small function for each, or one line of a table.

Source of their meaning: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.frontends.refused import RefusedError
from tenon.frontends.suppression import combined
from tenon.frontends.tensorflow.load import Layer
from tenon.frontends.tensorflow.schema import shape_of
from tenon.frontends.tensorflow_family import each, not_equal, one, part, select, squared_difference, suppression, two
from tenon.ir.graph import Value
from tenon.ir.types import F32

Made = Value | Sequence[Value]
Spell = Callable[[Layer], Made]


# ------------------------------------------------------------------------------------------------------- inputs
def _placeholder(layer: Layer) -> Made:
    return layer.new_input(layer.node.name, layer.dtype("dtype"), layer.declared())


def _placeholder_with_default(layer: Layer) -> Made:
    default = layer.x()
    return default if default.constant else layer.new_input(layer.node.name, layer.dtype("dtype"), layer.declared())


def _dequeued(layer: Layer) -> Made:
    """The elements of a queue become inputs; a batch is one unless the graph says otherwise."""
    queue = layer.scope.nodes.get(layer.references[0].partition(":")[0]) if layer.references else None
    if queue is None:
        raise RefusedError("its queue is not there")
    batched = layer.node.op != "QueueDequeueV2"
    types = list(queue.attr["component_types"].list.type) if "component_types" in queue.attr else []
    shapes = queue.attr["shapes"].list.shape if "shapes" in queue.attr else []
    return _inputs(layer, types, [shape_of(s) for s in shapes], batched)


def _next(layer: Layer) -> Made:
    shapes = [shape_of(s) for s in layer.attribute("output_shapes").list.shape]
    return _inputs(layer, list(layer.attribute("output_types").list.type), shapes, False)


def _inputs(layer: Layer, types: list[int], shapes: list[tuple[int, ...] | None], batched: bool) -> Made:
    from tenon.frontends.tensorflow.schema import DTYPES

    made = []
    for i, number in enumerate(types):
        if number not in DTYPES:
            raise RefusedError(f"element {i} is not of numbers", "cut the model behind it with --input")
        shape = shapes[i] if i < len(shapes) else None
        name = f"{layer.node.name}:{i}" if i else layer.node.name
        made.append(layer.new_input(name, DTYPES[number], (-1, *shape) if batched and shape is not None else shape))
    return made


def _mfcc(layer: Layer) -> Made:
    """Audio features are computed outside of the net: they are the input, of the shape that the wave would give."""
    spectrogram = layer.scope.nodes.get(layer.references[0].partition(":")[0]) if layer.references else None
    decoded = None
    if spectrogram is not None and spectrogram.op == "AudioSpectrogram" and spectrogram.input:
        decoded = layer.scope.nodes.get(spectrogram.input[0].partition(":")[0])
    coefficients = layer.integer("dct_coefficient_count", 13)
    if spectrogram is None or decoded is None or "desired_samples" not in decoded.attr:
        return layer.new_input(layer.node.name, F32, (1, -1, coefficients))
    window, stride = (max(1, int(spectrogram.attr[k].i)) for k in ("window_size", "stride"))
    frames = 1 + (int(decoded.attr["desired_samples"].i) - window) // stride
    return layer.new_input(layer.node.name, F32, (1, frames, coefficients))


# ------------------------------------------------------------------------------------------------------ windows
def _first(layer: Layer) -> bool:
    """Whether channels come first in this node's tensors."""
    layout = layer.text("data_format", "NHWC")
    if layout not in ("NHWC", "NCHW", "NDHWC", "NCDHW"):
        raise RefusedError(f"data_format {layout} is not supported")
    return layout[1] == "C"


def _image(layer: Layer, k: int = 0) -> Value:
    return layer.net.last(layer.x(k)) if _first(layer) else layer.x(k)


def _back(layer: Layer, y: Value) -> Value:
    return layer.net.first(y) if _first(layer) else y


def _spatial(layer: Layer, name: str) -> list[int]:
    given = layer.ints(name) or [1, 1, 1, 1]
    return given[2:] if _first(layer) else given[1:-1]


def _padding(layer: Layer) -> str | list[int]:
    padding = layer.text("padding", "VALID")
    if padding != "EXPLICIT":
        return padding
    pairs = _pairs(layer.ints("explicit_paddings"))
    pairs = pairs[2:] if _first(layer) else pairs[1:-1]
    return [*(a for a, _ in pairs), *(b for _, b in pairs)]


def _pairs(values: list[int]) -> list[tuple[int, int]]:
    return list(zip(values[::2], values[1::2], strict=True))


def _conv(layer: Layer) -> Made:
    net, x = layer.net, _image(layer)
    rank = net.type(x).rank
    w = net.transpose(layer.x(1), (rank - 1, rank - 2, *range(rank - 2)))
    group = net.dims(x)[-1] // max(1, net.dims(w)[1])
    y = net.conv(
        x, w, strides=_spatial(layer, "strides"), dilations=_spatial(layer, "dilations"), padding=_padding(layer),
        group=group,
    )  # fmt: skip
    return _back(layer, y)


def _depthwise_conv(layer: Layer) -> Made:
    net, x = layer.net, _image(layer)
    h, w, c, m = net.dims(layer.x(1))
    weights = net.transpose(net.reshape(layer.x(1), (h, w, 1, c * m)), (3, 2, 0, 1))
    y = net.conv(
        x, weights, strides=_spatial(layer, "strides"), dilations=_spatial(layer, "dilations"),
        padding=_padding(layer), group=c,
    )  # fmt: skip
    return _back(layer, y)


def _conv_backprop(layer: Layer) -> Made:
    net, x = layer.net, _image(layer, 2)
    w = net.transpose(layer.x(1), (3, 2, 0, 1))
    sizes = layer.numbers(0)
    sizes = (sizes[2:] if _first(layer) else sizes[1:-1]) if len(sizes) == 4 else sizes
    padding = _padding(layer)
    y = net.conv_transpose(
        x, w, None, sizes, strides=_spatial(layer, "strides"), dilations=_spatial(layer, "dilations"), padding=padding
    )
    return _back(layer, y)


def _pool(kind: str) -> Spell:
    def spell(layer: Layer) -> Made:
        kernel, strides = _spatial(layer, "ksize"), _spatial(layer, "strides")
        return _back(layer, layer.net.pool(kind, _image(layer), kernel, strides, _padding(layer)))

    return spell


def _resize(mode: str) -> Spell:
    return lambda layer: layer.net.resize(
        layer.net.add("Cast", layer.x(), to="f32") if mode != "nearest" else layer.x(),
        layer.numbers(1), mode, align_corners=layer.flag("align_corners"), half_pixel=layer.flag("half_pixel_centers"),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ normalisation
def _fused_batch_norm(layer: Layer) -> Made:
    if layer.flag("is_training") or layer.net.type(layer.x(3)).size == 0:
        raise RefusedError("it is in training mode", "freeze the graph for inference")
    return _normalized(layer, layer.x(1), layer.x(2), layer.x(3), layer.x(4), layer.number("epsilon", 1e-4))


def _normalized(layer: Layer, scale: Value, offset: Value, mean: Value, variance: Value, epsilon: float) -> Value:
    net, x = layer.net, layer.x(0)
    x = x if _first(layer) else net.first(x)
    y = net.add("BatchNormalization", x, scale, offset, mean, variance, epsilon=epsilon)
    return y if _first(layer) else net.last(y)


def _global_batch_norm(layer: Layer) -> Made:
    """Operands: data, mean, variance, beta, gamma."""
    scale = layer.x(4)
    if not layer.flag("scale_after_normalization"):
        scale = layer.net.constant(np.ones(layer.net.dims(scale), np.float32), "ones")
    return _normalized(layer, scale, layer.x(3), layer.x(1), layer.x(2), layer.number("variance_epsilon", 1e-3))


def _lrn(layer: Layer) -> Made:
    size = 2 * layer.integer("depth_radius", 5) + 1
    y = layer.net.add(
        "LRN", layer.net.first(layer.x()), size=size, alpha=layer.number("alpha", 1) * size,
        beta=layer.number("beta", 0.5), bias=layer.number("bias", 1),
    )  # fmt: skip
    return layer.net.last(y)


# ---------------------------------------------------------------------------------------------------- products
def _matmul(layer: Layer) -> Made:
    operands = []
    for k, names in ((0, ("transpose_a", "adj_x")), (1, ("transpose_b", "adj_y"))):
        x = layer.x(k)
        rank = layer.net.type(x).rank
        turned = any(layer.flag(name) for name in names)
        operands.append(layer.net.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if turned else x)
    a, b = operands
    if layer.net.type(a).rank == layer.net.type(b).rank == 2:
        return layer.net.add("Gemm", a, b)
    return layer.net.add("MatMul", a, b)


def _bias_add(layer: Layer) -> Made:
    bias = layer.x(1)
    if layer.text("data_format") == "NCHW":
        bias = layer.net.reshape(bias, (-1, *(1,) * (layer.net.type(layer.x()).rank - 2)))
    return layer.net.add("Add", layer.x(), bias)


# --------------------------------------------------------------------------------------------------- pointwise
def _leaky_relu(layer: Layer) -> Made:
    return layer.net.add("LeakyRelu", layer.x(), alpha=layer.number("alpha", 0.2))


def _clip_by_value(layer: Layer) -> Made:
    return layer.net.add("Min", layer.net.add("Max", layer.x(0), layer.x(1)), layer.x(2))


def _cast(layer: Layer) -> Made:
    x, to = layer.x(), layer.dtype("DstT")
    return x if layer.net.type(x).dtype is to else layer.net.add("Cast", x, to=to.value)


def _fake_quant_vars(layer: Layer) -> Made:
    low, high = layer.array(1), layer.array(2)
    if low.size != 1 or high.size != 1:
        raise RefusedError("ranges per channel are not supported")
    return _fake_quant(layer, float(low.item()), float(high.item()))


def _fake_quant_args(layer: Layer) -> Made:
    return _fake_quant(layer, layer.number("min", -6), layer.number("max", 6))


def _fake_quant(layer: Layer, low: float, high: float) -> Made:
    return layer.net.fake_quant(layer.x(), low, high, layer.integer("num_bits", 8), narrow=layer.flag("narrow_range"))


# ---------------------------------------------------------------------------------------------- moving elements
def _reshape(layer: Layer) -> Made:
    return layer.net.reshape(layer.x(), layer.numbers(1))


def _concat(layer: Layer) -> Made:
    values = layer.xs()
    at = 0 if layer.node.op == "Concat" else len(values) - 1
    (axis,) = layer.numbers(at)
    del values[at]
    return layer.net.add("Concat", *values, axis=axis) if len(values) > 1 else values[0]


def _split(layer: Layer) -> Made:
    (axis,), x, n = layer.numbers(0), layer.x(1), layer.integer("num_split", 1)
    return layer.net.split(x, [layer.net.dims(x)[axis] // n] * n, axis)


def _split_v(layer: Layer) -> Made:
    return layer.net.split(layer.x(), layer.numbers(1), layer.numbers(2)[0])


def _strided_slice(layer: Layer) -> Made:
    masks = {
        "begin": "begin_mask", "end": "end_mask", "ellipsis": "ellipsis_mask", "new_axis": "new_axis_mask",
        "shrink": "shrink_axis_mask",
    }  # fmt: skip
    bits = {ours: layer.integer(theirs) for ours, theirs in masks.items()}
    return layer.net.strided_slice(layer.x(), layer.numbers(1), layer.numbers(2), layer.numbers(3), bits)


def _pad(layer: Layer) -> Made:
    return layer.net.pad(layer.x(), layer.array(1), layer.x(2) if layer.count > 2 else None)


def _mirror_pad(layer: Layer) -> Made:
    return layer.net.mirror_pad(layer.x(), layer.array(1), edges=layer.text("mode") == "SYMMETRIC")


def _gather(layer: Layer) -> Made:
    if layer.integer("batch_dims"):
        raise RefusedError("batch_dims are not supported")
    axis = layer.numbers(2)[0] if layer.count > 2 else 0
    return layer.net.add("Gather", layer.x(), layer.x(1), axis=axis)


def _gather_nd(layer: Layer) -> Made:
    return layer.net.add("GatherND", layer.x(), layer.net.add("Cast", layer.x(1), to="i64"))


def _reverse(layer: Layer) -> Made:
    rank = layer.net.type(layer.x()).rank
    return layer.net.reverse(layer.x(), [a % rank for a in layer.numbers(1)])


def _ints_input(op: str) -> Spell:
    return lambda layer: layer.net.add(op, layer.x(), layer.net.ints(*layer.numbers(1)))


def _one_hot(layer: Layer) -> Made:
    net = layer.net
    values = net.add("Concat", net.reshape(layer.x(3), (1,)), net.reshape(layer.x(2), (1,)), axis=0)
    return net.add("OneHot", layer.x(), net.ints(*layer.numbers(1)), values, axis=layer.integer("axis", -1))


# --------------------------------------------------------------------------------------------------- reductions
def _reduce(kind: str) -> Spell:
    def spell(layer: Layer) -> Made:
        rank = layer.net.type(layer.x()).rank
        axes = sorted({a % rank for a in layer.numbers(1)})
        return layer.net.reduce(kind, layer.x(), axes, layer.flag("keep_dims"))

    return spell


def _reduce_truth(kind: str) -> Spell:
    def spell(layer: Layer) -> Made:
        x = layer.net.add("Cast", layer.x(), to="i32")
        rank = layer.net.type(x).rank
        y = layer.net.reduce(kind, x, sorted({a % rank for a in layer.numbers(1)}), layer.flag("keep_dims"))
        return layer.net.add("Cast", y, to="bool")

    return spell


def _arg(op: str) -> Spell:
    def spell(layer: Layer) -> Made:
        axis = layer.numbers(1)[0] if layer.count > 1 else 0
        y = layer.net.add(op, layer.x(), axis=axis, keepdims=0)
        to = layer.dtype("output_type").value if "output_type" in layer.node.attr else "i64"
        return y if to == "i64" else layer.net.add("Cast", y, to=to)

    return spell


def _top_k(layer: Layer) -> Made:
    values, indices = layer.net.adds("TopK", 2, layer.x(), layer.net.ints(*layer.numbers(1)))
    return values, layer.net.add("Cast", indices, to="i32")


def _suppression(layer: Layer) -> Made:
    """V4 and V5, where as many rows as asked for come back whatever is found."""
    if not layer.flag("pad_to_max_output_size"):
        raise RefusedError("its result has no fixed shape", "export it with pad_to_max_output_size")
    return suppression(layer, scores_too=layer.node.op == "NonMaxSuppressionV5")


def _combined_suppression(layer: Layer) -> Made:
    (per_class,), (total,) = layer.numbers(2), layer.numbers(3)
    if layer.flag("pad_per_class"):
        total = min(total, per_class * layer.net.dims(layer.x(1))[2])
    clip = "clip_boxes" not in layer.node.attr or layer.flag("clip_boxes")
    return combined(layer.net, layer.x(0), layer.x(1), per_class, total, layer.x(4), layer.x(5), clip=clip)


def _cumsum(layer: Layer) -> Made:
    axis, flags = layer.net.ints(*layer.numbers(1)), {k: int(layer.flag(k)) for k in ("exclusive", "reverse")}
    return layer.net.add("CumSum", layer.x(), axis, **flags)


# ---------------------------------------------------------------------------------------------------- constants
def _out_type(layer: Layer) -> str:
    return layer.dtype("out_type").numpy.name if "out_type" in layer.node.attr else "int32"


def _shape(layer: Layer) -> Made:
    return layer.net.constant(np.array(layer.net.dims(layer.x()), _out_type(layer)), "shape")


def _rank(layer: Layer) -> Made:
    return layer.net.constant(np.array(layer.net.type(layer.x()).rank, np.int32), "rank")


def _size(layer: Layer) -> Made:
    return layer.net.constant(np.array(layer.net.type(layer.x()).size, _out_type(layer)), "size")


def _fill(layer: Layer) -> Made:
    dims, value = layer.numbers(0), layer.x(1)
    if value.data is not None and value.data.size == 1:
        return layer.net.constant(np.broadcast_to(value.data.reshape(()), tuple(dims)), "filled")
    return layer.net.add("Expand", value, layer.net.ints(*dims))


def _like(number: int) -> Spell:
    def spell(layer: Layer) -> Made:
        type = layer.net.type(layer.x())
        return layer.net.constant(np.broadcast_to(np.array(number, type.dtype.numpy), type.dims), "filled")

    return spell


def _range(layer: Layer) -> Made:
    start, stop, step = (layer.array(k) for k in range(3))
    if step.item() == 0 or abs((stop.item() - start.item()) / step.item()) > 2**24:
        raise RefusedError("its range is not possible")
    return layer.net.constant(np.arange(start.item(), stop.item(), step.item()).astype(start.dtype), "range")


def _invert_permutation(layer: Layer) -> Made:
    return layer.net.constant(np.argsort(layer.array(0)).astype(layer.array(0).dtype), "inverse")


OPERATORS: dict[str, Spell] = {
    "Const": lambda layer: layer.constant(),
    **dict.fromkeys(("Placeholder", "PlaceholderV2"), _placeholder),
    "PlaceholderWithDefault": _placeholder_with_default,
    **dict.fromkeys(("QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2"), _dequeued),
    "IteratorGetNext": _next,
    "Mfcc": _mfcc,
    # windows
    **dict.fromkeys(("Conv2D", "Conv3D"), _conv),
    "DepthwiseConv2dNative": _depthwise_conv,
    "Conv2DBackpropInput": _conv_backprop,
    **dict.fromkeys(("MaxPool", "MaxPool3D"), _pool("MaxPool")),
    **dict.fromkeys(("AvgPool", "AvgPool3D"), _pool("AveragePool")),
    "ResizeBilinear": _resize("linear"),
    "ResizeNearestNeighbor": _resize("nearest"),
    "ResizeBicubic": _resize("cubic"),
    # normalisation
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _fused_batch_norm),
    "BatchNormWithGlobalNormalization": _global_batch_norm,
    "LRN": _lrn,
    # products
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias_add),
    # pointwise
    **each(one, """
        Abs:Abs Ceil:Ceil Cos:Cos Elu:Elu Erf:Erf Exp:Exp Floor:Floor Inv:Reciprocal Log:Log LogicalNot:Not Neg:Neg
        Reciprocal:Reciprocal Relu:Relu Rint:Round Round:Round Selu:Selu Sigmoid:Sigmoid Sign:Sign Sin:Sin
        Softplus:Softplus Softsign:Softsign Sqrt:Sqrt Tan:Tan Tanh:Tanh
    """),
    **each(two, """
        Add:Add AddV2:Add Sub:Sub Mul:Mul RealDiv:Div Div:Div Pow:Pow Maximum:Max Minimum:Min Equal:Equal Less:Less
        LessEqual:LessOrEqual Greater:Greater GreaterEqual:GreaterOrEqual LogicalAnd:And LogicalOr:Or
    """),
    "AddN": lambda layer: layer.net.add("Sum", *layer.xs()),
    "Relu6": lambda layer: layer.net.clip(layer.x(), 0, 6),
    "Rsqrt": lambda layer: layer.net.add("Reciprocal", layer.net.add("Sqrt", layer.x())),
    "Square": lambda layer: layer.net.square(layer.x()),
    "Softmax": one("Softmax", axis=-1),
    "LogSoftmax": one("LogSoftmax", axis=-1),
    "LeakyRelu": _leaky_relu,
    "NotEqual": not_equal,
    "SquaredDifference": squared_difference,
    "FloorDiv": lambda layer: layer.net.floor_div(layer.x(0), layer.x(1)),
    **dict.fromkeys(("FloorMod", "Mod"), lambda layer: layer.net.floor_mod(layer.x(0), layer.x(1))),
    "ClipByValue": _clip_by_value,
    "Select": lambda layer: select(layer, rows=True),
    "SelectV2": lambda layer: select(layer, rows=False),
    "Cast": _cast,
    "FakeQuantWithMinMaxVars": _fake_quant_vars,
    "FakeQuantWithMinMaxArgs": _fake_quant_args,
    # moving elements
    "Reshape": _reshape,
    "Squeeze": lambda layer: layer.net.squeeze(layer.x(), layer.ints("squeeze_dims")),
    "ExpandDims": lambda layer: layer.net.expand_dims(layer.x(), layer.numbers(1)[0]),
    "Transpose": lambda layer: layer.net.transpose(layer.x(), layer.numbers(1)),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Pack": lambda layer: layer.net.pack(layer.xs(), layer.integer("axis")),
    "Unpack": lambda layer: layer.net.unpack(layer.x(), layer.integer("axis")),
    "Split": _split,
    "SplitV": _split_v,
    "Slice": part,
    "StridedSlice": _strided_slice,
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "MirrorPad": _mirror_pad,
    **dict.fromkeys(("Gather", "GatherV2"), _gather),
    "GatherNd": _gather_nd,
    "ReverseV2": _reverse,
    "Tile": _ints_input("Tile"),
    "BroadcastTo": _ints_input("Expand"),
    "OneHot": _one_hot,
    "SpaceToBatchND": lambda layer: layer.net.space_to_batch(layer.x(), layer.numbers(1), layer.array(2)),
    "BatchToSpaceND": lambda layer: layer.net.batch_to_space(layer.x(), layer.numbers(1), layer.array(2)),
    "SpaceToDepth": lambda layer: layer.net.space_to_depth(layer.x(), layer.integer("block_size")),
    "DepthToSpace": lambda layer: layer.net.depth_to_space(layer.x(), layer.integer("block_size")),
    # reductions
    **each(_reduce, "Mean:Mean Sum:Sum Max:Max Min:Min Prod:Prod"),
    **each(_reduce_truth, "Any:Max All:Min"),
    **each(_arg, "ArgMax:ArgMax ArgMin:ArgMin"),
    **dict.fromkeys(("TopK", "TopKV2"), _top_k),
    "Cumsum": _cumsum,
    **dict.fromkeys(("NonMaxSuppressionV4", "NonMaxSuppressionV5"), _suppression),
    "CombinedNonMaxSuppression": _combined_suppression,
    # constants
    "Shape": _shape,
    "Rank": _rank,
    "Size": _size,
    "Fill": _fill,
    "ZerosLike": _like(0),
    "OnesLike": _like(1),
    "Range": _range,
    "InvertPermutation": _invert_permutation,
}  # fmt: skip
