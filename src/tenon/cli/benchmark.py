"""``tenon benchmark``: a line of times per network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tenon.bundle.manifest import FILE as MANIFEST
from tenon.cli.opening import Source, Threads, open_engine
from tenon.cli.show import console, print_json
from tenon.engine.timing import Times, time_runs
from tenon.errors import InputError, TenonError
from tenon.frontends import FORMATS

_NUMBERS = ("min", "max", "avg", "std", "median")


def benchmark(
    sources: Sequence[Source],
    options: Mapping[str, Any],
    threads: Threads,
    rounds: int,
    warmup: int,
    *,
    as_json: bool,
) -> None:
    """Time every network; one that fails is told of in its place, and at the end the first failure is raised."""
    if not sources:
        raise InputError("no networks to time: name models or bundles, or a folder of them with --zoo")
    if not as_json:
        console.print(f"loop_counts = {rounds}\nwarm_up     = {warmup}\nnum_threads = {threads.count}", markup=False)
        console.print(f"power       = {threads.cores}" + (f" {list(threads.affinity)}" if threads.affinity else ""))
    rows: list[dict[str, Any]] = []
    failures: list[TenonError] = []
    for source in sources:
        name = Path(source.name).stem
        try:
            with open_engine(source, options, threads, only_speed=True) as engine:
                _, times = time_runs(engine, rounds, warmup)
                rows.append({"model": name, "target": engine.manifest.target.name, **times.summary()})
                told = line(name, times)
        except TenonError as error:
            failures.append(error)
            rows.append({"model": name, "error": str(error)})
            told = f"{name:>20s}  failed: {str(error).splitlines()[0]}"
        if not as_json:
            console.print(told, markup=False, soft_wrap=True)
    if as_json:
        print_json(
            {
                "rounds": rounds,
                "warmup": warmup,
                "threads": threads.count,
                "affinity": list(threads.affinity),
                "cores": threads.cores,
                "unit": "ms",
                "networks": rows,
            }
        )
    if failures:
        raise failures[0]
    if not as_json:
        console.print("ALL TEST DONE")


def line(name: str, times: Times) -> str:
    """One network's line, milliseconds."""
    numbers = times.summary()
    return f"{name:>20s}" + "".join(f"  {word} = {numbers[word]:7.2f} ms" for word in _NUMBERS)


def zoo(folder: Path) -> list[str]:
    """The models in a folder, by name: files of a known format, folders that are bundles or models.

    Raises InputError if there are none.
    """
    try:
        entries = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    except OSError as error:
        raise InputError(f"--zoo {folder}: cannot be read ({error.strerror})") from None
    patterns = [pattern for format in FORMATS.values() for pattern in format.main]
    found = [
        str(p) for p in entries if any(fnmatch(p.name, pattern) for pattern in patterns) or (p / MANIFEST).is_file()
    ]
    if not found:
        raise InputError(f"--zoo {folder}: holds no bundle and no model ({', '.join(patterns)})")
    return found
