"""Compile and run random graphs at every optimisation level; compare with onnxruntime and the NumPy references.

scripts/fuzz --minutes 5             run for five minutes
scripts/fuzz --graphs 10000          run ten thousand graphs
scripts/fuzz --seed 4711 --graphs 1  reproduce one graph
scripts/fuzz --cluster tcp://host:8786  run batches on the workers of a Dask scheduler, each with a checkout
scripts/fuzz --quantised            fuzz quantised graphs, bit for bit, on this machine and on emulated ones
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic

from fuzzing.batch import BATCH
from fuzzing.cluster import Batch, on_pool
from fuzzing.judge import Configuration, Report, judge_apart
from fuzzing.quantised import TARGETS as QUANTISED_TARGETS
from fuzzing.quantised import judge_quantised, quantised
from tenon.errors import ToolchainError
from tenon.machine.targets import targets
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import Compiler, find
from tenon.network.graph.types import DType
from tenon.options import Options, Precision
from tenon.tools.cluster import open_pool

PRECISIONS = ("fp32", "fp16", "bf16")
ORDER: tuple[Precision, ...] = ("fp32", "fp32", "fp16", "fp32", "bf16")
COMPILERS = ("gcc", "clang", "zig")
HOSTS = {
    name: row.host
    for name, row in targets().items()
    if row.host and row.backend == "c" and not row.machine.multiplies(DType.BF16, 2)
}
TARGETS = sorted(HOSTS, key=lambda name: (-len(HOSTS[name].features), name))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="stop after that long")
    parser.add_argument("--graphs", type=int, help="stop after that many (10000 if there is no --minutes)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; graph i has seed SEED + i")
    parser.add_argument("--quantised", action="store_true", help="quantised graphs in integers, by all arithmetics")
    parser.add_argument(
        "--target", help="one of this machine's targets (--quantised: any, with commas); else each in turn"
    )
    parser.add_argument("--threads", type=int, help="threads of every program; else 1 and 3 in turn")
    parser.add_argument("--precision", choices=PRECISIONS, help="of every program; else each in turn, mostly fp32")
    parser.add_argument("--compiler", help="the C compiler; else zig, gcc and clang in turn, as far as installed")
    parser.add_argument("--cluster", help="address of a Dask scheduler, or local:N, whose workers run the batches")
    parser.add_argument("--log", type=Path, help="append a line of JSON per batch here, and go on after its last seed")
    parser.add_argument("--show", action="store_true", help="print the graphs of findings")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args()
    if given.graphs is None and given.minutes is None:
        given.graphs = 10_000
    return given


def compilers(given: argparse.Namespace) -> list[Compiler]:
    """The given compilers, or all installed ones.  Raises ToolchainError for a missing one."""
    if given.compiler:
        return [named(given.compiler)]
    commands = []
    for name in COMPILERS:
        with suppress(ToolchainError):
            commands.append(named(name))
    return commands


def named(name: str) -> Compiler:
    """A compiler command, or the bundled zig.  Raises ToolchainError."""
    return find(Options.from_environment(compiler=None if name == "zig" else name))


def batches(given: argparse.Namespace, first: int) -> Iterator[tuple[range, Configuration]]:
    """Seeds of each batch and how they are compiled, determined by the seed alone."""
    here, with_them = [name for name in TARGETS if runs_here(name)], compilers(given)
    end = given.seed + given.graphs if given.graphs is not None else sys.maxsize
    while first < end:
        number = first // BATCH
        last = min(end, (number + 1) * BATCH)
        turn = number // len(here)
        target, threads = given.target or here[number % len(here)], given.threads or (1, 3)[turn % 2]
        precision = given.precision or ORDER[(number + turn) % len(ORDER)]
        yield range(first, last), Configuration(target, threads, precision, with_them[number % len(with_them)])
        first = last


def quantised_reports(given: argparse.Namespace, first: int) -> Iterator[tuple[range, str, Report]]:
    """Seeds of each batch of quantised graphs, its targets, and what was found."""
    end = given.seed + given.graphs if given.graphs is not None else sys.maxsize
    chosen = given.target or ",".join(QUANTISED_TARGETS)
    with tempfile.TemporaryDirectory(prefix="tenon-fuzz-") as cache:
        for seeds in starts(first, end):
            yield seeds, chosen, judge_quantised(seeds, chosen.split(","), Path(cache))


def cluster_reports(given: argparse.Namespace, first: int) -> Iterator[tuple[range, str, Report]]:
    """The same as ``reports``, in the same order, from the workers of a cluster."""
    end = given.seed + given.graphs if given.graphs is not None else sys.maxsize
    asked: Iterator[Batch]
    if given.quantised:
        asked = (Batch(s, given.target or ",".join(QUANTISED_TARGETS), ("--quantised",)) for s in starts(first, end))
    else:
        asked = (Batch(seeds, way.target, options(way)) for seeds, way in batches(given, first))
    with open_pool(given.cluster) as pool:
        for batch, report in on_pool(pool, asked):
            yield batch.seeds, batch.target, report


def starts(first: int, end: int) -> Iterator[range]:
    """The seeds of each batch."""
    while first < end:
        seeds = range(first, min(end, (first // BATCH + 1) * BATCH))
        yield seeds
        first = seeds.stop


def options(way: Configuration) -> tuple[str, ...]:
    """The options of this program that select a configuration."""
    return "--threads", str(way.threads), "--precision", way.precision, "--compiler", way.compiler_name


def reports(given: argparse.Namespace, first: int) -> Iterator[tuple[range, str, Report]]:
    """Seeds of each batch, its target, and what was found."""
    if given.cluster:
        yield from cluster_reports(given, first)
        return
    if given.quantised:
        yield from quantised_reports(given, first)
        return
    for seeds, way in batches(given, first):
        yield seeds, way.target, judge_apart(seeds, way)


def resumed(log: Path | None, seed: int) -> tuple[int, Report]:
    """The next seed, and the reports in the log."""
    report = Report()
    for line in log.read_text().splitlines() if log and log.exists() else ():
        record = json.loads(line)
        seed = max(seed, int(record["next"]))
        report.add(Report.of(record["report"]))
    return seed, report


def main() -> int:
    given = arguments()
    first, report = resumed(given.log, given.seed)
    began, before = monotonic(), report.graphs
    for seeds, target, batch in reports(given, first):
        report.add(batch)
        if given.log:
            with given.log.open("a") as out:
                out.write(json.dumps({"next": seeds[-1] + 1, "target": target, "report": batch.record()}) + "\n")
        if not given.json:
            progress(batch, report, seeds, (report.graphs - before) / (monotonic() - began))
        if given.minutes is not None and monotonic() - began > 60 * given.minutes:
            break
    if given.json:
        print(json.dumps(report.record(), indent=1))
    elif given.show:
        show(report)
    return 1 if report.findings else 0


def progress(batch: Report, report: Report, seeds: range, speed: float) -> None:
    for finding in batch.findings:
        level = f" at -O{finding.level}" if finding.level >= 0 else ""
        print(f"{finding.kind}{level}: {finding.what}\n    {finding.command}")
    shares = f"onnxruntime answered {report.answered}, excused {sum(report.excused.values())}"
    print(
        f"seeds to {seeds[-1]}: {report.graphs} graphs ({report.programs} programs), "
        f"{len(report.findings)} findings, {shares}, {speed:.1f}/s",
        flush=True,
    )


def show(report: Report) -> None:
    from fuzzing.generate import sample
    from tenon.network.graph.text import show as text

    for finding in {finding.seed: finding for finding in report.findings}.values():
        made = (quantised if finding.quantised else sample)(finding.seed)
        print(f"\n# seed {finding.seed}\n{text(made.graph)}")


if __name__ == "__main__":
    sys.exit(main())
