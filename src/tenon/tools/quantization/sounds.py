"""Samples from WAV files: their sound cut into pieces of the size of a network's input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.graph.types import TensorType
from tenon.network.ops.requantize import limits
from tenon.runtime.engine.sound import SUFFIX, read_sound, sound_length

__all__ = ["SUFFIX", "pieces", "read_piece"]


def pieces(files: Sequence[Path], kind: TensorType) -> list[tuple[Path, int]]:
    """Each file with the first frame of every piece that an input of ``kind`` holds: one at least."""
    return [(path, i * kind.size) for path in files for i in range(max(1, sound_length(path) // kind.size))]


def read_piece(path: Path, start: int, kind: TensorType) -> Array:
    """The sound from frame ``start`` on, of all channels averaged, as an input of ``kind``: of -1 to 1 in floats, of
    -32768 to 32767 in integers (-128 to 127 of 8 bits); silence follows a shorter one.

    Raises InputError for a file that is not WAV of 8, 16, 24 or 32 bits of linear PCM.
    """
    sound = read_sound(path, start, kind.size).samples
    sound = np.pad(sound, (0, kind.size - len(sound)))
    if not kind.dtype.is_float:
        sound = np.clip(np.rint(sound * (128 if kind.dtype.bytes == 1 else 32768)), *limits(kind.dtype))
    return sound.astype(kind.dtype.numpy).reshape(kind.dims)
