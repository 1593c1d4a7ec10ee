"""TensorFlow's operators in ONNX's: one small function for each, or one line of a table.

Source: the documentation of tf.raw_ops.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions import tensorflow_data_movement as elements
from tenon.formats.decompositions.nms import combined
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.shared import tensorflow_family as family
from tenon.formats.importers.shared.tensorflow_family import SHARED, binary, each, unary
from tenon.formats.importers.tensorflow import windows
from tenon.formats.importers.tensorflow.cells import CELLS
from tenon.formats.importers.tensorflow.data_movement import ELEMENTS
from tenon.formats.importers.tensorflow.importer import TensorflowNode
from tenon.formats.importers.tensorflow.schema import DTYPES, shape_of
from tenon.formats.importers.tensorflow.windows import WINDOWS
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value
from tenon.network.graph.types import F32

OperatorFunction = Callable[[TensorflowNode], Outputs]


# ------------------------------------------------------------------------------------------------------- inputs
def _placeholder(node: TensorflowNode) -> Outputs:
    return node.graph_input(node.node.name, node.dtype("dtype"), node.declared("shape"))


def _placeholder_with_default(node: TensorflowNode) -> Outputs:
    return node.x if node.x.constant else _placeholder(node)


def _dequeued(node: TensorflowNode) -> Outputs:
    """The elements of a queue become inputs; a batch is one unless the graph says otherwise."""
    queue = node.maker(0)
    if queue is None:
        raise RefusedError("its queue does not exist")
    return _inputs(
        node, queue.message("component_types"), queue.message("shapes"), batched=node.node.op != "QueueDequeueV2"
    )


def _next(node: TensorflowNode) -> Outputs:
    return _inputs(node, node.message("output_types"), node.message("output_shapes"), batched=False)


def _inputs(node: TensorflowNode, types: Message, shapes: Message, *, batched: bool) -> Outputs:
    outputs, dims = [], [shape_of(shape) for shape in shapes.list.shape]
    for i, number in enumerate(types.list.type):
        if number not in DTYPES:
            raise RefusedError(f"element {i} is not of numbers", "cut the model behind it with --input")
        shape = dims[i] if i < len(dims) else None
        name = f"{node.node.name}:{i}" if i else node.node.name
        outputs.append(node.graph_input(name, DTYPES[number], (-1, *shape) if batched and shape is not None else shape))
    return outputs


def _mfcc(node: TensorflowNode) -> Outputs:
    """Audio features are computed outside of the graph: they are an input, of the shape that the audio implies."""
    spectrogram, frames = node.maker(0), -1
    decoded = spectrogram.maker(0) if spectrogram is not None and spectrogram.node.op == "AudioSpectrogram" else None
    if spectrogram is not None and decoded is not None and "desired_samples" in decoded.node.attr:
        window, stride = (max(1, spectrogram.integer(name)) for name in ("window_size", "stride"))
        frames = 1 + (decoded.integer("desired_samples") - window) // stride
    return node.graph_input(node.node.name, F32, (1, frames, node.integer("dct_coefficient_count", 13)))


# ------------------------------------------------------------------------------------------------ normalisation
def _fused_batch_norm(node: TensorflowNode) -> Outputs:
    if node.flag("is_training") or node.builder.type(node.input(3)).size == 0:
        return _batch_statistics(node)
    mean, variance = node.input(3), node.input(4)
    y = _normalized(node, node.input(1), node.input(2), mean, variance, node.number("epsilon", 1e-4))
    return [y, mean, variance, mean, variance]


def _batch_statistics(node: TensorflowNode) -> Outputs:
    """Batch normalisation of a graph in training mode, by the batch's own statistics; the variance that is returned
    first is the unbiased one of a sample."""
    builder, x = node.builder, windows.image(node)
    axes = list(range(builder.type(x).rank - 1))
    mean = builder.reduce("Mean", x, axes, keep=True)
    apart = builder.add("Sub", x, mean)
    variance = builder.reduce("Mean", builder.square(apart), axes, keep=True)
    deviation = builder.add("Sqrt", builder.add("Add", variance, builder.number(node.number("epsilon", 1e-4), x)))
    y = builder.add("Add", builder.add("Mul", builder.add("Div", apart, deviation), node.input(1)), node.input(2))
    count = builder.type(x).size // builder.dims(x)[-1]
    unbiased = builder.add("Mul", variance, builder.number(count / max(1, count - 1), x))
    flat = (builder.reshape(v, (-1,)) for v in (mean, unbiased, mean, variance))
    return [windows.back(node, y), *flat]


def _normalized(
    node: TensorflowNode, scale: Value, offset: Value, mean: Value, variance: Value, epsilon: float
) -> Value:
    builder, x = node.builder, node.input(0)
    x = x if windows.first(node) else builder.first(x)
    y = builder.add("BatchNormalization", x, scale, offset, mean, variance, epsilon=epsilon)
    return y if windows.first(node) else builder.last(y)


def _global_batch_norm(node: TensorflowNode) -> Outputs:
    """Operands: data, mean, variance, beta, gamma."""
    scale = node.input(4)
    if not node.flag("scale_after_normalization"):
        scale = node.builder.constant(np.ones(node.builder.dims(scale), np.float32), "ones")
    return _normalized(node, scale, node.input(3), node.input(1), node.input(2), node.number("variance_epsilon", 1e-3))


# ---------------------------------------------------------------------------------------------------- products
def _fused_matmul(node: TensorflowNode) -> Outputs:
    y = family.matmul(node)
    assert isinstance(y, Value)
    return windows.fused(node, y)


def _bias_add(node: TensorflowNode) -> Outputs:
    bias = node.input(1)
    if node.text("data_format") == "NCHW":
        bias = node.builder.reshape(bias, (-1, *(1,) * (node.builder.type(node.x).rank - 2)))
    return node.builder.add("Add", node.x, bias)


# --------------------------------------------------------------------------------------------------- pointwise
def _cast(node: TensorflowNode) -> Outputs:
    x, to = node.x, node.dtype("DstT")
    return x if node.builder.type(x).dtype is to else node.builder.add("Cast", x, to=to.value)


def _fake_quant_vars(node: TensorflowNode) -> Outputs:
    low, high = node.constant_input(1), node.constant_input(2)
    if low.size != 1 or high.size != 1:
        return _fake_quant_channels(node)
    return family.fake_quant(node, float(low.item()), float(high.item()))


def _fake_quant_channels(node: TensorflowNode) -> Outputs:
    """Rounding to a grid of its own for each of the last axis' elements, the zeros moved to grid points."""
    builder, x, bits = node.builder, node.x, node.integer("num_bits", 8)
    low, high = (node.constant_input(k).astype(np.float32).ravel() for k in (1, 2))
    if bits not in range(2, 17) or not (low <= 0).all() or not (high >= 0).all() or not (low < high).all():
        raise RefusedError(f"ranges of {low.tolist()} to {high.tolist()} in {bits} bits are not supported")
    minimum, maximum = int(node.flag("narrow_range")), (1 << bits) - 1
    scale = (high - low) / np.float32(maximum - minimum)
    zero = np.clip(np.floor(minimum - low / scale + np.float32(0.5)), minimum, maximum)
    if x.data is not None and bits <= 8:
        return builder.on_grid(x.data, scale, zero.astype(np.int64), minimum, bits)
    begin, end = (
        builder.constant(((bound - zero) * scale).astype(np.float32), "range") for bound in (minimum, maximum)
    )
    step = builder.constant(scale, "step")
    inside = builder.add("Sub", builder.add("Min", builder.add("Max", x, begin), end), begin)
    counted = builder.add("Floor", builder.add("Add", builder.add("Div", inside, step), builder.number(0.5, x)))
    return builder.add("Add", builder.add("Mul", counted, step), begin)


