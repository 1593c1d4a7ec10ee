"""Measure the candidates of every layer on the machine at hand.

Each candidate is compiled as a network of one layer, without the conversions around it.  Candidates of a layer run
in turn, so that a drift of the machine meets all of them alike; before every run the second-level cache is filled
with something else, as the rest of a network would, and then with what the layer works on, but not its weights.  The
minimum counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from tenon.algorithms.base import Algorithm
from tenon.bundle import Bundle
from tenon.engine.engine import Engine, open_bundle
from tenon.ir.graph import Graph, Node, Value
from tenon.options import Options
from tenon.plan.lower import plan
from tenon.plan.lowering_context import Setting, key, operator, site
from tenon.plan.program import Program
from tenon.targets import Target
from tenon.tune.table import Kind, Table, generator_version

_EVICT = np.zeros(2 << 20, np.float32)
"""Bytes that push a layer's data out of the second-level cache: 8 MiB."""

Progress = Callable[[int, int, str], None]
"""Called with layers done, layers in all, and the layer that is next."""


@dataclass(frozen=True)
class LayerTimes:
    """Measured times of one layer's candidates, and the one that the estimate would have taken."""

    layer: str
    count: int
    seconds: dict[str, float]
    estimated: str

    @property
    def best(self) -> float:
        return min(self.seconds.values())

    @property
    def excess(self) -> float:
        """Time of the estimate's choice over the best."""
        return self.seconds[self.estimated] / self.best


@dataclass(frozen=True)
class Job:
    """A layer to measure: a node that stands for ``count`` equal ones."""

    node: Node
    candidates: tuple[Algorithm, ...]
    count: int


def jobs(graph: Graph, setting: Setting) -> list[Job]:
    """The layers of a graph that can be computed in more than one way, each once."""
    by_layer: dict[str, Job] = {}
    for node in graph:
        name = key(node)
        if name in by_layer:
            by_layer[name] = replace(by_layer[name], count=by_layer[name].count + 1)
            continue
        candidates = operator(node).candidates(site(node, setting))
        if len(candidates) > 1:
            by_layer[name] = Job(node, candidates, 1)
    return list(by_layer.values())


def search(
    graph: Graph,
    target: Target,
    setting: Setting,
    options: Options,
    table: Table,
    *,
    threads: int = 1,
    repeat: int = 12,
    progress: Progress = lambda done, total, layer: None,
) -> Iterator[LayerTimes]:
    """Measure what the table does not know yet, layer by layer; what is known is given without measuring."""
    work = jobs(graph, setting)
    kind = kind_of(target, options, threads)
    known = table.times(kind)
    for i, job in enumerate(work):
        name = key(job.node)
        progress(i, len(work), name)
        seconds = {c: t for c, t in known.get(name, {}).items() if c in {each.key for each in job.candidates}}
        missing = [each for each in job.candidates if each.key not in seconds]
        if missing:
            # A candidate measured alone would be compared with times from another hour: all are measured together.
            seconds = measure(job, target, setting, options, threads, repeat)
            table.put(kind, name, seconds)
        yield LayerTimes(name, job.count, seconds, job.candidates[0].key)
    progress(len(work), len(work), "")


def kind_of(target: Target, options: Options, threads: int) -> Kind:
    """The rows of the table that are about code made so, for that many threads."""
    from tenon.toolchain.compiler import find

    return Kind(target.name, find(options).version, threads, generator_version())


def measure(
    job: Job, target: Target, setting: Setting, options: Options, threads: int = 1, repeat: int = 12
) -> dict[str, float]:
    """Seconds of every candidate, the least of ``repeat`` interleaved runs."""

    def build(algorithm: Algorithm) -> Engine:
        program = single_layer_program(job.node, replace(setting, algorithms={key(job.node): algorithm.key}))
        return open_bundle(Bundle.of(program, target, options), threads=threads)

    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(build, job.candidates))
    best = [float("inf")] * len(engines)
    contenders = list(range(len(engines)))
    for attempt in range(repeat):
        for i in contenders:
            best[i] = min(best[i], _timed(engines[i]))
        if attempt == 2:
            fastest = min(best)
            contenders = [i for i in contenders if best[i] < 1.5 * fastest]
    for engine in engines:
        engine.close()
    return {each.key: t for each, t in zip(job.candidates, best, strict=True)}


def _timed(engine: Engine) -> float:
    _EVICT.sum()
    engine.touch()
    began = perf_counter()
    engine.run(copy=False)
    return perf_counter() - began


def single_layer_program(node: Node, setting: Setting) -> Program:
    """A program of one layer, without the conversions between layouts that its neighbours would share."""
    graph = Graph("layer")
    twin: dict[Value, Value] = {}
    for value in node.inputs:
        if value is not None and value not in twin:
            twin[value] = (
                Value(value.name, value.type, value.data)
                if value.constant
                else graph.add_input(f"x{len(twin)}", value.type)
            )
    inputs = [None if v is None else twin[v] for v in node.inputs]
    new = graph.add(node.op, inputs, [f"y{i}" for i in range(len(node.outputs))], node.origin)
    graph.outputs = list(new.outputs)
    program = plan(graph, setting, "layer")
    return replace(program, calls=tuple(c for c in program.calls if c.op != "Reorder"))
