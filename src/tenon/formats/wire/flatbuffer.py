"""Reading FlatBuffers without generated code: tables by slot number, every access checked against the file's end.

A table begins with the distance back to its vtable, which lists where each field lies or 0 where it has its default.
Vectors and strings are reached through an unsigned distance forward and begin with their length.
Source: the FlatBuffers internals document.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array

KINDS = {
    "bool": "<?",
    "i8": "<b",
    "u8": "<B",
    "i16": "<h",
    "u16": "<H",
    "i32": "<i",
    "u32": "<I",
    "i64": "<q",
    "u64": "<Q",
    "f32": "<f",
    "f64": "<d",
}
"""Scalars by the names that tables of fields use, and their formats for struct and NumPy."""


@dataclass
class FlatBuffer:
    """The file.  ``left`` bounds the elements of vectors that may still be read: in a valid file no byte is read more
    than a few times, so a file whose vectors overlap to fake a huge content is refused."""

    data: bytes
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = 8 * len(self.data) + 4096

    def scalar(self, kind: str, at: int) -> Any:
        """Raises FormatError outside the file."""
        if at < 0:
            raise FormatError("an offset points before the beginning of the file; it is damaged")
        try:
            return struct.unpack_from(KINDS[kind], self.data, at)[0]
        except struct.error:
            raise FormatError("an offset points past the end of the file; it is truncated or damaged") from None

    def vector(self, kind: str, at: int) -> Array:
        """The elements of the vector whose length stands at ``at``; a view of the file."""
        count = self.scalar("u32", at)
        dtype = np.dtype(KINDS[kind]) if kind != "bool" else np.dtype("?")
        self.left -= count
        if self.left < 0 or at + 4 + count * dtype.itemsize > len(self.data):
            raise FormatError(f"a vector of {count} elements does not fit the file; it is truncated or damaged")
        return np.frombuffer(self.data, dtype, count, at + 4)

    def structs(self, size: int, at: int) -> bytes:
        """The bytes of the vector of structs whose length stands at ``at``."""
        count = self.scalar("u32", at)
        self.left -= count
        if self.left < 0 or at + 4 + count * size > len(self.data):
            raise FormatError(f"a vector of {count} structs does not fit the file; it is truncated or damaged")
        return self.data[at + 4 : at + 4 + count * size]

    def root(self) -> FlatTable:
        return FlatTable(self, self.scalar("u32", 0))


class FlatTable:
    """A table at an offset of the file; slots are numbered in the order of the schema's fields."""

    __slots__ = ("_at", "_buffer", "_length", "_vtable")

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer, self._at = buffer, at
        self._vtable = at - buffer.scalar("i32", at)
        self._length = buffer.scalar("u16", self._vtable)

    def _slot_offset(self, slot: int) -> int | None:
        entry = 4 + 2 * slot
        offset = self._buffer.scalar("u16", self._vtable + entry) if entry + 2 <= self._length else 0
        return self._at + offset if offset else None

    def _target(self, slot: int) -> int | None:
        position = self._slot_offset(slot)
        return None if position is None else position + self._buffer.scalar("u32", position)

    def get(self, slot: int, kind: str, default: Any = 0) -> Any:
        """A scalar field."""
        position = self._slot_offset(slot)
        return default if position is None else self._buffer.scalar(kind, position)

    def vector(self, slot: int, kind: str) -> Array:
        """A vector of scalars; empty if absent."""
        target = self._target(slot)
        return np.empty(0, np.dtype(KINDS[kind])) if target is None else self._buffer.vector(kind, target)

    def ints(self, slot: int, kind: str = "i32") -> list[int]:
        return [int(v) for v in self.vector(slot, kind)]

    def structs(self, slot: int, size: int) -> bytes:
        """A vector of structs of ``size`` bytes each; empty if absent."""
        target = self._target(slot)
        return b"" if target is None else self._buffer.structs(size, target)

    def table(self, slot: int) -> FlatTable | None:
        target = self._target(slot)
        return None if target is None else FlatTable(self._buffer, target)

    def tables(self, slot: int) -> list[FlatTable]:
        """A vector of tables; empty if absent."""
        target = self._target(slot)
        if target is None:
            return []
        offsets = self._buffer.vector("u32", target)
        return [FlatTable(self._buffer, target + 4 + 4 * i + int(offset)) for i, offset in enumerate(offsets)]

    def byte_strings(self, slot: int) -> list[bytes]:
        """The bytes of a vector of strings; empty if absent."""
        target = self._target(slot)
        if target is None:
            return []
        places = (target + 4 + 4 * i + int(o) for i, o in enumerate(self._buffer.vector("u32", target)))
        return [self._buffer.vector("u8", place).tobytes() for place in places]

    def texts(self, slot: int) -> list[str]:
        """A vector of strings, bytes that are not UTF-8 are escaped; empty if absent."""
        return [data.decode("utf-8", "backslashreplace") for data in self.byte_strings(slot)]

    def text(self, slot: int) -> str:
        """A string field, bytes that are not UTF-8 are escaped; empty if absent."""
        return self.vector(slot, "u8").tobytes().decode("utf-8", "backslashreplace")


