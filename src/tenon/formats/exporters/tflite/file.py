"""Tensors and operators as a TFLite file: the other direction of ``importers.tflite.load``.

Source: tensorflow/lite/schema/schema.fbs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.formats.importers.tflite import schema
from tenon.formats.wire.flatbuffer_write import Field, Fields, serialise
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, Quant

IDENTIFIER = b"TFL3"
VERSION = 3
LARGEST_FILE = 2**31 - 1
"""Bytes that offsets of a file reach."""

_TYPES = {dtype: code for code, dtype in schema.DTYPES.items()}
_CODES = {name: code for code, name in schema.BUILTIN.items()}
_LAST_OLD_CODE = 127
"""The number in the field of old readers for operators with larger codes."""

_OPTIONS = {
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 2,
    "AVERAGE_POOL_2D": 5,
    "MAX_POOL_2D": 5,
    "FULLY_CONNECTED": 8,
    "SOFTMAX": 9,
    "CONCATENATION": 10,
    "ADD": 11,
    "RESIZE_BILINEAR": 15,
    "RESHAPE": 17,
    "SPACE_TO_DEPTH": 19,
    "MUL": 21,
    "PAD": 22,
    "GATHER": 23,
    "TRANSPOSE": 26,
    "MEAN": 27,
    "SUM": 27,
    "REDUCE_MAX": 27,
    "REDUCE_MIN": 27,
    "SUB": 28,
    "DIV": 29,
    "EXP": 33,
    "SPLIT": 35,
    "CAST": 37,
    "DEQUANTIZE": 38,
    "MAXIMUM": 39,
    "MINIMUM": 39,
    "NEG": 42,
    "PADV2": 43,
    "STRIDED_SLICE": 32,
    "TRANSPOSE_CONV": 49,
    "TILE": 51,
    "POW": 56,
    "RESIZE_NEAREST_NEIGHBOR": 74,
    "LEAKY_RELU": 75,
    "ABS": 78,
    "SPLIT_V": 79,
    "QUANTIZE": 89,
    "HARD_SWISH": 91,
    "DEPTH_TO_SPACE": 94,
    "BATCH_MATMUL": 101,
    "GELU": 116,
    "MIRROR_PAD": 77,
}
"""BuiltinOptions by operator, of those that have any."""

_VERSIONS = {
    **dict.fromkeys(
        (
            "ADD",
            "AVERAGE_POOL_2D",
            "CONCATENATION",
            "DEQUANTIZE",
            "LEAKY_RELU",
            "LOGISTIC",
            "MAX_POOL_2D",
            "MAXIMUM",
            "MEAN",
            "MINIMUM",
            "MUL",
            "PAD",
            "PADV2",
            "RELU",
            "RELU6",
            "RESIZE_BILINEAR",
            "RESIZE_NEAREST_NEIGHBOR",
            "SOFTMAX",
            "SPLIT",
            "SPLIT_V",
            "STRIDED_SLICE",
            "SUB",
            "TANH",
            "TRANSPOSE",
            "TRANSPOSE_CONV",
            "REDUCE_MAX",
            "REDUCE_MIN",
        ),
        2,
    ),
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
}
"""The version of an operator from which on it takes i8."""


@dataclass
class TensorRecord:
    """A tensor to write; ``data`` is set for constants."""

    name: str
    dims: tuple[int, ...]
    dtype: DType
    quant: Quant | None = None
    data: Array | None = None


@dataclass(frozen=True)
class OperatorRecord:
    """An operator to write; operands are numbers of tensors, -1 is absent."""

    type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class ModelRecord:
    """The content of a file."""

    name: str
    tensors: list[TensorRecord] = field(default_factory=list)
    operators: list[OperatorRecord] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def serialised(self) -> bytes:
        """The file."""
        kinds = sorted({operator.type for operator in self.operators})
        buffers: list[Fields] = [{}]
        tensors = [_tensor(each, buffers) for each in self.tensors]
        slots = schema.SUBGRAPH
        graph: Fields = {
            slots["tensors"]: ("tables", tensors),
            slots["inputs"]: ("[i32]", self.inputs),
            slots["outputs"]: ("[i32]", self.outputs),
            slots["operators"]: ("tables", [_operator(each, kinds) for each in self.operators]),
            slots["name"]: ("text", self.name),
        }
        slots = schema.MODEL
        model: Fields = {
            slots["version"]: ("u32", VERSION),
            slots["operator_codes"]: ("tables", [_operator_code(kind) for kind in kinds]),
            slots["subgraphs"]: ("tables", [graph]),
            slots["description"]: ("text", "Tenon"),
            slots["buffers"]: ("tables", buffers),
        }
        return serialise(model, IDENTIFIER)


def _operator_code(kind: str) -> Fields:
    slots, code = schema.OPERATOR_CODE, _CODES[kind]
    return {
        slots["old_code"]: ("i8", min(code, _LAST_OLD_CODE)),
        slots["version"]: ("i32", _VERSIONS.get(kind, 1)),
        slots["code"]: ("i32", code),
    }


def _operator(record: OperatorRecord, kinds: Sequence[str]) -> Fields:
    slots = schema.OPERATOR
    fields: dict[int, Field] = {
        slots["opcode"]: ("u32", kinds.index(record.type)),
        slots["inputs"]: ("[i32]", record.inputs),
        slots["outputs"]: ("[i32]", record.outputs),
    }
    if record.type in _OPTIONS:
        fields[slots["options_type"]] = ("u8", _OPTIONS[record.type])
        fields[slots["options"]] = ("table", _options(record))
    return fields


def _options(record: OperatorRecord) -> Fields:
    """By the names that the schema's table has for the reader."""
    fields: dict[int, Field] = {}
    left = dict(record.options)
    for slot, entry in enumerate(schema.OPTIONS.get(record.type, "").split()):
        name, _, kind = entry.partition(":")
        if name in left:
            fields[slot] = (kind.partition("=")[0], left.pop(name))
    assert not left, (record.type, left)
    return fields


def _tensor(record: TensorRecord, buffers: list[Fields]) -> Fields:
    slots, number = schema.TENSOR, 0
    if record.data is not None:
        number = len(buffers)
        buffers.append({schema.BUFFER["data"]: ("[u8]@16", _bytes(record.data, record.dtype))})
    fields: dict[int, Field] = {
        slots["shape"]: ("[i32]", record.dims),
        slots["type"]: ("i8", _TYPES[record.dtype]),
        slots["buffer"]: ("u32", number),
        slots["name"]: ("text", record.name),
    }
    if record.quant is not None:
        names = schema.QUANTIZATION
        fields[slots["quantization"]] = (
            "table",
            {
                names["scale"]: ("[f32]", record.quant.scale),
                names["zero_point"]: ("[i64]", record.quant.zero_point),
                names["axis"]: ("i32", record.quant.axis or 0),
            },
        )
    return fields


def _bytes(data: Array, dtype: DType) -> Array:
    """Little-endian; of 4 bits two to a byte, the first one lowest."""
    if dtype is DType.I4:
        halves = data.astype(np.int8).reshape(-1).view(np.uint8) & 15
        halves = np.append(halves, np.zeros(halves.size % 2, np.uint8)).reshape(-1, 2)
        return np.asarray(halves[:, 0] | halves[:, 1] << 4)
    little = dtype.numpy if dtype.bytes == 1 else dtype.numpy.newbyteorder("<")
    return np.ascontiguousarray(data.astype(little, copy=False)).reshape(-1).view(np.uint8)
