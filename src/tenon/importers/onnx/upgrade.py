"""Old spellings of ONNX operators, rewritten as the newest: one small function per operator and change.

A function gets a ``OnnxNode``, the node about to be made, and changes it; nodes that must come before are emitted
through it.  A default that changed needs nothing here, as the importer fills in those of the model's opset; what an
operator did before it had an attribute stands in ``IMPLIED``.
Sources: the ONNX operator changelog.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode
from tenon.graph_builder.errors import RefusedError, UntypedError
from tenon.ir.writer import is_known
from tenon.wire.onnx_tensors import element_type


def _attribute_to_input(layer: OnnxNode, attribute: str, i: int) -> None:
    if attribute in layer.attributes:
        layer.set_input(i, layer.ints(attribute, layer.attributes.pop(attribute)))


def _axes(layer: OnnxNode) -> None:
    _attribute_to_input(layer, "axes", 1)


def _broadcast(layer: OnnxNode) -> None:
    """Before opset 7: ``axis`` said where the second operand's dimensions begin."""
    axis = layer.attributes.pop("axis", None)
    if layer.attributes.pop("broadcast", 0) and axis is not None:
        rank, own = layer.known_rank(0), layer.known_rank(1)
        trailing = rank - (axis % max(rank, 1)) - own
        if trailing > 0:
            axes = layer.ints("axes", range(own, own + trailing))
            layer.set_input(1, layer.emit("Unsqueeze", layer.input(1), axes))


def _softmax(layer: OnnxNode) -> None:
    """Before opset 13: over all dimensions from ``axis`` on, seen as one."""
    if layer.opset >= 13:
        return
    x, axis = layer.input(0), layer.attributes["axis"]
    if is_known(x):
        rank = x.type.rank
        axis = axis + rank if axis < 0 else axis
        if 0 <= axis < rank and all(d == 1 for d in x.type.dims[axis + 1 :]):
            layer.attributes["axis"] = axis
            return
    shape, flat = layer.emit("Shape", x), layer.emit("Flatten", x, axis=axis)
    layer.become("Reshape", layer.emit(layer.type, flat, axis=-1), shape, allowzero=1)


def _clip(layer: OnnxNode) -> None:
    for i, bound in enumerate(("min", "max"), 1):
        if bound in layer.attributes:
            layer.set_input(i, layer.scalar(bound, layer.attributes.pop(bound)))


def _pad(layer: OnnxNode) -> None:
    if "paddings" in layer.attributes:
        layer.attributes["pads"] = layer.attributes.pop("paddings")
    _attribute_to_input(layer, "pads", 1)
    if "value" in layer.attributes:
        layer.set_input(2, layer.scalar("value", layer.attributes.pop("value")))


def _slice(layer: OnnxNode) -> None:
    for i, name in enumerate(("starts", "ends", "axes"), 1):
        _attribute_to_input(layer, name, i)


def _split(layer: OnnxNode) -> None:
    _attribute_to_input(layer, "split", 1)
    if len(layer.inputs) < 2 or layer.inputs[1] is None:
        layer.attributes.setdefault("num_outputs", layer.results)


def _batch_normalization(layer: OnnxNode) -> None:
    if not layer.attributes.pop("spatial", 1):
        raise RefusedError("spatial=0 (statistics per position) is not supported", "export with a newer opset")
    layer.attributes.pop("is_test", None)
    if not layer.attributes.get("training_mode") and len(layer.outputs) > 1:
        raise RefusedError("it is in training mode", "export the model for inference")


def _gemm(layer: OnnxNode) -> None:
    layer.attributes.pop("broadcast", None)


def _prelu(layer: OnnxNode) -> None:
    """Before opset 7: one slope per channel, given as a vector."""
    slope = layer.input(1)
    if layer.opset < 7 and is_known(slope) and slope.type.rank == 1 and slope.type.dims != (1,):
        axes = layer.ints("axes", range(1, layer.known_rank(0) - 1))
        layer.set_input(1, layer.emit("Unsqueeze", slope, axes))


def _cast(layer: OnnxNode) -> None:
    """The element type by its name in the text form; before opset 6 the attribute was ONNX's name of it."""
    to = layer.attributes.pop("to")
    if isinstance(to, str):
        from onnx import TensorProto

        to = TensorProto.DataType.Value(to.upper())
    layer.attributes["to"] = element_type(to).value


def _cast_like(layer: OnnxNode) -> None:
    like = layer.input(1)
    if not like.typed:
        raise UntypedError
    layer.become("Cast", layer.input(0), **{**layer.attributes, "to": like.type.dtype.value})


