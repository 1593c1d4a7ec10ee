"""Text to speech by voices of Piper: VITS networks with their settings in ``VOICE.onnx.json``.

Sources: J. Kim et al., Conditional Variational Autoencoder with Adversarial Learning for End-to-End Text-to-Speech
(2021); Piper's training documentation for the settings and the order of phonemes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.input_file import is_regular, read_regular
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.manifest import size_ranges
from tenon.runtime.engine import Engine
from tenon.runtime.engine.sound import Sound

_BEGIN, _END, _PAD = "^", "$", "_"
"""Phonemes around a sentence and between its phonemes."""

_FRAMES = 12
"""Frames of sound for a phoneme at most, on average over a sentence."""

_WHOLE = 16
"""The largest number of frames is a multiple of this, so that convolutions over frames have whole tiles only, all of
which are left out behind a shorter sound."""

_PAUSE = 0.2
"""Seconds of silence between sentences."""


@dataclass(frozen=True)
class VoiceSettings:
    """The settings of a voice: samples in a second, numbers of phonemes, the language of ``espeak``, the ``scales`` of
    noise, length and noise of durations, and the number of speakers."""

    rate: int
    numbers: Mapping[str, Sequence[int]]
    language: str
    scales: tuple[float, float, float]
    speakers: int = 1

    @classmethod
    def beside(cls, path: Path) -> VoiceSettings | None:
        """The settings in the file beside a network; None if there is none.  Raises FormatError for a damaged one."""
        file = path.with_name(path.name + ".json")
        if path.suffix != ".onnx" or not is_regular(file):
            return None
        try:
            content = json.loads(read_regular(file))
            scales = tuple(float(content["inference"][key]) for key in ("noise_scale", "length_scale", "noise_w"))
            numbers = {str(key): tuple(map(int, value)) for key, value in content["phoneme_id_map"].items()}
            language = str(content.get("espeak", {}).get("voice", "en-us"))
            rate, speakers = int(content["audio"]["sample_rate"]), int(content.get("num_speakers", 1))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"{file}: no settings of a voice ({error!r:.80}); the file is damaged") from None
        if not {_BEGIN, _END, _PAD} <= numbers.keys() or not 0 < rate < 1 << 20 or len(scales) != 3:
            raise FormatError(f"{file}: its sampling rate or its phonemes are damaged")
        return cls(rate, numbers, language, scales, speakers)


class Voice:
    """Sound of phonemes by a network whose input has a size (``sizes``).

    ``speaker`` is a number, for networks with several.  Raises InputError for a speaker that there is not.
    """

    def __init__(self, engine: Engine, settings: VoiceSettings, speaker: int = 0) -> None:
        if not 0 <= speaker < settings.speakers:
            raise InputError(f"speaker {speaker}: the voice has {settings.speakers}, counted from 0")
        self.engine, self.settings, self.speaker = engine, settings, speaker

    def speak(self, phonemes: str, *, speed: float = 1.0) -> Sound:
        """The sound of IPA phonemes, one sentence after another; ``speed`` 2 is twice as fast.

        Raises InputError for phonemes that the voice does not have.
        """
        parts = list[Array]()
        for sentence in self.sentences(phonemes):
            parts += [self._sound(sentence, speed), np.zeros(int(_PAUSE * self.settings.rate), np.float32)]
        return Sound(np.concatenate(parts[:-1] or [np.zeros(0, np.float32)]), self.settings.rate)

    def sentences(self, phonemes: str) -> Iterator[list[int]]:
        """Numbers of phonemes for each sentence, or part of one that the network has no room for."""
        most = next(size.most for size in size_ranges(self.engine.manifest.inputs).values())
        if unknown := sorted({p for p in phonemes if p not in self.settings.numbers and not p.isspace()}):
            raise InputError(f"phonemes {' '.join(unknown)!r}: the voice has {''.join(self.settings.numbers)}")
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", phonemes.strip()):
            yield from self._fitting(sentence, (most - 3) // 2)

    def _fitting(self, sentence: str, most: int) -> Iterator[list[int]]:
        """Parts of at most ``most`` phonemes, cut between words where that is possible."""
        while len(sentence) > most:
            end = sentence.rfind(" ", 0, most) + 1 or most
            yield self._numbers(sentence[:end].strip())
            sentence = sentence[end:]
        if sentence.strip():
            yield self._numbers(sentence.strip())

    def _numbers(self, phonemes: str) -> list[int]:
        numbers, pad = self.settings.numbers, self.settings.numbers[_PAD]
        inner = [n for p in phonemes for n in (*numbers.get(p, ()), *pad)]
        return [*numbers[_BEGIN], *pad, *inner, *numbers[_END]]

    def _sound(self, numbers: list[int], speed: float) -> Array:
        noise, length, durations = self.settings.scales
        feeds: dict[str, Array] = {
            "input": np.array([numbers], np.int64),
            "input_lengths": np.array([len(numbers)], np.int64),
            "scales": np.array([noise, length / speed, durations], np.float32),
        }
        if "sid" in self.engine.inputs:
            feeds["sid"] = np.array([self.speaker], np.int64)
        (output,) = self.engine.manifest.outputs[:1]
        return np.array(self.engine.run(feeds)[output.name], np.float32).reshape(-1)


def sizes(phonemes: int = 100) -> dict[str, Any]:
    """The arguments of ``tenon.compile`` for a network that takes up to so many phonemes at once."""
    most = 2 * phonemes + 3
    shapes = {"batch_size": 1, "phonemes": f"1..{most}"}
    return {"shapes": shapes, "max": {"*": -(-most * _FRAMES // 2 // _WHOLE) * _WHOLE}}
