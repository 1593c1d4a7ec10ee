"""Reading HDF5 files as Keras writes them: groups, attributes and contiguous data sets, every access checked.

h5py is not used because damaged files can make libhdf5 loop forever.  Groups of the old kind (symbol tables)
and small ones of the new kind (link messages) are read; chunked or compressed data sets and very large new groups
are refused.  Source: "HDF5 File Format Specification", version 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_READS = 2_000_000
"""Reads of one file: far above any real model, and a bound on time."""
_UNDEFINED = (1 << 64) - 1
_DATASPACE = 1
_LINK = 6
_DATATYPE = 3
_LAYOUT = 8
_ATTRIBUTE = 12
_CONTINUATION = 16
_SYMBOLS = 17
_FILTERS, _LINK_INFO = 11, 2


class _Bytes:
    """The file, and a count of reads."""

    def __init__(self, data: bytes) -> None:
        self.data, self.left = data, min(MAX_READS, 50_000 + 4 * len(data))

    def at(self, offset: int, size: int) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise FormatError("it contains a reference cycle; it is damaged")
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise FormatError("an address lies outside the file; it is truncated or damaged")
        return self.data[offset : offset + size]

    def number(self, offset: int, size: int) -> int:
        return int.from_bytes(self.at(offset, size), "little")

    def expect(self, offset: int, signature: bytes) -> None:
        if self.at(offset, 4) != signature:
            raise FormatError(f"no {signature.decode()} block where one should be; it is damaged")


class _Cursor:
    """Reads numbers one after the other."""

    def __init__(self, source: _Bytes, offset: int) -> None:
        self.source, self.offset = source, offset

    def take(self, size: int) -> int:
        self.offset += size
        return self.source.number(self.offset - size, size)


@dataclass(frozen=True)
class _Message:
    type: int
    at: int
    size: int


@dataclass(frozen=True)
class _Type:
    """An element type: a NumPy dtype, or strings of any length (``text``)."""

    dtype: np.dtype[Any]
    text: bool = False


class Hdf5Node:
    """A group or a data set."""

    def __init__(self, file: Hdf5File, address: int) -> None:
        self._file, self._address = file, address

    @cached_property
    def _messages(self) -> list[_Message]:
        return list(self._file.messages(self._address))

    def _first(self, type: int) -> _Message | None:
        return next((m for m in self._messages if m.type == type), None)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes by name: str, list of str, or arrays; those of other types are left out."""
        values = {}
        for message in self._messages:
            if message.type == _ATTRIBUTE:
                name, value = self._file.attribute(message)
                if value is not None:
                    values[name] = value
        return values

    @cached_property
    def children(self) -> dict[str, Hdf5Node]:
        """The members of a group, by name."""
        addresses: dict[str, int] = {}
        for message in self._messages:
            if message.type == _SYMBOLS:
                addresses.update(self._file.symbols(message.at))
            elif message.type == _LINK:
                addresses.update(self._file.link(message.at))
            elif message.type == _LINK_INFO:
                self._file.check_link_info(message.at)
        return {name: Hdf5Node(self._file, address) for name, address in addresses.items()}

    @property
    def is_array(self) -> bool:
        return self._first(_LAYOUT) is not None

    @property
    def array(self) -> Array:
        """A data set's content.  Raises FormatError if it cannot be read."""
        parts = [self._first(t) for t in (_LAYOUT, _DATATYPE, _DATASPACE)]
        if any(p is None for p in parts):
            raise FormatError("a data set is incomplete; the file is damaged")
        layout, type, space = (p for p in parts if p is not None)
        if self._first(_FILTERS) is not None:
            raise FormatError("compressed data sets are not supported")
        return self._file.data_set(layout, self._file.type(type.at), self._file.shape(space.at))

    def find(self, path: str) -> Hdf5Node | None:
        """The node at a path of names."""
        node: Hdf5Node | None = self
        for name in path.strip("/").split("/"):
            node = node.children.get(name) if node is not None else None
        return node


