#!/usr/bin/env python3
"""Compile times of networks: python bench/compile_time.py [--nets NAMES] [--json]

Every network is compiled twice, each time in a fresh process: cold, with an empty cache, and warm, with the cache of
the first run.  Times are seconds from starting Python to a bundle on disk; processor times include all child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("import", "read", "plan", "generate", "weights", "code", "write")
CHILD = """
import json, sys
from pathlib import Path
from time import perf_counter
ticks = [("", perf_counter())]
def tick(name):
    ticks.append((name, perf_counter()))
import tenon
import tenon.pipeline, tenon.runtime.bundle.writer
tick("import")
stage = {"generate": "plan"}  # a stage is announced when it begins
graph = tenon.load(sys.argv[1])
tick("read")
bundle = tenon.compile(graph, progress=lambda name: tick(stage[name]) if name in stage else None)
tick("generate")
bundle.weights
tick("weights")
bundle.library
tick("code")
bundle.save(Path(sys.argv[2]), ("c", "header", "object", "weights", "library"))
tick("write")
print(json.dumps({name: end - began for (_, began), (name, end) in zip(ticks, ticks[1:])}))
"""


@dataclass(frozen=True)
class Compilation:
    """Seconds: wall clock, processor time, and of each stage."""

    seconds: float
    processor: float
    stages: dict[str, float]


def compile_once(model: Path, cache: Path, out: Path) -> Compilation:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TENON_CACHE": str(cache)}
    began = perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(model), str(out)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        stages = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{model} cannot be compiled")
    return Compilation(perf_counter() - began, used.ru_utime + used.ru_stime, json.loads(stages))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--nets", help="names; all in the folder if left out")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.nets.split(",") if options.nets else sorted(p.stem for p in options.models.glob("*.onnx"))
    results: dict[str, tuple[Compilation, Compilation]] = {}
    if not options.json:
        print(
            "| network | cold s | of processors | warm s | of processors | "
            + " | ".join(f"{s} s" for s in STAGES)
            + " |"
        )
        print("|---" * (len(STAGES) + 5) + "|")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="compile-time-") as folder:
            cache, model = Path(folder) / "cache", options.models / f"{name}.onnx"
            runs = [compile_once(model, cache, Path(folder) / out) for out in ("cold", "warm")]
        results[name] = (runs[0], runs[1])
        if not options.json:
            cold, warm = results[name]
            stages = " | ".join(f"{cold.stages.get(stage, 0):.2f}" for stage in STAGES)
            totals = " | ".join(f"{run.seconds:.1f} | {run.processor:.1f}" for run in (cold, warm))
            print(f"| {name} | {totals} | {stages} |", flush=True)
    if options.json:
        print(json.dumps({n: {"cold": asdict(c), "warm": asdict(w)} for n, (c, w) in results.items()}, indent=1))
    else:
        total = [sum(run[i].seconds for run in results.values()) for i in range(2)]
        print(f"\nAll {len(results)}: {total[0]:.0f} s cold, {total[1]:.0f} s warm.  Stages are those of the cold run.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
