"""``tenon bench-op``: single operators compared with the machine's measured peak."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tenon
from tenon.cli.console import console, print_json, stages, terminal_width
from tenon.cli.op_cases import cases
from tenon.cli.text_table import shortened
from tenon.errors import InputError
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import Writer
from tenon.network.ops.base import Case
from tenon.options import Options
from tenon.runtime.engine.engine import Engine
from tenon.runtime.engine.peak import peak_macs, read_bandwidth
from tenon.runtime.engine.timing import fill_randomly

_LEAST, _MOST = 10, 10_000  # iterations
_HEAD = ("Benchmark", "Time(ns)", "Iterations", "Input(MB/s)", "GMACPS", "ms", "% peak", "GB/s", "% read")
_WIDTHS = (40, 12, 11, 12, 9, 10, 8, 8, 8)
_NARROW = (0, 1, 4, 6, 7, 8)
"""Columns shown on narrow terminals."""


@dataclass(frozen=True)
class KernelTiming:
    """One case.  ``seconds`` is the minimum and ``mean`` the mean over ``iterations``; ``bytes`` counts all reads and
    writes."""

    name: str
    seconds: float
    mean: float
    iterations: int
    macs: int
    input_bytes: int
    bytes: int
    peak: float
    bandwidth: float

    def json(self) -> dict[str, Any]:
        """The result as JSON; the keys are part of the interface."""
        return {
            "name": self.name,
            "ms": 1e3 * self.seconds,
            "avg_ms": 1e3 * self.mean,
            "iterations": self.iterations,
            "macs": self.macs,
            "gmacps": self.macs / self.seconds / 1e9,
            "percent_of_peak": 100 * self.macs / self.seconds / self.peak,
            "bytes": self.bytes,
            "input_mb_per_s": self.input_bytes / self.seconds / 1e6,
            "gigabytes_per_s": self.bytes / self.seconds / 1e9,
            "percent_of_read_bandwidth": 100 * self.bytes / self.seconds / self.bandwidth,
        }


def bench_operators(pattern: str, options: Mapping[str, Any], seconds: float, *, listing: bool, as_json: bool) -> None:
    """Time the cases whose whole name matches ``pattern``, for about ``seconds`` each."""
    chosen = select(pattern)
    if listing:
        names = [case.label for case in chosen]
        return print_json(names) if as_json else console.print("\n".join(names), markup=False)
    results: list[KernelTiming] = []
    width = terminal_width()
    narrow = width is not None and width < sum(_WIDTHS)
    columns = _NARROW if narrow else tuple(range(len(_HEAD)))
    name = max(12, (width or 0) - sum(_WIDTHS[i] for i in columns[1:])) if narrow else _WIDTHS[0]
    if not as_json:
        head = _line(_HEAD, columns, name)
        console.print(f"{head}\n{'-' * len(head)}", markup=False, soft_wrap=True)
    for case in chosen:
        with stages(f"compiling {case.label}"):
            bundle = tenon.compile(graph_of(case), Options.from_environment(**{**options, "profile": True}))
            engine = tenon.open(bundle)
        with engine:
            results.append(bench(case, engine, seconds))
        if not as_json:
            console.print(_line(_cells(results[-1]), columns, name), markup=False, soft_wrap=True)
    if as_json:
        print_json({"peak_gmacps": peak_macs() / 1e9, "cases": [result.json() for result in results]})
    return None


def select(pattern: str) -> list[Case]:
    """The cases whose whole name matches a regular expression.  Raises InputError if there are none."""
    try:
        selected = [case for case in cases() if re.fullmatch(pattern, case.label)]
    except re.error as error:
        raise InputError(f"--filter {pattern}: not a regular expression ({error})") from None
    if not selected:
        raise InputError(f"--filter {pattern}: no case has such a name; --list shows them all")
    return selected


def graph_of(case: Case) -> Graph:
    """A network of one node; non-constant operands are inputs of the network."""
    graph = Graph("bench_op")
    write = Writer(graph)
    inputs: list[Value | None] = []
    for i, (given, array) in enumerate(zip(case.inputs, case.arrays(), strict=True)):
        if array is None:
            inputs.append(None)
        elif i in case.constant or not isinstance(given, tuple):
            inputs.append(write.constant(f"constant{i}", array))
        else:
            inputs.append(graph.add_input(f"input{i}", TensorType(DType.of(array.dtype), array.shape)))
    graph.outputs = list(write.add(case.op, inputs, ["output"], Origin("", case.label, case.op.name)))
    write.finish()
    return graph


def bench(case: Case, engine: Engine, seconds: float) -> KernelTiming:
    """Time the operator's own kernels, without layout conversions of its operands."""
    fill_randomly(engine.inputs)
    steps = engine.manifest.nodes
    own = [i for i, step in enumerate(steps) if step.op != "Reorder"] or list(range(len(steps)))
    first = [_nanoseconds(engine, own) for _ in range(3)][-1]
    count = int(min(max(seconds * 1e9 / max(first, 1), _LEAST), _MOST))
    times = [_nanoseconds(engine, own) for _ in range(count)]
    nbytes = max(steps[i].bytes for i in own)
    return KernelTiming(
        name=case.label,
        seconds=max(min(times), 1) / 1e9,
        mean=max(float(np.mean(times)), 1) / 1e9,
        iterations=count,
        macs=sum(steps[i].macs for i in own),
        input_bytes=sum(array.nbytes for array in engine.inputs.values()),
        bytes=nbytes,
        peak=peak_macs(),
        bandwidth=read_bandwidth(nbytes),
    )


def _nanoseconds(engine: Engine, own: list[int]) -> int:
    return int(np.diff(engine.timestamps().astype(np.int64))[own].sum())


def _cells(result: KernelTiming) -> tuple[str, ...]:
    r = result.json()
    speed = (f"{r['gmacps']:.2f}", f"{r['percent_of_peak']:.1f}") if result.macs else ("0.00", "-")
    return (
        result.name,
        f"{1e9 * result.seconds:.0f}",
        str(result.iterations),
        f"{r['input_mb_per_s']:.2f}",
        speed[0],
        f"{r['ms']:.4f}",
        speed[1],
        f"{r['gigabytes_per_s']:.1f}",
        f"{r['percent_of_read_bandwidth']:.1f}",
    )


def _line(cells: tuple[str, ...], columns: tuple[int, ...], name: int) -> str:
    """The chosen columns, the first ``name`` characters wide."""
    (first,) = shortened(cells[:1], name)
    return f"{first:<{name}}" + "".join(f"{cells[i]:>{_WIDTHS[i]}}" for i in columns[1:])
