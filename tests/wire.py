"""Writing protocol buffers by hand, for small model files in tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while True:
        value, low = value >> 7, value & 127
        out.append(low | (128 if value else 0))
        if not value:
            return bytes(out)


def field(number: int, value: int | float | str | bytes | Sequence[float]) -> bytes:
    """An integer as a varint, a float as four bytes, text and bytes with their length, floats as a packed run."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, str):
        value = value.encode()
    elif not isinstance(value, bytes):
        value = struct.pack(f"<{len(value)}f", *value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(*fields: tuple[int, int | float | str | bytes | Sequence[float]]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)
