"""TFLite's operators in ONNX's: one small function for each, or one line of a table.

Source: the TFLite operator reference and the reference kernels' headers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.formats.decompositions import tensorflow_data_movement as elements
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.shared import tensorflow_family as family
from tenon.formats.importers.shared.tensorflow_family import SHARED, binary, each, unary
from tenon.formats.importers.tflite.activation import BOUNDED, activated
from tenon.formats.importers.tflite.complex_numbers import COMPLEX
from tenon.formats.importers.tflite.control import CONTROL
from tenon.formats.importers.tflite.importer import OperatorFunction, TfliteNode
from tenon.formats.importers.tflite.mediapipe import MEDIAPIPE
from tenon.formats.importers.tflite.recurrent import RECURRENT
from tenon.formats.importers.tflite.signal import SIGNAL
from tenon.formats.importers.tflite.streams import STREAMS
from tenon.formats.wire.flatbuffer import flex_map
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType

MOVERS = frozenset(
    {
        "BATCH_TO_SPACE_ND",
        "BROADCAST_TO",
        "CONCATENATION",
        "DEPTH_TO_SPACE",
        "EXPAND_DIMS",
        "GATHER",
        "GATHER_ND",
        "MAXIMUM",
        "MAX_POOL_2D",
        "MINIMUM",
        "MIRROR_PAD",
        "PACK",
        "PAD",
        "PADV2",
        "REDUCE_MAX",
        "REDUCE_MIN",
        "RESHAPE",
        "RESIZE_NEAREST_NEIGHBOR",
        "REVERSE_V2",
        "SELECT",
        "SELECT_V2",
        "SLICE",
        "SPACE_TO_BATCH_ND",
        "SPACE_TO_DEPTH",
        "SPLIT",
        "SPLIT_V",
        "SQUEEZE",
        "STRIDED_SLICE",
        "TILE",
        "TRANSPOSE",
        "UNPACK",
    }
)
"""Operators whose results are among their operands' elements, so that integers of one scale need no arithmetic."""


# --------------------------------------------------------------------------------------------------- products
def _product(node: TfliteNode, y: Value, unit: Array | None) -> Value:
    """A product, activated.  One that counts ``unit`` is brought to its output's steps by one factor in f32."""
    if unit is None:
        return activated(node, y)
    builder, output = node.builder, node.output()
    stays = node.integer("activation") in BOUNDED and not output.dtype.is_float
    if output.quant is None or not stays:
        return activated(node, builder.add("Mul", y, builder.constant(unit, "unit")))
    step, _ = node.importer.grid(output)
    factor = builder.constant(np.asarray(unit / step.array, np.float32), "unit")
    result = activated(node, builder.add("Mul", y, factor), float(step.array))
    node.importer.stepped.add(result)
    return result


def _padding(node: TfliteNode) -> str:
    if node.integer("padding") not in (0, 1):
        raise RefusedError(f"padding {node.integer('padding')} is unknown")
    return "VALID" if node.integer("padding") else "SAME"


# ------------------------------------------------------------------------------------------------ windows
def _window(node: TfliteNode) -> dict[str, Any]:
    """Strides, dilations and padding over the spatial axes."""
    options = node.operation.options
    sides = [side for side in "dhw" if f"stride_{side}" in options]
    strides, dilations = ([options.get(f"{what}_{side}", 1) for side in sides] for what in ("stride", "dilation"))
    return {"strides": strides, "dilations": dilations, "padding": _padding(node)}


def _conv_2d(node: TfliteNode) -> Outputs:
    x, w, bias, unit = node.factors(0, 1, 2, 0)
    w = node.builder.transpose(w, (0, 3, 1, 2))
    group = node.builder.dims(x)[-1] // node.builder.dims(w)[1]
    return _product(node, node.builder.conv(x, w, bias, **_window(node), group=group), unit)


def _depthwise_conv_2d(node: TfliteNode) -> Outputs:
    x, w, bias, unit = node.factors(0, 1, 2, 3)
    w, group = node.builder.transpose(w, (3, 0, 1, 2)), node.builder.dims(x)[-1]
    return _product(node, node.builder.conv(x, w, bias, **_window(node), group=group), unit)


def _conv_3d(node: TfliteNode) -> Outputs:
    w = node.builder.transpose(node.input(1), (4, 3, 0, 1, 2))
    return activated(node, node.builder.conv(node.input(0), w, node.optional(2), **_window(node)))


def _transpose_conv(node: TfliteNode) -> Outputs:
    x, w, bias, unit = node.factors(2, 1, 3, 0)
    w, sizes = node.builder.transpose(w, (3, 0, 1, 2)), node.constant_integers(0)[1:3]
    return _product(node, node.builder.conv_transpose(x, w, bias, sizes, **_window(node)), unit)