# ---------------------------------------------------------------------------------------------- moving elements
def _concat(node: TensorflowNode) -> Outputs:
    values = node.all_inputs()
    at = 0 if node.node.op == "Concat" else len(values) - 1
    (axis,) = node.constant_integers(at)
    del values[at]
    return node.builder.add("Concat", *values, axis=axis) if len(values) > 1 else values[0]


def _pad(node: TensorflowNode) -> Outputs:
    return node.builder.pad(node.x, node.constant_input(1), node.input(2) if node.count > 2 else None)


def _gather(node: TensorflowNode) -> Outputs:
    axis = node.constant_integers(2)[0] if node.count > 2 else 0
    return elements.gather(node.builder, node.x, node.input(1), axis, node.integer("batch_dims"))


# --------------------------------------------------------------------------------------------------- reductions
def _arg(op: str) -> OperatorFunction:
    def function(node: TensorflowNode) -> Outputs:
        axis = node.constant_integers(1)[0] if node.count > 1 else 0
        y = node.builder.add(op, node.x, axis=axis, keepdims=0)
        to = node.dtype("output_type").value if "output_type" in node.node.attr else "i64"
        return y if to == "i64" else node.builder.add("Cast", y, to=to)

    return function


def _top_k(node: TensorflowNode) -> Outputs:
    values, indices = node.builder.adds("TopK", 2, node.x, node.builder.ints(*node.constant_integers(1)))
    return values, node.builder.add("Cast", indices, to="i32")


