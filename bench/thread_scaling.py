#!/usr/bin/env python3
"""How layers gain from threads: python bench/thread_scaling.py MODELS... [--threads 4] [--precision fp32] [--count 20]

Compiles each model for one thread and for so many, times both by layer in turn, and prints the layers that lose most
time against an even share of one thread's: kernels, milliseconds with one thread and with all, the gain, and 1e9
multiply-adds a second with all.  Layers that are cut into kernels in another way are summed by their name.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import tenon
from tenon.runtime.engine import Engine
from tenon.runtime.engine.profile import profile

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from worker import processors


def least(engine: Engine, times: dict[str, tuple[float, str, int]]) -> None:
    """Lower the milliseconds of each layer; with its kernels and multiply-adds."""
    layers: dict[str, tuple[float, str, int]] = {}
    for row in profile(engine, 10, 2).rows:
        time, kernels, macs = layers.get(row.layer, (0.0, "", 0))
        layers[row.layer] = time + row.min, f"{kernels} {'+'.join(row.kernels)}".strip(), macs + row.macs
    for name, (time, kernels, macs) in layers.items():
        times[name] = (min(time, times.get(name, (time,))[0]), kernels, macs)


def scaling(model: Path, options: argparse.Namespace) -> None:
    numbers = (1, options.threads)
    made = [tenon.compile(model, threads=n, precision=options.precision, profile=True) for n in numbers]
    engines = [tenon.open(each, threads=n) for each, n in zip(made, numbers, strict=True)]
    times: list[dict[str, tuple[float, str, int]]] = [{}, {}]
    for _ in range(options.rounds):
        for engine, lows in zip(engines, times, strict=True):
            least(engine, lows)
    one, many = ({name: low for name, (low, *_) in lows.items()} for lows in times)
    alone, together = sum(one.values()), sum(many.values())
    print(f"{model.stem} {options.precision}: {alone:.3f} ms with 1 thread, {together:.3f} with {options.threads}")
    lost = {name: low - one.get(name, 0.0) / options.threads for name, low in many.items()}
    for name in sorted(lost, key=lambda each: -lost[each])[: options.count]:
        (low, kernels, macs), before = times[1][name], one.get(name, 0.0)
        print(f"{name[-20:]} {kernels} {before:.4f} {low:.4f} {before / low:.2f} {macs / low / 1e6:.0f}", flush=True)
    for engine in engines:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args()
    os.sched_setaffinity(0, processors("0", options.threads))
    for model in options.models:
        scaling(model, options)


if __name__ == "__main__":
    main()
