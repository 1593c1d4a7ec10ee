#!/usr/bin/env python3
"""Batches beside other runtimes on one thread of a processor: python bench/batches.py MODELS... [--batches 1,8,32]
                              [--peers onnxruntime,openvino] [--repeat 10] [--precision fp32] [--threads 1]

A row for each model and batch: milliseconds of processor time for an image, least and median of repetitions that
alternate between the runtimes, and the peers' time over ours (minima, medians).  OpenVINO computes in f32 where we do.
A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from gpu import batched, random_feeds

import tenon

Run = Callable[[], object]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--peers", default="onnxruntime,openvino")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if importlib.util.find_spec(name)]
    names = ["tenon", *peers]
    print(f"| model | batch | {' | '.join(names)} | {' | '.join(f'{name} / tenon' for name in peers)} |")
    print("|---|--:|" + "--:|" * (len(names) + len(peers)))
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for batch in map(int, options.batches.split(",")):
                file = batched(model, batch, Path(folder))
                feeds = random_feeds(file)
                runs = [ours(file, feeds, options)]
                runs += [PEERS[name](file, feeds, options.threads, options.precision) for name in peers]
                print(row(model.stem, batch, measured(runs, options.repeat)), flush=True)
                file.unlink()
    return 0


def ours(model: Path, feeds: dict[str, np.ndarray], options: argparse.Namespace) -> Run:
    bundle = tenon.compile(model, precision=options.precision, threads=options.threads, no_tuning=True)
    engine = tenon.open(bundle, threads=options.threads)
    engine.run(feeds)
    return lambda: engine.run(copy=False)


def by_onnxruntime(model: Path, feeds: dict[str, np.ndarray], threads: int, precision: str) -> Run:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def by_openvino(model: Path, feeds: dict[str, np.ndarray], threads: int, precision: str) -> Run:
    import openvino

    hint = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}[precision]
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": hint}
    request = openvino.Core().compile_model(str(model), "CPU", settings).create_infer_request()
    request.infer(dict(enumerate(feeds.values())))
    return request.infer  # of the arrays that it has


PEERS = {"onnxruntime": by_onnxruntime, "openvino": by_openvino}


def measured(runs: list[Run], repeat: int) -> list[list[float]]:
    """Milliseconds of processor time of each, which alternate, after one run that is not timed."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(repeat):
        for run, own in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            own.append(1e3 * (time.process_time() - start))
    return times


def row(name: str, batch: int, times: list[list[float]]) -> str:
    """Times for an image, and ratios."""
    shown = [f"{min(own) / batch:.2f} / {median(own) / batch:.2f}" for own in times]
    first = times[0]
    ratios = [f"{min(own) / min(first):.2f} / {median(own) / median(first):.2f}" for own in times[1:]]
    return f"| {name} | {batch} | {' | '.join((*shown, *ratios))} |"


if __name__ == "__main__":
    raise SystemExit(main())
