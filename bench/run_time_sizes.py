#!/usr/bin/env python3
"""Time networks whose sizes a run chooses against the same networks compiled for each fixed size.

    python bench/run_time_sizes.py [bert | mobilenet] [--repeat N] [--layers N] [--strassen N] [--classes N] [--times]

bert is an encoder of L = 16, 64, 128 of at most 128 positions; mobilenet a fully convolutional backbone of depthwise
separable blocks for images of 64, 256, 512 of at most 512 rows and columns.  Their weights are random.  Both run
in one process with one thread, their repetitions interleaved; prints milliseconds of processor time (minimum, median)
and the ratios of both.  --times compares the times of operators instead.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np

import tenon
from tenon.machine.algorithms.strassen import worthwhile
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import F32, I64, tensor
from tenon.network.ops.activation import Clip
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv
from tenon.network.ops.mask import Mask
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Transpose
from tenon.network.ops.normalize import LayerNormalization
from tenon.network.ops.pointwise import Add, Div, Erf, Mul
from tenon.network.ops.shape import Reshape
from tenon.network.ops.softmax import Softmax
from tenon.network.passes.size_classes import chosen_by_size, class_ranges

MOBILENET = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
"""Channels of the result and stride of each block."""


class Net:
    """A graph under construction; ``sizes`` are the values of its sizes, none if these are fixed."""

    def __init__(self, names: Sequence[str], sizes: SizeRange, most: int | None, fixed: int | None) -> None:
        self.graph, self.rng = Graph("sizes"), np.random.default_rng(0)
        self.extent = fixed or most or sizes.most
        self.sizes = [self.graph.add_input(name, tensor(I64)) for name in names if fixed is None]
        self.graph.sizes = {v.name: sizes._replace(most=self.extent) for v in self.sizes}

    def input(self, *dims: int, axes: Sequence[int]) -> Value:
        x = self.graph.add_input("x", tensor(F32, *dims))
        if self.sizes:
            self.graph.extents["x"] = tuple((a, v.name) for a, v in zip(axes, self.sizes, strict=True))
        return x

    def weights(self, *dims: int) -> Value:
        scale = 1 / np.sqrt(np.prod(dims[1:]) if len(dims) == 4 else dims[0])
        return self.graph.constant("w", (self.rng.standard_normal(dims) * scale).astype(np.float32))

    def constant(self, *numbers: float, dtype: Any = np.float32) -> Value:
        return self.graph.constant("c", np.array(numbers if len(numbers) > 1 else numbers[0], dtype))

    def add(self, op: Operator, *inputs: Value) -> Value:
        return self.graph.add(op, inputs, [f"v{len(self.graph)}"]).output

    def masked(self, x: Value, axes: Sequence[int], value: float = 0.0) -> Value:
        for axis, size in zip(axes, self.sizes, strict=False):
            x = self.add(Mask(axis, value), x, size)
        return x

    def halved(self) -> None:
        self.sizes = [self.add(Div(), v, self.constant(2, dtype=np.int64)) for v in self.sizes]

    def output(self, y: Value, axes: Sequence[int]) -> Graph:
        self.graph.outputs.append(y)
        if self.sizes:
            self.graph.extents[y.name] = tuple((a, v.name) for a, v in zip(axes, self.sizes, strict=True))
            self.graph.outputs += [v for v in self.sizes if v.producer is not None]
        return self.graph


def bert(fixed: int | None = None, most: int | None = None, layers: int = 2, width: int = 384, heads: int = 6) -> Graph:
    """An encoder like BERT's: attention, GELU, two normalisations a layer."""
    net = Net(["L"], SizeRange(1, 128), most, fixed)
    extent, each = net.extent, width // heads
    x = net.input(1, extent, width, axes=[1])

    def product(x: Value, n: int) -> Value:
        return net.add(Add(), net.add(MatMul(), x, net.weights(x.type.dims[-1], n)), net.weights(n))

    def split(x: Value) -> Value:
        shape = net.constant(1, extent, heads, each, dtype=np.int64)
        return net.add(Transpose((0, 2, 1, 3)), net.add(Reshape(), product(x, width), shape))

    def normal(x: Value, y: Value) -> Value:
        return net.add(LayerNormalization(-1), net.add(Add(), x, y), net.weights(width), net.weights(width))

    for _ in range(layers):
        q, k, v = split(x), split(x), split(x)
        scores = net.add(MatMul(), q, net.add(Transpose((0, 1, 3, 2)), k))
        scores = net.add(Mul(), scores, net.constant(each**-0.5))
        shares = net.masked(net.add(Softmax(-1), net.masked(scores, [3], -np.inf)), [3])
        y = net.add(Transpose((0, 2, 1, 3)), net.add(MatMul(), shares, net.masked(v, [2])))
        y = net.add(Reshape(), y, net.constant(1, extent, width, dtype=np.int64))
        x = normal(x, product(y, width))
        h = product(x, 4 * width)
        erf = net.add(Erf(), net.add(Mul(), h, net.constant(2**-0.5)))
        h = net.add(Mul(), net.add(Mul(), h, net.constant(0.5)), net.add(Add(), erf, net.constant(1)))
        x = normal(x, product(h, width))
    return net.output(x, [1])


