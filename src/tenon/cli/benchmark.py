"""``tenon benchmark``: one line of times per network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tenon.cli.benchmark_rows import NetworkRows, TimingSettings
from tenon.cli.console import console, print_json, terminal_width
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, open_to_time
from tenon.cli.tengine_times import TengineRows
from tenon.errors import InputError, TenonError
from tenon.formats.importers import FORMATS
from tenon.runtime.bundle.manifest import FILE as MANIFEST
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.instruction_count import count
from tenon.runtime.engine.streams import run_streams
from tenon.runtime.engine.timing import Times, fill_randomly, measure, sizes_of_runs, time_runs, value_ranges
from tenon.runtime.generation.sequences import has_sequences
from tenon.runtime.generation.text_speed import text_speed
from tenon.tools.devices.facts import DeviceFacts, ask, describe_conditions
from tenon.tools.devices.remote import Connection

FORMATS_OF_TIMES: Mapping[str, type[NetworkRows | TengineRows]] = {"plain": NetworkRows, "tengine": TengineRows}
"""The functions that print the times, by --format."""


def benchmark(
    sources: Sequence[ModelArgument],
    options: Mapping[str, Any],
    timing: TimingSettings,
    where: DeviceChoice = HERE,
    format: str = "plain",
    *,
    as_json: bool,
) -> None:
    """Time every network, or count its instructions where it runs on an emulator.

    Failures are listed with the results, and the first one is raised at the end.
    """
    if not sources:
        raise InputError("no networks to time: name models or bundles, or a folder of them with --zoo")
    names = [Path(source.name).stem for source in sources]
    rows = FORMATS_OF_TIMES[format](names, terminal_width(), timing)
    networks: list[dict[str, Any]] = []
    failures: list[TenonError] = []
    if not as_json:
        rows.begin()
    with where.connected(options) as (device, chosen):
        remote = device if isinstance(device, Connection) else None
        before = None if remote is None else ask(remote)
        for number, source in enumerate(sources):
            try:
                with open_to_time(source, chosen, timing.threads, device) as engine:
                    facts, times = _measured(engine, timing, on_device=device is not None)
                    facts = {"target": engine.manifest.target.name, **facts}
            except TenonError as error:
                failures.append(error)
                facts, times = {"error": str(error)}, None
            networks.append({"model": names[number], **facts})
            if not as_json:
                rows.print(number, facts, times)
        conditions = _conditions(remote, before) if not failures else ""
    if as_json:
        settings = {
            "rounds": timing.rounds,
            "warmup": timing.warmup,
            "threads": timing.threads.count,
            "affinity": list(timing.threads.affinity),
            "cores": timing.threads.cores,
            **({"streams": timing.streams} if timing.streams else {}),
            "unit": "ms",
            "networks": networks,
        }
        print_json({**settings, **({"device": remote.spec.name, "conditions": conditions} if remote else {})})
    elif conditions and remote:
        console.print(f"{remote.name}: {conditions}", markup=False)
    if failures:
        raise failures[0]
    if not as_json:
        rows.end()


def _conditions(device: Connection | None, before: DeviceFacts | None) -> str:
    """Temperature and clock of the device before and after the runs."""
    return "" if device is None or before is None else describe_conditions(before, ask(device))


def _measured(
    engine: Engine | RemoteBundle, timing: TimingSettings, *, on_device: bool
) -> tuple[dict[str, Any], Times | None]:
    """The row that is listed of a network, and its times; None where an emulator on this machine counts its
    instructions."""
    rounds, warmup = timing.rounds, timing.warmup
    if timing.streams:
        return _in_streams(engine, timing, timing.streams)
    if isinstance(engine, RemoteBundle) and engine.emulated and not on_device:
        return {"instructions": _instructions(engine), "runner": engine.where}, None
    if isinstance(engine, RemoteBundle):
        times = engine.time(rounds, warmup)
        return {**times.summary(), "runner": engine.where}, times
    facts, times = _on_gpu(engine, rounds, warmup) if engine.on_device else _here(engine, rounds, warmup)
    sizes = sizes_of_runs(engine)
    return {**facts, **({"sizes": sizes} if sizes else {}), **_text_speed(engine, rounds, warmup)}, times


def _here(engine: Engine, rounds: int, warmup: int) -> tuple[dict[str, Any], Times]:
    times = time_runs(engine, rounds, warmup)[1]
    return times.summary(), times


def _text_speed(engine: Engine, rounds: int, warmup: int) -> dict[str, Any]:
    """Tokens per second of a language model of one sequence; empty for other networks."""
    text = engine.text
    if text is None or text.kind != "decoder" or has_sequences(engine):
        return {}
    with suppress(InputError):  # caches of a fixed number of tokens, or inputs that a text does not give
        return {"text": text_speed(engine, text, rounds, warmup).json()}
    return {}


def _in_streams(engine: Engine | RemoteBundle, timing: TimingSettings, streams: int) -> tuple[dict[str, Any], Times]:
    """The times of runs while others run, and how many inputs a second they take together."""
    if isinstance(engine, RemoteBundle) or engine.on_device:
        raise InputError("--streams: several inputs at once run on this machine's processor only")
    measured = run_streams(engine, streams, timing.rounds, timing.warmup, timing.threads.affinity)
    return {**measured.times.summary(), "inputs_per_second": measured.inputs_per_second}, measured.times


def _on_gpu(engine: Engine, rounds: int, warmup: int) -> tuple[dict[str, Any], Times]:
    """The times of runs, the device, and milliseconds for its creation (kernels built, weights copied) and, by its
    clock, for copies of the inputs, kernels, and copies of the outputs."""
    creation = measure(engine.prepare, 1).first
    times = time_runs(engine, rounds, warmup)[1]
    upload, download, *kernels = engine.device_times() / 1e6
    parts = {"create": creation, "upload": upload, "kernels": sum(kernels), "download": download}
    device = engine.device
    named = {"device": asdict(device)} if device else {}
    return {**times.summary(), **{k: float(v) for k, v in parts.items()}, **named}, times


def _instructions(device: RemoteBundle) -> int:
    """The instructions of one run on random input: an emulator's times do not predict those of a real machine."""
    inputs = device.inputs
    fill_randomly(inputs, value_ranges(device.manifest.inputs))
    return count(device.bundle, [inputs]).instructions[0]


def models_in(folder: Path) -> list[str]:
    """The models in a folder, by name: files of a known format, folders that are bundles or models.

    Raises InputError if there are none.
    """
    try:
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise InputError(f"--zoo {folder}: cannot be read ({error.strerror})") from None
    patterns = [pattern for format in FORMATS.values() for pattern in format.main]
    models = [
        str(p) for p in entries if any(fnmatch(p.name, pattern) for pattern in patterns) or (p / MANIFEST).is_file()
    ]
    if not models:
        raise InputError(f"--zoo {folder}: holds no bundle and no model ({', '.join(patterns)})")
    return models
