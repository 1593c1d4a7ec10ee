"""The parts of TensorFlow's protocol buffers that Tenon reads, and its tensors as arrays.

Sources: graph.proto, node_def.proto, attr_value.proto, tensor.proto, function.proto, saved_model.proto and
tensor_bundle.proto of TensorFlow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.wire.protobuf import Message, Schema
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.graph.writer import LARGEST_TENSOR

SCHEMA = Schema(
    {
        "SavedModel": {"version": (1, "int64"), "meta_graphs": (2, "*MetaGraph")},
        "MetaGraph": {"graph": (2, "GraphDef"), "signature": (5, "map:Signature")},
        "Signature": {"inputs": (1, "map:TensorInfo"), "outputs": (2, "map:TensorInfo")},
        "TensorInfo": {"name": (1, "string"), "dtype": (2, "int32"), "shape": (3, "Shape")},
        "GraphDef": {"node": (1, "*Node"), "library": (2, "Library")},
        "Library": {"function": (1, "*Function")},
        "Function": {"signature": (1, "OpDef"), "node": (3, "*Node"), "ret": (4, "map:string")},
        "OpDef": {"name": (1, "string"), "input": (2, "*Argument"), "output": (3, "*Argument")},
        "Argument": {"name": (1, "string")},
        "Node": {"name": (1, "string"), "op": (2, "string"), "input": (3, "*string"), "attr": (5, "map:Attribute")},
        "Attribute": {
            "list": (1, "List"),
            "s": (2, "bytes"),
            "i": (3, "int64"),
            "f": (4, "float"),
            "b": (5, "bool"),
            "type": (6, "int32"),
            "shape": (7, "Shape"),
            "tensor": (8, "Tensor"),
            "func": (10, "Called"),
        },
        "Called": {"name": (1, "string")},
        "List": {
            "s": (2, "*bytes"),
            "i": (3, "*int64"),
            "f": (4, "*float"),
            "type": (6, "*int32"),
            "shape": (7, "*Shape"),
        },
        "Shape": {"dim": (2, "*Dim"), "unknown_rank": (3, "bool")},
        "Dim": {"size": (1, "int64")},
        "Tensor": {
            "dtype": (1, "int32"),
            "shape": (2, "Shape"),
            "content": (4, "bytes"),
            "float_val": (5, "*float"),
            "double_val": (6, "*double"),
            "int_val": (7, "*int32"),
            "string_val": (8, "*bytes"),
            "int64_val": (10, "*int64"),
            "bool_val": (11, "*bool"),
            "half_val": (13, "*int32"),
            "uint32_val": (16, "*uint32"),
            "uint64_val": (17, "*uint64"),
        },
        "BundleEntry": {
            "dtype": (1, "int32"),
            "shape": (2, "Shape"),
            "shard": (3, "int32"),
            "offset": (4, "int64"),
            "size": (5, "int64"),
            "slices": (7, "*bytes"),
        },
        "ObjectGraph": {"nodes": (1, "*Object")},
        "Object": {"attributes": (2, "*ObjectAttribute")},
        "ObjectAttribute": {"name": (1, "string"), "full_name": (2, "string"), "key": (3, "string")},
    }
)

DTYPES = {
    1: DType.F32,
    2: DType.F64,
    3: DType.I32,
    4: DType.U8,
    5: DType.I16,
    6: DType.I8,
    9: DType.I64,
    10: DType.BOOL,
    17: DType.U16,
    19: DType.F16,
    22: DType.U32,
    23: DType.U64,
}
"""DataType to element types."""

_VALUES = {
    DType.F32: "float_val",
    DType.F64: "double_val",
    DType.I32: "int_val",
    DType.U8: "int_val",
    DType.I16: "int_val",
    DType.I8: "int_val",
    DType.U16: "int_val",
    DType.I64: "int64_val",
    DType.BOOL: "bool_val",
    DType.F16: "half_val",
    DType.U32: "uint32_val",
    DType.U64: "uint64_val",
}


def element_type(number: int) -> DType:
    """Raises RefusedError for what is not a number."""
    if number not in DTYPES:
        names = {7: "string", 8: "complex64", 14: "bfloat16", 20: "resource", 21: "variant"}
        raise RefusedError(f"element type {names.get(number, number)} is not supported")
    return DTYPES[number]


def shape_of(shape: Message) -> tuple[int, ...] | None:
    """Extents, -1 for unknown ones; None if even the rank is unknown."""
    return None if shape.unknown_rank else tuple(d.size for d in shape.dim)


def array(tensor: Message) -> Array:
    """A TensorProto's data.  Raises RefusedError."""
    dtype, dims = element_type(tensor.dtype), shape_of(tensor.shape) or ()
    count = math.prod(dims)
    if any(d < 0 for d in dims) or count > LARGEST_TENSOR:
        raise RefusedError(f"the shape {list(dims)} is impossible")
    if len(tensor.content):
        if len(tensor.content) != count * dtype.bytes:
            raise RefusedError(f"holds {len(tensor.content)} bytes where {list(dims)} needs {count * dtype.bytes}")
        return np.frombuffer(tensor.content, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(dims)
    values: Any = getattr(tensor, _VALUES[dtype])
    if dtype is DType.F16:
        numbers: Array = np.array(values, np.uint16).view(np.float16)
    else:
        numbers = np.array(values).astype(dtype.numpy)
    if numbers.size == count:
        return numbers.reshape(dims)
    if numbers.size > count:
        raise RefusedError(f"holds {numbers.size} numbers where {list(dims)} needs {count}")
    last = numbers[-1:] if numbers.size else np.zeros(1, dtype.numpy)
    if numbers.size <= 1:
        return np.broadcast_to(last.reshape(()), dims)
    return np.concatenate([numbers, np.broadcast_to(last, count - numbers.size)]).reshape(dims)
