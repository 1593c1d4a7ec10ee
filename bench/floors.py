#!/usr/bin/env python3
"""How near networks are to the limits of a machine: python bench/floors.py MODELS... [--target host]
                    [--precision fp32,bf16,int8] [--threads 1,2] [--rounds 30] [--count 10] [--batch 1]

A row for each network, precision and number of threads: milliseconds of a run (the least of some rounds) and of its
layers (the sum of the least of each, which other load disturbs less), the floor, its share of the layers' time, and the
three parts of the floor: the network's multiplies at the measured peak of the machine, its bytes (weights and
activations) at the measured rates of caches and memory, and its launches (of a GPU) or barriers (of threads).  A
layer's floor is the longer of multiplies and bytes, and its launches; the network's is the sum over its layers.

Then the layers that lose most of their network's time, in percent of it: kernels, milliseconds, floor, what bounds it,
the share of it that is achieved, and the likely reason.  int8 quantises a model in floats by two random samples.  Runs
on CUDA are queued on a stream, without copies from and to the host.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from gpu import Opened, batched, quantised, stored

import tenon
from tenon.compilation import runs_on_gpu
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.program import Program, walk
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.options import Options
from tenon.pipeline import find_target
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device_peak import copy_bandwidth, device_peak, launch_seconds
from tenon.runtime.engine.floors import (
    LayerShape,
    LowerBound,
    MachineRates,
    floor,
    layer_work,
    meetings,
    network_floor,
    reason,
    resident_bytes,
)
from tenon.runtime.engine.peak import barrier_seconds, peak_macs, read_bandwidth
from tenon.runtime.engine.profile import Row, profile

QUEUED = 100
"""Runs of a CUDA network that are queued one after the other."""


@dataclass(frozen=True)
class Layer:
    """A layer of a network, its time in milliseconds and its floor."""

    network: str
    row: Row
    time: float
    least: LowerBound
    why: str

    @property
    def lost(self) -> float:
        return self.time - self.least.time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", default="host")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    numbers = [1] if runs_on_gpu(find(options.target)) else list(map(int, options.threads.split(",")))
    print("| network | run, ms | layers, ms | floor, ms | floor, % | multiplies | bytes | launches | MAC/s, 1e9 |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    layers = list[Layer]()
    with tempfile.TemporaryDirectory() as folder:
        for model, precision, threads in product(options.models, options.precision.split(","), numbers):
            file = model if options.batch == 1 else batched(model, options.batch, Path(folder))
            label = f"{file.stem} {precision}" + f" {threads} threads" * (threads > 1)
            bundle = compiled(file, options.target, precision, threads)
            machine = find_target(Options.from_environment(target=options.target, precision=stored(precision))).machine
            layers += measured(label, bundle, machine, threads, options.rounds)
    for line in worst(layers, options.count):
        print(line)
    return 0


def compiled(model: Path, target: str, precision: str, threads: int) -> Bundle:
    """The bundle, with timestamps and for so many threads."""
    source: Path | Graph = quantised(model) if precision == "int8" else model
    return tenon.compile(
        source, target=target, precision=stored(precision), profile=True, threads=threads, no_tuning=True
    )


def measured(label: str, bundle: Bundle, machine: Machine, threads: int, rounds: int) -> Iterator[Layer]:
    """Prints the row of a network and yields its layers."""
    with tenon.open(bundle, threads=threads) as engine:
        result = profile(engine, rounds, 3)
        rates, clock = machine_rates(engine, threads)
        whole = run_time(engine, result.plain.min)
    least = [clock * len(row.kernels) for row in result.rows]
    layers = list(explained(label, bundle.program, machine, result.rows, least, rates))
    total, parts = network_floor(layer.least for layer in layers)
    sums = " | ".join(f"{ms:.3f}" for ms in (parts.multiplies, parts.bytes, parts.launches))
    spent = sum(layer.time for layer in layers)
    print(f"| {label} | {whole:.3f} | {spent:.3f} | {total:.3f} | {100 * total / spent:.0f} | {sums} | ", end="")
    print(f"{result.macs / spent / 1e6:.0f} |", flush=True)
    yield from layers


def run_time(engine: Engine, milliseconds: float) -> float:
    """Milliseconds of a run without copies between device and host, where that can be measured."""
    if not engine.on_device or not engine.manifest.target.name.startswith("cuda"):
        return milliseconds
    queue = Opened(engine)
    queue.queued(QUEUED)
    return min(queue.queued(QUEUED) for _ in range(5))


def machine_rates(engine: Engine, threads: int) -> tuple[MachineRates, float]:
    """The rates of the machine that an engine runs on, and the milliseconds that reading the clock adds to a call."""
    target = engine.manifest.target.name
    if engine.device is None:
        bandwidth = partial(read_bandwidth, threads=threads)
        return MachineRates(threads * peak_macs(), bandwidth, barrier_seconds(threads)), 0.0
    launch, clock = launch_seconds(target)
    peak = device_peak(target, engine.device.units)
    return MachineRates(peak.macs, partial(copy_bandwidth, target), launch), 1e3 * clock


def explained(
    label: str, program: Program, machine: Machine, rows: tuple[Row, ...], clock: list[float], rates: MachineRates
) -> Iterator[Layer]:
    """The layers of a program; ``clock`` is what reading the clock adds to the time of each."""
    calls = [call for call, _ in walk(program.items)]
    meets, resident, first = meetings(program, on_device=machine.launch is not None), resident_bytes(program), 0
    for row, extra in zip(rows, clock, strict=True):
        last = first + len(row.kernels)
        work = layer_work(calls[first:last], meets[first:last], machine)
        least = floor(work, resident, rates)
        time = max(row.min - extra, 1e-6)
        why = reason(
            LayerShape(row.op, row.kernels, row.facts.output, row.facts.filter, row.facts.group), work, least, time
        )
        yield Layer(label, row, time, least, why)
        first = last


def worst(layers: list[Layer], count: int) -> Iterator[str]:
    """A row for each of the layers that lose most of their network's time."""
    total: dict[str, float] = {}
    for layer in layers:
        total[layer.network] = total.get(layer.network, 0.0) + layer.time
    yield "\n| network | layer | output | kernel | ms | floor, ms | bound | achieved, % | lost, % | why |"
    yield "|---|---|---|---|--:|--:|---|--:|--:|---|"
    for layer in sorted(layers, key=lambda each: -each.lost / total[each.network])[:count]:
        row, least = layer.row, layer.least
        output = "x".join(map(str, row.facts.output))
        lost = 100 * layer.lost / total[layer.network]
        yield (
            f"| {layer.network} | {row.op} {row.layer} | {output} | {row.kernels[-1]} | {layer.time:.4f} | "
            f"{least.time:.4f} | {least.bound} | {100 * least.time / layer.time:.0f} | {lost:.1f} | {layer.why} |"
        )


if __name__ == "__main__":
    raise SystemExit(main())
