"""Measure the candidate algorithms of every layer, on this machine or on that of the target's runner.

Each candidate is compiled as a network of one layer, without the surrounding layout conversions.  Runs of a layer's
candidates are interleaved, so that drift of the clock rate affects all of them, and each run starts with its weights
out of the caches (``layer_timers``).  The result is the minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tenon.algorithms.base import Algorithm
from tenon.bundle import Bundle
from tenon.ir.graph import Graph, Node, Value
from tenon.options import Options
from tenon.plan.lower import plan
from tenon.plan.lowering_context import Setting, key, operator, site
from tenon.plan.program import Program
from tenon.targets import Target
from tenon.tune.layer_timers import LayerTimer, machine_of, open_timer
from tenon.tune.table import Kind, Table, generator_version

Progress = Callable[[int, int, str], None]
"""Called with the number of finished layers, the number of all layers, and the next layer."""


@dataclass(frozen=True)
class LayerTimes:
    """Measured times of a layer's candidates, and the candidate selected by the estimate."""

    layer: str
    count: int
    seconds: dict[str, float]
    estimated: str

    @property
    def best(self) -> float:
        return min(self.seconds.values())

    @property
    def excess(self) -> float:
        """Time of the estimate's selection relative to the best."""
        return self.seconds[self.estimated] / self.best


@dataclass(frozen=True)
class Job:
    """A layer to measure: a node that represents ``count`` equal ones."""

    node: Node
    candidates: tuple[Algorithm, ...]
    count: int


def jobs(graph: Graph, setting: Setting) -> list[Job]:
    """The distinct layers of a graph that have more than one candidate."""
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
    """Measure the layers that are not in the table, one by one; yield the others from the table.

    Times measured in an emulator are stored, but not used for compilation.
    """
    work = jobs(graph, setting)
    kind = replace(kind_of(target, options, threads), target=machine_of(target))
    known = table.times(kind)
    for i, job in enumerate(work):
        name = key(job.node)
        progress(i, len(work), name)
        seconds = {c: t for c, t in known.get(name, {}).items() if c in {each.key for each in job.candidates}}
        missing = [each for each in job.candidates if each.key not in seconds]
        if missing:
            # All candidates are measured together: times measured at another time are not comparable.
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

    def build(algorithm: Algorithm) -> LayerTimer:
        program = single_layer_program(job.node, replace(setting, algorithms={key(job.node): algorithm.key}))
        return open_timer(Bundle.of(program, target, options), threads)

    with ThreadPoolExecutor(2) as pool:
        timers = list(pool.map(build, job.candidates))
    best = [float("inf")] * len(timers)
    contenders = list(range(len(timers)))
    for attempt in range(repeat):
        for i in contenders:
            best[i] = min(best[i], timers[i].seconds())
        if attempt == 2:
            fastest = min(best)
            contenders = [i for i in contenders if best[i] < 1.5 * fastest]
    for timer in timers:
        timer.close()
    return {each.key: t for each, t in zip(job.candidates, best, strict=True)}


def single_layer_program(node: Node, setting: Setting) -> Program:
    """A program of one layer, without layout conversions, which neighbours would share."""
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
