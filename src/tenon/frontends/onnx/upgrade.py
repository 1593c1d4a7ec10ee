"""Old spellings of ONNX operators, rewritten as the newest: one small function per operator and change.

A function gets a ``Layer``, the node about to be made, and changes it; nodes that must come before are emitted
through it.  A default that changed needs nothing here, as the importer fills in those of the model's opset; what an
operator did before it had an attribute stands in ``IMPLIED``.
Sources: the ONNX operator changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenon.errors import UnknownError
from tenon.frontends.errors import RefusedError, UntypedError
from tenon.frontends.onnx.tensors import element_type
from tenon.ir.graph import Array, Origin, Value
from tenon.ir.types import DType
from tenon.ir.writer import is_known


class Maker(Protocol):
    """How an upgrade makes the nodes and constants that come before the layer."""

    def emit(self, layer: Layer, type: str, inputs: Sequence[Value | None], **attributes: Any) -> Value: ...

    def constant(self, layer: Layer, stem: str, data: Array) -> Value: ...

    def emit_all(
        self, layer: Layer, type: str, inputs: Sequence[Value | None], count: int, **attributes: Any
    ) -> list[Value]: ...

    def declared(self, layer: Layer) -> tuple[int, ...] | None: ...

    def found(self, layer: Layer, axes: Sequence[int | None]) -> list[Value]: ...

    def count(self, value: Value, axis: int, count: Value) -> None: ...


@dataclass
class Layer:
    """A node of the file on its way to becoming an operator.  ``results`` counts the outputs it has in the file,
    ``outputs`` names those up to the last one that is read."""

    origin: Origin
    type: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    results: int
    attributes: dict[str, Any]
    maker: Maker

    def input(self, i: int) -> Value:
        """Raises RefusedError if the input is absent."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise RefusedError(f"input {i} is missing")
        return value

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def dims(self, i: int) -> tuple[int, ...]:
        """The shape of an input.  Raises RefusedError while it is not known."""
        self.known_rank(i)
        return self.input(i).type.dims

    def known(self, i: int, what: str) -> Array:
        """The data of an input that must be known when compiling."""
        value = self.input(i)
        if value.data is None:
            raise UnknownError(
                f"{what} ('{value.name}') is computed at run time; it must be known when compiling", value
            )
        return value.data

    @staticmethod
    def element(number: int) -> DType:
        return element_type(number)

    def constant(self, stem: str, data: Array) -> Value:
        return self.maker.constant(self, stem, data)

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input; None while its type is not known."""
        value = self.input(i)
        return value.type.rank if is_known(value) else None

    def known_rank(self, i: int) -> int:
        rank = self.rank(i)
        if rank is None:
            raise UntypedError
        return rank

    def emit(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """The output of a new node before this one."""
        return self.maker.emit(self, type, inputs, **attributes)

    def ints(self, stem: str, values: Sequence[int]) -> Value:
        return self.maker.constant(self, stem, np.array(values, np.int64))

    def scalar(self, stem: str, value: float) -> Value:
        """A constant of the first input's element type."""
        first = self.input(0)
        dtype = first.type.dtype.numpy if first.typed else np.dtype(np.float32)
        return self.maker.constant(self, stem, np.array(value, dtype))

    def set_input(self, i: int, value: Value | None) -> None:
        self.inputs += [None] * (i + 1 - len(self.inputs))
        self.inputs[i] = value

    def become(self, type: str, *inputs: Value | None, **attributes: Any) -> None:
        self.type, self.inputs, self.attributes = type, list(inputs), attributes


def _attribute_to_input(layer: Layer, attribute: str, i: int) -> None:
    if attribute in layer.attributes:
        layer.set_input(i, layer.ints(attribute, layer.attributes.pop(attribute)))


def _axes(layer: Layer) -> None:
    _attribute_to_input(layer, "axes", 1)


def _broadcast(layer: Layer) -> None:
    """Before opset 7: ``axis`` said where the second operand's dimensions begin."""
    axis = layer.attributes.pop("axis", None)
    if layer.attributes.pop("broadcast", 0) and axis is not None:
        rank, own = layer.known_rank(0), layer.known_rank(1)
        trailing = rank - (axis % max(rank, 1)) - own
        if trailing > 0:
            axes = layer.ints("axes", range(own, own + trailing))
            layer.set_input(1, layer.emit("Unsqueeze", layer.input(1), axes))


def _softmax(layer: Layer) -> None:
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


def _clip(layer: Layer) -> None:
    for i, bound in enumerate(("min", "max"), 1):
        if bound in layer.attributes:
            layer.set_input(i, layer.scalar(bound, layer.attributes.pop(bound)))


def _pad(layer: Layer) -> None:
    if "paddings" in layer.attributes:
        layer.attributes["pads"] = layer.attributes.pop("paddings")
    _attribute_to_input(layer, "pads", 1)
    if "value" in layer.attributes:
        layer.set_input(2, layer.scalar("value", layer.attributes.pop("value")))


