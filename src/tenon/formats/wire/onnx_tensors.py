"""ONNX tensors as NumPy arrays, checked so that a damaged or hostile file can neither exhaust memory nor read other
files."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.formats.wire.stored_files import open_stored
from tenon.input_file import is_regular
from tenon.network.graph.graph import Array
from tenon.network.graph.random_weights import placeholder
from tenon.network.graph.types import DType

if TYPE_CHECKING:
    from onnx import TensorProto

DTYPES = {
    1: DType.F32,
    2: DType.U8,
    3: DType.I8,
    4: DType.U16,
    5: DType.I16,
    6: DType.I32,
    7: DType.I64,
    9: DType.BOOL,
    10: DType.F16,
    11: DType.F64,
    12: DType.U32,
    13: DType.U64,
    16: DType.BF16,
    17: DType.F8E4M3,
    18: DType.F8E4M3U,
    19: DType.F8E5M2,
    20: DType.F8E5M2U,
    21: DType.U4,
    22: DType.I4,
    23: DType.F4E2M1,
    24: DType.F8E8M0,
    25: DType.U2,
    26: DType.I2,
}
"""TensorProto.DataType to element types."""

STRING = 8
"""TensorProto.DataType of strings, which are held as bytes (see ``decompositions.strings.text``)."""

_FIELD = {
    DType.F32: "float_data",
    DType.F64: "double_data",
    DType.I64: "int64_data",
    DType.U64: "uint64_data",
    DType.U32: "uint64_data",
}


_PACKED = {DType.U4: 4, DType.I4: 4, DType.F4E2M1: 4, DType.U2: 2, DType.I2: 2}
"""Bits of the types that a file keeps several of in a byte, the first in the lowest bits."""


class TensorError(FormatError):
    """A tensor of the file that cannot be read; the caller adds its name to the message."""


def element_type(number: int) -> DType:
    """Raises TensorError for an element type that Tenon does not hold."""
    if number not in DTYPES:
        from onnx import TensorProto

        known = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number) if known else str(number)
        held = ", ".join(sorted(d.value for d in DTYPES.values()))
        raise TensorError(f"element type {name} is not supported; Tenon holds {held}")
    return DTYPES[number]


def array(tensor: TensorProto, folder: Path | None) -> Array:
    """The tensor's data, row-major; strings as an array of Python's.  ``folder`` is where external data may lie.

    Raises TensorError.
    """
    if tensor.data_type == STRING:
        return _strings(tensor)
    dtype = element_type(tensor.data_type)
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims) or math.prod(d or 1 for d in dims) >= 2**40:
        raise TensorError(f"the shape {list(dims)} is impossible")
    if tensor.HasField("segment"):
        raise TensorError("the tensor is stored in segments, which no known exporter does")
    count = math.prod(dims)
    if dtype in _PACKED:
        return _unpacked(tensor, folder, dtype, count).reshape(dims)
    stored = dtype.carrier.numpy.newbyteorder("<")
    if tensor.data_location == tensor.EXTERNAL:
        data = np.frombuffer(external(tensor, folder, count * dtype.bytes), stored)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * dtype.bytes:
            raise TensorError(f"holds {len(tensor.raw_data)} bytes where its shape needs {count * dtype.bytes}")
        data = np.frombuffer(tensor.raw_data, stored)
    else:
        data = _from_numbers(tensor, dtype, count)
    if dtype.carrier is not dtype:
        data = data.astype(dtype.carrier.numpy, copy=False).view(dtype.numpy)
    return data.astype(dtype.numpy, copy=False).reshape(dims)


def is_missing(tensor: TensorProto) -> bool:
    """Whether a tensor has elements, and the file no data for any of them: a model kept without its weights."""
    numbers = (tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data)
    elsewhere = tensor.data_location == tensor.EXTERNAL or tensor.HasField("segment")
    stored = elsewhere or tensor.HasField("raw_data") or any(map(len, (*numbers, tensor.string_data)))
    return not stored and bool(tensor.dims) and all(d > 0 for d in tensor.dims)


def missing(tensor: TensorProto) -> Array:
    """The array that stands for a missing tensor.  Raises TensorError."""
    dims = tuple(tensor.dims)
    if math.prod(dims) >= 2**40:
        raise TensorError(f"the shape {list(dims)} is impossible")
    return placeholder(dims, element_type(tensor.data_type).numpy)


def _strings(tensor: TensorProto) -> Array:
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims) or math.prod(dims) != len(tensor.string_data):
        raise TensorError(f"holds {len(tensor.string_data)} strings where its shape is {list(dims)}")
    strings = np.empty(len(tensor.string_data), object)
    for i, data in enumerate(tensor.string_data):
        if b"\0" in data:
            raise TensorError("holds a string with a zero byte in it, which ends a string")
        strings[i] = data.decode(errors="replace")
    return strings.reshape(dims)


def _unpacked(tensor: TensorProto, folder: Path | None, dtype: DType, count: int) -> Array:
    """The elements of a packed tensor, a byte each."""
    bits = _PACKED[dtype]
    size = -(-count * bits // 8)
    if tensor.data_location == tensor.EXTERNAL:
        data = np.frombuffer(external(tensor, folder, size), np.uint8)
    elif tensor.HasField("raw_data"):
        data = np.frombuffer(tensor.raw_data, np.uint8)
    else:
        data = np.array(tensor.int32_data, np.int64).astype(np.uint8)
    if len(data) != size:
        raise TensorError(f"holds {len(data)} bytes where its shape needs {size}")
    parts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = ((data[:, None] >> parts) & ((1 << bits) - 1)).reshape(-1)[:count]
    if dtype is DType.F4E2M1:
        return codes.view(dtype.numpy)
    signed = codes.astype(np.int8)
    if dtype.is_signed:
        signed = np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(np.int8)
    return signed.astype(dtype.numpy)


def _from_numbers(tensor: TensorProto, dtype: DType, count: int) -> Array:
    """Data kept as a list of numbers: half floats as their bits, small integers as 32-bit ones."""
    numbers = getattr(tensor, _FIELD.get(dtype, "int32_data"))
    if len(numbers) != count:
        raise TensorError(f"holds {len(numbers)} numbers where its shape needs {count}")
    if dtype is DType.F16:
        return np.array(numbers, np.int32).astype(np.uint16).view(np.float16)
    if dtype.carrier is not dtype:
        return np.array(numbers, np.int64).astype(dtype.carrier.numpy)
    return np.array(numbers, np.int64 if not dtype.is_float and dtype.bytes < 8 else dtype.numpy).astype(dtype.numpy)


def external(tensor: TensorProto, folder: Path | None, size: int) -> bytes:
    """The bytes of a tensor kept in a file beside the model."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise TensorError(
            f"its data lies in the file '{location}'; load the model from a path, with that file beside it"
        )
    try:
        return _read(_inside(folder, location), folder, location, entries, size)
    except OSError as error:
        raise TensorError(f"'{location[:80]}' cannot be read: {error.strerror}") from error
    except InputError as error:
        raise TensorError(f"'{location[:80]}' cannot be read: {error}") from error


