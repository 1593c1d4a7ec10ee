"""Text of a sound while it arrives: what is said so far again and again, and for good where the speaker pauses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.speech.pieces import pieces
from tenon.runtime.speech.recognizer import RATE, Recognizer

_FRAME = RATE // 50
"""Samples of which the loudness decides whether somebody speaks."""

_QUIET, _ABOVE, _LEAST = -50.0, 10.0, -55.0
"""Decibels, relative to a full square wave: the background before any is heard, how much louder a voice is than the
background, and what is silence in any case."""

_REMEMBERED = 150
"""Frames of which the quietest is the background."""

_BEFORE = 20
"""Frames that are kept before a voice, at most; a quarter of what a network takes where that is less."""


class HeardText(NamedTuple):
    """The words from ``start`` to ``end``, in seconds; not ``final``: they may change with what follows."""

    start: float
    end: float
    text: str
    final: bool


class VoiceActivity:
    """Tells frames with a voice from the background, by their loudness."""

    def __init__(self) -> None:
        self._levels = deque([_QUIET] * _REMEMBERED, maxlen=_REMEMBERED)

    def speaks(self, frame: Array) -> bool:
        """Whether a frame is louder than the background, which is the quietest frame of the last seconds."""
        level = 10 * float(np.log10(np.mean(np.square(frame, dtype=np.float64)) + 1e-10))
        self._levels.append(level)
        return level > max(_LEAST, min(self._levels) + _ABOVE)


class LiveRecognizer:
    """Writes down a sound of 16,000 samples in a second that is given piece by piece.

    What is said is written down again after each ``step`` seconds, and for good after ``pause`` seconds without a
    voice, or where it is as long as the network takes.  Nothing is written down of silence.
    """

    def __init__(self, recognizer: Recognizer, step: float = 1.0, pause: float = 0.6) -> None:
        """Raises InputError for a ``step`` or ``pause`` that is not longer than 0."""
        if not (step > 0 and pause > 0):
            raise InputError(f"step={step}, pause={pause}: they are seconds, longer than 0")
        self.recognizer = recognizer
        self._step, self._pause = int(step * RATE), int(pause * RATE)
        self._most = int(recognizer.longest * RATE) // _FRAME * _FRAME
        self._before = min(_BEFORE, self._most // _FRAME // 4)
        self._activity = VoiceActivity()
        self._rest = np.zeros(0, np.float32)
        self._forget()
        self._begin = 0

    def _forget(self) -> None:
        self._frames = list[Array]()
        self._spoken, self._quiet, self._fresh = False, 0, 0

    def hear(self, samples: Array) -> Iterator[HeardText]:
        """Take the next samples f32 [n] of -1 to 1; yields texts that are final, and at last one that is not.

        Raises InputError for other arrays, as integers, which are divided by their range (32768 for 16 bits) first.
        """
        unknown: Any = samples
        array = np.zeros(()) if isinstance(unknown, tuple) else np.asarray(unknown)  # a Sound is a tuple
        if array.ndim != 1 or array.dtype.kind != "f":
            raise InputError("samples are an array f32 [n] of -1 to 1: divide integers of 16 bits by 32768")
        given = np.concatenate([self._rest, array.astype(np.float32, copy=False)])
        count = len(given) // _FRAME
        self._rest = given[count * _FRAME :]
        for frame in given[: count * _FRAME].reshape(count, _FRAME):
            yield from self._take(frame)
        if self._spoken and self._fresh >= self._step:
            self._fresh = 0
            yield self._written(np.concatenate(self._frames), final=False)

    def finish(self) -> Iterator[HeardText]:
        """The text of what is left when the sound has ended."""
        if self._spoken:
            yield self._written(np.concatenate([*self._frames, self._rest]), final=True)
        self._begin += len(self._frames) * _FRAME + len(self._rest)
        self._rest = self._rest[:0]
        self._forget()

    def _take(self, frame: Array) -> Iterator[HeardText]:
        speaks = self._activity.speaks(frame)
        self._frames.append(frame)
        self._fresh += _FRAME
        self._quiet = 0 if speaks else self._quiet + _FRAME
        self._spoken |= speaks
        if not self._spoken:
            self._drop(max(0, len(self._frames) - self._before))
        elif self._quiet >= self._pause:
            yield self._written(np.concatenate(self._frames), final=True)
            self._drop(max(0, len(self._frames) - self._before))
            self._spoken, self._fresh = False, 0
        elif len(self._frames) * _FRAME >= self._most:
            yield from self._cut()

    def _cut(self) -> Iterator[HeardText]:
        """The text up to the quietest place, where the piece is as long as the network takes."""
        samples = np.concatenate(self._frames)
        _, end = next(pieces(np.append(samples, 0), RATE, len(samples) / RATE))
        frames = max(1, end // _FRAME)
        yield self._written(samples[: frames * _FRAME], final=True)
        self._drop(frames)
        self._fresh = len(self._frames) * _FRAME

    def _drop(self, count: int) -> None:
        del self._frames[:count]
        self._begin += count * _FRAME

    def _written(self, samples: Array, *, final: bool) -> HeardText:
        text = self.recognizer.text(self.recognizer.tokens(samples)).strip()
        return HeardText(self._begin / RATE, (self._begin + len(samples)) / RATE, text, final)
