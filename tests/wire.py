"""A small protobuf writer for test models, and structure-aware mutations of protobuf files."""

from __future__ import annotations

import random
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


def fields(data: bytes) -> list[tuple[int, bytes]] | None:
    """(tag, payload) of every field of a message; None if the bytes are not a valid message."""
    parsed, at = [], 0
    while at < len(data):
        tag, start = _varint(data, at)
        end = start
        match tag & 7:
            case 0:
                _, end = _varint(data, start)
            case 1:
                end = start + 8
            case 2:
                size, end = _varint(data, start)
                end += size
            case 5:
                end = start + 4
            case _:
                return None
        if tag < 8 or end > len(data) or end <= start:
            return None
        parsed.append((tag, data[start:end]))
        at = end
    return parsed


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number and its end position; past the end of the data if it is truncated or too long."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    return 0, len(data) + 1


def content(rest: bytes) -> bytes:
    """The bytes of a length-delimited field."""
    return rest[_varint(rest, 0)[1] :]


VALUES = (0, 1, 2, 3, 255, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, -1, -2)


def damaged_message(data: bytes, rng: random.Random) -> bytes:
    """The message with a field changed at any nesting level, and valid lengths."""
    parsed = fields(data)
    if not parsed:
        return data
    inner = [i for i, (tag, rest) in enumerate(parsed) if tag & 7 == 2 and fields(content(rest))]
    if inner and rng.random() < 0.8:
        i = rng.choice(inner)
        tag, rest = parsed[i]
        inside = damaged_message(content(rest), rng)
        parsed[i] = tag, varint(len(inside)) + inside
    else:
        _damage_one(parsed, rng)
    return b"".join(varint(tag) + rest for tag, rest in parsed)


def _damage_one(fields: list[tuple[int, bytes]], rng: random.Random) -> None:
    i, j = rng.randrange(len(fields)), rng.randrange(len(fields))
    tag, rest = fields[i]
    match rng.randrange(6):
        case 0:
            del fields[i]
        case 1:
            fields.insert(j, fields[i])
        case 2:
            fields[i] = tag, fields[j][1] if fields[j][0] & 7 == tag & 7 else rest
        case 3:
            fields[i] = fields[j][0] if fields[j][0] & 7 == tag & 7 else tag, rest
        case _ if tag & 7 == 0:
            fields[i] = tag, varint(rng.choice(VALUES))
        case _ if tag & 7 == 2:
            inside = content(rest)
            cut = inside[: rng.randrange(len(inside) + 1)] if rng.random() < 0.5 else inside + rng.randbytes(4)
            fields[i] = tag, varint(len(cut)) + cut
        case _:
            fields[i] = tag, rng.randbytes(len(rest))


def grafted_message(data: bytes, donor: bytes, rng: random.Random) -> bytes:
    """The message with a field of another message, from the same nesting path, inserted or in place of one like it."""
    parsed, given = fields(data), fields(donor)
    if not parsed or not given:
        return data
    inner = [(i, rest) for i, (tag, _) in enumerate(parsed) for other, rest in given if other == tag and tag & 7 == 2]
    inner = [(i, rest) for i, rest in inner if fields(content(rest)) and fields(content(parsed[i][1]))]
    if inner and rng.random() < 0.7:
        i, rest = rng.choice(inner)
        inside = grafted_message(content(parsed[i][1]), content(rest), rng)
        parsed[i] = parsed[i][0], varint(len(inside)) + inside
    else:
        tag, rest = rng.choice(given)
        alike = [i for i, (other, _) in enumerate(parsed) if other == tag]
        if alike and rng.random() < 0.5:
            parsed[rng.choice(alike)] = tag, rest
        else:
            parsed.insert(rng.randrange(len(parsed) + 1), (tag, rest))
    return b"".join(varint(tag) + rest for tag, rest in parsed)


def renamed_field(data: bytes, word: str, rng: random.Random) -> bytes:
    """The message with a string at any nesting level replaced by ``word``."""
    parsed = fields(data)
    texts = [i for i, (tag, rest) in enumerate(parsed or ()) if tag & 7 == 2 and content(rest)]
    if not parsed or not texts:
        return data
    i = rng.choice(texts)
    tag, rest = parsed[i]
    inside = content(rest)
    made = renamed_field(inside, word, rng) if fields(inside) else word.encode()
    parsed[i] = tag, varint(len(made)) + made
    return b"".join(varint(tag) + rest for tag, rest in parsed)
