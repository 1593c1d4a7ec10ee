#!/usr/bin/env python3
"""Tiles of convolutions on a CUDA device: python bench/gpu_tiles.py LAYERS... [--target cuda-sm90] [--count 24]
                                                                           [--precision fp16|int8|uint8] [--batch 32]

A layer is CHANNELS,RESULTS,SIZE,KERNEL,STRIDE of a convolution, such as 64,64,56,3,1; with a sixth field, 1x1, of a
depthwise convolution and the 1x1 convolution behind it. For each, some tiles of every algorithm that applies are timed,
half of them the best by estimate and the others spread over the rest: microseconds by the device's clock, the least of
20 runs, in which all read the same memory, those of the estimate, and the number of launches. The time of a launch
contains that of an event.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from tenon.compilation import resolved
from tenon.machine.algorithms.base import Algorithm, Input, Limits, Output, Problem, Scratch, Stage, Weights
from tenon.machine.algorithms.estimate import DEVICE_CYCLES
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.algorithms.registry import ALGORITHMS
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import is_narrow, with_halo
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.integer_tiled import BYTES
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.plan.program import Call, Memory, Place, Port, Program, Region
from tenon.machine.targets import find
from tenon.network.graph.types import DType, Layout, tensor
from tenon.network.ops.quantize import limits
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import open_bundle

TYPES = {"fp32": DType.F32, "fp16": DType.F16, "bf16": DType.BF16, "int8": DType.I8, "uint8": DType.U8}

CLOCK = 1.755e3
"""Cycles of a microsecond, by which estimates are printed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="+")
    parser.add_argument("--target", default="cuda-sm90")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16", "int8", "uint8"))
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    dtype = TYPES[options.precision]
    with ProcessPoolExecutor() as pool:
        compile_layer = partial(compiled, target=options.target, count=options.count, dtype=dtype, batch=options.batch)
        made = pool.map(compile_layer, options.layers)
        for layer, (bundle, rows) in zip(options.layers, made, strict=True):
            print(layer)
            with open_bundle(bundle) as engine:
                least = np.min([engine.device_times() for _ in range(20)], axis=0)[2:] / 1e3
            for key, estimate, first, last in rows:
                print(f"  {least[first:last].sum():6.1f} {estimate:6.1f} {last - first} {key}")
    return 0


def problem_of(text: str, dtype: DType, batch: int = 1) -> Problem:
    """The convolutions that a text describes, of ``batch`` images."""
    channels, results, size, kernel, stride = map(int, text.split(",")[:5])
    extent = (size + 2 * (kernel // 2) - kernel) // stride + 1
    x = Image(batch, channels, size, size, 1 if channels < 4 and dtype not in BYTES else 4, dtype=dtype)
    y = Image(batch, results, extent, extent, 4, dtype=dtype)
    sides, weights = ((kernel, kernel), (stride, stride)), DType.I8 if dtype in BYTES else dtype
    window = Conv(x, y, *sides, top=kernel // 2, left=kernel // 2, weights=weights)
    if not text.endswith(",1x1"):
        return (window,)
    between = replace(y, channels=channels)
    return replace(window, y=between, groups=channels), Conv(between, y, weights=weights)


Compiled = tuple[Bundle, list[tuple[str, float, int, int]]]


def compiled(layer: str, target: str, count: int, dtype: DType, batch: int) -> Compiled:
    """A bundle of all candidates, and for each its key, its estimate and its calls."""
    problem, row = problem_of(layer, dtype, batch), find(target)
    calls: list[Call] = []
    rows = []
    for each in chosen(problem, target, count):
        first = len(calls)
        calls += lowered(problem, each, target)
        rows.append((each.key, each.cost(problem, row.machine).time * DEVICE_CYCLES / CLOCK, first, len(calls)))
    port = Port("unused", tensor(DType.U8, 64), 0)
    memory, machine = Memory(0, 64, (1 << 31) - 64, 0), row.machine
    assert machine.launch is not None
    program = Program("tiles", (port,), (port,), tuple(calls), (), memory, launch=machine.launch, spaces=machine.spaces)
    return Bundle.of(program, resolved(Options(target=target), row)), rows


MANY, ONE = (
    (
        *("tensor-staged", "integer-staged", "tensor-warpgroups", "integer-warpgroups"),
        *("separable-staged", "separable-tiled"),
    ),
    ("tensor-tiled", "tiled", "integer-tiled", "in-turn"),
)
"""Algorithms of which many tiles are timed, and one."""


def chosen(problem: Problem, target: str, count: int) -> list[Algorithm]:
    """Half of the candidates are the best by estimate."""
    machine, listed = find(target).machine, list[Algorithm]()
    for kind in ALGORITHMS:
        if kind.name in MANY + ONE and kind.applies(problem, machine):
            own = list(kind.candidates(problem, machine, Limits(), 1 << 16))
            few = count if kind.name in MANY else 1
            rest = own[few // 2 :]
            listed += own[: few // 2 or 1] + rest[:: max(1, len(rest) // max(1, few - few // 2))][: few // 2]
    return listed


PLACES = {Input: 0, Output: 1 << 28, Weights: 1 << 29, Scratch: 1 << 30}
"""Where operands of each kind lie."""


def stage_of(s: Conv) -> Stage:
    """A convolution of zeros: of bytes with the least one as zero point, requantised by factors in f32."""
    shape = s.y.channels, s.x.channels // s.groups, *s.kernel
    if is_narrow(s):
        (top, bottom), (left, right) = with_halo(s, Layout(4, ((0, 0), (0, 0)))).halo
        s = replace(s, x=replace(s.x, top=top, bottom=bottom, left=left, right=right))
    if s.x.dtype not in BYTES:
        return Stage(s, np.zeros(shape, np.float32), np.zeros(s.y.channels))
    low, high = limits(s.x.dtype)
    s, kernel = replace(s, bias=True), Requantize("float", low, low, high, s.x.dtype, ("factor",))
    described = IntegerConv(s, kernel, (DType.F32,), (False,), narrow=True, fill=low)
    operands = Weights(np.zeros(s.padded, np.int32)), Weights(np.zeros(s.padded, np.float32))
    return IntegerStage(s, np.zeros(shape, np.int8), None, operands, described=described)


def lowered(problem: Problem, each: Algorithm, target: str) -> list[Call]:
    """The calls of a layer."""
    stages = list(map(stage_of, problem))
    calls = []
    for step in each.lower(problem, stages, find(target).machine):
        apart = [(1 << 22) * i * isinstance(arg, Weights) for i, arg in enumerate(step.args)]
        apart = [
            n + (1 << 29) * (arg.name == "between") if isinstance(arg, Scratch) else n
            for n, arg in zip(apart, step.args, strict=True)
        ]
        places = (
            Place(Region.ACTIVATIONS, PLACES[type(arg)] + more) for arg, more in zip(step.args, apart, strict=True)
        )
        calls.append(Call(step.kernel, tuple(places), "layer", "Conv"))
    return calls


if __name__ == "__main__":
    raise SystemExit(main())
