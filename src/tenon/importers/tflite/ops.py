"""TFLite's operators in ONNX's: one small function for each, or one line of a table.

Source of their meaning: the TFLite operator reference and the reference kernels' headers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tenon.decompositions import tensorflow_data_movement as elements
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.shared import tensorflow_family as family
from tenon.importers.shared.tensorflow_family import SHARED, each, one, two
from tenon.importers.tflite import schema
from tenon.importers.tflite.importer import Layer, Spell
from tenon.importers.tflite.recurrent import RECURRENT
from tenon.importers.tflite.signal import SIGNAL
from tenon.importers.tflite.streams import STREAMS
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType
from tenon.wire.flatbuffer import flex_map

MOVERS = frozenset({
    "BATCH_TO_SPACE_ND", "BROADCAST_TO", "CONCATENATION", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND",
    "MAXIMUM", "MAX_POOL_2D", "MINIMUM", "MIRROR_PAD", "PACK", "PAD", "PADV2", "REDUCE_MAX", "REDUCE_MIN", "RESHAPE",
    "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SELECT", "SELECT_V2", "SLICE", "SPACE_TO_BATCH_ND", "SPACE_TO_DEPTH",
    "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK",
})  # fmt: skip
"""Operators whose results are among their operands' elements, so that integers of one scale need no arithmetic."""


