"""Fresh processes: time to the first result, memory and native code of each runtime."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import onnx
from contenders import OURS
from prepare import ROOT, MissingError, Workshop
from race import hurry

BARE = ("python", "none")
"""Python alone, and with NumPy."""


@dataclass(frozen=True)
class Fresh:
    """One process: seconds to the first result, processor seconds until then, peak resident bytes, and for every
    library mapped as code the bytes of its file (of its mappings if the file was deleted) and of code."""

    seconds: float
    processor: float
    rss: int
    libraries: dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Start:
    """Fresh processes of one runtime with one network: milliseconds to the first answer (least, median) and of
    processors (least), bytes resident at most, bytes of native libraries (files) and of code in them, beyond those of
    Python with NumPy."""

    runtime: str
    first_ms: float
    median_ms: float
    processor_ms: float
    rss: int
    libraries: int
    code: int
    note: str = ""


@dataclass(frozen=True)
class Comparison:
    """All runtimes with one network, and bare Python."""

    net: str
    starts: list[Start]

    def of(self, runtime: str) -> Start:
        return next(start for start in self.starts if start.runtime == runtime)

    def beyond(self, start: Start, bare: str, measure: str) -> float:
        """``first_ms``, ``processor_ms`` or ``rss`` minus those of ``bare``; libraries and code exclude them
        already."""
        value: float = getattr(start, measure)
        return value if measure in ("libraries", "code") else value - getattr(self.of(bare), measure)

    def ratio(self, measure: str, bare: str = "none", ours: str = "tenon") -> float:
        """Tenon's value relative to the smallest peer's."""
        peers = [s for s in self.starts if s.runtime not in OURS.union(BARE) and s.rss]
        least = min((self.beyond(s, bare, measure) for s in peers), default=float("nan"))
        return self.beyond(self.of(ours), bare, measure) / least


def compare(net: str, runtimes: Sequence[str], shop: Workshop, rounds: int, *, urgent: bool) -> Comparison:
    """Start every runtime in turn, ``rounds`` times.  Raises MissingError if the network is missing."""
    dims = _dims(shop.onnx(net))
    names = (*BARE, *runtimes)
    results: dict[str, list[Fresh]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    models: dict[str, Path] = {}
    for name in names:
        try:
            models[name] = shop.model(name, net)
        except Exception as problem:  # converters raise anything; continue with the others
            notes[name] = str(problem).splitlines()[0]
    for number in range(rounds + 1):
        for name, model in models.items():
            try:
                fresh = start(name, model, dims, shop.python, shop.made / "bytecode", urgent=urgent)
                results[name] += [fresh] if number else []  # the first one reads files from disk and compiles Python
            except MissingError as missing:
                notes[name] = str(missing)
    bare = {Path(library).name for library in results["none"][0].libraries}
    return Comparison(net, [_summary(name, results[name], bare, notes.get(name, "")) for name in names])


def start(runtime: str, model: Path, dims: str, python: Path, bytecode: Path, *, urgent: bool = False) -> Fresh:
    """One fresh process; ``bytecode`` is Python's bytecode cache.  Raises MissingError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(bytecode), "OMP_NUM_THREADS": "1"}
    command = [python, Path(__file__).with_name("first.py"), runtime, model, dims]
    began = perf_counter()
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
        preexec_fn=hurry if urgent else None,
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        answered = process.stdout.read(1) == b"!"
        seconds = perf_counter() - began
        report = process.stdout.read().decode()
        problem = process.stderr.read().decode(errors="replace").strip()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if not answered:
        raise MissingError(problem.splitlines()[-1] if problem else f"died with status {process.returncode}")
    status_text, _, maps = report.partition("\n\n")
    resident = next(line.split()[1] for line in status_text.splitlines() if line.startswith("VmHWM"))
    return Fresh(seconds, used.ru_utime + used.ru_stime, 1024 * int(resident), libraries(maps))


def libraries(maps: str) -> dict[str, tuple[int, int]]:
    """For every library that ``/proc/PID/maps`` shows mapped as code: bytes in all, and of code."""
    results: dict[str, tuple[int, int]] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        begin, end = (int(x, 16) for x in fields[0].split("-"))
        size, code = results.get(fields[5], (0, 0))
        results[fields[5]] = size + end - begin, code + (end - begin) * ("x" in fields[1])
    return {
        name: (Path(name).stat().st_size if Path(name).exists() else size, code)
        for name, (size, code) in results.items()
        if code
    }


def _summary(name: str, runs: list[Fresh], bare: set[str], note: str) -> Start:
    if not runs:
        return Start(name, *[float("nan")] * 3, 0, 0, 0, note)
    own = [sizes for path, sizes in runs[0].libraries.items() if Path(path).name not in bare]
    seconds = [run.seconds for run in runs]
    return Start(
        name, 1e3 * min(seconds), 1e3 * statistics.median(seconds), 1e3 * min(run.processor for run in runs),
        min(run.rss for run in runs), sum(size for size, _ in own), sum(code for _, code in own), note,
    )  # fmt: skip


def _dims(model: Path) -> str:
    given = onnx.load(model, load_external_data=False).graph.input[0].type.tensor_type.shape.dim
    return "x".join(str(d.dim_value or 1) for d in given)


def table(results: Sequence[Comparison]) -> str:
    """Markdown: cost of each runtime minus that of Python with NumPy, and Tenon's relative to the smallest peer's."""
    lines = [
        "| network | runtime | first answer ms (min / median) | beyond NumPy: ms | processor ms | RSS MB | "
        "libraries MB | code MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for comparison in results:
        lines += [_row(comparison, start) for start in comparison.starts]
    measures = ("first_ms", "processor_ms", "rss", "libraries", "code")
    lines += [
        "",
        "Tenon over the smallest peer, beyond Python with NumPy; in brackets beyond bare Python:",
        "",
        "| network | first answer | processor time | RSS | RSS of tenon-small | libraries | code |",
        "|---|---|---|---|---|---|---|",
    ]
    for c in results:
        cells = [
            f"{c.ratio(m):.2f}" + ("" if m in measures[3:] else f" ({c.ratio(m, 'python'):.2f})") for m in measures
        ]
        cells.insert(3, f"{c.ratio('rss', ours='tenon-small'):.2f} ({c.ratio('rss', 'python', 'tenon-small'):.2f})")
        lines.append(f"| {c.net} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _row(comparison: Comparison, start: Start) -> str:
    name = f"| {comparison.net} | {start.runtime}"
    if not start.rss:
        return f"{name} | - | - | - | - | - | {start.note} |"
    times = f"{start.first_ms:.0f} / {start.median_ms:.0f}"
    if start.runtime in BARE:
        return f"{name} | {times} | | {start.processor_ms:.0f} in all | {start.rss / 1e6:.1f} in all | | |"
    beyond = [comparison.beyond(start, "none", measure) for measure in ("first_ms", "processor_ms", "rss")]
    return (
        f"{name} | {times} | {beyond[0]:.0f} | {beyond[1]:.0f} | {beyond[2] / 1e6:.1f} | "
        f"{start.libraries / 1e6:.2f} | {start.code / 1e6:.2f} |"
    )
