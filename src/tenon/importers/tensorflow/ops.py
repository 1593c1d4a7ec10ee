"""TensorFlow's operators in ONNX's: one small function for each, or one line of a table.

Source of their meaning: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.decompositions import tensorflow_data_movement as elements
from tenon.decompositions.nms import combined
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.shared import tensorflow_family as family
from tenon.importers.shared.tensorflow_family import SHARED, each, one, two
from tenon.importers.tensorflow import windows
from tenon.importers.tensorflow.cells import CELLS
from tenon.importers.tensorflow.data_movement import ELEMENTS
from tenon.importers.tensorflow.importer import Layer
from tenon.importers.tensorflow.schema import DTYPES, shape_of
from tenon.importers.tensorflow.windows import WINDOWS
from tenon.ir.graph import Value
from tenon.ir.types import F32
from tenon.wire.protobuf import Message

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
    return _inputs(
        layer, queue.attribute("component_types"), queue.attribute("shapes"), batched=layer.node.op != "QueueDequeueV2"
    )


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


# ------------------------------------------------------------------------------------------------ normalisation
def _fused_batch_norm(layer: Layer) -> Made:
    if layer.flag("is_training") or layer.builder.type(layer.x(3)).size == 0:
        return _batch_statistics(layer)
    return _normalized(layer, layer.x(1), layer.x(2), layer.x(3), layer.x(4), layer.number("epsilon", 1e-4))


def _batch_statistics(layer: Layer) -> Made:
    """Of a graph in training mode: normalised by what the batch itself is like."""
    builder, x = layer.builder, windows.image(layer)
    axes = list(range(builder.type(x).rank - 1))
    mean = builder.reduce("Mean", x, axes, keep=True)
    apart = builder.add("Sub", x, mean)
    variance = builder.reduce("Mean", builder.square(apart), axes, keep=True)
    deviation = builder.add("Sqrt", builder.add("Add", variance, builder.number(layer.number("epsilon", 1e-4), x)))
    y = builder.add("Add", builder.add("Mul", builder.add("Div", apart, deviation), layer.x(1)), layer.x(2))
    flat = (builder.reshape(v, (-1,)) for v in (mean, variance, mean, variance))
    return [windows.back(layer, y), *flat]


def _normalized(layer: Layer, scale: Value, offset: Value, mean: Value, variance: Value, epsilon: float) -> Value:
    builder, x = layer.builder, layer.x(0)
    x = x if windows.first(layer) else builder.first(x)
    y = builder.add("BatchNormalization", x, scale, offset, mean, variance, epsilon=epsilon)
    return y if windows.first(layer) else builder.last(y)


def _global_batch_norm(layer: Layer) -> Made:
    """Operands: data, mean, variance, beta, gamma."""
    scale = layer.x(4)
    if not layer.flag("scale_after_normalization"):
        scale = layer.builder.constant(np.ones(layer.builder.dims(scale), np.float32), "ones")
    return _normalized(layer, scale, layer.x(3), layer.x(1), layer.x(2), layer.number("variance_epsilon", 1e-3))


# ---------------------------------------------------------------------------------------------------- products
def _fused_matmul(layer: Layer) -> Made:
    y = family.matmul(layer)
    assert isinstance(y, Value)
    return windows.fused(layer, y)


def _bias_add(layer: Layer) -> Made:
    bias = layer.x(1)
    if layer.text("data_format") == "NCHW":
        bias = layer.builder.reshape(bias, (-1, *(1,) * (layer.builder.type(layer.x()).rank - 2)))
    return layer.builder.add("Add", layer.x(), bias)


# --------------------------------------------------------------------------------------------------- pointwise
def _cast(layer: Layer) -> Made:
    x, to = layer.x(), layer.dtype("DstT")
    return x if layer.builder.type(x).dtype is to else layer.builder.add("Cast", x, to=to.value)


def _fake_quant_vars(layer: Layer) -> Made:
    low, high = layer.array(1), layer.array(2)
    if low.size != 1 or high.size != 1:
        return _fake_quant_channels(layer)
    return family.fake_quant(layer, float(low.item()), float(high.item()))


def _fake_quant_channels(layer: Layer) -> Made:
    """Rounding to a grid of its own for each of the last axis' elements, the zeros moved to grid points."""
    builder, x, bits = layer.builder, layer.x(), layer.integer("num_bits", 8)
    low, high = (layer.array(k).astype(np.float32).ravel() for k in (1, 2))
    if bits not in range(2, 17) or not (low <= 0).all() or not (high >= 0).all() or not (low < high).all():
        raise RefusedError(f"ranges of {low.tolist()} to {high.tolist()} in {bits} bits are not supported")
    least, most = int(layer.flag("narrow_range")), (1 << bits) - 1
    scale = (high - low) / np.float32(most - least)
    zero = np.clip(np.floor(least - low / scale + np.float32(0.5)), least, most)
    begin, end = (builder.constant(((bound - zero) * scale).astype(np.float32), "range") for bound in (least, most))
    step = builder.constant(scale, "step")
    inside = builder.add("Sub", builder.add("Min", builder.add("Max", x, begin), end), begin)
    counted = builder.add("Floor", builder.add("Add", builder.add("Div", inside, step), builder.number(0.5, x)))
    return builder.add("Add", builder.add("Mul", counted, step), begin)