def _suppression(node: TensorflowNode) -> Outputs:
    """V4 and V5, which pad their result to a fixed number of rows."""
    if not node.flag("pad_to_max_output_size"):
        raise RefusedError("its result has no fixed shape", "export it with pad_to_max_output_size")
    return family.suppression(node, scores_too=node.node.op == "NonMaxSuppressionV5")


def _combined_suppression(node: TensorflowNode) -> Outputs:
    (per_class,), (total,) = node.constant_integers(2), node.constant_integers(3)
    if node.flag("pad_per_class"):
        total = min(total, per_class * node.builder.dims(node.input(1))[2])
    clip = "clip_boxes" not in node.node.attr or node.flag("clip_boxes")
    return combined(
        node.builder, node.input(0), node.input(1), per_class, total, node.input(4), node.input(5), clip=clip
    )


# ---------------------------------------------------------------------------------------------------- constants
def _out_type(node: TensorflowNode) -> str:
    return node.dtype("out_type").numpy.name if "out_type" in node.node.attr else "int32"


def _shape(node: TensorflowNode) -> Outputs:
    return node.builder.constant(np.array(node.builder.dims(node.x), _out_type(node)), "shape")


def _size(node: TensorflowNode) -> Outputs:
    return node.builder.constant(np.array(node.builder.type(node.x).size, _out_type(node)), "size")


def _range(node: TensorflowNode) -> Outputs:
    start, stop, step = (node.constant_input(k) for k in range(3))
    if step.item() == 0 or abs((stop.item() - start.item()) / step.item()) > 2**24:
        raise RefusedError("its range is not possible")
    return node.builder.constant(np.arange(start.item(), stop.item(), step.item()).astype(start.dtype), "range")


def _invert_permutation(node: TensorflowNode) -> Outputs:
    return node.builder.constant(np.argsort(node.constant_input(0)).astype(node.constant_input(0).dtype), "inverse")


OPERATORS: dict[str, OperatorFunction] = {
    **SHARED,
    # inputs
    "Const": lambda node: node.value_constant(),
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
    "LRN": lambda node: family.lrn(node, node.integer("depth_radius", 5)),
    # products
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), family.matmul),
    "Einsum": lambda node: node.builder.add("Einsum", *node.all_inputs(), equation=node.text("equation")),
    "_FusedMatMul": _fused_matmul,
    **dict.fromkeys(("BiasAdd", "BiasAddV1"), _bias_add),
    # pointwise
    **each(
        unary,
        """
        Erf:Erf Inv:Reciprocal Reciprocal:Reciprocal Rint:Round Selu:Selu Sigmoid:Sigmoid Softplus:Softplus
        Softsign:Softsign Tan:Tan
    """,
    ),
    **each(binary, "Add:Add AddV2:Add Sub:Sub Mul:Mul RealDiv:Div Div:Div"),
    "Softmax": unary("Softmax", axis=-1),
    "Mod": SHARED["FloorMod"],
    "ClipByValue": lambda node: node.builder.add(
        "Min", node.builder.add("Max", node.input(0), node.input(1)), node.input(2)
    ),
    "Cast": _cast,
    "FakeQuantWithMinMaxVars": _fake_quant_vars,
    "FakeQuantWithMinMaxVarsPerChannel": _fake_quant_channels,
    "FakeQuantWithMinMaxArgs": lambda node: family.fake_quant(node, node.number("min", -6), node.number("max", 6)),
    # moving elements
    "Reshape": lambda node: node.builder.reshape(node.x, node.constant_integers(1)),
    **dict.fromkeys(("Concat", "ConcatV2"), _concat),
    "Split": lambda node: family.split(node, node.integer("num_split", 1)),
    **dict.fromkeys(("Pad", "PadV2"), _pad),
    "MirrorPad": lambda node: node.builder.mirror_pad(
        node.x, node.constant_input(1), edges=node.text("mode") == "SYMMETRIC"
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
