"""``tenon run``: run a model or bundle on input files and print the outputs, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tenon.atomic_write import writing
from tenon.cli.answers import decoded_answer, print_answer
from tenon.cli.console import console, duration, print_json
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.input_files import InputFiles, read_feeds
from tenon.cli.model_source import ModelArgument, Threads, open_engine_or_device
from tenon.cli.option_groups import OutputOptions
from tenon.cli.parse import read_array, read_labels
from tenon.cli.sequences import length, run_sequence
from tenon.cli.speech_options import SILENT, SpeechOptions
from tenon.cli.unused_options import refuse
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.engine.detect import raw_boxes, why_none
from tenon.runtime.speech.model_folder import speech_model
from tenon.runtime.speech.voice import VoiceSettings

if TYPE_CHECKING:
    from tenon.runtime.answers.answer import Answer
    from tenon.runtime.engine.device import RemoteBundle


TOP = 5
"""Values of an output that are printed, the largest ones."""


def run_model(
    source: ModelArgument,
    options: dict[str, Any],
    threads: Threads,
    files: InputFiles,
    output: OutputOptions,
    where: DeviceChoice = HERE,
    speech: SpeechOptions = SILENT,
    *,
    as_json: bool,
) -> None:
    files.check()
    if options.get("head") and source.bundle:
        raise InputError(f"--head: {source.model} is compiled already: compile the model again with --head")
    model = speech_model(Path(source.model))
    if model and not files.arrays and not (files.sound or speech.stream):
        raise InputError(
            f"{source.name} writes down speech: give a sound (.wav), or samples on standard input with --stream"
        )
    if model and (files.sound or speech.stream):
        from tenon.cli.speech import transcribe

        unused: dict[str, Any] = {
            "image": files.image,
            "draw": output.draw,
            "top": output.top,
            "threshold": output.threshold,
        }
        refuse({**unused, "input": files.arrays, "features": files.live.features}, "speech is written down")
        spoken = replace(source, model=str(model))
        return transcribe(spoken, options, threads, files.sound, speech, output.output, as_json=as_json)
    if not files.arrays and VoiceSettings.beside(Path(source.model)):
        raise InputError(f"{source.name} speaks texts: give one with --text, and --output speech.wav for the sound")
    unused = {"language": speech.language, "timestamps": speech.timestamps, "stream": speech.stream}
    refuse(unused, "no speech is written down or spoken")
    changes = {} if source.bundle else files.preprocess
    if files.arrays and not source.bundle:
        source = replace(source, arrays={name: read_array(path).shape for name, path in files.arrays.items()})
    with (
        where.connected({**options, "preprocess": changes}) as (device, chosen),
        open_engine_or_device(source, chosen, threads, device) as engine,
    ):
        names = read_labels(output.labels) if output.labels else engine.manifest.labels
        if files.sound or files.frames:
            return _run_over_time(engine, files, names, output, apply_changes=source.bundle, as_json=as_json)
        feeds, image = read_feeds(engine, files, apply_changes=source.bundle)
        began = perf_counter()
        if count := length(engine, feeds):
            results = run_sequence(engine, feeds, count)
        else:
            results = engine.run(feeds) if isinstance(engine, Engine) else engine.run([feeds])[0]
        elapsed = perf_counter() - began
        results = {name: array.copy() for name, array in results.items()} if files.live.match else results
        match = _matched(engine, files, apply_changes=source.bundle)
        decoded = decoded_answer(engine, feeds, results, image, names, output, match)
        hint = None
        if image is not None and decoded is None and raw_boxes({n: a.shape for n, a in results.items()}):
            hint = why_none(engine)
        if image is not None and decoded is None and output.draw:
            raise InputError(f"--draw {output.draw}: nothing is recognised that could be drawn: {why_none(engine)}")
    _check_used(output, decoded)
    if output.output:
        _write(output.output, results)
    if output.draw:
        if decoded is None or decoded.draw is None or files.image is None:
            raise InputError(f"--draw {output.draw}: there is no image to draw in")
        from tenon.cli.draw import draw

        draw(files.image, decoded, output.draw)
    top = TOP if output.top is None else output.top
    if as_json:
        runner = {} if isinstance(engine, Engine) else {"runner": engine.where}
        return print_json({**_json(results, decoded, names, top, elapsed), **runner})
    if decoded is None:
        _print_best(results, names, top)
    else:
        print_answer(decoded)
    console.print(duration(1e3 * elapsed) if isinstance(engine, Engine) else f"on {engine.where}", markup=False)
    if hint:
        Console(stderr=True, highlight=False).print(f"tenon: no detections are listed: {hint}", markup=False)
    return None


def _run_over_time(
    engine: Engine | RemoteBundle,
    files: InputFiles,
    names: Sequence[str],
    output: OutputOptions,
    *,
    apply_changes: bool,
    as_json: bool,
) -> None:
    """Run on a sound, or on frames."""
    if not isinstance(engine, Engine):
        raise InputError(
            f"{files.given or '--camera'}: sounds and videos run on this machine only, not on {engine.where}"
        )
    refuse({"output": output.output}, "it writes the outputs of one run")
    if files.sound:
        from tenon.cli.hear import hear

        refuse({"draw": output.draw, "overlap": output.overlap, "top": output.top}, "a sound is heard")
        return hear(engine, files.sound, files.live.features, names, output.threshold, as_json=as_json)
    from tenon.cli.live import watch

    assert files.frames is not None
    return watch(engine, files.frames, files.preprocess if apply_changes else {}, names, output, as_json=as_json)


def _matched(engine: Engine | RemoteBundle, files: InputFiles, *, apply_changes: bool) -> dict[str, Array] | None:
    """The outputs for the image to compare with, if there is one."""
    if files.live.match is None:
        return None
    second = replace(files, given=files.live.match)
    others, _ = read_feeds(engine, second, apply_changes=apply_changes)
    results = engine.run(others) if isinstance(engine, Engine) else engine.run([others])[0]
    return {name: array.copy() for name, array in results.items()}


def _check_used(output: OutputOptions, decoded: Answer | None) -> None:
    """Raises InputError for options of what is not printed."""
    if decoded is None:
        options = {"threshold": output.threshold, "overlap": output.overlap}
        refuse(options, "no detections are listed: give an image, and --head where the outputs are not recognised")
    elif "classes" not in decoded.data:
        listed = "detections are" if "detections" in decoded.data else "an answer is"
        refuse({"top": output.top}, f"{listed} listed, not the largest values")


def _json(
    results: Mapping[str, Array], decoded: Answer | None, names: Sequence[str], top: int, seconds: float
) -> dict[str, Any]:
    shapes = {name: list(array.shape) for name, array in results.items()}
    answer: dict[str, Any] = {"seconds": seconds, "shapes": shapes}
    if decoded is None or "classes" in decoded.data:
        answer["top"] = {name: _best(array, top, names) for name, array in results.items()}
    return {**answer, **({} if decoded is None else decoded.data)}


def _print_best(results: Mapping[str, Array], names: Sequence[str], top: int) -> None:
    for name, array in results.items():
        kind = "string" if array.dtype == object else str(array.dtype)
        console.print(f"{name} {kind}{list(array.shape)}", markup=False, soft_wrap=True)
        for entry in _best(array, top, names):
            value = entry["value"]
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:.6g}"
            text = f"  {entry['index']!s:>6}  {shown}  {entry.get('label', '')}"
            console.print(text.rstrip(), markup=False)


def _best(array: Array, top: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The largest values, of strings the first; the index is that of the class for one vector, else of the position."""
    flat, text = array.reshape(-1), array.dtype == object
    order = np.arange(flat.size)[:top] if text else np.argsort(-flat.astype(np.float64), kind="stable")[:top]
    vector = flat.size == array.shape[-1] if array.ndim else True
    entries = []
    for i in order:
        position: Any = int(i) if vector else [int(v) for v in np.unravel_index(i, array.shape)]
        entry = {"index": position, "value": flat[i] if text else float(flat[i])}
        if vector and i < len(labels):
            entry["label"] = labels[i]
        entries.append(entry)
    return entries


def _write(path: Path, results: dict[str, Array]) -> None:
    plain = {name: a.astype(np.str_) if a.dtype == object else a for name, a in results.items()}
    with writing(path, "--output") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]  # names are data
