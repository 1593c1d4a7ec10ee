#!/usr/bin/env python3
"""The cost of opening a bundle from C: python bench/opening.py FILE.tenon... [--repeat 40] [--instructions] [--json]

Every round is a fresh process that opens the bundle with libtenon, runs it once on one thread and then several times,
each time on inputs that it writes.  "more" is opening and the first run minus the fastest later run: what a program
pays before the first answer, beyond the run itself.  Minima of all rounds; the files are interleaved.  The files are
copies that the system forgot and one process opened before: so a program finds them from its second start on, as long
as the system keeps them in memory (--written: as they are after they were written).  --cpu is the processor's time,
where other programs run, too.  --instructions counts those of opening and of the first run with valgrind's callgrind,
which knows instructions up to AVX2.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from tenon.runtime.sdk import save_sdk

RUNS = "20"


@dataclass(frozen=True)
class Opening:
    """One bundle: milliseconds of opening, of the first run and of a later one, and of both beyond that one."""

    bundle: str
    megabytes: float
    open_ms: float
    first_ms: float
    later_ms: float
    more_ms: float
    open_instructions: int | None = None
    run_instructions: int | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="FILE.tenon")
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--written", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        copies = [copied(bundle, Path(folder), options.written) for bundle in options.bundles]
        rounds: dict[Path, list[list[float]]] = {bundle: [] for bundle in copies}
        for number in range(options.repeat + 1):
            for bundle, times in rounds.items():
                done = subprocess.run(
                    [program, bundle, RUNS, *["cpu"] * options.cpu], check=True, capture_output=True, text=True
                )
                if number > 0:
                    times.append([float(word) for word in done.stdout.split()])
        found = [summary(bundle, times, program, options.instructions) for bundle, times in rounds.items()]
    print(json.dumps([asdict(opening) for opening in found], indent=1) if options.json else table(found))
    return 0


def built(folder: Path) -> Path:
    """The C program, with the SDK of this machine."""
    sdk, program = save_sdk(folder / "sdk"), folder / "opening"
    paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon", f"-Wl,-rpath,{sdk}/lib")
    subprocess.run(["cc", "-O2", Path(__file__).with_suffix(".c"), *paths, "-o", program], check=True)
    return program


def copied(bundle: Path, folder: Path, written: bool) -> Path:
    """A copy on disk; unless ``written``, the system's memory does not hold it."""
    copy = Path(shutil.copy(bundle, folder / bundle.name))
    with copy.open("rb") as file:
        os.fsync(file.fileno())
        if not written:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return copy


def summary(bundle: Path, times: list[list[float]], program: Path, count: bool) -> Opening:
    later = min(row[2] for row in times)
    opened, first, both = (min(values) for values in zip(*((o, f, o + f) for o, f, _ in times), strict=True))
    counts = [instructions(program, bundle, name) for name in ("open_bundle", "run_engine")] if count else [None, None]
    return Opening(bundle.stem, bundle.stat().st_size / 1e6, opened, first, later, both - later, *counts)


def instructions(program: Path, bundle: Path, function: str) -> int:
    """The instructions that a function and what it calls execute."""
    tool = ("valgrind", "--tool=callgrind", f"--toggle-collect={function}", "--callgrind-out-file=/dev/null")
    done = subprocess.run([*tool, program, bundle], check=True, capture_output=True, text=True)
    return int(re.findall(r"Collected : (\d+)", done.stderr)[0])


def table(openings: list[Opening]) -> str:
    lines = [f"{'bundle':24} {'MB':>6} {'open':>8} {'first':>8} {'later':>8} {'more':>8}  instructions: open, run"]
    for o in openings:
        counted = f"{o.open_instructions:,} {o.run_instructions:,}" if o.open_instructions is not None else ""
        times = " ".join(f"{ms:8.3f}" for ms in (o.open_ms, o.first_ms, o.later_ms, o.more_ms))
        lines.append(f"{o.bundle:24} {o.megabytes:6.1f} {times}  {counted}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
