"""The format safetensors: a header of JSON with the names, types, shapes and places of tensors, then their bytes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.dtype import Array

MAX_HEADER = 100 << 20
"""The largest header in bytes that the format allows."""

_TYPES: dict[str, Any] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": ml_dtypes.bfloat16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}
"""NumPy's types by the format's names."""


def is_safetensors(data: bytes) -> bool:
    """Whether a file begins as this format does, damaged or not."""
    if len(data) < 10:
        return False
    (length,) = struct.unpack("<Q", data[:8])
    return length <= MAX_HEADER and data[8:9] == b"{" and b"data_offsets" in data[8 : 8 + min(length, 1 << 20)]


def tensors(data: bytes, name: str) -> dict[str, Array]:
    """The tensors of a file by name, as views of its bytes.  Raises FormatError for a damaged file."""
    if not is_safetensors(data):
        raise FormatError(f"{name}: not a safetensors file")
    end = 8 + struct.unpack("<Q", data[:8])[0]
    try:
        header = json.loads(data[8:end])
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: its header is no JSON ({error}); the file is damaged") from error
    if not isinstance(header, dict) or end > len(data):
        raise FormatError(f"{name}: its header is cut short; the file is damaged")
    content = memoryview(data)[end:]
    return {key: _tensor(key, entry, content, name) for key, entry in header.items() if key != "__metadata__"}


def _tensor(key: str, entry: Any, content: memoryview, name: str) -> Array:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [begin, end, *shape]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"{name}: the entry of the tensor '{key}' is damaged") from None
    if any(type(number) is not int or number < 0 for number in numbers):
        raise FormatError(f"{name}: the shape or place of the tensor '{key}' is damaged")
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise FormatError(f"{name}: the tensor '{key}' has the type {dtype!r:.20}; there are {', '.join(_TYPES)}")
    kind = np.dtype(_TYPES[dtype])
    if not begin <= end <= len(content) or end - begin != math.prod(shape) * kind.itemsize:
        raise FormatError(f"{name}: the bytes of the tensor '{key}' are not all there; the file is damaged")
    return np.frombuffer(content[begin:end], kind).reshape(shape)
