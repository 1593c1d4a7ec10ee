#!/usr/bin/env python3
"""Networks on GPUs: python bench/gpu.py MODELS... [--targets host,cuda,opencl,vulkan] [--repeat 30] [--layers]
                                     [--precision fp32,fp16] [--tiles m=64] [--without NAMES] [--times]
                                     [--queued 200] [--jobs N] [--batch 8] [--table PATH]

A row for each model and target: seconds to compile and until the first answer (the driver compiles the kernels then);
milliseconds of a run through Engine.run, copies of inputs and outputs included, median and least of repetitions that
alternate between the targets, each after one that is not timed; and the largest difference from the first target,
relative to its largest output. Each target but host runs in every precision of --precision; int8 quantises a model in
floats by two random samples, one image each, which is right for times only and no part of the seconds to compile.

--layers lists the kernels of each GPU target. --tiles restricts tiles of work groups, where any fits: a comma between
numbers ("m=64,n=64,splits=1", as in the keys of algorithms). --without leaves out algorithms by their names
("separable-tiled,separable-staged": depthwise and 1x1 convolutions in two launches). --times lists the microseconds of
each kernel by the device's clock, the least of ten runs (of Inductor by PyTorch's profiler, the mean). --queued N adds
milliseconds of a run without copies from and to the host, of N that are queued on a CUDA stream: median and least of
nine such queues. --jobs N compiles in N
processes, each of which also runs the network once, so that the driver's cache has its kernels when they are timed
("first answer" then tells nothing). --batch N runs N images at once, of ONNX models of one. --table PATH adds each
network as it is compiled with that table of `tenon tune` ("tuned").

The target "inductor" is PyTorch's compiler, recorded as one CUDA graph ("inductor:max-autotune-no-cudagraphs": in that
mode of torch.compile), and "cudnn" PyTorch without its compiler, channels last, recorded likewise; neither runs int8.
Runs of all targets alternate, queued ones too.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import tenon
import tenon.machine.algorithms.tiled as tiles
from tenon.machine.algorithms import registry
from tenon.machine.plan.program import Call
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device_tensor import DEFAULT_STREAM

PEERS = ("inductor", "cudnn")  # targets that PyTorch runs


def main() -> int:
    options = arguments()
    restrict(
        {
            name: int(number)
            for name, _, number in (pair.partition("=") for pair in filter(None, options.tiles.split(",")))
        }
    )
    registry.ALGORITHMS = tuple(each for each in registry.ALGORITHMS if each.name not in options.without.split(","))
    if options.layers:
        on_gpus = [target for target in options.targets.split(",") if target != "host" and not of_peer(target)]
        for model, target in product(options.models, on_gpus):
            for line in layers(model, target):
                print(line)
    kinds = [
        (target, precision)
        for target in options.targets.split(",")
        for precision in (options.precision.split(",") if target != "host" else ["fp32"])
        if not (of_peer(target) and precision == "int8")
    ]
    if options.table:
        kinds += [(target, f"{precision} {options.table}") for target, precision in kinds if not of_peer(target)]
    print(
        "| model | target | compile, s | first answer, s | median, ms | least, ms | queued, ms | least | difference |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        n = options.batch
        models = [batched(model, n, Path(folder)) for model in options.models]
        with compiled_networks(list(zip(models, options.models, strict=True)), kinds, options.jobs, n) as networks:
            for model in models:
                own = [next(networks) for _ in kinds]
                for row in rows(model, own, options.repeat, options.queued, options.times):
                    print(row, flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--targets", default="host,cuda,opencl,vulkan")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--layers", action="store_true")
    parser.add_argument("--tiles", default="")
    parser.add_argument("--without", default="")
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--queued", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--table", default="")
    return parser.parse_args()


def batched(model: Path, count: int, folder: Path) -> Path:
    """The model of one image for ``count``: its inputs, and shapes of Reshape and Expand that begin with 1."""
    if count == 1:
        return model
    loaded = onnx.load(model)
    del loaded.graph.value_info[:]
    for value in (*loaded.graph.input, *loaded.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = count
    nodes = loaded.graph.node
    shapes = {node.input[1] for node in nodes if node.op_type in ("Reshape", "Expand")}
    constants = [node.attribute[0].t for node in nodes if node.op_type == "Constant" and node.output[0] in shapes]
    for tensor in (*constants, *(each for each in loaded.graph.initializer if each.name in shapes)):
        array = onnx.numpy_helper.to_array(tensor)
        if array[0] == 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array([count, *array[1:]], np.int64), tensor.name))
    onnx.save(loaded, file := folder / f"{model.stem}-batch{count}.onnx")
    return file


@dataclass(frozen=True)
class Network:
    """A model compiled for a target in ``file``, in ``seconds``; of Inductor, the model itself."""

    target: str
    precision: str
    file: Path
    seconds: float
    kernels: list[str]


def of_peer(target: str) -> bool:
    return target.partition(":")[0] in PEERS


def compiled(model: Path, single: Path, target: str, precision: str, folder: Path, warm: bool, batch: int) -> Network:
    """The model, compiled to a file; ``warm``: run once.  ``single`` is the model of one image, which is quantised."""
    if of_peer(target):
        start = time.perf_counter()
        if warm:  # fills Inductor's cache
            in_torch(model, target, precision)
        return Network(target, precision, model, time.perf_counter() - start, [])
    precision, _, table = precision.partition(" ")
    tuning = {"tuning": table} if table else {"no_tuning": True}
    source = quantised(single, batch, folder) if precision == "int8" else model
    start = time.perf_counter()  # behind the calibration, which runs the network on the host
    bundle = tenon.compile(source, target=target, precision=stored(precision), **tuning)
    precision += " tuned" * bool(table)
    file = bundle.save(folder / f"{model.stem}-{target}-{precision.replace(' ', '-')}.tenon")
    seconds = time.perf_counter() - start
    if warm:
        with tenon.open(file) as engine:
            engine.run(random_feeds(model))
    return Network(target, precision, file, seconds, list(map(described, bundle.program.calls)))


def stored(precision: str) -> str:
    """The option of the compilation: quantised layers say themselves what they are."""
    return "fp32" if precision == "int8" else precision


def quantised(model: Path, batch: int, folder: Path) -> Path:
    """The network of one image in 8-bit integers, by ranges of two random samples, which is right for times only; then
    for ``batch`` images."""
    samples = [random_feeds(model) for _ in range(2)]
    searches = {"equalisation": False, "range_search": False, "bias_correction": False}
    made = tenon.quantize(model, samples, scheme="int8", method="min-max", rounding="nearest", **searches)
    own = Path(tempfile.mkdtemp(dir=folder))
    made.save(file := own / model.name)
    return batched(file, batch, own)


@contextmanager
def compiled_networks(
    models: Iterable[tuple[Path, Path]], kinds: list[tuple[str, str]], jobs: int, batch: int
) -> Iterator[Iterator[Network]]:
    """Every model for every target and precision, in a folder that is removed afterwards; ``models`` are those to
    measure, and for one image."""
    work = [(*model, *kind) for model in models for kind in kinds]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if jobs == 1:
            yield (compiled(*each, folder, warm=False, batch=batch) for each in work)
            return
        with ProcessPoolExecutor(jobs) as pool:
            futures = [pool.submit(compiled, *each, folder, warm=True, batch=batch) for each in work]
            networks = [future.result() for future in futures]
        yield iter(networks)


def described(call: Call) -> str:
    return f"{call.op} {call.kernel.name}: {call.kernel.about[-90:]}"


def restrict(numbers: dict[str, int]) -> None:
    """Leave out tiles with other numbers, of layers that have any with these."""
    ranked = tiles.ranked

    def restricted(*problem: object) -> list[tiles.GroupTile]:
        listed = ranked(*problem)
        return [t for t in listed if all(getattr(t, name) == n for name, n in numbers.items())] or listed

    tiles.ranked = restricted


def layers(model: Path, target: str) -> list[str]:
    """The kernels of a model, in the order of their launches."""
    program = tenon.compile(model, target=target, no_tuning=True).program
    return [
        f"{model.stem} {target} {call.layer} ({call.op}): {call.kernel.name}: {call.kernel.about}"
        for call in program.calls
    ]


def rows(model: Path, networks: list[Network], repeat: int, queued: int, times_of_kernels: bool) -> list[str]:
    """The rows of a model, one for each target and precision."""
    contenders = list(map(opened, networks))
    answers, first, times = list[list[np.ndarray]](), list[float](), [list[float]() for _ in networks]
    feeds = random_feeds(model)
    for contender in contenders:
        start = time.perf_counter()
        answers.append([array.astype(np.float64) for array in contender.run(feeds)])
        first.append(time.perf_counter() - start)
    for _ in range(repeat):
        for contender, own in zip(contenders, times, strict=True):
            contender.run(feeds)  # wakes the device, which waited while the others ran
            start = time.perf_counter()
            contender.run(feeds)
            own.append(1e3 * (time.perf_counter() - start))
    if times_of_kernels:
        for contender, network in zip(contenders, networks, strict=True):
            if network.target != "host":
                lines = contender.kernel_times(network.kernels)
                print(f"{model.stem} {network.target} {network.precision}:", *lines, sep="\n")
    without = times_without_copies(networks, contenders, queued)
    return [
        f"| {model.stem} | {network.target} {network.precision} | {network.seconds:.1f} | {first[i]:.2f} | "
        f"{median(times[i]):.3f} | {min(times[i]):.3f} | {' | '.join(without[i])} | "
        f"{difference(answers[i], answers[0]):.1e} |"
        for i, network in enumerate(networks)
    ]


class Contender(Protocol):
    """A network that is ready to run."""

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]: ...

    def queued(self, count: int) -> float: ...

    def kernel_times(self, kernels: list[str]) -> list[str]: ...


@dataclass(frozen=True)
class Opened:
    """A compiled network that is open."""

    engine: Engine

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return list(self.engine.run(feeds).values())

    def queued(self, count: int) -> float:
        """Milliseconds of a run without copies from and to the host, of ``count`` queued runs."""
        start = time.perf_counter()
        for _ in range(count):
            self.engine.run_on_device()
        ctypes.CDLL("libcuda.so.1").cuStreamSynchronize(ctypes.c_void_p(DEFAULT_STREAM))
        return 1e3 * (time.perf_counter() - start) / count

    def kernel_times(self, kernels: list[str]) -> list[str]:
        """A line for each kernel: microseconds, its name and what it does."""
        least = np.min([self.engine.device_times() for _ in range(10)], axis=0) / 1e3
        copies = f"  {least[0]:6.1f} copies in, {least[1]:.1f} out, {least[2:].sum():.1f} kernels"
        return [copies, *(f"  {us:6.1f} {kernel}" for us, kernel in zip(least[2:], kernels, strict=True))]


def opened(network: Network) -> Contender:
    if of_peer(network.target):
        return in_torch(network.file, network.target, network.precision)
    return Opened(tenon.open(network.file))


def in_torch(model: Path, target: str, precision: str) -> Contender:
    sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
    from inductor import EAGER, Inductor

    mode = EAGER if target == "cudnn" else target.partition(":")[2] or "default"
    return Inductor(model, precision, random_feeds(model), mode)


def times_without_copies(networks: list[Network], contenders: list[Contender], count: int) -> list[tuple[str, str]]:
    """The median and the least of nine times of each, in milliseconds, which alternate; "" where there is none."""
    queues = [(n.target.startswith("cuda") or of_peer(n.target)) and count > 0 for n in networks]
    times = [list[float]() for _ in networks]
    for _ in range(9):
        for i, contender in enumerate(contenders):
            if queues[i]:
                contender.queued(count // 10 + 1)
                times[i].append(contender.queued(count))
    return [(f"{median(own):.3f}", f"{min(own):.3f}") if own else ("", "") for own in times]


def random_feeds(model: Path) -> dict[str, np.ndarray]:
    """Normal numbers for floats, 0 to 99 for integers."""
    rng = np.random.default_rng(0)
    return {
        value.name: rng.standard_normal(value.type.dims).astype(value.type.dtype.numpy)
        if value.type.dtype.is_float
        else rng.integers(0, 100, value.type.dims).astype(value.type.dtype.numpy)
        for value in tenon.load(model).inputs
    }


def difference(answers: list[np.ndarray], others: list[np.ndarray]) -> float:
    pairs = zip(answers, others, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-9)) for a, b in pairs)


if __name__ == "__main__":
    raise SystemExit(main())
