"""Messages of ``wire.protobuf`` as bytes.

Repeated numbers are packed for the fields named in ``packed`` and for floats; readers of protobuf take both forms.
Source of the format: "Encoding", protobuf.dev.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tenon.formats.wire.protobuf import BYTES, SCALARS, VARINT, Field, Message, Schema


def serialise(message: Message, packed: Iterable[str] = ()) -> bytes:
    """The bytes of a message; ``packed`` names repeated integer fields that are declared so."""
    parts: list[bytes] = []
    _write(message, frozenset(packed), parts)
    return b"".join(parts)


def _write(message: Message, packed: frozenset[str], parts: list[bytes]) -> None:
    for field, value in message.items():
        if field.is_array:
            data = np.ascontiguousarray(value, SCALARS[field.kind].dtype).tobytes()
            parts += [_key(field.number, BYTES), _varint(len(data)), data]
        elif field.repeated and field.name in packed:
            data = b"".join(_scalar(message.schema, field, one) for one in value)
            parts += [_key(field.number, BYTES), _varint(len(data)), data]
        else:
            for one in value if field.repeated else [value]:
                _write_one(message.schema, field, one, packed, parts)


def _write_one(schema: Schema, field: Field, value: Any, packed: frozenset[str], parts: list[bytes]) -> None:
    if isinstance(value, Message):
        inner: list[bytes] = []
        _write(value, packed, inner)
        size = sum(map(len, inner))
        parts += [_key(field.number, BYTES), _varint(size), *inner]
        return
    data = _scalar(schema, field, value)
    wire = VARINT if field.kind in schema.enums else SCALARS[field.kind].wire
    parts.append(_key(field.number, wire))
    parts += [_varint(len(data)), data] if wire == BYTES else [data]


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _scalar(schema: Schema, field: Field, value: Any) -> bytes:
    if field.kind in schema.enums:
        return _varint(schema.enums[field.kind].get(value, 0) if not str(value).lstrip("-").isdigit() else int(value))
    if field.kind == "string":
        return str(value).encode()
    if field.kind == "bytes":
        return bytes(value)
    scalar = SCALARS[field.kind]
    if scalar.dtype:
        return np.array(value, scalar.dtype).tobytes()
    if field.kind.startswith("sint"):
        return _varint((int(value) << 1) ^ (int(value) >> 63))
    return _varint(int(value))
