"""Old forms of ONNX operators, rewritten as the newest: one small function per operator and change.

A function gets an ``OnnxNode`` and changes it; nodes that must come before are emitted through it.  A default that
changed needs nothing here, as the importer fills in those of the model's opset; the behaviour of an operator before it
had an attribute is in ``IMPLIED``.  Sources: the ONNX operator changelog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError, UntypedError
from tenon.formats.wire.onnx_tensors import element_type
from tenon.network.graph.writer import is_known


def _attribute_to_input(node: OnnxNode, attribute: str, i: int) -> None:
    if attribute in node.attributes:
        node.set_input(i, node.int_constant(attribute, node.attributes.pop(attribute)))


def _axes(node: OnnxNode) -> None:
    _attribute_to_input(node, "axes", 1)


def _broadcast(node: OnnxNode) -> None:
    """Before opset 7: ``axis`` gave the position of the second operand's dimensions."""
    axis = node.attributes.pop("axis", None)
    if node.attributes.pop("broadcast", 0) and axis is not None:
        rank, own = node.known_rank(0), node.known_rank(1)
        trailing = rank - (axis % max(rank, 1)) - own
        if trailing > 0:
            axes = node.int_constant("axes", range(own, own + trailing))
            node.set_input(1, node.add("Unsqueeze", node.input(1), axes))


def _softmax(node: OnnxNode) -> None:
    """Before opset 13: over all dimensions from ``axis`` on, seen as one."""
    if node.opset >= 13:
        return
    x, axis = node.input(0), node.attributes["axis"]
    if is_known(x):
        rank = x.type.rank
        axis = axis + rank if axis < 0 else axis
        if 0 <= axis < rank and all(d == 1 for d in x.type.dims[axis + 1 :]):
            node.attributes["axis"] = axis
            return
    shape, flat = node.add("Shape", x), node.add("Flatten", x, axis=axis)
    node.become("Reshape", node.add(node.type, flat, axis=-1), shape, allowzero=1)


def _clip(node: OnnxNode) -> None:
    for i, bound in enumerate(("min", "max"), 1):
        if bound in node.attributes:
            node.set_input(i, node.typed_scalar(bound, node.attributes.pop(bound)))


def _pad(node: OnnxNode) -> None:
    if "paddings" in node.attributes:
        node.attributes["pads"] = node.attributes.pop("paddings")
    _attribute_to_input(node, "pads", 1)
    if "value" in node.attributes:
        node.set_input(2, node.typed_scalar("value", node.attributes.pop("value")))


def _slice(node: OnnxNode) -> None:
    for i, name in enumerate(("starts", "ends", "axes"), 1):
        _attribute_to_input(node, name, i)


def _split(node: OnnxNode) -> None:
    _attribute_to_input(node, "split", 1)
    if len(node.inputs) < 2 or node.inputs[1] is None:
        node.attributes.setdefault("num_outputs", node.results)


def _batch_normalization(node: OnnxNode) -> None:
    if not node.attributes.pop("spatial", 1):
        raise RefusedError("spatial=0 (statistics per position) is not supported", "export with a newer opset")
    node.attributes.pop("is_test", None)
    if not node.attributes.get("training_mode") and len(node.outputs) > 1:
        raise RefusedError("it is in training mode", "export the model for inference")


def _gemm(node: OnnxNode) -> None:
    node.attributes.pop("broadcast", None)


def _prelu(node: OnnxNode) -> None:
    """Before opset 7: one slope per channel, given as a vector."""
    slope = node.input(1)
    if node.opset < 7 and is_known(slope) and slope.type.rank == 1 and slope.type.dims != (1,):
        axes = node.int_constant("axes", range(1, node.known_rank(0) - 1))
        node.set_input(1, node.add("Unsqueeze", slope, axes))


def _cast(node: OnnxNode) -> None:
    """The element type by its name in the text form; before opset 6 the attribute was ONNX's name of it."""
    to = node.attributes.pop("to")
    if isinstance(to, str):
        from onnx import TensorProto

        to = TensorProto.DataType.Value(to.upper())
    node.attributes["to"] = element_type(to).value


