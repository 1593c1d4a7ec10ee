"""Read sound files."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.input_file import open_regular
from tenon.network.graph.dtype import Array

SUFFIX = ".wav"


class Sound(NamedTuple):
    """Samples of -1 to 1, f64 [n], all channels averaged; ``rate`` is their number in a second."""

    samples: Array
    rate: int


def read_sound(path: Path, start: int = 0, count: int | None = None) -> Sound:
    """The sound in a file, from frame ``start`` on, ``count`` frames at most.

    Raises InputError for a file that is not WAV of 8, 16, 24 or 32 bits of linear PCM.
    """
    with open_regular(path) as raw:
        try:
            with wave.open(raw) as file:
                file.setpos(min(start, file.getnframes()))
                data = file.readframes(file.getnframes() if count is None else count)
                return Sound(_decoded(data, file.getsampwidth(), file.getnchannels()), file.getframerate())
        except (wave.Error, EOFError, ValueError) as error:
            raise _unreadable(path, error) from None


def sound_length(path: Path) -> int:
    """The number of frames in a WAV file.  Raises InputError like ``read_sound``."""
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
