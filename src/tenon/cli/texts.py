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
from tenon.cli.input_files import InputFiles, read_feeds
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.cli.speech_options import SpeechOptions
from tenon.cli.unused_options import refuse
from tenon.errors import InputError
from tenon.formats.decompositions.transformers.clip import IMAGE_EMBEDDING, TEXT_EMBEDDING
from tenon.network.graph.dtype import Array
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
    files: InputFiles,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Speak the texts by a voice, or print how alike a network finds them."""
    files.check()
    settings = VoiceSettings.beside(Path(source.model))
    if settings is not None:
        refuse({"image": files.given}, "a voice speaks a text")
        return _speak(source, options, threads, speech, settings, output, as_json=as_json)
    if speech.phonemes or output:
        raise InputError(f"{source.name} is no voice: the settings of one lie beside it, in {source.name}.json")
    return _embed(source, options, threads, speech.text or [], files, as_json=as_json)


def _embed(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    texts: Sequence[str],
    files: InputFiles,
    *,
    as_json: bool,
) -> None:
    """Print how alike texts are, or an image and texts, by the cosines of the angles between their embeddings."""
    image = _image_vector(source, options, threads, files) if files.image else None
    part = source if image is None else replace(source, outputs=(TEXT_EMBEDDING,))
    with open_engine(part, options, threads) as engine:
        vectors = np.stack(list(Embedder(engine).embed(texts)))
    others = vectors if image is None else image[None]
    alike = np.round(np.asarray(vectors @ others.T, np.float64), 4)
    if as_json:
        shown_image = {} if image is None else {"image": image.tolist()}
        return print_json({"embeddings": vectors.tolist(), **shown_image, "similarities": alike.tolist()})
    columns = [str(n) for n in range(1, len(texts) + 1)] if image is None else ["image"]
    shown = table("text", *columns, right=tuple(range(1, len(columns) + 1)))
    for number, (text, row) in enumerate(zip(texts, alike, strict=True), 1):
        shown.add_row(escape(f"{number} {text}"), *(f"{value:.3f}" for value in row))
    console.print(shown)
    return None


def _image_vector(source: ModelArgument, options: Mapping[str, Any], threads: Threads, files: InputFiles) -> Array:
    """The embedding f32 [n] of the image."""
    changed = {**options, "preprocess": files.preprocess}
    with open_engine(replace(source, outputs=(IMAGE_EMBEDDING,)), changed, threads) as engine:
        feeds, _ = read_feeds(engine, files, apply_changes=source.bundle)
        return np.array(engine.run(feeds)[IMAGE_EMBEDDING][0], np.float32)


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
