"""``tenon run --text``: texts that a voice speaks, or that a network embeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.markup import escape

from tenon.cli.console import console, print_json, table
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.cli.speech_options import SpeechOptions
from tenon.errors import InputError
from tenon.runtime.engine.sound import SUFFIX
from tenon.runtime.engine.wav_file import write_wav
from tenon.runtime.generation.embedder import Embedder
from tenon.runtime.speech.phonemes import phonemes_of
from tenon.runtime.speech.voice import Voice, VoiceSettings, sizes


def run_texts(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    speech: SpeechOptions,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Speak the texts by a voice, or print how alike a network finds them."""
    settings = VoiceSettings.beside(Path(source.model))
    if settings is not None:
        return _speak(source, options, threads, speech, settings, output, as_json=as_json)
    if speech.phonemes or output:
        raise InputError(f"{source.name} is no voice: the settings of one lie beside it, in {source.name}.json")
    return _embed(source, options, threads, speech.text or [], as_json=as_json)


def _embed(
    source: ModelArgument, options: Mapping[str, Any], threads: Threads, texts: Sequence[str], *, as_json: bool
) -> None:
    """Print how alike texts are, by the cosines of the angles between their embeddings."""
    with open_engine(source, options, threads) as engine:
        vectors = np.stack(list(Embedder(engine).embed(texts)))
    alike = np.round(np.asarray(vectors @ vectors.T, np.float64), 4)
    if as_json:
        return print_json({"embeddings": vectors.tolist(), "similarities": alike.tolist()})
    shown = table("text", *map(str, range(1, len(texts) + 1)), right=tuple(range(1, len(texts) + 1)))
    for number, (text, row) in enumerate(zip(texts, alike, strict=True), 1):
        shown.add_row(escape(f"{number} {text}"), *(f"{value:.3f}" for value in row))
    console.print(shown)
    return None


def _speak(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    speech: SpeechOptions,
    settings: VoiceSettings,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    if output is None or output.suffix.lower() != SUFFIX:
        raise InputError("a voice writes a WAV file: name it with --output speech.wav")
    language = speech.language or settings.language
    spoken = speech.phonemes or " ".join(phonemes_of(text, language) for text in speech.text or ())
    how = sizes()
    bound = source if any(source.bindings) else replace(source, bindings=(how["shapes"],), limits=how["max"])
    with open_engine(bound, options, threads) as engine:
        began = perf_counter()
        sound = Voice(engine, settings).speak(spoken)
        seconds = perf_counter() - began
    write_wav(output, sound.samples, sound.rate, "--output")
    length = len(sound.samples) / sound.rate
    if as_json:
        return print_json({"phonemes": spoken, "sound_seconds": length, "rate": sound.rate, "seconds": seconds})
    console.print(f"{output}: {length:.2f} s of sound in {seconds:.2f} s", markup=False, soft_wrap=True)
    return None
