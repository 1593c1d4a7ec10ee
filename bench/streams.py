#!/usr/bin/env python3
"""Inputs per second of several streams: python bench/streams.py MODELS... [--streams 2] [--rounds 200] [--repeat 5]

Tenon runs an engine of one thread for each stream, OpenVINO as many requests as its throughput hint chooses, with as
many threads in all.  Their rounds alternate; medians and the greatest of the repetitions.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import openvino

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import tenon
from tenon.runtime.engine.streams import run_streams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print("| model | ours, inputs/s | OpenVINO | ratio of medians |\n|---|--:|--:|--:|")
    for model in options.models:
        with tenon.open(tenon.compile(model, threads=1, no_tuning=True)) as engine:
            theirs = by_openvino(model, options.streams, options.rounds)
            ours, others = list[float](), list[float]()
            for _ in range(options.repeat):
                ours.append(run_streams(engine, options.streams, options.rounds, 5).inputs_per_second)
                others.append(theirs())
        a, b = median(ours), median(others)
        print(f"| {model.stem} | {a:.1f} ({max(ours):.1f}) | {b:.1f} ({max(others):.1f}) | {a / b:.2f} |", flush=True)


def by_openvino(model: Path, streams: int, rounds: int) -> Callable[[], float]:
    """A function that runs as many inputs as all streams do, and returns inputs per second."""
    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": streams,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    network = core.compile_model(str(model), "CPU", settings)
    queue = openvino.AsyncInferQueue(network)  # the number of requests that the hint proposes
    rng = np.random.default_rng(0)
    for i, request in enumerate(queue):
        for port in network.inputs:
            request.set_tensor(port, openvino.Tensor(rng.standard_normal(port.shape).astype(np.float32)))
        queue[i].infer()

    def run() -> float:
        start = perf_counter()
        for _ in range(streams * rounds):
            queue.start_async(share_inputs=True)
        queue.wait_all()
        return streams * rounds / (perf_counter() - start)

    return run


if __name__ == "__main__":
    main()
