#!/usr/bin/env python3
"""Time a network's layers beside OpenVINO's: python bench/peer_layers.py MODELS... [--threads 4]
                    [--precision fp32|bf16] [--rounds 10] [--count 20]

Both run in this process, on its first processors, in turn: some runs of ours with timestamps between kernels, then some
of OpenVINO's with its performance counters.  A layer's time is its least.  OpenVINO's nodes belong to the row of ours
that computes the same nodes of the model, so fused layers are compared as a whole.  Prints both totals without
counters, then the layers that lose most time against OpenVINO: output, kernels, milliseconds of both, 1e9 multiply-adds
a second of ours, OpenVINO's implementation.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import onnx
import openvino

import tenon
from tenon.runtime.engine import Engine
from tenon.runtime.engine.profile import Row, profile

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from worker import processors


def peer(model: Path, threads: int, precision: str, *, counted: bool) -> Any:
    """A request of OpenVINO's, with inputs in place."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "ENABLE_CPU_PINNING": False,
        "PERF_COUNT": counted, "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[precision],
    }  # fmt: skip
    return openvino.Core().compile_model(str(model), "CPU", settings).create_infer_request()


def seconds(run: Any, count: int) -> float:
    """The least time of so many runs."""
    best = float("inf")
    for _ in range(count):
        start = perf_counter()
        run()
        best = min(best, perf_counter() - start)
    return best


def nodes_of(model: Path) -> dict[str, int]:
    """The place in the file of each node and value by name."""
    nodes = onnx.load(model, load_external_data=False).graph.node
    return {name: place for place, node in enumerate(nodes) for name in (node.name, *node.output)}


def place(places: dict[str, int], name: str) -> int:
    """A node's place in the file; runtimes extend names by what they fused or split."""
    while name and name not in places:
        name = name.rpartition("/")[0] if "/" in name else name.rpartition("_")[0]
    return places.get(name, -1)


def counters(request: Any, rounds: int) -> dict[str, tuple[float, str]]:
    """Milliseconds and implementation of each of OpenVINO's nodes: the least of the rounds."""
    least: dict[str, tuple[float, str]] = {}
    for _ in range(rounds):
        request.infer()
        for node in request.get_profiling_info():
            time = node.real_time.total_seconds() * 1e3
            if time > 0:
                before = least.get(node.node_name, (float("inf"), ""))[0]
                least[node.node_name] = (min(time, before), f"{node.node_type}:{node.exec_type}")
    return least


def merged(rows: list[tuple[Row, ...]]) -> list[tuple[Row, float]]:
    """Rows of several profiles, with the least time of each."""
    return [(same[0], min(row.min for row in same)) for same in zip(*rows, strict=True)]


def compared(model: Path, options: argparse.Namespace) -> None:
    threads, precision = options.threads, options.precision
    bundle = tenon.compile(model, threads=threads, precision=precision, profile=True)
    plain, counted = (peer(model, threads, precision, counted=counted) for counted in (False, True))
    with tenon.open(bundle, threads=threads) as engine:
        for given in engine.inputs.values():
            given[...] = np.random.default_rng(1).standard_normal(given.shape)
        ours, theirs, profiles, nodes = [], [], [], dict[str, tuple[float, str]]()
        for _ in range(options.rounds):
            ours.append(seconds(lambda: engine.run(copy=False), 10))
            profiles.append(profile(engine, 5, 2).rows)
            sleep(0.02)
            theirs.append(seconds(plain.infer, 10))
            for name, (time, kind) in counters(counted, 7).items():
                nodes[name] = (min(time, nodes.get(name, (time, ""))[0]), kind)
            sleep(0.02)
        report(model, engine, merged(profiles), nodes, options.count)
    print(
        f"{model.stem} {precision} {threads} threads: ours {1e3 * min(ours):.3f} {1e3 * float(np.median(ours)):.3f}, ",
        end="",
    )
    print(
        f"openvino {1e3 * min(theirs):.3f} {1e3 * float(np.median(theirs)):.3f} ms (least, median of leasts)",
        flush=True,
    )


def report(
    model: Path, engine: Engine, rows: list[tuple[Row, float]], nodes: dict[str, tuple[float, str]], count: int
) -> None:
    places = nodes_of(model)
    firsts = [place(places, row.layer) for row, _ in rows]
    times, kinds = [0.0] * len(rows), [""] * len(rows)
    for name, (time, kind) in nodes.items():
        at = place(places, name)
        of = max((first, number) for number, first in enumerate(firsts) if first <= at or number == 0)[1]
        times[of] += time
        if time > 0.5 * times[of]:
            kinds[of] = kind
    print(f"layers: ours {sum(time for _, time in rows):.3f}, openvino {sum(times):.3f} ms")
    listed = sorted(range(len(rows)), key=lambda n: times[n] - rows[n][1])
    for number in listed[:count]:
        row, time = rows[number]
        kernels = "+".join(row.kernels)
        print(f"{row.layer[-22:]} {kernels} {time:.4f} {times[number]:.4f} {row.macs / time / 1e6:.0f} {kinds[number]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    os.sched_setaffinity(0, processors("0", options.threads))
    for model in options.models:
        compared(model, options)


if __name__ == "__main__":
    main()
