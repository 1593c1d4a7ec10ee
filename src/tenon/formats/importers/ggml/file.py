"""The parts of a Whisper model in ggml's old format.  Nothing is believed before it is checked.

Source: the format that whisper.cpp reads: eleven sizes, the mel bands, the vocabulary, then tensors, each behind its
own header, up to the end of the file.  Numbers are little-endian and of 32 bits.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.weights import Weight
from tenon.formats.wire.ggml import MAGIC
from tenon.formats.wire.gguf import TYPES
from tenon.machine.kernels.block_formats import FORMATS
from tenon.network.graph.graph import Array

LARGEST = 1 << 24
"""More than any size of a model."""
_LONGEST = 1 << 12
"""Bytes of a name, or of a token, at most."""
_MOST_AXES = 4
_FLOATS = {"f32": "<f4", "f16": "<f2"}
_BLOCKS_SINCE = 2
"""The version of ggml's formats of blocks that is read; earlier ones have other scales."""


@dataclass(frozen=True)
class WhisperSizes:
    """The sizes at the beginning of a file, in its order; ``kind`` is the type of most weights, and a thousand times
    the version of the formats of blocks."""

    vocabulary: int
    sound_positions: int
    sound_width: int
    sound_heads: int
    sound_layers: int
    text_positions: int
    text_width: int
    text_heads: int
    text_layers: int
    bands: int
    kind: int


@dataclass(frozen=True)
class WhisperFile:
    """The content of a file: ``filters`` f32 [bands, bins] are the mel bands, ``tokens`` the bytes of each token of the
    vocabulary that the file lists, ``tensors`` the weights by name."""

    sizes: WhisperSizes
    filters: Array
    tokens: Sequence[bytes]
    tensors: Mapping[str, Weight]


def parse(data: bytes) -> WhisperFile:
    """The content of a file.  Raises FormatError for one that is damaged."""
    reader = _GgmlReader(data)
    if reader.take(4) != MAGIC:
        raise FormatError("it does not begin as a file of ggml does")
    sizes = WhisperSizes(*(reader.size(field.name) for field in fields(WhisperSizes)))
    bands, bins = reader.size("mel bands"), reader.size("frequencies")
    filters = np.frombuffer(reader.take(4 * bands * bins), "<f4").reshape(bands, bins)
    tokens = [reader.text() for _ in range(reader.size("tokens"))]
    tensors = dict(reader.tensors(sizes.kind // 1000))
    return WhisperFile(sizes, filters, tokens, tensors)


class _GgmlReader:
    """Reads from bytes what lies one behind the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = memoryview(data), 0

    def take(self, count: int) -> memoryview:
        if count > len(self.data) - self.at:
            raise FormatError("the file is cut short")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])

    def size(self, what: str) -> int:
        number = self.number()
        if not 0 <= number < LARGEST:
            raise FormatError(f"it states {number} as its {what.replace('_', ' ')}")
        return number

    def text(self) -> bytes:
        count = self.number()
        if not 0 <= count <= _LONGEST:
            raise FormatError(f"a text of {count} bytes is impossible")
        return bytes(self.take(count))

    def tensors(self, version: int) -> Iterator[tuple[str, Weight]]:
        """Name and weight of each tensor up to the end of the file."""
        known = set[str]()
        while self.at < len(self.data):
            name, weight = self._tensor(version)
            if name in known:
                raise FormatError(f"two tensors are called '{name}'")
            known.add(name)
            yield name, weight

    def _tensor(self, version: int) -> tuple[str, Weight]:
        axes, length, number = self.number(), self.number(), self.number()
        if not 0 < axes <= _MOST_AXES or not 0 < length <= _LONGEST:
            raise FormatError(f"a tensor of {axes} axes with a name of {length} bytes is impossible")
        dims = tuple(self.size("extent") for _ in range(axes))[::-1]
        name = bytes(self.take(length)).decode("utf-8", "replace")
        kind = TYPES.get(number, str(number))
        if kind in _FLOATS:
            dtype = np.dtype(_FLOATS[kind])
            return name, Weight(np.frombuffer(self.take(math.prod(dims) * dtype.itemsize), dtype).reshape(dims))
        if kind not in FORMATS:
            remedy = f"quantise the model to one of {', '.join(f for f in FORMATS if f.startswith('q'))}"
            raise FormatError(f"the tensor '{name}' has the type {kind}, which is not supported: {remedy}")
        if version != _BLOCKS_SINCE:
            raise FormatError(f"its blocks are of version {version} of ggml: quantise the model again")
        return name, self._blocks(name, dims, kind)

    def _blocks(self, name: str, dims: tuple[int, ...], kind: str) -> Weight:
        *rows, columns = dims
        try:
            width = FORMATS[kind].row_bytes(columns)
        except ValueError as error:
            raise FormatError(f"the tensor '{name}': {error}") from None
        count = math.prod(rows)
        return Weight(np.frombuffer(self.take(count * width), np.uint8).reshape(count, width), kind)