# ---------------------------------------------------------------------------------------------- moving elements
def _concat(layer: Layer) -> Made:
    values = layer.xs()
    at = 0 if layer.node.op == "Concat" else len(values) - 1
    (axis,) = layer.numbers(at)
    del values[at]
    return layer.builder.add("Concat", *values, axis=axis) if len(values) > 1 else values[0]


def _pad(layer: Layer) -> Made:
    return layer.builder.pad(layer.x(), layer.array(1), layer.x(2) if layer.count > 2 else None)


def _gather(layer: Layer) -> Made:
    axis = layer.numbers(2)[0] if layer.count > 2 else 0
    return elements.gather(layer.builder, layer.x(), layer.x(1), axis, layer.integer("batch_dims"))


# --------------------------------------------------------------------------------------------------- reductions
def _arg(op: str) -> Spell:
    def spell(layer: Layer) -> Made:
        axis = layer.numbers(1)[0] if layer.count > 1 else 0
        y = layer.builder.add(op, layer.x(), axis=axis, keepdims=0)
        to = layer.dtype("output_type").value if "output_type" in layer.node.attr else "i64"
        return y if to == "i64" else layer.builder.add("Cast", y, to=to)

    return spell


def _top_k(layer: Layer) -> Made:
    values, indices = layer.builder.adds("TopK", 2, layer.x(), layer.builder.ints(*layer.numbers(1)))
    return values, layer.builder.add("Cast", indices, to="i32")


def _suppression(layer: Layer) -> Made:
    """V4 and V5, where as many rows as asked for come back whatever is found."""
    if not layer.flag("pad_to_max_output_size"):
        raise RefusedError("its result has no fixed shape", "export it with pad_to_max_output_size")
    return family.suppression(layer, scores_too=layer.node.op == "NonMaxSuppressionV5")


def _combined_suppression(layer: Layer) -> Made:
    (per_class,), (total,) = layer.numbers(2), layer.numbers(3)
    if layer.flag("pad_per_class"):
        total = min(total, per_class * layer.builder.dims(layer.x(1))[2])
    clip = "clip_boxes" not in layer.node.attr or layer.flag("clip_boxes")
    return combined(layer.builder, layer.x(0), layer.x(1), per_class, total, layer.x(4), layer.x(5), clip=clip)


# ---------------------------------------------------------------------------------------------------- constants
def _out_type(layer: Layer) -> str:
    return layer.dtype("out_type").numpy.name if "out_type" in layer.node.attr else "int32"