def _slice(layer: Layer) -> None:
    for i, name in enumerate(("starts", "ends", "axes"), 1):
        _attribute_to_input(layer, name, i)


def _split(layer: Layer) -> None:
    _attribute_to_input(layer, "split", 1)
    if len(layer.inputs) < 2 or layer.inputs[1] is None:
        layer.attributes.setdefault("num_outputs", layer.results)


def _batch_normalization(layer: Layer) -> None:
    if not layer.attributes.pop("spatial", 1):
        raise RefusedError("spatial=0 (statistics per position) is not supported", "export with a newer opset")
    layer.attributes.pop("is_test", None)
    if not layer.attributes.get("training_mode") and len(layer.outputs) > 1:
        raise RefusedError("it is in training mode", "export the model for inference")


def _gemm(layer: Layer) -> None:
    layer.attributes.pop("broadcast", None)


def _prelu(layer: Layer) -> None:
    """Before opset 7: one slope per channel, given as a vector."""
    slope = layer.input(1)
    if layer.opset < 7 and is_known(slope) and slope.type.rank == 1 and slope.type.dims != (1,):
        axes = layer.ints("axes", range(1, layer.known_rank(0) - 1))
        layer.set_input(1, layer.emit("Unsqueeze", slope, axes))


def _cast(layer: Layer) -> None:
    """The element type by its name in the text form; before opset 6 the attribute was ONNX's name of it."""
    to = layer.attributes.pop("to")
    if isinstance(to, str):
        from onnx import TensorProto

        to = TensorProto.DataType.Value(to.upper())
    layer.attributes["to"] = element_type(to).value


def _cast_like(layer: Layer) -> None:
    like = layer.input(1)
    if not like.typed:
        raise UntypedError
    layer.become("Cast", layer.input(0), **{**layer.attributes, "to": like.type.dtype.value})


def _tile(layer: Layer) -> None:
    """Opset 1: a count and an axis, one of each."""
    if layer.opset < 6:
        tiles, axis = layer.input(1).data, layer.input(2).data
        if tiles is None or axis is None:
            raise RefusedError("its counts are computed at run time")
        repeats = [1] * layer.known_rank(0)
        repeats[int(axis.item())] = int(tiles.item())
        layer.become("Tile", layer.input(0), layer.ints("repeats", repeats))


def _top_k(layer: Layer) -> None:
    if "k" in layer.attributes:
        layer.set_input(1, layer.ints("k", [layer.attributes.pop("k")]))


def _old_modes(layer: Layer) -> dict[str, Any]:
    mode = layer.attributes.get("mode", "nearest")
    return {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }


def _upsample(layer: Layer) -> None:
    attributes = layer.attributes
    if "width_scale" in attributes:
        attributes["scales"] = [1.0, 1.0, attributes["height_scale"], attributes["width_scale"]]
    if "scales" in attributes:
        scales = layer.maker.constant(layer, "scales", np.array(attributes["scales"], np.float32))
    else:
        scales = layer.input(1)
    layer.become("Resize", layer.input(0), None, scales, **_old_modes(layer))


def _resize_10(layer: Layer) -> None:
    """Opset 10 leaves open which neighbour is the nearest: as onnxruntime, the next one along axes that shrink, the
    previous one along the others."""
    x, scales, modes = layer.input(0), layer.input(1), _old_modes(layer)
    if modes["mode"] == "nearest" and scales.data is not None and (scales.data < 1).any():
        shrinking = layer.constant("shrinking", np.minimum(scales.data, 1))
        x = layer.emit("Resize", x, None, shrinking, **{**modes, "nearest_mode": "ceil"})
        scales = layer.constant("growing", np.maximum(scales.data, 1))
    layer.become("Resize", x, None, scales, **modes)


def _resize(layer: Layer) -> None:
    if layer.opset < 11:
        _resize_10(layer)
    for i, value in enumerate(layer.inputs):
        if i and value is not None and value.data is not None and value.data.size == 0:
            layer.inputs[i] = None


def _grid_sample(layer: Layer) -> None:
    mode = layer.attributes.get("mode", "linear")
    layer.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


def _group_normalization(layer: Layer) -> None:
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


def _gru(layer: Layer) -> None:
    """The default direction is misspelt in the schema of opset 1."""
    if layer.attributes.get("direction") == "foward":
        layer.attributes["direction"] = "forward"


def _reshape(layer: Layer) -> None:
    _attribute_to_input(layer, "shape", 1)


def _scatter(layer: Layer) -> None:
    layer.type = "ScatterElements"


_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
_BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")

UPGRADES: dict[str, Callable[[Layer], None]] = {
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


def upgrade(layer: Layer) -> None:
    """Rewrite ``layer`` in the newest spelling.  Raises RefusedError."""
    layer.attributes.pop("consumed_inputs", None)
    since, implied = IMPLIED.get(layer.type, (0, {}))
    if layer.opset < since:
        layer.attributes = {**implied, **layer.attributes}
    if layer.type in UPGRADES:
        UPGRADES[layer.type](layer)
