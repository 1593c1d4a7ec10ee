"""``tenon benchmark``: one line of times per network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tenon.cli.console import console, duration, print_json, terminal_width, time_unit
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, Threads, open_engine_or_device
from tenon.cli.text_table import shortened
from tenon.errors import InputError, TenonError
from tenon.formats.importers import FORMATS
from tenon.runtime.bundle.manifest import FILE as MANIFEST
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.instruction_count import count
from tenon.runtime.engine.timing import Times, fill_randomly, time_runs
from tenon.tools.devices.facts import DeviceFacts, ask, describe_conditions
from tenon.tools.devices.remote import Connection

_NUMBERS = ("min", "max", "avg", "std", "median")
_CELL = 11  # characters of a number and its unit, in a table


def benchmark(
    sources: Sequence[ModelArgument],
    options: Mapping[str, Any],
    threads: Threads,
    rounds: int,
    warmup: int,
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    """Time every network, or count its instructions where it runs on an emulator.

    Failures are listed with the results, and the first one is raised at the end.
    """
    if not sources:
        raise InputError("no networks to time: name models or bundles, or a folder of them with --zoo")
    rows = _Rows([Path(source.name).stem for source in sources], terminal_width())
    networks: list[dict[str, Any]] = []
    failures: list[TenonError] = []
    if not as_json:
        _print_settings(rounds, warmup, threads)
        rows.print_heading()
    with where.connected(options) as (device, chosen):
        before = None if device is None else ask(device)
        for number, source in enumerate(sources):
            try:
                with open_engine_or_device(source, chosen, threads, device, only_speed=True) as engine:
                    facts, times = _measured(engine, rounds, warmup, on_device=device is not None)
                    facts = {"target": engine.manifest.target.name, **facts}
            except TenonError as error:
                failures.append(error)
                facts, times = {"error": str(error)}, None
            networks.append({"model": rows.names[number], **facts})
            if not as_json:
                rows.print(number, facts, times)
        conditions = _conditions(device, before) if not failures else ""
    if as_json:
        settings = {
            "rounds": rounds,
            "warmup": warmup,
            "threads": threads.count,
            "affinity": list(threads.affinity),
            "cores": threads.cores,
            "unit": "ms",
            "networks": networks,
        }
        print_json({**settings, **({"device": device.spec.name, "conditions": conditions} if device else {})})
    elif conditions and device:
        console.print(f"{device.name}: {conditions}", markup=False)
    if failures:
        raise failures[0]
    if not as_json:
        console.print("ALL TEST DONE")


def _print_settings(rounds: int, warmup: int, threads: Threads) -> None:
    console.print(f"loop_counts = {rounds}\nwarm_up     = {warmup}\nnum_threads = {threads.count}", markup=False)
    console.print(f"power       = {threads.cores}" + (f" {list(threads.affinity)}" if threads.affinity else ""))


class _Rows:
    """The rows of networks by number: one self-contained line each, or, where the terminal is narrower than that, a
    table with a heading and shortened names."""

    def __init__(self, names: Sequence[str], width: int | None) -> None:
        self.names = names
        self._narrow = width is not None and width < len(line("", Times((1.0,))))
        self._shown = shortened(names, max(12, (width or 0) - _CELL * len(_NUMBERS))) if self._narrow else names
        self._longest = max(map(len, self._shown))

    def print_heading(self) -> None:
        if self._narrow:
            console.print(row("", _NUMBERS, self._longest), markup=False, soft_wrap=True)

    def print(self, number: int, facts: Mapping[str, Any], times: Times | None) -> None:
        """The times, else an error's first line or a count of instructions."""
        name = self._shown[number]
        if times is None:
            text = (
                f"failed: {facts['error'].splitlines()[0]}"
                if "error" in facts
                else (f"{facts['instructions']:,} instructions on {facts['runner']}")
            )
            text = f"{name:>20s}  {text}"
        elif self._narrow:
            text = row(name, [duration(float(facts[statistic])) for statistic in _NUMBERS], self._longest)
        else:
            text = line(name, times)
        console.print(text, markup=False, soft_wrap=not self._narrow)


def _conditions(device: Connection | None, before: DeviceFacts | None) -> str:
    """Temperature and clock of the device before and after the runs."""
    return "" if device is None or before is None else describe_conditions(before, ask(device))


def _measured(
    engine: Engine | RemoteBundle, rounds: int, warmup: int, *, on_device: bool
) -> tuple[dict[str, Any], Times | None]:
    """What is listed of a network, and its times; None where its instructions are counted, on an emulator of this
    machine."""
    if isinstance(engine, RemoteBundle) and engine.emulated and not on_device:
        return {"instructions": _instructions(engine), "runner": engine.where}, None
    times = engine.time(rounds, warmup) if isinstance(engine, RemoteBundle) else time_runs(engine, rounds, warmup)[1]
    return {**times.summary(), **({"runner": engine.where} if isinstance(engine, RemoteBundle) else {})}, times


def _instructions(device: RemoteBundle) -> int:
    """The instructions of one run on random input: an emulator's times do not predict those of a real machine."""
    inputs = device.inputs
    fill_randomly(inputs, {t.name: t.range for t in device.manifest.inputs if t.range is not None})
    return count(device.bundle, [inputs]).instructions[0]


def line(name: str, times: Times) -> str:
    """One network's line."""
    cells = []
    for statistic in _NUMBERS:
        unit, scale = time_unit(number := float(times.summary()[statistic]))
        cells.append(f"  {statistic} = {scale * number:7.2f} {unit}")
    return f"{name:>20s}" + "".join(cells)


def row(name: str, cells: Sequence[str], width: int) -> str:
    """A row of the table for narrow terminals."""
    return f"{name:<{width}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)


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
