#!/usr/bin/env python3
"""Tree ensembles against ONNX Runtime: python bench/trees.py [--kinds NAMES] [--rows 1,1000] [--targets cortex-m4]

A row for each generated file (``tree_files``) and batch: bytes of the file and of the weights; microseconds of a run,
median and least of repetitions that alternate in one process with one thread each; the largest difference.
With --targets also the instructions of a run of one row on emulated microcontrollers, all and for each tree, and bytes
of code and weights.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import instruction_count
from tree_files import KINDS, file, rows_of

import tenon
from tenon.atomic_write import scratch
from tenon.machine.toolchain.size import sizes
from tenon.runtime.bundle import Bundle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default="1,1000")
    parser.add_argument("--repeat", type=int, default=31)
    parser.add_argument("--targets", default="", help="microcontrollers to count instructions on")
    options = parser.parse_args()
    print(
        "| trees | rows | file, B | weights, B | onnxruntime, us: median | least | Tenon: median | least | difference |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in options.kinds.split(","):
        for rows in map(int, options.rows.split(",")):
            print(compared(name, rows, options.repeat), flush=True)
    print(f"most memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    if options.targets:
        counted(options.kinds.split(","), options.targets.split(","))
    return 0


def compared(name: str, rows: int, repeat: int) -> str:
    """A row of the table."""
    data, x = file(name, rows), rows_of(name, rows)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, settings)
    bundle = tenon.compile(data, threads=1)
    engine = tenon.open(bundle)
    theirs, ours = session.run(None, {"x": x})[0], engine.run({"x": x})["y"]
    times = interleaved(lambda: session.run(None, {"x": x}), lambda: engine.run({"x": x}), repeat, max(1, 300 // rows))
    cells = [f"{t:.1f}" for each in times for t in (np.median(each), min(each))]
    sizes_of = f"{len(data):,} | {bundle.program.memory.constant:,}"
    return f"| {name} | {rows} | {sizes_of} | {' | '.join(cells)} | {np.abs(theirs - ours).max():.1e} |"


def interleaved(
    first: Callable[[], object], second: Callable[[], object], repeat: int, runs: int
) -> tuple[list[float], list[float]]:
    """Microseconds of a run of each, by turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        for kept, run in zip(times, (first, second), strict=True):
            start = time.perf_counter()
            for _ in range(runs):
                run()
            kept.append((time.perf_counter() - start) / runs * 1e6)
    return times


def counted(names: list[str], targets: list[str]) -> None:
    """Instructions and bytes on microcontrollers, for one row."""
    print("| trees | target | instructions | of a tree | code, B | weights, B |\n|---|---|--:|--:|--:|--:|")
    with scratch() as work:
        for name in names:
            for target in targets:
                print(on_board(name, target, work), flush=True)


def on_board(name: str, target: str, work: Path) -> str:
    bundle: Bundle = tenon.compile(file(name, 1), target=target, name="trees", no_tuning=True)
    (x,) = bundle.program.inputs
    found = instruction_count.count(bundle, [{x.name: rows_of(name, 1)}], work)
    size = sizes(bundle.object)
    return (
        f"| {name} | {target} | {found.instructions[0]:,} | {found.instructions[0] / KINDS[name].trees:.0f} | "
        f"{size.code + size.data:,} | {bundle.program.memory.constant:,} |"
    )


if __name__ == "__main__":
    sys.exit(main())