# ------------------------------------------------------------------------------------------- activations
_BOUNDED = [schema.ACTIVATIONS.index(name) for name in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")]
"""Activations that mean the same for steps as for real numbers."""


def activated(layer: Layer, y: Value, step: float = 1.0) -> Value:
    """``y``, which counts ``step``, with the operator's fused activation as a node of its own."""
    code, builder = layer.activation, layer.builder
    name = schema.ACTIVATIONS[code] if 0 <= code < len(schema.ACTIVATIONS) else str(code)
    if name == "NONE":
        return y
    if name == "RELU":
        return builder.add("Relu", y)
    if name == "RELU6":
        return builder.clip(y, 0, 6 / step)
    if name == "RELU_N1_TO_1":
        return builder.clip(y, -1 / step, 1 / step)
    if name == "TANH":
        return builder.add("Tanh", y)
    raise RefusedError(f"the fused activation {name} is not supported")


def _product(layer: Layer, y: Value, unit: Array | None) -> Value:
    """A product, activated.  One that counts ``unit`` is brought to its output's steps by one factor in f32."""
    if unit is None:
        return activated(layer, y)
    builder, output = layer.builder, layer.output()
    stays = layer.activation in _BOUNDED and not output.dtype.is_float
    if output.quant is None or not stays:
        return activated(layer, builder.add("Mul", y, builder.constant(unit, "unit")))
    step, _ = layer.importer.grid(output)
    factor = builder.constant(np.asarray(unit / step.array, np.float32), "unit")
    made = activated(layer, builder.add("Mul", y, factor), float(step.array))
    layer.importer.stepped.add(made)
    return made


def _padding(layer: Layer) -> str:
    if layer.padding not in (0, 1):
        raise RefusedError(f"padding {layer.padding} is unknown")
    return "VALID" if layer.padding else "SAME"


# ------------------------------------------------------------------------------------------------ windows
def _window(layer: Layer) -> dict[str, Any]:
    """Strides, dilations and padding over the spatial axes."""
    options = layer.operation.options
    sides = [side for side in "dhw" if f"stride_{side}" in options]
    strides, dilations = ([options.get(f"{what}_{side}", 1) for side in sides] for what in ("stride", "dilation"))
    return {"strides": strides, "dilations": dilations, "padding": _padding(layer)}


def _conv_2d(layer: Layer) -> Made:
    x, w, bias, unit = layer.factors(0, 1, 2, 0)
    w = layer.builder.transpose(w, (0, 3, 1, 2))
    group = layer.builder.dims(x)[-1] // layer.builder.dims(w)[1]
    return _product(layer, layer.builder.conv(x, w, bias, **_window(layer), group=group), unit)


def _depthwise_conv_2d(layer: Layer) -> Made:
    x, w, bias, unit = layer.factors(0, 1, 2, 3)
    w, group = layer.builder.transpose(w, (3, 0, 1, 2)), layer.builder.dims(x)[-1]
    return _product(layer, layer.builder.conv(x, w, bias, **_window(layer), group=group), unit)


def _conv_3d(layer: Layer) -> Made:
    w = layer.builder.transpose(layer.x(1), (4, 3, 0, 1, 2))
    return activated(layer, layer.builder.conv(layer.x(0), w, layer.optional(2), **_window(layer)))


def _transpose_conv(layer: Layer) -> Made:
    x, w, bias, unit = layer.factors(2, 1, 3, 0)
    w, sizes = layer.builder.transpose(w, (3, 0, 1, 2)), layer.numbers(0)[1:3]
    return _product(layer, layer.builder.conv_transpose(x, w, bias, sizes, **_window(layer)), unit)


def _conv_3d_transpose(layer: Layer) -> Made:
    w, sizes = layer.builder.transpose(layer.x(1), (4, 3, 0, 1, 2)), layer.numbers(0)[1:4]
    return activated(layer, layer.builder.conv_transpose(layer.x(2), w, layer.optional(3), sizes, **_window(layer)))


def _pool(kind: str) -> Spell:
    def spell(layer: Layer) -> Made:
        kernel, strides = (layer.filter_h, layer.filter_w), (layer.stride_h, layer.stride_w)
        x = layer.builder.square(layer.x()) if kind == "L2" else layer.x()
        y = layer.builder.pool("MaxPool" if kind == "Max" else "AveragePool", x, kernel, strides, _padding(layer))
        if layer.raw and layer.output().quant is not None and layer.activation:
            raise RefusedError("a fused activation of a quantised maximum is not supported")
        return activated(layer, layer.builder.add("Sqrt", y) if kind == "L2" else y)

    return spell


def _resize(mode: str) -> Spell:
    return lambda layer: layer.builder.resize(
        layer.x(), layer.numbers(1), mode, align_corners=layer.align_corners, half_pixel=layer.half_pixel_centers
    )


# ------------------------------------------------------------------------------------------------ products
def _fully_connected(layer: Layer) -> Made:
    builder = layer.builder
    if layer.weights_format:
        raise RefusedError("shuffled weights are not supported")
    x, w, bias, unit = layer.factors(0, 1, 2, 0)
    flat = builder.reshape(x, (-1, builder.dims(w)[1]))
    y = builder.matmul(x if layer.keep_num_dims else flat, w, bias, transposed=True)
    return _product(layer, y, unit)


# ------------------------------------------------------------------------------------------------ pointwise
def _arithmetic(op: str) -> Spell:
    return lambda layer: activated(layer, layer.builder.add(op, layer.x(0), layer.x(1)))


def _cast(layer: Layer) -> Made:
    x, to = layer.stored(0), layer.output().dtype
    return x if layer.builder.type(x).dtype is to else layer.builder.add("Cast", x, to=to.value)


def _dequantize(layer: Layer) -> Made:
    x = layer.x()
    return layer.builder.add("Cast", x, to="f32") if layer.builder.type(x).dtype is DType.F16 else x


def _softmax(layer: Layer) -> Made:
    x = layer.x()
    if layer.beta != 1:
        x = layer.builder.add("Mul", x, layer.builder.number(layer.beta, x))
    return layer.builder.add("Softmax", x, axis=-1)


def _l2_normalization(layer: Layer) -> Made:
    builder, x = layer.builder, layer.x()
    length = builder.add("Max", builder.reduce("L2", x, [-1], True), builder.number(1e-6, x))
    return activated(layer, builder.add("Div", x, length))


# ----------------------------------------------------------------------------------------- moving elements
def _concatenation(layer: Layer) -> Made:
    y = layer.builder.add("Concat", *layer.xs(), axis=layer.axis)
    if layer.raw and layer.output().quant is not None and layer.activation:
        raise RefusedError("a fused activation of a quantised concatenation is not supported")
    return activated(layer, y)


def _reshape(layer: Layer) -> Made:
    known = layer.has(1) and layer.stored(1).data is not None
    dims = layer.numbers(1) if known else list(layer.shape)
    if layer.has(1) and not known and not dims:
        dims = list(layer.output().shape)
    return layer.builder.reshape(layer.x(), dims)


def _arg(op: str) -> Spell:
    return lambda layer: layer.builder.add(op, layer.x(), axis=layer.numbers(1)[0], keepdims=0)


def _pad(layer: Layer) -> Made:
    x = layer.x()
    value = layer.x(2) if layer.has(2) else layer.zero(x)
    return layer.builder.pad(x, layer.array(1), value)


# ------------------------------------------------------------------------------------------------- constants
def _range(layer: Layer) -> Made:
    start, stop, step = (layer.array(k).item() for k in range(3))
    if step == 0 or abs((stop - start) / step) > 2**24:
        raise RefusedError(f"a range from {start} to {stop} by {step} is not possible")
    return layer.builder.constant(np.arange(start, stop, step).astype(layer.output().dtype.numpy), "range")


# -------------------------------------------------------------------------------------------------- detection
def _detection_post_process(layer: Layer) -> Made:
    """SSD's decoding and suppression; options as documented with the custom operator."""
    given = flex_map(layer.operation.custom)
    anchors = layer.x(2)
    names = {
        "max_detections": "max_detections", "max_classes_per_detection": "max_classes_per_detection",
        "detections_per_class": "detections_per_class", "num_classes": "num_classes",
        "nms_score_threshold": "score_threshold", "nms_iou_threshold": "iou_threshold",
    }  # fmt: skip
    attributes = {ours: given[theirs] for theirs, ours in names.items() if theirs in given}
    scales = tuple(float(given.get(f"{axis}_scale", 1)) for axis in "yxhw")
    return layer.builder.adds(
        "DetectionPostProcess",
        4,
        layer.x(0),
        layer.x(1),
        anchors,
        scales=scales,
        regular=int(given.get("use_regular_nms", 0)),
        **attributes,
    )


OPERATORS: dict[str, Callable[[Layer], Made]] = {
    **{family.in_capitals(name): spell for name, spell in SHARED.items()},
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
    **each(one, "HARD_SWISH:HardSwish LOGISTIC:Sigmoid"),
    **each(_arithmetic, "ADD:Add DIV:Div MUL:Mul SUB:Sub"),
    "PRELU": two("PRelu"),
    "BITCAST": lambda layer: layer.builder.add("BitCast", layer.stored(0), to=layer.output().dtype.value),
    "BUCKETIZE": lambda layer: elements.bucketize(layer.builder, layer.x(), np.array(layer.boundaries, np.float32)),
    "GELU": lambda layer: layer.builder.add("Gelu", layer.x(), approximate="tanh" if layer.approximate else "none"),
    "RELU_0_TO_1": lambda layer: layer.builder.clip(layer.x(), 0, 1),
    "RELU_N1_TO_1": lambda layer: layer.builder.clip(layer.x(), -1, 1),
    "CAST": _cast,
    "DEQUANTIZE": _dequantize,
    "QUANTIZE": lambda layer: layer.x(),
    "FAKE_QUANT": lambda layer: family.fake_quant(layer, layer.min, layer.max),
    # along axes
    **each(family.reduce, "REDUCE_MAX:Max REDUCE_MIN:Min REDUCE_PROD:Prod"),
    **each(family.reduce_truth, "REDUCE_ALL:Min REDUCE_ANY:Max"),
    **each(_arg, "ARG_MAX:ArgMax ARG_MIN:ArgMin"),
    "TOPK_V2": lambda layer: layer.builder.adds("TopK", 2, layer.x(), layer.builder.ints(*layer.numbers(1))),
    "SOFTMAX": _softmax,
    "L2_NORMALIZATION": _l2_normalization,
    "LOCAL_RESPONSE_NORMALIZATION": lambda layer: family.lrn(layer, layer.radius),
    # moving
    "CONCATENATION": _concatenation,
    "RESHAPE": _reshape,
    "PAD": _pad,
    "PADV2": _pad,
    "SPLIT": lambda layer: family.split(layer, layer.num_splits),
    "MIRROR_PAD": lambda layer: layer.builder.mirror_pad(layer.x(), layer.array(1), edges=layer.mode == 1),
    "GATHER": lambda layer: elements.gather(layer.builder, layer.x(), layer.stored(1), layer.axis, layer.batch_dims),
    "EMBEDDING_LOOKUP": lambda layer: layer.builder.add("Gather", layer.x(1), layer.stored(0), axis=0),
    "DYNAMIC_UPDATE_SLICE": lambda layer: elements.update_slice(layer.builder, layer.x(), layer.x(1), layer.stored(2)),
    # constants
    "RANGE": _range,
    "SHAPE": lambda layer: layer.builder.constant(np.array(layer.builder.dims(layer.stored(0)), np.int64), "shape"),
    # detection
    "NON_MAX_SUPPRESSION_V4": lambda layer: family.suppression(layer, scores_too=False),
    "NON_MAX_SUPPRESSION_V5": lambda layer: family.suppression(layer, scores_too=True),
    "TFLite_Detection_PostProcess": _detection_post_process,
    **SIGNAL,
    **STREAMS,
}
