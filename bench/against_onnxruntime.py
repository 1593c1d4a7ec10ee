#!/usr/bin/env python3
"""Time bundles against onnxruntime, one thread, in one run with interleaved repetitions.

    python bench/against_onnxruntime.py [NAME ...] [--models FOLDER] [--repeat N] [--json FILE]

NAME are graphs of the model zoo (default: all); FOLDER contains them with weights, and is filled from
``../shared/zoo`` if it is empty.  Prints milliseconds (minimum, median), the ratio onnxruntime / Tenon of the
minima and of the medians, and the largest difference of the outputs relative to their largest magnitude, compared
with onnxruntime without optimisations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime

import tenon
from tenon.runtime.engine.compare import relative_error

ROOT = Path(__file__).resolve().parents[1]
ZOO = ROOT.parent / "shared" / "zoo"


def session(path: Path, *, optimise: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(path: Path, repeat: int) -> dict[str, Any]:
    """One model: interleaved times of both, and the difference of the outputs."""
    began = perf_counter()
    bundle = tenon.compile(path)
    engine = tenon.open(bundle)
    compiled = perf_counter() - began
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(a.shape).astype(a.dtype) for n, a in engine.inputs.items()}
    truth = session(path, optimise=False).run(None, feeds)
    ours = engine.run(feeds)
    error = max(relative_error(ours[name], t) for name, t in zip(ours, truth, strict=True))
    peer = session(path, optimise=True)
    times: dict[str, list[float]] = {"tenon": [], "onnxruntime": []}
    for _ in range(repeat):
        for name, call in (("tenon", engine.run), ("onnxruntime", lambda: peer.run(None, feeds))):
            start = perf_counter()
            call()
            times[name].append(1e3 * (perf_counter() - start))
    low = {name: min(t) for name, t in times.items()}
    mid = {name: float(np.median(t)) for name, t in times.items()}
    memory = bundle.program.memory
    return {
        "model": path.stem,
        "tenon_ms": [low["tenon"], mid["tenon"]],
        "onnxruntime_ms": [low["onnxruntime"], mid["onnxruntime"]],
        "ratio": [low["onnxruntime"] / low["tenon"], mid["onnxruntime"] / mid["tenon"]],
        "error": error,
        "compile_s": compiled,
        "arena": memory.activations,
        "arena_over_bound": memory.activations / max(memory.bound, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.names or sorted(p.stem for p in ZOO.glob("*.onnx"))
    missing = [n for n in names if not (options.models / f"{n}.onnx").exists()]
    if missing:
        subprocess.run([sys.executable, str(ZOO / "materialize.py"), str(options.models), *missing], check=True)
    rows = []
    print(
        f"{'model':24}{'tenon min/med':>18}{'ort min/med':>18}{'ratio':>14}{'error':>10}{'compile':>9}"
        f"{'arena/bound':>13}"
    )
    for name in names:
        row = measure(options.models / f"{name}.onnx", options.repeat)
        rows.append(row)
        ours, peer, ratio = row["tenon_ms"], row["onnxruntime_ms"], row["ratio"]
        print(
            f"{name:24}{ours[0]:9.2f}{ours[1]:9.2f}{peer[0]:9.2f}{peer[1]:9.2f}{ratio[0]:7.2f}{ratio[1]:7.2f}"
            f"{row['error']:10.1e}{row['compile_s']:8.1f}s{row['arena_over_bound']:13.3f}",
            flush=True,
        )
    mean = np.exp(np.mean([np.log(r["ratio"]) for r in rows], axis=0))
    print(f"geometric mean of the ratio: {mean[0]:.2f} (minima), {mean[1]:.2f} (medians)")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
