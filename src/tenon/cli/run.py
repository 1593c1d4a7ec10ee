"""``tenon run``: run a model or bundle on input files and print the outputs, as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from tenon.atomic_write import writing
from tenon.cli.console import console, duration, print_json, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, Threads, open_engine_or_device
from tenon.cli.option_groups import OutputOptions
from tenon.cli.parse import read_array, read_labels
from tenon.cli.unused_options import refuse
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.engine.detect import Detection, detections, image_input, raw_boxes, why_none
from tenon.runtime.engine.image import InputImage, read_image

if TYPE_CHECKING:
    from tenon.runtime.engine.device import RemoteBundle


TOP = 5
"""Values of an output that are printed, the largest ones."""


@dataclass(frozen=True)
class InputFiles:
    """The inputs of a run: an image with overrides of its preprocessing, and .npy files by input name ("": the only
    input)."""

    image: Path | None
    preprocess: Mapping[str, Any]
    arrays: Mapping[str, Path]


def run_model(
    source: ModelArgument,
    options: dict[str, Any],
    threads: Threads,
    files: InputFiles,
    output: OutputOptions,
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    if files.preprocess and files.image is None:
        raise InputError(f"--{next(iter(files.preprocess))} is for an image, and none was given")
    if options.get("head") and source.bundle:
        raise InputError(f"--head: {source.model} is compiled already: compile the model again with --head")
    changes = {} if source.bundle else files.preprocess
    if files.arrays and not source.bundle:
        source = replace(source, arrays={name: read_array(path).shape for name, path in files.arrays.items()})
    with (
        where.connected({**options, "preprocess": changes}) as (device, chosen),
        open_engine_or_device(source, chosen, threads, device) as engine,
    ):
        feeds, image = _feeds(engine, files, apply_changes=source.bundle)
        names = read_labels(output.labels) if output.labels else engine.manifest.labels
        began = perf_counter()
        results = engine.run(feeds) if isinstance(engine, Engine) else engine.run([feeds])[0]
        elapsed = perf_counter() - began
        detected = None
        if image is not None and (engine.manifest.heads or output.draw):
            scores = {"threshold": output.threshold, "overlap": output.overlap}
            detected = detections(engine, image, results, **{k: v for k, v in scores.items() if v is not None})
        hint = None
        if image is not None and detected is None and raw_boxes({n: a.shape for n, a in results.items()}):
            hint = why_none(engine)
    _check_used(output, detected)
    top = TOP if output.top is None else output.top
    if output.output:
        _write(output.output, results)
    if output.draw:
        if detected is None or files.image is None:
            raise InputError(f"--draw {output.draw}: there is no image to draw in")
        from tenon.cli.draw import draw

        draw(files.image, detected, names, output.draw)
    if as_json:
        runner = {} if isinstance(engine, Engine) else {"runner": engine.where}
        return print_json({**_json(results, detected, names, top, elapsed), **runner})
    if detected is None:
        _print_best(results, names, top)
    else:
        _print_detections(detected, names)
    console.print(duration(1e3 * elapsed) if isinstance(engine, Engine) else f"on {engine.where}", markup=False)
    if hint:
        Console(stderr=True, highlight=False).print(f"tenon: no detections are listed: {hint}", markup=False)
    return None


def _check_used(output: OutputOptions, detected: list[Detection] | None) -> None:
    """Raises InputError for options of what is not printed."""
    if detected is None:
        options = {"threshold": output.threshold, "overlap": output.overlap}
        refuse(options, "no detections are listed: give an image, and --head where the outputs are not recognised")
    else:
        refuse({"top": output.top}, "detections are listed, not the largest values")


def _json(
    results: Mapping[str, Array], detected: list[Detection] | None, names: Sequence[str], top: int, seconds: float
) -> dict[str, Any]:
    shapes = {name: list(array.shape) for name, array in results.items()}
    answer: dict[str, Any] = {"seconds": seconds, "shapes": shapes}
    if detected is None:
        return {**answer, "top": {name: _best(array, top, names) for name, array in results.items()}}
    listed = [{"class": d.kind, "label": label(d, names), "score": d.score, "box": list(d.box)} for d in detected]
    return {**answer, "detections": listed}


def label(detection: Detection, names: Sequence[str]) -> str:
    """The name of a detection's class, or its number."""
    return names[detection.kind] if 0 <= detection.kind < len(names) else str(detection.kind)


def _print_detections(detected: list[Detection], names: Sequence[str]) -> None:
    shown = table("class", "score", "left", "top", "right", "bottom", right=(1, 2, 3, 4, 5))
    for detection in detected:
        shown.add_row(label(detection, names), f"{detection.score:.3f}", *(f"{edge:.0f}" for edge in detection.box))
    if detected:
        console.print(shown)
    console.print(f"{len(detected)} found")


def _print_best(results: Mapping[str, Array], names: Sequence[str], top: int) -> None:
    for name, array in results.items():
        kind = "string" if array.dtype == object else str(array.dtype)
        console.print(f"{name} {kind}{list(array.shape)}", markup=False)
        for entry in _best(array, top, names):
            value = entry["value"]
            shown = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else f"{value:.6g}"
            text = f"  {entry['index']!s:>6}  {shown}  {entry.get('label', '')}"
            console.print(text.rstrip(), markup=False)


# --------------------------------------------------------------------------------------------- inputs
def _feeds(
    engine: Engine | RemoteBundle, files: InputFiles, *, apply_changes: bool
) -> tuple[dict[str, Array], InputImage | None]:
    """The inputs, and the image among them.  ``apply_changes``: the overrides are not yet part of the bundle."""
    inputs, feeds, image = engine.inputs, {}, None
    for name, path in files.arrays.items():
        if not name and len(inputs) != 1:
            raise InputError(
                f"--input {path}: the model has {len(inputs)} inputs: write NAME=FILE with one of {_names(inputs)}"
            )
        feeds[name or next(iter(inputs))] = read_array(path)
    if files.image is not None:
        name = image_input(engine, without=feeds)
        preprocessing = engine.manifest.preprocessing[name]
        if apply_changes and files.preprocess:
            if preprocessing.within:
                raise InputError("the preprocessing is compiled into this bundle: compile the model again to change it")
            preprocessing = preprocessing.changed(files.preprocess)
        image = read_image(files.image, inputs[name].shape, preprocessing, inputs[name].dtype)
        feeds[name] = image.pixels
    if not feeds and inputs:
        raise InputError(f"nothing to run on: give an image, or --input NAME=FILE.npy for {_names(inputs)}")
    return feeds, image


def _names(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in inputs.items())


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