class Hdf5File:
    """A whole file in memory; ``root`` is its outermost group.  Raises FormatError."""

    def __init__(self, data: bytes) -> None:
        self.bytes = _Bytes(data)
        if not data.startswith(SIGNATURE):
            raise FormatError("it is not an HDF5 file")
        version = self.bytes.number(8, 1)
        if version not in (0, 1, 2, 3):
            raise FormatError(f"version {version} of HDF5 is not supported")
        sizes = 13 if version < 2 else 9
        self.offset_size, self.length_size = self.bytes.number(sizes, 1), self.bytes.number(sizes + 1, 1)
        if self.offset_size not in (4, 8) or self.length_size not in (4, 8):
            raise FormatError("it has addresses of an impossible size; it is damaged")
        if version < 2:
            entry = (24 if version == 0 else 28) + 4 * self.offset_size
            root = self.bytes.number(entry + self.offset_size, self.offset_size)
        else:
            root = self.bytes.number(12 + 3 * self.offset_size, self.offset_size)
        self.root = Hdf5Node(self, root)

    # -------------------------------------------------------------------------------------- object headers
    def messages(self, address: int) -> Iterator[_Message]:
        if self.bytes.at(address, 4) == b"OHDR":
            yield from self._new_messages(address)
            return
        if self.bytes.number(address, 1) != 1:
            raise FormatError("an object header is damaged")
        blocks = [(address + 16, self.bytes.number(address + 8, 4))]
        while blocks:
            at, size = blocks.pop(0)
            end = at + size
            while at + 8 <= end:
                message = _Message(self.bytes.number(at, 2), at + 8, self.bytes.number(at + 2, 2))
                at = message.at + message.size
                if message.type == _CONTINUATION:
                    blocks.append(self._continued(message))
                else:
                    yield message

    def _continued(self, message: _Message) -> tuple[int, int]:
        cursor = _Cursor(self.bytes, message.at)
        return cursor.take(self.offset_size), cursor.take(self.length_size)

    def _new_messages(self, address: int) -> Iterator[_Message]:
        flags = self.bytes.number(address + 5, 1)
        at = address + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        blocks = [(at + width, self.bytes.number(at, width))]
        header = 6 if flags & 4 else 4
        while blocks:
            at, size = blocks.pop(0)
            end = at + size
            while at + header <= end:
                message = _Message(self.bytes.number(at, 1), at + header, self.bytes.number(at + 1, 2))
                at = message.at + message.size
                if message.type == _CONTINUATION:
                    start, length = self._continued(message)
                    self.bytes.expect(start, b"OCHK")
                    blocks.append((start + 4, length - 8))
                else:
                    yield message

    # ---------------------------------------------------------------------------------------------- groups
    def symbols(self, at: int) -> Iterator[tuple[str, int]]:
        """(name, address) of everything in a group of the old kind."""
        cursor = _Cursor(self.bytes, at)
        tree, heap = cursor.take(self.offset_size), cursor.take(self.offset_size)
        self.bytes.expect(heap, b"HEAP")
        names = self.bytes.number(heap + 8 + 2 * self.length_size, self.offset_size)
        for node in self._leaves(tree):
            self.bytes.expect(node, b"SNOD")
            entry = node + 8
            for _ in range(self.bytes.number(node + 6, 2)):
                cursor = _Cursor(self.bytes, entry)
                name, address = cursor.take(self.offset_size), cursor.take(self.offset_size)
                yield self._text(names + name), address
                entry += 2 * self.offset_size + 24

    def _leaves(self, tree: int) -> Iterator[int]:
        todo = [tree]
        while todo:
            at = todo.pop()
            self.bytes.expect(at, b"TREE")
            level, count = self.bytes.number(at + 5, 1), self.bytes.number(at + 6, 2)
            first = at + 8 + 2 * self.offset_size + self.length_size
            step = self.offset_size + self.length_size
            children = [self.bytes.number(first + i * step, self.offset_size) for i in range(count)]
            if level:
                todo += reversed(children)
            else:
                yield from children

    def _text(self, at: int) -> str:
        end = self.bytes.data.find(0, at) if 0 <= at < len(self.bytes.data) else -1
        return self.bytes.at(at, end - at).decode("utf-8", "backslashreplace")

    def link(self, at: int) -> Iterator[tuple[str, int]]:
        """(name, address) of a hard link of the new kind; other links are skipped."""
        flags = self.bytes.number(at + 1, 1)
        cursor = _Cursor(self.bytes, at + 2)
        kind = cursor.take(1) if flags & 8 else 0
        cursor.offset += (8 if flags & 4 else 0) + (1 if flags & 16 else 0)
        length = cursor.take(1 << (flags & 3))
        name = self.bytes.at(cursor.offset, length).decode("utf-8", "backslashreplace")
        cursor.offset += length
        if kind == 0:
            yield name, cursor.take(self.offset_size)

    def check_link_info(self, at: int) -> None:
        """Raise FormatError for a group whose links are kept in a fractal heap."""
        flags = self.bytes.number(at + 1, 1)
        heap = self.bytes.number(at + 2 + (8 if flags & 1 else 0), self.offset_size)
        if heap != _UNDEFINED >> (64 - 8 * self.offset_size):
            raise FormatError("a group is stored in a fractal heap; save the model again with h5py's defaults")

    # --------------------------------------------------------------------------------------------- content
    def shape(self, at: int) -> tuple[int, ...] | None:
        """Extents; None for a null space."""
        version, rank = self.bytes.number(at, 1), self.bytes.number(at + 1, 1)
        if version not in (1, 2) or rank > 32:
            raise FormatError("a data space is damaged")
        if version == 2 and self.bytes.number(at + 3, 1) == 2:
            return None
        cursor = _Cursor(self.bytes, at + (8 if version == 1 else 4))
        return tuple(cursor.take(self.length_size) for _ in range(rank))

    def type(self, at: int) -> _Type | None:
        """An element type; None for one that no array of numbers or text has."""
        kind = self.bytes.number(at, 1) & 15
        bits = self.bytes.number(at + 1, 3)
        size = self.bytes.number(at + 4, 4)
        order = ">" if bits & 1 else "<"
        if kind == 0 and size in (1, 2, 4, 8):
            return _Type(np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}"))
        if kind == 1 and size in (2, 4, 8):
            return _Type(np.dtype(f"{order}f{size}"))
        if kind == 3 and 0 < size < 1 << 20:
            return _Type(np.dtype(f"S{size}"))
        if kind == 9 and bits & 15 == 1:
            return _Type(np.dtype(f"V{8 + self.offset_size}"), text=True)
        return self.type(at + 8) if kind == 8 else None

    def data_set(self, layout: _Message, type: _Type | None, shape: tuple[int, ...] | None) -> Array:
        if type is None or type.text or shape is None:
            raise FormatError("a data set is not of numbers")
        size = math.prod(shape) * type.dtype.itemsize
        version, kind = self.bytes.number(layout.at, 1), self.bytes.number(layout.at + 1, 1)
        if version not in (3, 4) or kind not in (0, 1):
            raise FormatError("chunked data sets are not supported; save the model again without compression")
        if kind == 0:
            at = layout.at + 4
            if self.bytes.number(layout.at + 2, 2) < size:
                raise FormatError("a data set is truncated; the file is damaged")
        else:
            at = self.bytes.number(layout.at + 2, self.offset_size)
        return self._array(at, type.dtype, shape)

    def _array(self, at: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        count = math.prod(shape)
        self.bytes.at(at if count else 0, count * dtype.itemsize)
        return np.frombuffer(self.bytes.data, dtype, count, at if count else 0).reshape(shape)

    def attribute(self, message: _Message) -> tuple[str, Any]:
        """(name, value); the value is None where it is of no type that is read."""
        version = self.bytes.number(message.at, 1)
        if version not in (1, 2, 3):
            raise FormatError("an attribute is damaged")
        sizes = [self.bytes.number(message.at + 2 + 2 * i, 2) for i in range(3)]
        steps = [-(-n // 8) * 8 for n in sizes] if version == 1 else sizes
        at = message.at + (9 if version == 3 else 8)
        name = self.bytes.at(at, sizes[0]).rstrip(b"\0").decode("utf-8", "backslashreplace")
        type_at, space_at, data_at = (at + sum(steps[: i + 1]) for i in range(3))
        type, shape = self.type(type_at), self.shape(space_at)
        if type is None or shape is None:
            return name, None
        value = self._array(data_at, type.dtype, shape)
        if type.text:
            texts = [self._heap_text(record.tobytes()) for record in value.ravel()]
            return name, texts if shape else texts[0]
        if value.dtype.kind == "S":
            strings = [s.decode("utf-8", "backslashreplace") for s in value.ravel().tolist()]
            return name, strings if shape else strings[0]
        return name, value

    def _heap_text(self, record: bytes) -> str:
        """A string of the global heap: its length, the heap's address, and its number there."""
        length = int.from_bytes(record[:4], "little")
        heap = int.from_bytes(record[4:-4], "little")
        wanted = int.from_bytes(record[-4:], "little")
        if length == 0:
            return ""
        self.bytes.expect(heap, b"GCOL")
        end = heap + self.bytes.number(heap + 8, self.length_size)
        at = heap + 8 + self.length_size
        while at + 16 <= end:
            number, size = self.bytes.number(at, 2), self.bytes.number(at + 8, self.length_size)
            if number == wanted and length <= size:
                return self.bytes.at(at + 8 + self.length_size, length).decode("utf-8", "backslashreplace").rstrip("\0")
            if number == 0:
                break
            at += 8 + self.length_size + -(-size // 8) * 8
        raise FormatError("a string is not where it should be; the file is damaged")
