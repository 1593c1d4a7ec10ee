"""Samples from WAV files: their sound cut into pieces of the size of a network's input."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.errors import InputError
from tenon.input_file import open_regular
from tenon.network.graph.graph import Array
from tenon.network.graph.types import TensorType
from tenon.network.ops.requantize import limits

SUFFIX = ".wav"


def pieces(files: Sequence[Path], kind: TensorType) -> list[tuple[Path, int]]:
    """Each file with the first frame of every piece that an input of ``kind`` holds: one at least."""
    return [(path, i * kind.size) for path in files for i in range(max(1, _length(path) // kind.size))]


def read_piece(path: Path, start: int, kind: TensorType) -> Array:
    """The sound from frame ``start`` on, of all channels averaged, as an input of ``kind``: of -1 to 1 in floats, of
    -32768 to 32767 in integers (-128 to 127 of 8 bits); silence follows a shorter one.

    Raises InputError for a file that is not WAV of 8, 16, 24 or 32 bits of linear PCM.
    """
    with open_regular(path) as raw:
        try:
            with wave.open(raw) as file:
                file.setpos(min(start, file.getnframes()))
                sound = _decoded(file.readframes(kind.size), file.getsampwidth(), file.getnchannels())
        except (wave.Error, EOFError, ValueError) as error:
            raise _unreadable(path, error) from None
    sound = np.pad(sound, (0, kind.size - len(sound)))
    if not kind.dtype.is_float:
        sound = np.clip(np.rint(sound * (128 if kind.dtype.bytes == 1 else 32768)), *limits(kind.dtype))
    return sound.astype(kind.dtype.numpy).reshape(kind.dims)


def _length(path: Path) -> int:
    """In frames."""
    with open_regular(path) as raw:
        try:
            with wave.open(raw) as file:
                frames: int = file.getnframes()
                return frames
        except (wave.Error, EOFError, ValueError) as error:
            raise _unreadable(path, error) from None


def _decoded(data: bytes, width: int, channels: int) -> Array:
    """PCM as numbers of -1 to 1 in f64."""
    if width == 1:
        numbers = np.frombuffer(data, np.uint8).astype(np.float64) - 128
    else:
        count = len(data) // width
        padded = np.zeros((count, 4), np.uint8)
        padded[:, 4 - width :] = np.frombuffer(data, np.uint8)[: count * width].reshape(count, width)
        numbers = padded.view("<i4").reshape(-1) / 2.0 ** (32 - 8 * width)
    mono: Array = numbers[: len(numbers) // channels * channels].reshape(-1, channels).mean(1)
    return mono / 2.0 ** (8 * width - 1)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a readable WAV file ({error}): give one of linear PCM")
