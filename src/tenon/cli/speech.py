"""``tenon run MODEL speech.wav`` and ``tenon run VOICE --text``: what is said in a sound, and sound of a text."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tenon.cli.console import note, print_json
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.runtime.engine.sound import read_sound
from tenon.runtime.speech.models import DECODER, ENCODER
from tenon.runtime.speech.recognizer import Recognizer, SpokenText


def transcribe(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    path: Path,
    language: str | None,
    *,
    as_json: bool,
) -> None:
    """Print what is said in a sound, a piece after another."""
    sound = read_sound(path)
    with ExitStack() as stack:
        parts = [
            replace(source, **{field: how.get(field, ()) for field in ("inputs", "outputs")}, bindings=(how["shapes"],))
            for how in (ENCODER, DECODER)
        ]
        encoder, decoder = (stack.enter_context(open_engine(part, options, threads)) for part in parts)
        recognizer = Recognizer(encoder, decoder, language)
        began, segments = perf_counter(), list[SpokenText]()
        for segment in recognizer.stream(sound):
            segments.append(segment)
            if not as_json:
                sys.stdout.write(f"{segment.text}\n")
                sys.stdout.flush()
    seconds = perf_counter() - began
    if as_json:
        text = " ".join(segment.text for segment in segments)
        print_json({"text": text, "seconds": seconds, "segments": [segment._asdict() for segment in segments]})
    elif sys.stderr.isatty():
        note(f"{len(sound.samples) / sound.rate:.1f} s of sound in {seconds:.1f} s")