def _conv_3d_transpose(node: TfliteNode) -> Outputs:
    w, sizes = node.builder.transpose(node.input(1), (4, 3, 0, 1, 2)), node.constant_integers(0)[1:4]
    return activated(node, node.builder.conv_transpose(node.input(2), w, node.optional(3), sizes, **_window(node)))


def _pool(kind: str) -> OperatorFunction:
    def function(node: TfliteNode) -> Outputs:
        kernel, strides = (
            (node.integer("filter_h"), node.integer("filter_w")),
            (node.integer("stride_h"), node.integer("stride_w")),
        )
        x = node.builder.square(node.x) if kind == "L2" else node.x
        y = node.builder.pool("MaxPool" if kind == "Max" else "AveragePool", x, kernel, strides, _padding(node))
        return activated(node, node.builder.add("Sqrt", y) if kind == "L2" else y)

    return function


def _resize(mode: str) -> OperatorFunction:
    return lambda node: node.builder.resize(
        node.x,
        node.constant_integers(1),
        mode,
        align_corners=node.flag("align_corners"),
        half_pixel=node.flag("half_pixel_centers"),
    )


# ------------------------------------------------------------------------------------------------ products
def _fully_connected(node: TfliteNode) -> Outputs:
    builder = node.builder
    if node.integer("weights_format"):
        raise RefusedError("shuffled weights are not supported")
    x, w, bias, unit = node.factors(0, 1, 2, 0)
    flat = builder.reshape(x, (-1, builder.dims(w)[1]))
    y = builder.matmul(x if node.flag("keep_num_dims") else flat, w, bias, transposed=True)
    return _product(node, y, unit)


# ------------------------------------------------------------------------------------------------ pointwise
def _arithmetic(op: str) -> OperatorFunction:
    return lambda node: activated(node, node.builder.add(op, node.input(0), node.input(1)))


def _cast(node: TfliteNode) -> Outputs:
    x, to = node.stored(0), node.output().dtype
    return x if node.builder.type(x).dtype is to else node.builder.add("Cast", x, to=to.value)


def _dequantize(node: TfliteNode) -> Outputs:
    x = node.x
    return node.builder.add("Cast", x, to="f32") if node.builder.type(x).dtype is DType.F16 else x


def _softmax(node: TfliteNode) -> Outputs:
    x = node.x
    if node.number("beta") != 1:
        x = node.builder.add("Mul", x, node.builder.number(node.number("beta"), x))
    return node.builder.add("Softmax", x, axis=-1)


def _l2_normalization(node: TfliteNode) -> Outputs:
    builder, x = node.builder, node.x
    length = builder.add("Max", builder.reduce("L2", x, [-1], True), builder.number(1e-6, x))
    return activated(node, builder.add("Div", x, length))


# ----------------------------------------------------------------------------------------- moving elements
def _concatenation(node: TfliteNode) -> Outputs:
    y = node.builder.add("Concat", *node.all_inputs(), axis=node.integer("axis"))
    return activated(node, y)


def _reshape(node: TfliteNode) -> Outputs:
    known = node.has(1) and node.stored(1).data is not None
    dims = node.constant_integers(1) if known else list(node.integers("shape"))
    if node.has(1) and not known and not dims:
        dims = list(node.output().shape)
    return node.builder.reshape(node.x, dims)


def _arg(op: str) -> OperatorFunction:
    return lambda node: node.builder.add(op, node.x, axis=node.constant_integers(1)[0], keepdims=0)


def _pad(node: TfliteNode) -> Outputs:
    x = node.x
    value = node.input(2) if node.has(2) else node.zero(x)
    return node.builder.pad(x, node.constant_input(1), value)


def _space_to_batch(node: TfliteNode) -> Outputs:
    x = node.x
    return node.builder.space_to_batch(x, node.constant_integers(1), node.constant_input(2), node.zero(x))


# ------------------------------------------------------------------------------------------------- constants
def _range(node: TfliteNode) -> Outputs:
    start, stop, step = (node.constant_input(k).item() for k in range(3))
    if step == 0 or abs((stop - start) / step) > 2**24:
        raise RefusedError(f"a range from {start} to {stop} by {step} is not possible")
    return node.builder.constant(np.arange(start, stop, step).astype(node.output().dtype.numpy), "range")