def _read(path: Path, folder: Path, location: str, entries: dict[str, str], size: int) -> bytes:
    offset, length = _number(entries, "offset", 0), _number(entries, "length", size)
    if length != size:
        raise TensorError(f"names {length} bytes of '{location}' where its shape needs {size}")
    if not is_regular(path):
        raise TensorError(f"the file '{location}' that holds its data is missing; it belongs into '{folder}'")
    with open_stored(path) as file:
        held = file.seek(0, os.SEEK_END)
        if offset + length > held:
            raise TensorError(
                f"its data would end after the {held} bytes of '{location}'; it is truncated, or of another model"
            )
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise TensorError(f"'{location}' was truncated while it was read")
    return data


def _inside(folder: Path, location: str) -> Path:
    """The path of a data file, which must lie in the model's folder.  Raises TensorError for a path outside of it."""
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or ".." in parts or Path(location).is_absolute() or ":" in parts[0]:
        raise TensorError(f"the data file '{location}' is not inside the model's folder; it is not opened")
    if parts[0] == "":
        raise TensorError(f"the data file '{location}' is not inside the model's folder; it is not opened")
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise TensorError(f"the data file '{location}' is a link out of the model's folder; it is not opened")
    return path


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "") or str(default)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise TensorError(f"its {key} '{text[:40]}' is not a size")
    return int(text)