def _cast_like(node: OnnxNode) -> None:
    like = node.input(1)
    if not like.typed:
        raise UntypedError
    node.become("Cast", node.input(0), **{**node.attributes, "to": like.type.dtype.value})


def _tile(node: OnnxNode) -> None:
    """Opset 1: a count and an axis, one of each."""
    if node.opset < 6:
        tiles, axis = node.input(1).data, node.input(2).data
        if tiles is None or axis is None:
            raise RefusedError("its counts are computed at run time")
        repeats = [1] * node.known_rank(0)
        repeats[int(axis.item())] = int(tiles.item())
        node.become("Tile", node.input(0), node.int_constant("repeats", repeats))


def _top_k(node: OnnxNode) -> None:
    if "k" in node.attributes:
        node.set_input(1, node.int_constant("k", [node.attributes.pop("k")]))


def _old_modes(node: OnnxNode) -> dict[str, Any]:
    mode = node.attributes.get("mode", "nearest")
    return {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }


def _upsample(node: OnnxNode) -> None:
    attributes = node.attributes
    if "width_scale" in attributes:
        attributes["scales"] = [1.0, 1.0, attributes["height_scale"], attributes["width_scale"]]
    if "scales" in attributes:
        scales = node.constant(np.array(attributes["scales"], np.float32), "scales")
    else:
        scales = node.input(1)
    node.become("Resize", node.input(0), None, scales, **_old_modes(node))


def _resize_10(node: OnnxNode) -> None:
    """Opset 10 leaves open which neighbour is the nearest: as onnxruntime, the next one along axes that shrink, the
    previous one along the others."""
    x, scales, modes = node.input(0), node.input(1), _old_modes(node)
    if modes["mode"] == "nearest" and scales.data is not None and (scales.data < 1).any():
        shrinking = node.constant(np.minimum(scales.data, 1), "shrinking")
        x = node.add("Resize", x, None, shrinking, **{**modes, "nearest_mode": "ceil"})
        scales = node.constant(np.maximum(scales.data, 1), "growing")
    node.become("Resize", x, None, scales, **modes)


def _resize(node: OnnxNode) -> None:
    if node.opset < 11:
        _resize_10(node)
    for i, value in enumerate(node.inputs):
        if i and value is not None and value.data is not None and value.data.size == 0:
            node.inputs[i] = None


def _grid_sample(node: OnnxNode) -> None:
    mode = node.attributes.get("mode", "linear")
    node.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


def _group_normalization(node: OnnxNode) -> None:
    """Opset 18: scale and bias per group instead of per channel."""
    x, groups = node.input(0), node.attributes["num_groups"]
    for i in (1, 2) if node.opset < 21 else ():
        value = node.input(i)
        if not is_known(x):
            raise UntypedError
        if value.data is None:
            raise RefusedError("its scale or bias is computed at run time", "export with opset 21 or newer")
        repeated = np.repeat(value.data, x.type.dims[1] // groups)
        node.set_input(i, node.constant(repeated, "per_channel"))


def _gru(node: OnnxNode) -> None:
    """The default direction is misspelt in the schema of opset 1."""
    if node.attributes.get("direction") == "foward":
        node.attributes["direction"] = "forward"


def _reshape(node: OnnxNode) -> None:
    _attribute_to_input(node, "shape", 1)


def _scatter(node: OnnxNode) -> None:
    node.type = "ScatterElements"


_REDUCTIONS = (
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
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


def upgrade(node: OnnxNode) -> None:
    """Rewrite ``layer`` in the newest form.  Raises RefusedError."""
    node.attributes.pop("consumed_inputs", None)
    since, implied = IMPLIED.get(node.type, (0, {}))
    if node.opset < since:
        node.attributes = {**implied, **node.attributes}
    if node.type in UPGRADES:
        UPGRADES[node.type](node)