# -------------------------------------------------------------------------------------------------- detection
def _detection_post_process(node: TfliteNode) -> Outputs:
    """SSD's decoding and NMS; options as documented with the custom operator."""
    given = flex_map(node.operation.custom)
    anchors = node.input(2)
    names = {
        "max_detections": "max_detections",
        "max_classes_per_detection": "max_classes_per_detection",
        "detections_per_class": "detections_per_class",
        "num_classes": "num_classes",
        "nms_score_threshold": "score_threshold",
        "nms_iou_threshold": "iou_threshold",
    }
    attributes = {ours: given[theirs] for theirs, ours in names.items() if theirs in given}
    scales = tuple(float(given.get(f"{axis}_scale", 1)) for axis in "yxhw")
    return node.builder.adds(
        "DetectionPostProcess",
        4,
        node.input(0),
        node.input(1),
        anchors,
        scales=scales,
        regular=int(given.get("use_regular_nms", 0)),
        **attributes,
    )


OPERATORS: dict[str, OperatorFunction] = {
    **{family.in_capitals(name): function for name, function in SHARED.items()},
    **RECURRENT,
    # windows and products
    **each(_pool, "AVERAGE_POOL_2D:Average L2_POOL_2D:L2 MAX_POOL_2D:Max"),
    **each(_resize, "RESIZE_BILINEAR:linear RESIZE_NEAREST_NEIGHBOR:nearest"),
    "CONV_2D": _conv_2d,
    "CONV_3D": _conv_3d,
    "DEPTHWISE_CONV_2D": _depthwise_conv_2d,
    "TRANSPOSE_CONV": _transpose_conv,
    "CONV_3D_TRANSPOSE": _conv_3d_transpose,
    "FULLY_CONNECTED": _fully_connected,
    "BATCH_MATMUL": family.matmul,
    # pointwise
    **each(unary, "HARD_SWISH:HardSwish LOGISTIC:Sigmoid"),
    **each(_arithmetic, "ADD:Add DIV:Div MUL:Mul SUB:Sub"),
    "PRELU": binary("PRelu"),
    "BITCAST": lambda node: node.builder.add("BitCast", node.stored(0), to=node.output().dtype.value),
    "BUCKETIZE": lambda node: elements.bucketize(
        node.builder, node.x, np.array(node.numbers("boundaries"), np.float32)
    ),
    "GELU": lambda node: node.builder.add("Gelu", node.x, approximate="tanh" if node.flag("approximate") else "none"),
    "RELU_0_TO_1": lambda node: node.builder.clip(node.x, 0, 1),
    "RELU_N1_TO_1": lambda node: node.builder.clip(node.x, -1, 1),
    "CAST": _cast,
    "DEQUANTIZE": _dequantize,
    "QUANTIZE": lambda node: node.x,
    "FAKE_QUANT": lambda node: family.fake_quant(node, node.number("min"), node.number("max")),
    # along axes
    **each(family.reduce, "REDUCE_MAX:Max REDUCE_MIN:Min REDUCE_PROD:Prod"),
    **each(family.reduce_truth, "REDUCE_ALL:Min REDUCE_ANY:Max"),
    **each(_arg, "ARG_MAX:ArgMax ARG_MIN:ArgMin"),
    "TOPK_V2": lambda node: node.builder.adds("TopK", 2, node.x, node.builder.ints(*node.constant_integers(1))),
    "SOFTMAX": _softmax,
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": lambda node: family.lrn(node, node.integer("radius")),
    # moving
    "CONCATENATION": _concatenation,
    "RESHAPE": _reshape,
    "PAD": _pad,
    "PADV2": _pad,
    "SPACE_TO_BATCH_ND": _space_to_batch,
    "SPLIT": lambda node: family.split(node, node.integer("num_splits")),
    "MIRROR_PAD": lambda node: node.builder.mirror_pad(node.x, node.constant_input(1), edges=node.integer("mode") == 1),
    "GATHER": lambda node: elements.gather(
        node.builder, node.x, node.stored(1), node.integer("axis"), node.integer("batch_dims")
    ),
    "EMBEDDING_LOOKUP": lambda node: node.builder.add("Gather", node.input(1), node.stored(0), axis=0),
    "DYNAMIC_UPDATE_SLICE": lambda node: elements.update_slice(node.builder, node.x, node.input(1), node.stored(2)),
    # constants
    "RANGE": _range,
    "SHAPE": lambda node: node.builder.constant(np.array(node.builder.dims(node.stored(0)), np.int64), "shape"),
    # detection
    "NON_MAX_SUPPRESSION_V4": lambda node: family.suppression(node, scores_too=False),
    "NON_MAX_SUPPRESSION_V5": lambda node: family.suppression(node, scores_too=True),
    "TFLite_Detection_PostProcess": _detection_post_process,
    **SIGNAL,
    **STREAMS,
    **MEDIAPIPE,
    **COMPLEX,
    **CONTROL,
    "DENSIFY": lambda node: node.x,  # sparse constants are expanded when they are read
}
