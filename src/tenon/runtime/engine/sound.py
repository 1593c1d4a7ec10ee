"""Read sound files."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tenon.errors import InputError
from tenon.input_file import open_regular
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import wav_file
from tenon.runtime.engine.resample import resampled

SUFFIX = ".wav"


class Sound(NamedTuple):
    """Samples of -1 to 1, f64 [n], all channels averaged; ``rate`` is their number in a second."""

    samples: Array
    rate: int

    def at(self, rate: int) -> Sound:
        """The sound with another number of samples in a second."""
        return Sound(resampled(self.samples, self.rate, rate), rate)


def read_sound(path: Path, start: int = 0, count: int | None = None) -> Sound:
    """The sound in a file, from frame ``start`` on, ``count`` frames at most.

    Raises InputError for a file that is not WAV of PCM with 8, 16, 24 or 32 bits or of floats with 32 or 64 bits.
    """
    with open_regular(path) as file:
        try:
            format = wav_file.read_format(file)
            return Sound(wav_file.samples(file, format, start, count), format.rate)
        except wav_file.WavError as error:
            raise _unreadable(path, error) from None


def sound_length(path: Path) -> int:
    """The number of frames in a WAV file.  Raises InputError like ``read_sound``."""
    with open_regular(path) as file:
        try:
            return wav_file.read_format(file).frames
        except wav_file.WavError as error:
            raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a readable WAV file ({error}): give one of PCM or floats")