def options(table: FlatTable | None, spec: str) -> dict[str, Any]:
    """The fields that ``spec`` names, in the order of their slots: "name:kind=default", "name:[kind]", "name:text", or
    "-" for one that is not read."""
    fields_by_name: dict[str, Any] = {}
    for slot, entry in enumerate(spec.split()):
        if entry == "-":
            continue
        name, _, kind = entry.partition(":")
        kind, _, default = kind.partition("=")
        if kind.startswith("["):
            fields_by_name[name] = [] if table is None else table.vector(slot, kind[1:-1]).tolist()
        elif kind == "text":
            fields_by_name[name] = "" if table is None else table.text(slot)
        else:
            fallback = int(default or 0)
            fields_by_name[name] = fallback if table is None else table.get(slot, kind, fallback)
    return fields_by_name


# -------------------------------------------------------------------------------------------- FlexBuffers
def flex_map(data: bytes) -> dict[str, Any]:
    """The numbers, strings and lists of numbers of a FlexBuffer whose root is a map, as custom operators keep their
    options.

    Other values are left out.  Raises FormatError for damaged data.
    """
    buffer = FlatBuffer(data)
    if len(data) < 3:
        raise FormatError("the custom options are empty or truncated")
    width, packed = data[-1], data[-2]
    if width not in (1, 2, 4, 8) or packed >> 2 != _FLEX_MAP:
        raise FormatError("the custom options are not a map")
    position = len(data) - 2 - width
    at = position - _flex_number(buffer, position, width, "u")
    width = 1 << (packed & 3)
    keys = at - 3 * width
    keys, key_width = keys - _flex_number(buffer, keys, width, "u"), _flex_number(buffer, at - 2 * width, width, "u")
    count = _flex_number(buffer, at - width, width, "u")
    if key_width not in (1, 2, 4, 8) or count > len(data):
        raise FormatError("the custom options are damaged")
    scalars = {}
    for i in range(count):
        position = keys + i * key_width
        name = _flex_text(data, position - _flex_number(buffer, position, key_width, "u"))
        value = _flex_value(buffer, at + i * width, width, int(buffer.scalar("u8", at + count * width + i)))
        if value is not None:
            scalars[name] = value
    return scalars


_FLEX_MAP = 9
_FLEX_KINDS = {1: "i", 2: "u", 3: "f", 26: "u"}
_FLEX_INDIRECT = {6: "i", 7: "u", 8: "f"}
_FLEX_STRING, _FLEX_VECTOR = 5, 10
_FLEX_TYPED = {11: "i", 12: "u", 13: "f"}
_FLEX_TUPLES = {16 + 3 * (length - 2) + k: (length, kind) for length in (2, 3, 4) for k, kind in enumerate("iuf")}
"""Vectors without a length of their own, by their type."""


def _flex_number(buffer: FlatBuffer, at: int, width: int, kind: str) -> Any:
    if kind == "f":
        if at < 0 or at + width > len(buffer.data) or width == 1:
            raise FormatError("the custom options are damaged")
        return float(np.frombuffer(buffer.data, f"<f{width}", 1, at)[0])
    return buffer.scalar(f"{kind}{8 * width}", at)


def _flex_value(buffer: FlatBuffer, at: int, width: int, packed: int) -> Any:
    kind = packed >> 2
    if kind in (_FLEX_STRING, _FLEX_VECTOR) or kind in _FLEX_TYPED or kind in _FLEX_TUPLES:
        return _flex_list(buffer, at - _flex_number(buffer, at, width, "u"), 1 << (packed & 3), kind)
    if kind in _FLEX_INDIRECT:
        return _flex_number(buffer, at - _flex_number(buffer, at, width, "u"), 1 << (packed & 3), _FLEX_INDIRECT[kind])
    return _flex_number(buffer, at, width, _FLEX_KINDS[kind]) if kind in _FLEX_KINDS else None


def _flex_list(buffer: FlatBuffer, at: int, width: int, kind: int) -> Any:
    """A string, or a list of numbers."""
    if kind == _FLEX_STRING:
        return _flex_text(buffer.data, at)
    if kind in _FLEX_TUPLES:
        count, element = _FLEX_TUPLES[kind]
    else:
        count, element = _flex_number(buffer, at - width, width, "u"), _FLEX_TYPED.get(kind, "")
    if at + count * width > len(buffer.data):
        raise FormatError("the custom options are damaged")
    if element:
        return [_flex_number(buffer, at + i * width, width, element) for i in range(count)]
    types = [int(buffer.scalar("u8", at + count * width + i)) for i in range(count)]  # each element has its own
    if not all(type >> 2 in _FLEX_KINDS for type in types):
        return None
    return [_flex_value(buffer, at + i * width, width, type) for i, type in enumerate(types)]


def _flex_text(data: bytes, at: int) -> str:
    end = data.find(0, at) if 0 <= at < len(data) else -1
    if end < 0:
        raise FormatError("the custom options are damaged")
    return data[at:end].decode("utf-8", "backslashreplace")
