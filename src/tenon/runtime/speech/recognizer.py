"""Speech to text: an encoder that runs once for a piece of sound, a decoder that runs once for a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.manifest import size_ranges
from tenon.runtime.engine import Engine
from tenon.runtime.engine.sound import Sound
from tenon.runtime.speech.pieces import pieces
from tenon.runtime.speech.timestamps import TimestampRules
from tenon.runtime.text.speech_tokens import SpeechTokens
from tenon.runtime.text.tokenizer import TextTokenizer

RATE = 16000
"""Samples in a second that the networks take."""

_MULTILINGUAL = 51865
"""Logits of the smallest Whisper network for several languages; those for English have the tokens all the same."""

_POSITIONS = "positions"
"""The decoder's size for the positions of the encoded sound, where these differ."""


class SpokenText(NamedTuple):
    """The words that are said from ``start`` to ``end``, in seconds."""

    start: float
    end: float
    text: str


class Recognizer:
    """Speech to text by an encoder and a decoder of the same model.

    The encoder takes ``samples`` and gives the ``cross`` tensors that the decoder takes beside one token.  ``language``
    is that of the sound ("en"), for networks of several; None: the network says it for each piece.  Raises InputError
    for networks of another kind, and for an unknown language.
    """

    def __init__(self, encoder: Engine, decoder: Engine, language: str | None = None) -> None:
        text = decoder.text
        if text is None or text.kind != "encoder-decoder" or "samples" not in encoder.inputs:
            raise InputError(f"'{decoder.name}' is no network for speech to text")
        self.encoder, self.decoder, self.settings = encoder, decoder, text
        self.tokenizer = TextTokenizer.of(text)
        self._cross = [t.name for t in encoder.manifest.outputs if t.name in decoder.inputs]
        self._tokens = SpeechTokens.of(text, self.tokenizer.definition)
        logits = next(t for t in decoder.manifest.outputs if t.name == "logits")
        self._languages = self._tokens.languages if logits.shape[-1] >= _MULTILINGUAL else {}
        if language and not self._languages:
            raise InputError(f"'{decoder.name}' knows one language only: leave out the language '{language}'")
        if language and language not in self._languages:
            raise InputError(f"the language '{language}' is not known; there are {', '.join(self._languages)}")
        self.language = language
        first_time = self._tokens.first_time
        self.rules = None if first_time is None else TimestampRules(first_time, self._tokens.end)
        self._never = np.array(self._tokens.never, np.int64)
        self._never_timed = np.array(self._tokens.times, np.int64)

    @property
    def longest(self) -> float:
        """The seconds of a piece at most."""
        return float(self.encoder.inputs["samples"].shape[1] / RATE)

    def stream(self, sound: Sound, *, times: bool = False) -> Iterator[SpokenText]:
        """The text that is said in a sound of any length and rate, a piece after another; with ``times``, each sentence
        or part of one with its own times, where the network knows them.  Raises InputError for what is no ``Sound``."""
        if not isinstance(sound, Sound):
            raise InputError("give a Sound: read_sound(path), or Sound(samples, rate)")
        samples = sound.at(RATE).samples
        for start, end in pieces(samples, RATE, self.longest):
            for first, last, tokens in self.segments(samples[start:end], times=times):
                yield SpokenText(start / RATE + first, start / RATE + last, self.text(tokens).strip())

    def segments(self, samples: Array, *, times: bool = False) -> list[tuple[float, float, list[int]]]:
        """Beginning and end in seconds, and tokens, of what is said in samples [n] of a piece: of all of it, or of its
        parts."""
        tokens, seconds = self.tokens(samples, times=times), len(samples) / RATE
        return self.rules.segments(tokens, seconds) if times and self.rules else [(0.0, seconds, tokens)]

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, without special ones and times."""
        return self.tokenizer.decode(token for token in tokens if token not in self._tokens.times)

    def tokens(self, samples: Array, most: int | None = None, *, times: bool = False) -> list[int]:
        """The likeliest token after each other for samples [n] of a piece, ``most`` at most; with ``times``, tokens of
        times among them, where the network knows them."""
        self._encode(samples)
        self.decoder.reset()
        rules = self.rules if times else None
        start = self._start(times=rules is not None)
        room = _room(self.decoder) - len(start)
        logits, made = self._steps(start), list[int]()
        ends = set(self.settings.eos)
        while len(made) < min(room, most or room):
            token = int(self._allowed(logits, made, rules).argmax())
            if token in ends:
                break
            made.append(token)
            logits = self._steps([token])
        return made

    def _encode(self, samples: Array) -> None:
        """Run the encoder and hand its results to the decoder."""
        shape = self.encoder.inputs["samples"].shape
        given = np.zeros((1, self._length(len(samples), shape[1])), np.float32)
        given[0, : len(samples)] = samples
        results = self.encoder.run({"samples": given}, copy=False)
        for name in self._cross:
            array = results[name]
            self.decoder.inputs[name][tuple(map(slice, array.shape))] = array
        if _POSITIONS in self.decoder.inputs:
            self.decoder.inputs[_POSITIONS][...] = results[self._cross[0]].shape[2]

    def _length(self, count: int, most: int) -> int:
        """The samples that are given to the encoder for a piece of ``count``, silence behind it."""
        least = next((size.least for size in size_ranges(self.encoder.manifest.inputs).values()), most)
        return min(most, max(count, least))

    def _start(self, *, times: bool) -> list[int]:
        """The tokens that the decoder begins with."""
        start = list(self.settings.start)
        if self._languages:
            spoken = self._languages.get(self.language or "") or self._spoken(start)
            start += [spoken, *_listed(self._tokens.transcribe)]
        return start + ([] if times else _listed(self._tokens.no_times))

    def _spoken(self, start: list[int]) -> int:
        """The token of the likeliest language."""
        logits = self._steps(start)
        self.decoder.reset()
        return max(self._languages.values(), key=lambda token: float(logits[token]))

    def _steps(self, tokens: list[int]) -> Array:
        """Add tokens to the caches; the logits behind the last one."""
        logits = np.empty(0, np.float32)
        for token in tokens:
            self.decoder.inputs["tokens"][...] = token
            logits = self.decoder.run(copy=False)["logits"]
        return np.array(logits).reshape(-1)

    def _allowed(self, logits: Array, made: Sequence[int], rules: TimestampRules | None) -> Array:
        """The logits without those of tokens that do not follow."""
        first = np.array(() if made else self.settings.suppressed_first, np.int64)
        for tokens in (self._never, first, *(() if rules else (self._never_timed,))):
            logits[tokens[tokens < len(logits)]] = -np.inf
        if rules is not None:
            rules.apply(logits, made)
        return logits


def _room(decoder: Engine) -> int:
    """The tokens that the caches have room for."""
    return next(t.shape[2] for t in decoder.manifest.inputs if t.state and len(t.shape) == 4)


def _listed(token: int | None) -> list[int]:
    return [] if token is None else [token]