def _tile(layer: OnnxNode) -> None:
    """Opset 1: a count and an axis, one of each."""
    if layer.opset < 6:
        tiles, axis = layer.input(1).data, layer.input(2).data
        if tiles is None or axis is None:
            raise RefusedError("its counts are computed at run time")
        repeats = [1] * layer.known_rank(0)
        repeats[int(axis.item())] = int(tiles.item())
        layer.become("Tile", layer.input(0), layer.ints("repeats", repeats))


def _top_k(layer: OnnxNode) -> None:
    if "k" in layer.attributes:
        layer.set_input(1, layer.ints("k", [layer.attributes.pop("k")]))


def _old_modes(layer: OnnxNode) -> dict[str, Any]:
    mode = layer.attributes.get("mode", "nearest")
    return {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }


def _upsample(layer: OnnxNode) -> None:
    attributes = layer.attributes
    if "width_scale" in attributes:
        attributes["scales"] = [1.0, 1.0, attributes["height_scale"], attributes["width_scale"]]
    if "scales" in attributes:
        scales = layer.maker.constant(layer, "scales", np.array(attributes["scales"], np.float32))
    else:
        scales = layer.input(1)
    layer.become("Resize", layer.input(0), None, scales, **_old_modes(layer))


def _resize_10(layer: OnnxNode) -> None:
    """Opset 10 leaves open which neighbour is the nearest: as onnxruntime, the next one along axes that shrink, the
    previous one along the others."""
    x, scales, modes = layer.input(0), layer.input(1), _old_modes(layer)
    if modes["mode"] == "nearest" and scales.data is not None and (scales.data < 1).any():
        shrinking = layer.constant("shrinking", np.minimum(scales.data, 1))
        x = layer.emit("Resize", x, None, shrinking, **{**modes, "nearest_mode": "ceil"})
        scales = layer.constant("growing", np.maximum(scales.data, 1))
    layer.become("Resize", x, None, scales, **modes)


def _resize(layer: OnnxNode) -> None:
    if layer.opset < 11:
        _resize_10(layer)
    for i, value in enumerate(layer.inputs):
        if i and value is not None and value.data is not None and value.data.size == 0:
            layer.inputs[i] = None


def _grid_sample(layer: OnnxNode) -> None:
    mode = layer.attributes.get("mode", "linear")
    layer.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


def _group_normalization(layer: OnnxNode) -> None:
    """Opset 18: scale and bias per group instead of per channel."""
    x, groups = layer.input(0), layer.attributes["num_groups"]
    for i in (1, 2) if layer.opset < 21 else ():
        value = layer.input(i)
        if not is_known(x):
            raise UntypedError
        if value.data is None:
            raise RefusedError("its scale or bias is computed at run time", "export with opset 21 or newer")
        repeated = np.repeat(value.data, x.type.dims[1] // groups)
        layer.set_input(i, layer.maker.constant(layer, "per_channel", repeated))


def _gru(layer: OnnxNode) -> None:
    """The default direction is misspelt in the schema of opset 1."""
    if layer.attributes.get("direction") == "foward":
        layer.attributes["direction"] = "forward"


def _reshape(layer: OnnxNode) -> None:
    _attribute_to_input(layer, "shape", 1)


def _scatter(layer: OnnxNode) -> None:
    layer.type = "ScatterElements"


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")

UPGRADES: dict[str, Callable[[OnnxNode], None]] = {
    **dict.fromkeys((*_REDUCTIONS, "Squeeze", "Unsqueeze"), _axes),
    **dict.fromkeys(_BROADCASTING, _broadcast),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "BatchNormalization": _batch_normalization,
    "BitCast": _cast,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "GRU": _gru,
    "Gemm": _gemm,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_normalization,
    "PRelu": _prelu,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Scatter": _scatter,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "TopK": _top_k,
    "Upsample": _upsample,
}

IMPLIED: dict[str, tuple[int, dict[str, Any]]] = {
    "Concat": (4, {"axis": 1}),
    "RoiAlign": (16, {"coordinate_transformation_mode": "output_half_pixel"}),
}
"""By operator: attributes that it has from an opset on, or has no schema default for before it, and what it did until
then where that is not the default of today."""


def upgrade(layer: OnnxNode) -> None:
    """Rewrite ``layer`` in the newest spelling.  Raises RefusedError."""
    layer.attributes.pop("consumed_inputs", None)
    since, implied = IMPLIED.get(layer.type, (0, {}))
    if layer.opset < since:
        layer.attributes = {**implied, **layer.attributes}
    if layer.type in UPGRADES:
        UPGRADES[layer.type](layer)
