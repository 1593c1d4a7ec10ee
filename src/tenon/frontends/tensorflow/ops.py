"""TensorFlow's operators in ONNX's: one small function for each, or one line of a table.

Source of their meaning: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.frontends import tensorflow_family as family
from tenon.frontends.refused import RefusedError
from tenon.frontends.suppression import combined
from tenon.frontends.tensorflow.load import Layer
from tenon.frontends.tensorflow.schema import DTYPES, shape_of
from tenon.frontends.tensorflow_family import SHARED, Made, each, one, two
from tenon.frontends.wire.protobuf import Message
from tenon.ir.graph import Value
from tenon.ir.types import F32

Spell = Callable[[Layer], Made]


# ------------------------------------------------------------------------------------------------------- inputs
def _placeholder(layer: Layer) -> Made:
    return layer.input(layer.node.name, layer.dtype("dtype"), layer.declared("shape"))


def _placeholder_with_default(layer: Layer) -> Made:
    return layer.x() if layer.x().constant else _placeholder(layer)


def _dequeued(layer: Layer) -> Made:
    """The elements of a queue become inputs; a batch is one unless the graph says otherwise."""
    queue = layer.maker(0)
    if queue is None:
        raise RefusedError("its queue is not there")
    return _inputs(layer, queue.attribute("component_types"), queue.attribute("shapes"),
                   batched=layer.node.op != "QueueDequeueV2")  # fmt: skip


def _next(layer: Layer) -> Made:
    return _inputs(layer, layer.attribute("output_types"), layer.attribute("output_shapes"), batched=False)


def _inputs(layer: Layer, types: Message, shapes: Message, *, batched: bool) -> Made:
    made, dims = [], [shape_of(shape) for shape in shapes.list.shape]
    for i, number in enumerate(types.list.type):
        if number not in DTYPES:
            raise RefusedError(f"element {i} is not of numbers", "cut the model behind it with --input")
        shape = dims[i] if i < len(dims) else None
        name = f"{layer.node.name}:{i}" if i else layer.node.name
        made.append(layer.input(name, DTYPES[number], (-1, *shape) if batched and shape is not None else shape))
    return made


def _mfcc(layer: Layer) -> Made:
    """Audio features are computed outside of the net: they are the input, of the shape that the wave would give."""
    spectrogram, frames = layer.maker(0), -1
    decoded = spectrogram.maker(0) if spectrogram is not None and spectrogram.node.op == "AudioSpectrogram" else None
    if spectrogram is not None and decoded is not None and "desired_samples" in decoded.node.attr:
        window, stride = (max(1, spectrogram.integer(name)) for name in ("window_size", "stride"))
        frames = 1 + (decoded.integer("desired_samples") - window) // stride
    return layer.input(layer.node.name, F32, (1, frames, layer.integer("dct_coefficient_count", 13)))


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
    pads, spatial = layer.ints("explicit_paddings"), slice(2, None) if _first(layer) else slice(1, -1)
    return [*pads[::2][spatial], *pads[1::2][spatial]]


def _convolved(layer: Layer, x: Value, weights: Value, group: int) -> Made:
    y = layer.net.conv(
        x, weights, strides=_spatial(layer, "strides"), dilations=_spatial(layer, "dilations"),
        padding=_padding(layer), group=group,
    )  # fmt: skip
    return _back(layer, y)


def _conv(layer: Layer) -> Made:
    net, x = layer.net, _image(layer)
    rank = net.type(x).rank
    w = net.transpose(layer.x(1), (rank - 1, rank - 2, *range(rank - 2)))
    return _convolved(layer, x, w, net.dims(x)[-1] // max(1, net.dims(w)[1]))


def _depthwise_conv(layer: Layer) -> Made:
    h, w, c, m = layer.net.dims(layer.x(1))
    weights = layer.net.transpose(layer.net.reshape(layer.x(1), (h, w, 1, c * m)), (3, 2, 0, 1))
    return _convolved(layer, _image(layer), weights, c)


def _conv_backprop(layer: Layer) -> Made:
    net, x = layer.net, _image(layer, 2)
    w = net.transpose(layer.x(1), (3, 2, 0, 1))
    sizes = layer.numbers(0)
    sizes = (sizes[2:] if _first(layer) else sizes[1:-1]) if len(sizes) == 4 else sizes
    y = net.conv_transpose(
        x, w, None, sizes, strides=_spatial(layer, "strides"), dilations=_spatial(layer, "dilations"),
        padding=_padding(layer),
    )  # fmt: skip
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


# ---------------------------------------------------------------------------------------------------- products
def _bias_add(layer: Layer) -> Made:
    bias = layer.x(1)
    if layer.text("data_format") == "NCHW":
        bias = layer.net.reshape(bias, (-1, *(1,) * (layer.net.type(layer.x()).rank - 2)))
    return layer.net.add("Add", layer.x(), bias)


# --------------------------------------------------------------------------------------------------- pointwise
def _cast(layer: Layer) -> Made:
    x, to = layer.x(), layer.dtype("DstT")
    return x if layer.net.type(x).dtype is to else layer.net.add("Cast", x, to=to.value)


def _fake_quant_vars(layer: Layer) -> Made:
    low, high = layer.array(1), layer.array(2)
    if low.size != 1 or high.size != 1:
        raise RefusedError("ranges per channel are not supported")
    return family.fake_quant(layer, float(low.item()), float(high.item()))


# ---------------------------------------------------------------------------------------------- moving elements
def _concat(layer: Layer) -> Made:
    values = layer.xs()
    at = 0 if layer.node.op == "Concat" else len(values) - 1
    (axis,) = layer.numbers(at)
    del values[at]
    return layer.net.add("Concat", *values, axis=axis) if len(values) > 1 else values[0]


def _pad(layer: Layer) -> Made:
    return layer.net.pad(layer.x(), layer.array(1), layer.x(2) if layer.count > 2 else None)


def _gather(layer: Layer) -> Made:
    if layer.integer("batch_dims"):
        raise RefusedError("batch_dims are not supported")
    axis = layer.numbers(2)[0] if layer.count > 2 else 0
    return layer.net.add("Gather", layer.x(), layer.x(1), axis=axis)


# --------------------------------------------------------------------------------------------------- reductions
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
    return family.suppression(layer, scores_too=layer.node.op == "NonMaxSuppressionV5")


def _combined_suppression(layer: Layer) -> Made:
    (per_class,), (total,) = layer.numbers(2), layer.numbers(3)
    if layer.flag("pad_per_class"):
        total = min(total, per_class * layer.net.dims(layer.x(1))[2])
    clip = "clip_boxes" not in layer.node.attr or layer.flag("clip_boxes")
    return combined(layer.net, layer.x(0), layer.x(1), per_class, total, layer.x(4), layer.x(5), clip=clip)


# ---------------------------------------------------------------------------------------------------- constants
def _out_type(layer: Layer) -> str:
    return layer.dtype("out_type").numpy.name if "out_type" in layer.node.attr else "int32"


def _shape(layer: Layer) -> Made:
    return layer.net.constant(np.array(layer.net.dims(layer.x()), _out_type(layer)), "shape")


def _size(layer: Layer) -> Made:
    return layer.net.constant(np.array(layer.net.type(layer.x()).size, _out_type(layer)), "size")


def _range(layer: Layer) -> Made:
    start, stop, step = (layer.array(k) for k in range(3))
    if step.item() == 0 or abs((stop.item() - start.item()) / step.item()) > 2**24:
        raise RefusedError("its range is not possible")
    return layer.net.constant(np.arange(start.item(), stop.item(), step.item()).astype(start.dtype), "range")


def _invert_permutation(layer: Layer) -> Made:
    return layer.net.constant(np.argsort(layer.array(0)).astype(layer.array(0).dtype), "inverse")


OPERATORS: dict[str, Spell] = {
    **SHARED,
    # inputs
    "Const": lambda layer: layer.constant(),
    **dict.fromkeys(("Placeholder", "PlaceholderV2"), _placeholder),
    "PlaceholderWithDefault": _placeholder_with_default,
    **dict.fromkeys(("QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2"), _dequeued),
    "IteratorGetNext": _next, "Mfcc": _mfcc,
    # windows
    **dict.fromkeys(("Conv2D", "Conv3D"), _conv),
    "DepthwiseConv2dNative": _depthwise_conv, "Conv2DBackpropInput": _conv_backprop,
    **each(_pool, "AvgPool:AveragePool AvgPool3D:AveragePool MaxPool:MaxPool MaxPool3D:MaxPool"),
    **each(_resize, "ResizeBilinear:linear ResizeNearestNeighbor:nearest ResizeBicubic:cubic"),
    # normalisation
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _fused_batch_norm),
    "BatchNormWithGlobalNormalization": _global_batch_norm,
    "LRN": lambda layer: family.lrn(layer, layer.integer("depth_radius", 5)),
    # products
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), family.matmul),
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias_add),
    # pointwise
    **each(one, """
        Erf:Erf Inv:Reciprocal Reciprocal:Reciprocal Rint:Round Selu:Selu Sigmoid:Sigmoid Softplus:Softplus
        Softsign:Softsign Tan:Tan
    """),
    **each(two, "Add:Add AddV2:Add Sub:Sub Mul:Mul RealDiv:Div Div:Div"),
    "Softmax": one("Softmax", axis=-1), "Mod": SHARED["FloorMod"],
    "ClipByValue": lambda layer: layer.net.add("Min", layer.net.add("Max", layer.x(0), layer.x(1)), layer.x(2)),
    "Cast": _cast, "FakeQuantWithMinMaxVars": _fake_quant_vars,
    "FakeQuantWithMinMaxArgs": lambda layer: family.fake_quant(layer, layer.number("min", -6), layer.number("max", 6)),
    # moving elements
    "Reshape": lambda layer: layer.net.reshape(layer.x(), layer.numbers(1)),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Split": lambda layer: family.split(layer, layer.integer("num_split", 1)),
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "MirrorPad": lambda layer: layer.net.mirror_pad(
        layer.x(), layer.array(1), edges=layer.text("mode") == "SYMMETRIC"),
    **dict.fromkeys(("Gather", "GatherV2"), _gather),
    # reductions
    **each(family.reduce, "Max:Max Min:Min Prod:Prod"),
    **each(family.reduce_truth, "Any:Max All:Min"),
    **each(_arg, "ArgMax:ArgMax ArgMin:ArgMin"),
    **dict.fromkeys(("TopK", "TopKV2"), _top_k),
    **dict.fromkeys(("NonMaxSuppressionV4", "NonMaxSuppressionV5"), _suppression),
    "CombinedNonMaxSuppression": _combined_suppression,
    # constants
    "Shape": _shape, "Size": _size, "OnesLike": family.like(1), "Range": _range,
    "InvertPermutation": _invert_permutation,
}  # fmt: skip
