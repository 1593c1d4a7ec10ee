"""The WAV format: chunks of a RIFF file, samples as integers or floats; mono files written with 16 bits.

Sources: Microsoft and IBM, Multimedia Programming Interface and Data Specifications 1.0 (1991); RFC 2361; the structure
WAVEFORMATEXTENSIBLE.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tenon.atomic_write import writing
from tenon.network.graph.dtype import Array

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_WIDTHS = {_PCM: (1, 2, 3, 4), _FLOAT: (4, 8)}
"""Bytes of a sample that are read, by the tag of its format."""


class WavError(ValueError):
    """A file is no WAV file, or one of another encoding."""


@dataclass(frozen=True)
class WavFormat:
    """Samples of ``width`` bytes, floats or integers, in frames of ``channels``, ``rate`` frames in a second.

    ``frames`` of them lie in the file from byte ``start`` on."""

    floats: bool
    width: int
    channels: int
    rate: int
    start: int
    frames: int


def read_format(file: BinaryIO) -> WavFormat:
    """The format of an open WAV file.  Raises WavError."""
    file.seek(0, 2)
    size = file.tell()
    file.seek(0)
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise WavError("it does not begin with RIFF and WAVE")
    fields = b""
    for name, start, length in _chunks(file, size):
        if name == b"fmt ":
            file.seek(start)
            fields = file.read(min(length, 40))
        elif name == b"data":
            return _format(fields, start, length)
    raise WavError("it has no data")


def _chunks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, int, int]]:
    """(name, first byte, bytes) of each chunk; the last may be cut short."""
    at = 12
    while at + 8 <= size:
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        yield name, at + 8, min(length, size - at - 8)
        at += 8 + length + length % 2


def _format(fields: bytes, start: int, length: int) -> WavFormat:
    if len(fields) < 16:
        raise WavError("no format is stated before the data")
    tag, channels, rate, _, block, bits = struct.unpack("<HHIIHH", fields[:16])
    if tag == _EXTENSIBLE and len(fields) >= 26:
        (tag,) = struct.unpack("<H", fields[24:26])
    width = block // channels if channels else 0
    if tag not in _WIDTHS:
        raise WavError(f"its encoding is number {tag}, not PCM or floats")
    if width not in _WIDTHS[tag] or width * channels != block or width != -(-bits // 8) or not rate:
        raise WavError(f"its {channels} channels of {bits} bits in blocks of {block} bytes are not supported")
    return WavFormat(tag == _FLOAT, width, channels, rate, start, length // block)


def samples(file: BinaryIO, format: WavFormat, start: int = 0, count: int | None = None) -> Array:
    """f64 [n] of -1 to 1, channels averaged: from frame ``start`` on, ``count`` frames at most."""
    first = min(start, format.frames)
    frames = format.frames - first if count is None else min(count, format.frames - first)
    block = format.width * format.channels
    file.seek(format.start + first * block)
    data = file.read(frames * block)
    numbers = _floats(data, format.width) if format.floats else _integers(data, format.width)
    mono: Array = numbers[: len(numbers) // format.channels * format.channels].reshape(-1, format.channels).mean(1)
    return mono


def _floats(data: bytes, width: int) -> Array:
    numbers = np.frombuffer(data[: len(data) // width * width], f"<f{width}").astype(np.float64)
    return np.nan_to_num(numbers, nan=0.0, posinf=1.0, neginf=-1.0)


def _integers(data: bytes, width: int) -> Array:
    """PCM as f64 of -1 to 1; that of 8 bits is unsigned."""
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    count = len(data) // width
    padded = np.zeros((count, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(data, np.uint8)[: count * width].reshape(count, width)
    return np.asarray(padded.view("<i4").reshape(-1) / 2.0**31)


def write_wav(path: Path, mono: Array, rate: int, option: str = "") -> None:
    """Write samples [n] of -1 to 1 as a WAV file of 16 bits; ``option`` names the option that gave the path."""
    data = np.rint(np.clip(mono, -1, 1) * 32767).astype("<i2").tobytes()
    head = (b"RIFF", 36 + len(data), b"WAVE", b"fmt ", 16, _PCM, 1, rate, 2 * rate, 2, 16, b"data", len(data))
    with writing(path, option) as file:
        file.write(struct.pack("<4sI4s4sIHHIIHH4sI", *head))
        file.write(data)
