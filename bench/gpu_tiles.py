#!/usr/bin/env python3
"""Tiles of convolutions on a CUDA device: python bench/gpu_tiles.py LAYERS... [--target cuda-sm90] [--count 24]

A layer is CHANNELS,RESULTS,SIZE,KERNEL,STRIDE of a convolution in fp16, such as 64,64,56,3,1. For each, some tiles of
every algorithm that applies are timed, half of them the best by estimate and the others spread over the rest:
microseconds by the device's clock, the least of 20 runs, in which all read the same memory, and those of the estimate.
The time of a kernel contains that of an event.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from tenon.compilation import resolved
from tenon.machine.algorithms.base import Algorithm, Input, Limits, Output, Scratch, Stage, Weights
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.registry import ALGORITHMS
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.image import Image
from tenon.machine.plan.program import Call, Memory, Place, Port, Program, Region
from tenon.machine.targets import find
from tenon.network.graph.types import DType, tensor
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import open_bundle

CLOCK = 1.755e3
"""Cycles of a microsecond, by which estimates are printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="+")
    parser.add_argument("--target", default="cuda-sm90")
    parser.add_argument("--count", type=int, default=24)
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        made = pool.map(partial(compiled, target=options.target, count=options.count), options.layers)
        for layer, (bundle, rows) in zip(options.layers, made, strict=True):
            print(layer)
            with open_bundle(bundle) as engine:
                least = np.min([engine.device_times() for _ in range(20)], axis=0)[2:] / 1e3
            for key, estimate, first, last in rows:
                print(f"  {least[first:last].sum():6.1f} {estimate:6.1f} {key}")
    return 0


def layer_of(text: str) -> Conv:
    """The convolution that a text describes."""
    channels, results, size, kernel, stride = map(int, text.split(","))
    extent = (size + 2 * (kernel // 2) - kernel) // stride + 1
    block = 1 if channels < 4 else 4
    x = Image(1, channels, size, size, block, dtype=DType.F16)
    y = Image(1, results, extent, extent, 4, dtype=DType.F16)
    sides = (kernel, kernel), (stride, stride)
    return Conv(x, y, *sides, top=kernel // 2, left=kernel // 2, weights=DType.F16)


def compiled(layer: str, target: str, count: int) -> tuple[Bundle, list[tuple[str, float, int, int]]]:
    """A bundle of all candidates, and for each its key, its estimate and its calls."""
    s, row = layer_of(layer), find(target)
    calls: list[Call] = []
    rows = []
    for each in chosen(s, target, count):
        first = len(calls)
        calls += lowered(s, each, target)
        rows.append((each.key, each.cost((s,), row.machine).time * DEVICE_CYCLES / CLOCK, first, len(calls)))
    port = Port("unused", tensor(DType.U8, 64), 0)
    program = Program("tiles", (port,), (port,), tuple(calls), (), Memory(0, 64, 1 << 28, 0))
    return Bundle.of(program, resolved(Options(target=target), row)), rows


def chosen(s: Conv, target: str, count: int) -> list[Algorithm]:
    """Half of the candidates are the best by estimate."""
    machine, listed = find(target).machine, list[Algorithm]()
    for kind in ALGORITHMS:
        if kind.name in ("tensor-staged", "tensor-tiled", "tiled") and kind.applies((s,), machine):
            own = list(kind.candidates((s,), machine, Limits(), 1 << 16))
            few = count if kind.name == "tensor-staged" else 1
            rest = own[few // 2 :]
            listed += own[: few // 2 or 1] + rest[:: max(1, len(rest) // max(1, few - few // 2))][: few // 2]
    return listed


PLACES = {Input: 0, Output: 1 << 25, Weights: 1 << 26, Scratch: 1 << 27}
"""Where operands of each kind lie."""


def lowered(s: Conv, each: Algorithm, target: str) -> list[Call]:
    """The calls of a layer."""
    weights = np.zeros((s.y.channels, s.x.channels, *s.kernel), np.float32)
    stage = Stage(s, weights, np.zeros(s.y.channels, np.float32))
    calls = []
    for step in each.lower((s,), (stage,), find(target).machine):
        apart = ((1 << 24) * i * isinstance(arg, Weights) for i, arg in enumerate(step.args))
        places = (
            Place(Region.ACTIVATIONS, PLACES[type(arg)] + more) for arg, more in zip(step.args, apart, strict=True)
        )
        calls.append(Call(step.kernel, tuple(places), "layer", "Conv"))
    return calls


if __name__ == "__main__":
    raise SystemExit(main())
