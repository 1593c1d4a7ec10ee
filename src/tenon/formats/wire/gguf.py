"""GGUF: key-value pairs and tensors of ggml, read without copying tensors.  Nothing is believed before it is checked.

Source: docs/gguf.md of ggml.  Numbers are little-endian; strings and arrays begin with their length in 8 bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array

MAGIC = b"GGUF"
VERSIONS = (2, 3)

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

MOST_PAIRS, MOST_TENSORS, MOST_AXES, DEEPEST = 1 << 16, 1 << 16, 4, 2
"""More than any file of a model has."""

LONGEST_KEY = 1 << 16
ALIGNMENT_KEY = "general.alignment"

TYPES = {
    0: "f32",
    1: "f16",
    2: "q4_0",
    3: "q4_1",
    6: "q5_0",
    7: "q5_1",
    8: "q8_0",
    9: "q8_1",
    10: "q2_k",
    11: "q3_k",
    12: "q4_k",
    13: "q5_k",
    14: "q6_k",
    15: "q8_k",
    16: "iq2_xxs",
    17: "iq2_xs",
    18: "iq3_xxs",
    19: "iq1_s",
    20: "iq4_nl",
    21: "iq3_s",
    22: "iq2_s",
    23: "iq4_xs",
    24: "i8",
    25: "i16",
    26: "i32",
    27: "i64",
    28: "f64",
    29: "iq1_m",
    30: "bf16",
    34: "tq1_0",
    35: "tq2_0",
    39: "mxfp4",
}
"""Types of tensors by their numbers."""


@dataclass(frozen=True)
class GgufTensor:
    """A tensor's name, its extents (the outermost first), its type, and where its bytes begin in the file."""

    name: str
    dims: tuple[int, ...]
    type: str
    start: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)


@dataclass(frozen=True)
class Gguf:
    """The content of a file: pairs by key, tensors by name, and the bytes that these lie in."""

    pairs: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    data: bytes

    def stored(self, tensor: GgufTensor, nbytes: int) -> Array:
        """The bytes of a tensor, u8.  Raises FormatError where the file ends before."""
        if tensor.start + nbytes > len(self.data):
            raise FormatError(
                f"tensor '{tensor.name}' lies beyond the end of the file, which is cut short: copy or download it again"
            )
        return np.frombuffer(self.data, np.uint8, nbytes, tensor.start)


def parse(data: bytes) -> Gguf:
    """The content of a file.  Raises FormatError for one that is damaged, or of a version that is not known."""
    reader = _GgufReader(data)
    if reader.take(4) != MAGIC:
        raise FormatError("does not begin with 'GGUF'")
    version = reader.number("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(struct.pack(">I", version), "little")
        if swapped in VERSIONS:
            raise FormatError("numbers are big-endian: convert the model on a little-endian machine")
        raise FormatError(f"version {version} of GGUF is not supported: convert the model again (versions 2 and 3 are)")
    tensors, pairs = reader.count(MOST_TENSORS, "tensors"), reader.count(MOST_PAIRS, "keys")
    values = dict(reader.pair() for _ in range(pairs))
    headers = [reader.tensor() for _ in range(tensors)]
    alignment = values.get(ALIGNMENT_KEY, 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise FormatError(f"the alignment {alignment!r} is not a power of two")
    start = -(-reader.at // alignment) * alignment
    placed = {name: GgufTensor(name, dims, type, start + offset) for name, dims, type, offset in headers}
    if len(placed) < len(headers):
        raise FormatError("two tensors have one name")
    last = max((tensor.start for tensor in placed.values() if tensor.size), default=0)
    if last >= len(data):
        raise FormatError(
            f"it is cut short: it has {len(data)} bytes, and its last tensor begins at byte {last}: copy or download "
            "it again"
        )
    return Gguf(values, placed, data)


class _GgufReader:
    """Reads from bytes what lies one behind the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FormatError("the file ends within its header")
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]

    def count(self, most: int, what: str) -> int:
        count: int = self.number("Q")
        if count > most:
            raise FormatError(f"states {count} {what}, more than any model has")
        return count

    def text(self, longest: int | None = None) -> str:
        count: int = self.number("Q")
        if longest is not None and count > longest:
            raise FormatError(f"a name of {count} bytes is impossible")
        return self.take(count).decode("utf-8", "replace")

    def texts(self, count: int) -> list[str]:
        """``count`` texts: a vocabulary has too many for a call each."""
        data, at, end, texts = self.data, self.at, len(self.data), list[str]()
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > end:
                raise FormatError("the file ends within its header")
            texts.append(data[start:at].decode("utf-8", "replace"))
        self.at = at
        return texts

    def pair(self) -> tuple[str, Any]:
        return self.text(LONGEST_KEY), self.value(self.number("I"), 0)

    def value(self, type: int, depth: int) -> Any:
        if type in _SCALARS:
            return self.number(_SCALARS[type])
        if type == _STRING:
            return self.text()
        if type == _ARRAY and depth < DEEPEST:
            return self.array(depth)
        raise FormatError(f"a value of type {type} is not known")

    def array(self, depth: int) -> Any:
        """Numbers as an array of NumPy, others as a list."""
        type, count = self.number("I"), self.number("Q")
        if type in _SCALARS:
            dtype = np.dtype(f"<{np.dtype(_SCALARS[type]).str[1:]}")
            return np.frombuffer(self.take(count * dtype.itemsize), dtype)
        least = 8 if type == _STRING else 12
        if count > (len(self.data) - self.at) // least:
            raise FormatError("an array is longer than the file")
        if type == _STRING:
            return self.texts(count)
        return [self.value(type, depth + 1) for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], str, int]:
        name, axes = self.text(LONGEST_KEY), self.number("I")
        if not 0 < axes <= MOST_AXES:
            raise FormatError(f"tensor '{name}' has {axes} axes")
        dims = tuple(self.number("Q") for _ in range(axes))[::-1]
        if math.prod(dims) >= 1 << 40:
            raise FormatError(f"tensor '{name}' of {list(dims)} is impossibly large")
        type, offset = self.number("I"), self.number("Q")
        if type not in TYPES:
            raise FormatError(f"tensor '{name}' has the type {type}, which is not known")
        return name, dims, TYPES[type], offset
