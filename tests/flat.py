"""Structure-aware mutations of FlatBuffers files, without a schema."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from functools import lru_cache

MOST = 20_000
"""Tables and vectors that are looked at."""
NUMBERS = (0, 1, 2, 3, 4, 7, 127, 255, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


@dataclass
class _BufferPositions:
    """Positions in a file: nonzero vtable entries, fields, vector lengths, offsets, and offset targets."""

    entries: list[int] = field(default_factory=list)
    fields: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def _number(data: bytes, form: str, at: int) -> int:
    return int(struct.unpack_from(form, data, at)[0]) if 0 <= at <= len(data) - struct.calcsize(form) else -1


def _vtable(data: bytes, table: int) -> tuple[int, range]:
    """The position of the table's vtable and those of its entries; None if there is no table."""
    at = table - _number(data, "<i", table)
    size, inline = _number(data, "<H", at), _number(data, "<H", at + 2)
    valid = 0 <= at < len(data) and 4 <= size < 400 and size % 2 == 0 and 4 <= inline < 4000 and at + size <= len(data)
    return at, range(at + 4, at + size, 2) if valid else range(0)


@lru_cache(maxsize=8)
def _parts(data: bytes) -> _BufferPositions:
    positions, todo, seen = _BufferPositions(), [_number(data, "<I", 0)], set[int]()
    while todo and len(seen) < MOST:
        at = todo.pop()
        if at in seen or not 4 <= at < len(data) - 4:
            continue
        seen.add(at)
        _, entries = _vtable(data, at)
        places = [at + _number(data, "<H", entry) for entry in entries if _number(data, "<H", entry)]
        if entries:
            positions.entries += [entry for entry in entries if _number(data, "<H", entry)]
            positions.fields += places
        else:
            positions.lengths.append(at)
            count = _number(data, "<I", at)
            places = [at + 4 + 4 * i for i in range(min(count, 200, (len(data) - at) // 4))]
        for place in places:
            target = place + _number(data, "<I", place)
            if place % 4 == 0 and place < target < len(data) - 4:
                positions.offsets.append(place)
                positions.targets.append(target)
                todo.append(target)
    return positions


def is_flat(data: bytes) -> bool:
    """Whether the root offset leads to a table."""
    return len(data) > 16 and bool(_vtable(data, _number(data, "<I", 0))[1])


def damaged_tables(data: bytes, rng: random.Random) -> bytes:
    """A field removed, swapped or set, a vector length changed, or an offset redirected to the target of another."""
    parts, damaged = _parts(data), bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        match rng.randrange(6):
            case 0 if parts.entries:
                struct.pack_into("<H", damaged, rng.choice(parts.entries), 0)
            case 1 if parts.entries:
                at, other = rng.choice(parts.entries), rng.choice(parts.entries)
                damaged[at : at + 2] = data[other : other + 2]
            case 2 if parts.lengths:
                at = rng.choice(parts.lengths)
                known = (*NUMBERS, _number(data, "<I", at) + 1, max(0, _number(data, "<I", at) - 1))
                struct.pack_into("<I", damaged, at, rng.choice(known) & 0xFFFFFFFF)
            case 3 if parts.lengths:
                at = rng.choice(parts.lengths)
                at += 4 + 4 * rng.randrange(max(1, min(64, _number(data, "<I", at))))
                damaged[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS))[: len(data) - at]
            case 4 if parts.offsets:
                at, target = rng.choice(parts.offsets), rng.choice(parts.targets)
                struct.pack_into("<I", damaged, at, (target - at) & 0xFFFFFFFF)
            case _ if parts.fields:
                at, size = rng.choice(parts.fields), rng.choice((1, 1, 4))
                number = rng.choice((*NUMBERS, rng.randrange(160)))
                damaged[at : at + size] = struct.pack("<I", number)[: min(size, len(data) - at)]
    return bytes(damaged)
