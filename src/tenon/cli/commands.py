"""What the subcommands do, over the public API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tenon
from tenon.bundle import read_manifest
from tenon.cli.opening import Source, Threads, open_engine
from tenon.cli.show import console, count, print_json, size, stages, table
from tenon.engine.image import read_image
from tenon.errors import InputError
from tenon.ir.graph import Array, Graph
from tenon.ir.text import show
from tenon.options import Emit, Options
from tenon.records import plain
from tenon.targets import find


def compile_model(
    source: Source,
    out: Path,
    emit: tuple[Emit, ...],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    began = perf_counter()
    with stages(f"compiling {source.name}") as progress:
        chosen = Options.from_environment(**options)
        model = source.load() if source.sha256 else source.model
        bundle = tenon.compile(model, chosen, weights=source.weights, shapes=source.shapes, progress=progress)
        progress("compile")
        folder = bundle.save(out, emit=(*bundle.parts, "exe") if emit == ("exe",) else emit)
    manifest = read_manifest(folder)
    if as_json:
        return print_json(plain(manifest))
    memory = manifest.memory
    console.print(f"{folder}/ in {perf_counter() - began:.1f} s, for {manifest.target.name}")
    shown = table("", "", right=(1,))
    shown.add_row("weights", size(memory.constant))
    shown.add_row("peak RAM", size(memory.peak))
    shown.add_row("  of it activations", f"{size(memory.activations)} (lower bound {size(memory.bound)})")
    if manifest.size:
        shown.add_row("code", size(manifest.size.code + manifest.size.data))
    for name, file in manifest.files.items():
        shown.add_row(name, size(file.bytes))
    return console.print(shown)


def run_model(
    source: Source,
    options: dict[str, Any],
    threads: Threads,
    image: Path | None,
    picture: dict[str, Any],
    files: dict[str, Path],
    top: int,
    labels: Path | None,
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    engine = open_engine(source, options, threads)
    with engine:
        feeds = _feeds(engine.inputs, image, picture, files)
        names = _labels(labels)
        began = perf_counter()
        results = engine.run(feeds)
        elapsed = perf_counter() - began
    if output:
        _write(output, results)
    answer = {name: _best(array, top, names) for name, array in results.items()}
    if as_json:
        shapes = {name: list(array.shape) for name, array in results.items()}
        return print_json({"seconds": elapsed, "shapes": shapes, "top": answer})
    for name, array in results.items():
        console.print(f"{name} {array.dtype}{list(array.shape)}", markup=False)
        for entry in answer[name]:
            label = entry.get("label", "")
            console.print(f"  {entry['index']!s:>6}  {entry['value']:.6g}  {label}".rstrip(), markup=False)
    return console.print(f"{1e3 * elapsed:.2f} ms")


def inspect_model(
    source: Source,
    options: dict[str, Any],
    dot: Path | None,
    text: Path | None,
    *,
    layers: bool,
    as_json: bool,
) -> None:
    from tenon.pipeline import inspect

    with stages(f"reading {source.name}") as progress:
        graph = source.load()
        description, optimised = inspect(graph, Options.from_environment(**options), progress=progress)
    if dot:
        _save_text(dot, _dot(optimised or graph))
    if text:
        _save_text(text, show(optimised or graph))
    if as_json:
        return print_json(asdict(description))
    for what, tensors in (("input", description.inputs), ("output", description.outputs)):
        for t in tensors:
            console.print(f"{what}  {t.name}  {t.dtype}[{','.join(map(str, t.shape))}]", markup=False)
    shown = table("", "", right=(1,))
    shown.add_row("parameters", f"{count(description.parameters)} ({size(description.parameter_bytes)})")
    shown.add_row("multiply-accumulates", count(description.macs) if optimised else "shapes unbound")
    shown.add_row("peak RAM", size(description.peak_ram))
    shown.add_row("  of it activations", f"{size(description.arena)} (lower bound {size(description.arena_bound)})")
    console.print(shown)
    operators = table("operator", "count", right=(1,))
    for name, n in description.operators.items():
        operators.add_row(name, str(n))
    console.print(operators)
    if layers:
        listed = table("layer", "operator", "output", "MACs", right=(3,))
        for layer in description.layers:
            listed.add_row(layer.name, layer.op, layer.output, count(layer.macs))
        console.print(listed)
    return None


def list_targets(*, as_json: bool) -> None:
    rows = tenon.targets()
    best = find("host").name
    if as_json:
        return print_json(
            {name: {"triple": t.triple, "cpu": t.cpu, "lanes": t.machine.lanes} for name, t in rows.items()}
        )
    shown = table("target", "lanes", "triple", "cpu", right=(1,))
    for name, t in sorted(rows.items()):
        shown.add_row(name + (" (this machine)" if name == best else ""), str(t.machine.lanes), t.triple, t.cpu)
    return console.print(shown)


# --------------------------------------------------------------------------------------------- parts
def _feeds(
    inputs: Mapping[str, Array], image: Path | None, picture: dict[str, Any], files: dict[str, Path]
) -> dict[str, Array]:
    feeds = {}
    for name, path in files.items():
        if not name and len(inputs) != 1:
            raise InputError(
                f"--input {path}: the model has {len(inputs)} inputs: write NAME=FILE with one of {_names(inputs)}"
            )
        feeds[name or next(iter(inputs))] = _read_array(path)
    if image is not None:
        free = [n for n, a in inputs.items() if n not in feeds and a.ndim == 4]
        if len(free) != 1:
            raise InputError(f"--image: {len(free)} inputs could take a picture; inputs are {_names(inputs)}")
        feeds[free[0]] = read_image(image, inputs[free[0]].shape, **picture)
    if not feeds and inputs:
        raise InputError(f"nothing to run on: give --image FILE, or --input NAME=FILE.npy for {_names(inputs)}")
    return feeds


def _names(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in inputs.items())


def _read_array(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a .npy file of numbers ({error})") from None
    return array


def _labels(path: Path | None) -> Sequence[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines() if path else ()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--labels {path}: cannot be read ({error})") from None


def _best(array: Array, top: int, labels: Sequence[str]) -> list[dict[str, Any]]:
    """The largest values; the index is that of the class for one vector, else of the position."""
    flat = array.reshape(-1)
    order = np.argsort(-flat.astype(np.float64), kind="stable")[:top]
    vector = flat.size == array.shape[-1] if array.ndim else True
    found = []
    for i in order:
        at: Any = int(i) if vector else [int(v) for v in np.unravel_index(i, array.shape)]
        entry = {"index": at, "value": float(flat[i])}
        if vector and i < len(labels):
            entry["label"] = labels[i]
        found.append(entry)
    return found


def _write(path: Path, results: dict[str, Array]) -> None:
    try:
        with path.open("wb") as file:
            np.savez(file, **results)  # type: ignore[arg-type]  # names are data
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written ({error.strerror})") from None


def _dot(graph: Graph) -> str:
    from tenon.ir.dot import to_dot

    return to_dot(graph)


def _save_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