def mobilenet(fixed: int | None = None, most: int | None = None, layers: int = len(MOBILENET)) -> Graph:
    """A backbone like MobileNet's, and a head of one convolution."""
    net = Net(["H", "W"], SizeRange(64, 512, 32), most, fixed)
    x = net.input(1, 3, net.extent, net.extent, axes=[2, 3])

    def conv(x: Value, channels: int, kernel: int, stride: int = 1, group: int = 1) -> Value:
        pads = (kernel // 2,) * 4
        op = Conv(kernel_shape=(kernel, kernel), pads=pads, strides=(stride, stride), group=group)
        w = net.weights(channels, x.type.dims[1] // group, kernel, kernel)
        axes = [2, 3] if kernel > 1 else [2] if worthwhile(x.type.dims[1], channels) else []  # as importers do
        y = net.add(op, net.masked(x, axes), w, net.weights(channels))
        if stride > 1:
            net.halved()
        return y

    def active(x: Value) -> Value:
        return net.add(Clip(), x, net.constant(0), net.constant(6))

    x = active(conv(x, 32, 3, 2))
    for channels, stride in MOBILENET[:layers]:
        x = active(conv(x, x.type.dims[1], 3, stride, x.type.dims[1]))
        x = active(conv(x, channels, 1))
    return net.output(conv(x, 24, 1), [2, 3])


NETS: dict[str, tuple[Callable[..., Graph], tuple[int, ...]]] = {
    "bert": (bert, (16, 64, 128)),
    "mobilenet": (mobilenet, (64, 256, 512)),
}


def opened(graph: Graph, folder: Path, feeds: dict[str, Any], given: Any) -> tenon.Engine:
    bundle = tenon.compile(graph, profile=given.times, strassen=given.strassen)
    engine = tenon.Engine(bundle.save(folder))
    engine.run(feeds)
    return engine


def interleaved(engines: Sequence[tenon.Engine], repeat: int) -> list[list[float]]:
    """Milliseconds of each run of each engine."""
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(repeat):
        for engine, own in zip(engines, times, strict=True):
            began = thread_time()
            engine.run(copy=False)
            own.append(1e3 * (thread_time() - began))
    return times


def compare_kernels(engines: Sequence[tenon.Engine], repeat: int) -> None:
    """Milliseconds of the kernels of each operator, the least of all runs."""
    shown: list[dict[str, float]] = []
    for engine in engines:
        stamps = np.min([np.diff(engine.timestamps().astype(np.float64)) for _ in range(repeat)], axis=0) / 1e6
        times: dict[str, float] = defaultdict(float)
        for step, time in zip(engine.manifest.nodes, stamps, strict=True):
            times[step.op] += time
        shown.append(times)
    for name in sorted({**shown[0], **shown[1]}, key=lambda n: shown[1].get(n, 0.0) - shown[0].get(n, 0.0)):
        print(f"  {name:40} {shown[0].get(name, 0.0):8.4f} {shown[1].get(name, 0.0):8.4f}")
    any_size, fixed = (sum(times.values()) for times in shown)
    print(f"  all kernels {any_size:.4f} {fixed:.4f} ms, ratio {any_size / fixed:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NETS])
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*")
    parser.add_argument("--classes", type=int, default=1, help="how many size classes the network has")
    parser.add_argument("--strassen", type=int, default=2, help="how often Strassen's algorithm may halve a product")
    given = parser.parse_args()
    more = {"layers": given.layers} if given.layers else {}
    for name in given.names or NETS:
        make, sizes = NETS[name]
        for size in given.sizes or sizes:
            with tempfile.TemporaryDirectory() as folder:
                compare(make, more, size, given, Path(folder), name)


def compare(make: Callable[..., Graph], more: dict[str, int], size: int, given: Any, folder: Path, name: str) -> None:
    any_size, fixed = make(**more), make(fixed=size, **more)
    classes = class_ranges(any_size.sizes, given.classes)
    any_size = chosen_by_size(any_size, [make(most=max(r.most for r in each.values()), **more) for each in classes])
    dims = next(v for v in fixed.inputs if v.name == "x").type.dims
    x = np.random.default_rng(1).standard_normal(dims).astype(np.float32)
    engines = [
        opened(any_size, folder / "any", {"x": x, **dict.fromkeys(any_size.sizes, size)}, given),
        opened(fixed, folder / "fixed", {"x": x}, given),
    ]
    if given.times:
        print(f"{name} {size}: any size, fixed")
        compare_kernels(engines, given.repeat)
        return
    results = [engine.run()[graph.outputs[0].name] for engine, graph in zip(engines, (any_size, fixed), strict=True)]
    error = np.abs(results[0] - results[1]).max() / np.abs(results[1]).max()
    any_times, fixed_times = interleaved(engines, given.repeat)
    low, middle = min(any_times) / min(fixed_times), np.median(any_times) / np.median(fixed_times)
    print(
        f"{name} {size}: any size {min(any_times):.3f} {np.median(any_times):.3f} ms, "
        f"fixed {min(fixed_times):.3f} {np.median(fixed_times):.3f} ms, "
        f"ratio {low:.3f} {middle:.3f}, difference {error:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
