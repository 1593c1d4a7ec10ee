"""Strings as bytes: zero-padded UTF-8 along an additional axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class StringError(ValueError):
    """A string that cannot be encoded; the message has the reason, the caller adds the location."""


def utf8(value: object) -> bytes:
    """The bytes of one string.  Raises StringError for other objects, and for strings with a zero byte."""
    if isinstance(value, bytes):
        held = value
    elif isinstance(value, str):
        held = value.encode("utf-8", "surrogatepass")
    else:
        raise StringError(f"{value!r} is a {type(value).__name__}, not a string")
    if 0 in held:
        raise StringError(f"{value!r} holds a zero byte, which ends a string")
    return held


def width(strings: Iterable[object]) -> int:
    """Bytes of the longest string, at least 1."""
    return max((len(utf8(s)) for s in strings), default=1) or 1


def encoded(strings: Array, most: int | None = None) -> Array:
    """The bytes of an array of strings: u8 [..., most], or as wide as the longest needs.  Raises StringError."""
    flat = [utf8(s) for s in strings.astype(object).reshape(-1)] if strings.size else []
    wide = width(flat) if most is None else most
    out = np.zeros((len(flat), wide), np.uint8)
    for row, data in zip(out, flat, strict=True):
        if len(data) > wide:
            raise StringError(f"{data.decode(errors='replace')!r} has {len(data)} bytes, and there is room for {wide}")
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return out.reshape(*strings.shape, wide)


def decoded(data: Array) -> Array:
    """The strings in bytes [..., W] as an array of Python strings; invalid UTF-8 is replaced."""
    rows = np.ascontiguousarray(data).reshape(-1, data.shape[-1])
    texts = np.empty(len(rows), object)
    for i, row in enumerate(rows):
        texts[i] = bytes(row).partition(b"\0")[0].decode(errors="replace")
    return texts.reshape(data.shape[:-1])
