#!/usr/bin/env python3
"""Time quantised networks against other runtimes and against the same networks in f32, interleaved.

    python bench/integers.py [NAME ...] [--models FOLDER] [--activations u8|i8] [--threads N] [--repeat N] [--layers]
                             [--target NAME] [--processor-time]

NAME are graphs of the model zoo.  onnxruntime's quantiser makes QDQ models of them in FOLDER, weights per channel,
calibrated on random numbers; they are computed in the arithmetic ``onnx``.  A NAME that is a quantised .tflite file is
compared with LiteRT (with XNNPACK) on that file, and with itself in float.  Peers are those of ``integer_peers`` that
are installed.  Prints the processor and its load, the milliseconds of ours, ratios of the others' times to it, of
minima (of medians in brackets), and in how many elements, and by how much at most, answers differ from onnxruntime
without its optimisations (which computes in float between DequantizeLinear and QuantizeLinear), or from LiteRT.  With
``--layers``, the operators that take most of the time, and their multiply-accumulates per second.  With ``--target``
ours are compiled for less than this processor has; ONEDNN_MAX_CPU_ISA in the environment limits OpenVINO alike, and
nothing limits onnxruntime.  ``--processor-time`` counts the time that the process runs, of all its threads, instead of
the time that passes: for machines that others use, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from against_onnxruntime import ROOT, ZOO, session
from integer_peers import Feeds, litert, opened
from qdq import TYPES, quantise

import tenon
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import model
from tenon.runtime.engine.profile import profile

NETWORKS = ("mobilenet_v1", "mobilenet_v2", "resnet18", "resnet50")


def quantised(name: str, folder: Path, activations: str) -> tuple[Path, Path]:
    """The network in f32 and quantised, made where they are missing."""
    whole, narrow = folder / f"{name}.onnx", folder / f"{name}_{activations}.onnx"
    if not whole.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(ZOO / "materialize.py"), str(folder), name], check=True)
    if not narrow.exists():
        quantise(whole, narrow, activations)
    return whole, narrow


def interleaved(
    calls: dict[str, Callable[[], object]], repeat: int, clock: Callable[[], float] = perf_counter
) -> dict[str, tuple[float, float]]:
    """Milliseconds by ``clock``, the minimum and the median, of each."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(1e3 * (clock() - start))
    return {name: (min(t), float(np.median(t))) for name, t in times.items()}


def layers(path: Path, target: str, most: int = 20) -> None:
    """The operators that take most of the time."""
    with tenon.open(tenon.compile(path, arithmetic="onnx", profile=True, target=target)) as engine:
        rows = sorted(profile(engine, 40, 5, path.stem).rows, key=lambda row: -row.min)
    whole = sum(row.min for row in rows)
    for row in rows[:most]:
        rate = row.macs / row.min / 1e6
        print(f"  {row.min:8.3f} ms {100 * row.min / whole:5.1f} % {rate:7.1f} GMAC/s  {', '.join(row.kernels)}")


def random_feeds(inputs: Mapping[str, np.ndarray]) -> Feeds:
    """Numbers from -2 to 2, and integers of the whole range."""
    rng = np.random.default_rng(1)

    def random(like: np.ndarray) -> np.ndarray:
        if like.dtype.kind == "f":
            return rng.uniform(-2, 2, like.shape).astype(like.dtype)
        info = np.iinfo(like.dtype)
        return rng.integers(info.min, info.max + 1, like.shape).astype(like.dtype)

    return {name: random(array) for name, array in inputs.items()}


def litert_results(path: Path, feeds: Feeds) -> list[np.ndarray]:
    """LiteRT's results."""
    interpreter = litert(path, feeds, 1)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def measure(name: str, options: argparse.Namespace) -> dict[str, float]:
    """The ratios of the minima, by peer; none for a .tflite file that LiteRT refuses."""
    own = Path(name).suffix == ".tflite"
    whole, narrow = (Path(name),) * 2 if own else quantised(name, options.models, options.activations)
    name = Path(name).stem if own else name
    ours: dict[str, Any] = {"target": options.target, "threads": options.threads}
    engine = tenon.open(tenon.compile(narrow, arithmetic="onnx", **ours), threads=options.threads)
    kind: dict[str, Any] = {"arithmetic": "float"} if own else {}
    floats = tenon.open(tenon.compile(whole, **ours, **kind), threads=options.threads)
    feeds = random_feeds(engine.inputs)
    try:
        truth = litert_results(narrow, feeds) if own else session(narrow, optimise=False).run(None, feeds)
    except (RuntimeError, ValueError) as refusal:
        print(f"{name:16}  skipped: LiteRT refuses it ({str(refusal)[:80]})", flush=True)
        return {}
    results = {name: result.copy() for name, result in engine.run(feeds).items()}
    floats.run(feeds)
    calls: dict[str, Callable[[], object]] = {"int8": engine.run, "our f32": floats.run}
    skipped = []
    for peer, run in opened(narrow, feeds, options.threads):
        if isinstance(run, str):
            skipped.append(f"{peer}: {run}")
        else:
            calls[peer] = run
    times = interleaved(calls, options.repeat, process_time if options.processor_time else perf_counter)
    off = [np.abs(r.astype(np.float64) - t) for r, t in zip(results.values(), truth, strict=True)]
    ratios = {peer: [t / mine for t, mine in zip(times[peer], times["int8"], strict=True)] for peer in times}
    del ratios["int8"]
    shown = "".join(f"  {peer} {least:.2f} ({middle:.2f})" for peer, (least, middle) in ratios.items())
    print(
        f"{name:16}{times['int8'][0]:7.2f} ({times['int8'][1]:.2f}) ms{shown}"
        f"  differ {sum(int((d > 0).sum()) for d in off)} of {sum(d.size for d in off)}, {max(map(np.max, off)):.3g}",
        *(f"\n  skipped {each}" for each in skipped), flush=True,
    )  # fmt: skip
    if options.layers:
        layers(narrow, options.target)
    return {peer: least for peer, (least, _) in ratios.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--activations", choices=TYPES, default="u8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--target", default="host")
    parser.add_argument("--processor-time", action="store_true")
    options = parser.parse_args()
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    machine = f"{model()}, target {find(options.target).name}, load {load}"
    print(f"{machine}; activations {options.activations}, {options.threads} threads")
    rows = [row for name in options.names if (row := measure(name, options))]
    for peer in rows[0]:
        found = [row[peer] for row in rows if peer in row]
        print(f"geometric mean of {peer} over ours: {np.exp(np.mean(np.log(found))):.2f}, least {min(found):.2f}")
    fastest = [min(t for peer, t in row.items() if peer != "our f32") for row in rows]
    print(f"geometric mean of the fastest peer: {np.exp(np.mean(np.log(fastest))):.2f}, least {min(fastest):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
