"""ONNX functions: operators with a body of simpler ones, in the standard or in the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tenon.formats.decompositions.onnx.node import Entry, StringTensor, TensorSequence
from tenon.formats.graph_builder.errors import UntypedError
from tenon.formats.wire.onnx_tensors import DTYPES, STRING
from tenon.network.graph.writer import is_known

if TYPE_CHECKING:
    from onnx import FunctionProto, NodeProto, TypeProto
    from onnx.defs import OpSchema

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


@lru_cache(maxsize=1024)
def schema(domain: str, type: str, opset: int) -> OpSchema | None:
    """The definition of an operator as of an opset; the newest where that opset does not have it."""
    from onnx.defs import SchemaError, get_schema

    domain = "" if domain == "ai.onnx" else domain
    for version in (opset, 1 << 30):
        try:
            return get_schema(type, version, domain)
        except SchemaError:
            continue
    return None


def body(node: NodeProto, opset: int, inputs: Sequence[Entry]) -> FunctionProto | None:
    """The body of a standard operator that is a function, for inputs of these types; None if it is not one.

    Raises UntypedError for a body that depends on types which are not known.
    """
    from onnx import FunctionProto

    # The stubs of onnx do not know these methods.
    definition: Any = schema(node.domain, node.op_type, opset if node.domain in ("", "ai.onnx") else 1 << 30)
    if definition is None:
        return None
    if definition.has_function:
        version = _version(definition.function_opset_versions, opset)
        text = definition.get_function_with_opset_version(version)
        return text if isinstance(text, FunctionProto) else FunctionProto.FromString(text)
    if not definition.has_context_dependent_function:
        return None
    if not all(map(_is_known, inputs)):
        raise UntypedError
    version = _version(definition.context_dependent_function_opset_versions, opset)
    types = [_type(v).SerializeToString() for v in inputs]
    text = definition.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    return FunctionProto.FromString(text) if text else None


def _version(versions: Iterable[int], opset: int) -> int:
    """The newest body that a model of this opset can have, else the oldest."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _is_known(entry: Entry) -> bool:
    if isinstance(entry, TensorSequence):
        return all(map(is_known, entry.values))
    return entry is None or is_known(entry.bytes if isinstance(entry, StringTensor) else entry)


def _type(value: Entry) -> TypeProto:
    from onnx import TypeProto

    type = TypeProto()
    if isinstance(value, TensorSequence):
        element = type.sequence_type.elem_type.tensor_type
        element.elem_type = _NUMBERS[value.values[0].type.dtype] if value.values else 1
        return type
    if value is not None:
        text = isinstance(value, StringTensor)
        tensor = value.bytes if isinstance(value, StringTensor) else value
        type.tensor_type.elem_type = STRING if text else _NUMBERS[tensor.type.dtype]
        type.tensor_type.shape.SetInParent()
        for extent in tensor.type.dims[:-1] if text else tensor.type.dims:
            type.tensor_type.shape.dim.add().dim_value = extent
    return type


def opset_of(function: FunctionProto, otherwise: int) -> int:
    """The version of the standard operators that a body is written in."""
    return max((o.version for o in function.opset_import if o.domain in ("", "ai.onnx")), default=otherwise)
