"""Attributes of ONNX nodes: their kinds and defaults, and the data of the nodes that hold it in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array
from tenon.network.graph.writer import LARGEST_TENSOR

if TYPE_CHECKING:
    from onnx import AttributeProto
    from onnx.defs import OpSchema

_KINDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}


def kind_of(attribute: AttributeProto) -> str:
    """The field that holds the value; files before 2017 do not say, so the first that is there."""
    if attribute.type:
        return _KINDS.get(attribute.type, "")
    for kind in _KINDS.values():
        if kind.endswith("s") and len(kind) > 1:
            if len(getattr(attribute, kind)):
                return kind
        elif attribute.HasField(kind):
            return kind
    return ""


def defaults(schema: OpSchema | None) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    defaults: dict[str, Any] = {}
    for name, attribute in schema.attributes.items() if schema else ():
        if attribute.default_value.type:
            value = get_attribute_value(attribute.default_value)
            defaults[name] = _text(value)
    return defaults


def _text(value: Any) -> Any:
    """Bytes as strings."""
    if isinstance(value, list):
        return [_text(v) for v in value]
    return value.decode() if isinstance(value, bytes) else value


def constant_data(attributes: Mapping[str, Any]) -> Array:
    """The data of a Constant node, whichever of its attributes holds it.  Raises RefusedError."""
    for name, value in attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
        if name in ("value_string", "value_strings"):
            return np.array(value, object)
    raise RefusedError("its value is not a tensor", "sparse tensors are not supported")


def filled(node: OnnxNode) -> Array:
    """The result of ConstantOfShape, without spending memory on it.  Raises RefusedError."""
    shape = node.input(0).data
    value = node.attributes.get("value")
    value = np.zeros(1, np.float32) if value is None else np.asarray(value)
    if shape is None or shape.ndim != 1 or shape.dtype.kind != "i" or value.size != 1:
        raise RefusedError("its shape or its value is malformed")
    dims = tuple(int(d) for d in shape)
    count = 1
    for d in dims:
        count *= d
    if any(d < 0 for d in dims) or count > LARGEST_TENSOR:
        raise RefusedError(f"a tensor of shape {list(dims)} is too large or impossible")
    return np.broadcast_to(value.reshape(()), dims)