def _shape(layer: Layer) -> Made:
    return layer.builder.constant(np.array(layer.builder.dims(layer.x()), _out_type(layer)), "shape")


def _size(layer: Layer) -> Made:
    return layer.builder.constant(np.array(layer.builder.type(layer.x()).size, _out_type(layer)), "size")


def _range(layer: Layer) -> Made:
    start, stop, step = (layer.array(k) for k in range(3))
    if step.item() == 0 or abs((stop.item() - start.item()) / step.item()) > 2**24:
        raise RefusedError("its range is not possible")
    return layer.builder.constant(np.arange(start.item(), stop.item(), step.item()).astype(start.dtype), "range")


def _invert_permutation(layer: Layer) -> Made:
    return layer.builder.constant(np.argsort(layer.array(0)).astype(layer.array(0).dtype), "inverse")


OPERATORS: dict[str, Spell] = {
    **SHARED,
    # inputs
    "Const": lambda layer: layer.constant(),
    **dict.fromkeys(("Placeholder", "PlaceholderV2"), _placeholder),
    "PlaceholderWithDefault": _placeholder_with_default,
    **dict.fromkeys(("QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2"), _dequeued),
    "IteratorGetNext": _next,
    "Mfcc": _mfcc,
    **WINDOWS,
    **ELEMENTS,
    **CELLS,
    # normalisation
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _fused_batch_norm),
    "BatchNormWithGlobalNormalization": _global_batch_norm,
    "LRN": lambda layer: family.lrn(layer, layer.integer("depth_radius", 5)),
    # products
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), family.matmul),
    "Einsum": lambda layer: layer.builder.add("Einsum", *layer.xs(), equation=layer.text("equation")),
    "_FusedMatMul": _fused_matmul,
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias_add),
    # pointwise
    **each(
        one,
        """
        Erf:Erf Inv:Reciprocal Reciprocal:Reciprocal Rint:Round Selu:Selu Sigmoid:Sigmoid Softplus:Softplus
        Softsign:Softsign Tan:Tan
    """,
    ),
    **each(two, "Add:Add AddV2:Add Sub:Sub Mul:Mul RealDiv:Div Div:Div"),
    "Softmax": one("Softmax", axis=-1),
    "Mod": SHARED["FloorMod"],
    "ClipByValue": lambda layer: layer.builder.add("Min", layer.builder.add("Max", layer.x(0), layer.x(1)), layer.x(2)),
    "Cast": _cast,
    "FakeQuantWithMinMaxVars": _fake_quant_vars,
    "FakeQuantWithMinMaxVarsPerChannel": _fake_quant_channels,
    "FakeQuantWithMinMaxArgs": lambda layer: family.fake_quant(layer, layer.number("min", -6), layer.number("max", 6)),
    # moving elements
    "Reshape": lambda layer: layer.builder.reshape(layer.x(), layer.numbers(1)),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Split": lambda layer: family.split(layer, layer.integer("num_split", 1)),
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "MirrorPad": lambda layer: layer.builder.mirror_pad(
        layer.x(), layer.array(1), edges=layer.text("mode") == "SYMMETRIC"
    ),
    **dict.fromkeys(("Gather", "GatherV2"), _gather),
    # reductions
    **each(family.reduce, "Max:Max Min:Min Prod:Prod"),
    **each(family.reduce_truth, "Any:Max All:Min"),
    **each(_arg, "ArgMax:ArgMax ArgMin:ArgMin"),
    **dict.fromkeys(("TopK", "TopKV2"), _top_k),
    **dict.fromkeys(("NonMaxSuppressionV4", "NonMaxSuppressionV5"), _suppression),
    "CombinedNonMaxSuppression": _combined_suppression,
    # constants
    "Shape": _shape,
    "Size": _size,
    "OnesLike": family.like(1),
    "Range": _range,
    "InvertPermutation": _invert_permutation,
}
