"""``tenon run MODEL speech.wav``, ``tenon run MODEL --stream``: what is said in a sound, at once or as it arrives."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np

from tenon.cli.console import note, print_json
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.cli.speech_options import SpeechOptions
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine.sound import read_sound
from tenon.runtime.speech.live import HeardText, LiveRecognizer
from tenon.runtime.speech.models import DECODER, ENCODER
from tenon.runtime.speech.recognizer import RATE, Recognizer, SpokenText
from tenon.runtime.speech.subtitles import SUFFIXES, clock, write_subtitles

_LARGEST = 1 << 16
"""Bytes that are read from standard input at once."""

_PARTS = 10
"""Parts of a second that a file is cut into, in which it is heard as it would arrive."""


def transcribe(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    path: Path | None,
    speech: SpeechOptions,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print what is said in a sound, or on standard input where there is no ``path``, a piece after another."""
    if output is not None and output.suffix.lower() not in SUFFIXES:
        raise InputError(f"--output {output}: spoken texts are written to {', '.join(SUFFIXES)} files")
    if path is None and sys.stdin.isatty():
        raise InputError(
            "--stream: give a file, or samples on standard input: arecord -q -t raw -f S16_LE -r "
            f"{RATE} | tenon run {source.model} --stream"
        )
    sound = None if path is None else read_sound(path)
    with ExitStack() as stack:
        parts = [
            replace(source, **{field: how.get(field, ()) for field in ("inputs", "outputs")}, bindings=(how["shapes"],))
            for how in (ENCODER, DECODER)
        ]
        encoder, decoder = (stack.enter_context(open_engine(part, options, threads)) for part in parts)
        language = None if speech.language == "auto" else speech.language
        recognizer = Recognizer(encoder, decoder, language)
        began, texts = perf_counter(), list[SpokenText]()
        if speech.stream or sound is None:
            arriving = _standard_input() if sound is None else _in_parts(sound.at(RATE).samples)
            heard = _heard(LiveRecognizer(recognizer), arriving)
            texts += _print_live(heard, times=speech.timestamps, as_json=as_json)
        else:
            for each in recognizer.stream(sound, times=speech.timestamps or output is not None):
                texts.append(each)
                if not as_json:
                    _print_line(each, times=speech.timestamps)
    seconds = perf_counter() - began
    if output is not None:
        write_subtitles(output, texts, "--output")
    if as_json and not speech.stream:
        text = " ".join(each.text for each in texts)
        print_json({"text": text, "seconds": seconds, "segments": [each._asdict() for each in texts]})
    elif sound is not None and sys.stderr.isatty():
        note(f"{len(sound.samples) / sound.rate:.1f} s of sound in {seconds:.1f} s")


def _print_line(text: SpokenText | HeardText, *, times: bool) -> None:
    prefix = f"[{clock(text.start)} --> {clock(text.end)}]  " if times else ""
    sys.stdout.write(f"{prefix}{text.text}\n")
    sys.stdout.flush()


def _print_live(heard: Iterable[HeardText], *, times: bool, as_json: bool) -> Iterator[SpokenText]:
    """Print texts as they are heard, those that may change only at a terminal or as JSON; yields the final ones."""
    for each in heard:
        if as_json:
            sys.stdout.write(json.dumps(each._asdict(), ensure_ascii=False) + "\n")
            sys.stdout.flush()
        elif each.final:
            sys.stdout.write("\r\x1b[K" if sys.stdout.isatty() else "")
            _print_line(each, times=times)
        elif sys.stdout.isatty():
            width = os.get_terminal_size().columns - 1
            sys.stdout.write(f"\r\x1b[K{each.text[-width:]}")
            sys.stdout.flush()
        if each.final:
            yield SpokenText(each.start, each.end, each.text)


def _heard(listener: LiveRecognizer, arriving: Iterable[Array]) -> Iterator[HeardText]:
    """The texts of samples as they arrive; Ctrl-C ends a sound as its end does."""
    try:
        for samples in arriving:
            yield from listener.hear(samples)
    except KeyboardInterrupt:
        if not sys.stdout.isatty():
            raise
    yield from listener.finish()


def _standard_input() -> Iterator[Array]:
    """Samples f32 of -1 to 1, all that have arrived each time: what writes them never waits for the network."""
    arrived: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_all, args=(sys.stdin.fileno(), arrived), daemon=True).start()
    rest, ended = b"", False
    while not ended:
        parts = [arrived.get()]
        while not arrived.empty():
            parts.append(arrived.get())
        ended = not parts[-1]
        data = rest + b"".join(parts)
        whole = len(data) // 2 * 2
        rest = data[whole:]
        yield np.frombuffer(data[:whole], "<i2").astype(np.float32) / np.float32(1 << 15)


def _read_all(file: int, arrived: SimpleQueue[bytes]) -> None:
    """Put what is read from a file into a queue, at last nothing."""
    while data := os.read(file, _LARGEST):
        arrived.put(data)
    arrived.put(b"")


def _in_parts(samples: Array) -> Iterator[Array]:
    step = RATE // _PARTS
    for first in range(0, len(samples), step):
        yield np.asarray(samples[first : first + step], np.float32)
