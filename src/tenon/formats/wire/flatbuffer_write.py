"""Writing FlatBuffers without generated code: what ``wire.flatbuffer`` reads.

The file is written from front to back: a table, then what it refers to, so that every distance points forward; vtables
lie before their tables.  Source: the FlatBuffers internals document.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from tenon.formats.wire.flatbuffer import KINDS

Field = tuple[str, Any]
"""A kind and what it holds: a scalar of ``flatbuffer.KINDS``; "[kind]" a vector of scalars, "[kind]@N" one whose
elements begin at a multiple of N bytes; "text"; "table" a mapping of slots to fields; "texts" and "tables" lists."""

Fields = Mapping[int, Field]


def serialise(root: Fields, identifier: bytes) -> bytes:
    """The bytes of a file with this root table and this identifier of four bytes."""
    out = bytearray(struct.pack("<I", 0) + identifier)
    todo: deque[tuple[int, Field]] = deque([(0, ("table", root))])
    while todo:
        reference, (kind, content) = todo.popleft()
        if kind == "table":
            at = _table(out, content, todo)
        elif kind in ("tables", "texts"):
            at = _references(out, kind[:-1], content, todo)
        elif kind == "text":
            at = _vector(out, np.frombuffer(str(content).encode(), np.uint8), 4)
            out.append(0)
        else:
            element, _, alignment = kind.partition("@")
            dtype = np.dtype(KINDS[element[1:-1]]) if element != "[bool]" else np.dtype("?")
            at = _vector(out, np.asarray(content).astype(dtype, copy=False), int(alignment or dtype.itemsize))
        struct.pack_into("<I", out, reference, at - reference)
    return bytes(out)


def _pad(out: bytearray, alignment: int, before: int = 0) -> None:
    """Zeros such that what follows ``before`` more bytes begins at a multiple of ``alignment``."""
    out += bytes(-(len(out) + before) % alignment)


def _vector(out: bytearray, data: np.ndarray, alignment: int) -> int:
    _pad(out, max(4, alignment), before=4)
    at = len(out)
    out += struct.pack("<I", data.size)
    out += data.tobytes()
    return at


def _references(out: bytearray, kind: str, contents: list[Any], todo: deque[tuple[int, Field]]) -> int:
    _pad(out, 4)
    at = len(out)
    out += struct.pack("<I", len(contents)) + bytes(4 * len(contents))
    todo.extend((at + 4 + 4 * i, (kind, each)) for i, each in enumerate(contents))
    return at


def _size(kind: str) -> int:
    return struct.calcsize(KINDS[kind]) if kind in KINDS else 4


def _table(out: bytearray, fields: Fields, todo: deque[tuple[int, Field]]) -> int:
    """The vtable and the table: its fields from the widest to the narrowest."""
    order = sorted(fields, key=lambda slot: (-_size(fields[slot][0]), slot))
    offsets, end = {}, 8 if any(_size(fields[slot][0]) == 8 for slot in order) else 4
    for slot in order:
        offsets[slot] = end
        end += _size(fields[slot][0])
    slots = 1 + max(fields, default=-1)
    _pad(out, 8, before=4 + 2 * slots)
    vtable = len(out)
    out += struct.pack(f"<{2 + slots}H", 4 + 2 * slots, end, *(offsets.get(slot, 0) for slot in range(slots)))
    at = len(out)
    out += struct.pack("<i", at - vtable) + bytes(end - 4)
    for slot in order:
        kind, content = fields[slot]
        if kind in KINDS:
            struct.pack_into(KINDS[kind], out, at + offsets[slot], content)
        else:
            todo.append((at + offsets[slot], (kind, content)))
    return at
