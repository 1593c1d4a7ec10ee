"""Measure the candidate algorithms of every layer, on this machine or on that of the target's runner.

Each candidate is compiled as a network of one layer, without the surrounding layout conversions.  Runs of a layer's
candidates are interleaved, so that drift of the clock rate affects all of them, and each run starts with its weights
out of the caches (``layer_timers``).  The result is the minimum.  Candidates for a GPU of this machine are compiled
together, one behind the other, and those of further layers while a layer is measured: most of the time is that of
compilers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tenon.compilation import Compilation, runs_on_gpu
from tenon.errors import InputError
from tenon.machine.algorithms.base import Algorithm
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting, key, operator, site
from tenon.machine.plan.program import ALIGNMENT, Call, Item, Memory, Place, Program, Region, StoredConstant, mapped
from tenon.machine.targets import Target
from tenon.machine.targets.runner import Connectable, Runner
from tenon.network.graph.graph import Graph, Node, Value
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.locks import exclusive
from tenon.tools.cluster import WorkerPool, WorkItem, content_key
from tenon.tools.cluster.pool import ThisProcess, check_target, executes
from tenon.tools.tune.layer_timers import CandidatesTimer, LayerTimer, machine_of, open_timer
from tenon.tools.tune.table import Kind, TimesTable, generator_version

_COMPILING = 8
"""Layers for a GPU that are compiled at the same time: kernels by libraries, which run beside Python."""

Progress = Callable[[int, int, str], None]
"""Called with the number of finished layers, the number of all layers, and the next layer."""


@dataclass(frozen=True)
class LayerTimes:
    """Measured times of a layer's candidates, and the candidate selected by the estimate.

    ``layer`` is the layer's key in the table; ``name`` is that of the first of ``count`` equal layers of the model,
    ``op`` their operator.
    """

    layer: str
    count: int
    seconds: dict[str, float]
    estimated: str
    name: str = ""
    op: str = ""

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

    @property
    def name(self) -> str:
        """The name of the layer in the model."""
        return self.node.origin.layer or self.node.output.name


def jobs(graph: Graph, setting: Setting) -> list[Job]:
    """The distinct layers of a graph and of loops in it that have more than one candidate."""
    by_layer: dict[str, Job] = {}
    for node in (node for part in with_bodies(graph) for node in part if not node.bodies):
        name = key(node)
        if name in by_layer:
            by_layer[name] = replace(by_layer[name], count=by_layer[name].count + 1)
            continue
        candidates = operator(node).candidates(site(node, setting))
        if len(candidates) > 1:
            by_layer[name] = Job(node, candidates, 1)
    return list(by_layer.values())


@dataclass(frozen=True)
class Bench:
    """The compilation that layers are measured for; ``runner`` reaches a device, instead of what runs the target's
    programs."""

    compilation: Compilation
    repeat: int = 12
    runner: Runner | None = None

    @property
    def target(self) -> Target:
        return self.compilation.target

    @property
    def setting(self) -> Setting:
        return self.compilation.setting


def search(
    graph: Graph,
    bench: Bench,
    table: TimesTable,
    *,
    pool: WorkerPool | None = None,
    progress: Progress = lambda done, total, layer: None,
) -> Iterator[LayerTimes]:
    """Measure the layers that are not in the table, by the workers of ``pool``, else one by one here; yield the others
    from the table.

    Times measured in an emulator are stored, but not used for compilation.  Raises InputError for workers that differ,
    or cannot run the target's code.
    """
    pool = pool or ThisProcess()
    work = jobs(graph, bench.setting)
    kind = replace(kind_of(bench.compilation), target=machine_of(bench.target, bench.runner))
    known = table.times(kind)
    times: dict[int, dict[str, float]] = {}
    missing: list[int] = []
    for i, job in enumerate(work):
        candidates = {each.key for each in job.candidates}
        times[i] = {c: t for c, t in known.get(key(job.node), {}).items() if c in candidates}
        if len(times[i]) < len(candidates):  # all are measured together: times of another run are not comparable
            missing.append(i)
    if missing:
        check_workers(pool, bench)
    items = [work_item(work[i], bench, kind) for i in missing]
    ahead = isinstance(pool, ThisProcess) and on_device(bench)
    measured = _compiled_ahead([work[i] for i in missing], bench) if ahead else pool.results(items)
    waiting = set(missing)
    for i, job in enumerate(work):
        progress(i, len(work), key(job.node))
        while i in waiting:  # results come as they are there, and are kept at once
            number, seconds = next(measured)
            table.put(kind, key(work[missing[number]].node), seconds)
            times[missing[number]] = seconds
            waiting.remove(missing[number])
        yield LayerTimes(key(job.node), job.count, times[i], job.candidates[0].key, job.name, job.node.op.name)
    progress(len(work), len(work), "")


def work_item(job: Job, bench: Bench, kind: Kind) -> WorkItem:
    """The measurement of a layer, for a worker that has the device, if there is one."""
    name = key(job.node)
    address = content_key("layer", kind, name, [each.key for each in job.candidates], bench.repeat)
    device = bench.runner.spec.name if isinstance(bench.runner, Connectable) else ""
    resources = {device: 1.0} if device else {}
    return WorkItem(address, measure_alone, (_single_layer(job.node), job.candidates, bench), resources)


def check_workers(pool: WorkerPool, bench: Bench) -> None:
    """Raise InputError for workers that do not measure the same thing.  A device is the same for all."""
    if isinstance(pool, ThisProcess) or bench.runner is not None:
        return
    if bench.target.runner is None or any(executes(worker, bench.target) for worker in pool.workers):
        check_target(pool, bench.target)
        if len(models := sorted({worker.model for worker in pool.workers})) > 1:
            raise InputError(f"workers have different processors ({', '.join(models)}): tune on workers of one kind")


def measure_alone(graph: Graph, candidates: tuple[Algorithm, ...], bench: Bench) -> dict[str, float]:
    """The times of a layer's candidates, on a device, or while nothing else is measured on this machine."""
    (node,) = graph
    job = Job(node, candidates, 1)
    if isinstance(bench.runner, Connectable):
        with bench.runner.connected() as connection:
            return measure(job, replace(bench, runner=connection))
    with exclusive(bench.compilation.cache / "measuring.lock"):
        return measure(job, bench)


def kind_of(compilation: Compilation) -> Kind:
    """The rows of the table that are about code made so, for as many threads; of a device, whose driver compiles the
    kernels, those measured on it with this driver."""
    from tenon.machine.toolchain.compiler import find
    from tenon.runtime.engine.device_here import device_here

    device = device_here(compilation.target)
    made_by = str(device) if device else find(compilation).version
    return Kind(compilation.target.name, made_by, compilation.setting.threads, generator_version())


def on_device(bench: Bench) -> bool:
    """Whether a GPU of this machine is measured."""
    return bench.runner is None and runs_on_gpu(bench.target)


def _compiled_ahead(work: Sequence[Job], bench: Bench) -> Iterator[tuple[int, dict[str, float]]]:
    """The number and the times of every layer; further layers are compiled while one is measured."""
    waiting = deque[Future[CandidatesTimer]]()
    with ThreadPoolExecutor(min(_COMPILING, os.cpu_count() or 1)) as pool:
        try:
            for number, job in enumerate(work):
                while len(waiting) < min(_COMPILING, len(work) - number):
                    waiting.append(pool.submit(_compiled_together, work[number + len(waiting)], bench))
                timer = waiting.popleft().result()
                with exclusive(bench.compilation.cache / "measuring.lock"):
                    yield number, _measured_together(timer, job, bench.repeat)
        finally:
            for future in waiting:
                future.cancel()


def _compiled_together(job: Job, bench: Bench) -> CandidatesTimer:
    """All candidates for a layer as one bundle."""
    setting = bench.setting
    programs = [
        single_layer_program(job.node, replace(setting, algorithms={key(job.node): each.key}))
        for each in job.candidates
    ]
    bundle = Bundle.of(in_turn(programs), bench.compilation)
    return CandidatesTimer(bundle, [len(program.calls) for program in programs])


def _measured_together(timer: CandidatesTimer, job: Job, repeat: int) -> dict[str, float]:
    """Seconds of every candidate, the least of ``repeat`` runs one after the other; the timer is closed."""
    best = np.min([timer.seconds() for _ in range(repeat)], axis=0)
    timer.close()
    return {each.key: float(t) for each, t in zip(job.candidates, best, strict=True)}


def measure(job: Job, bench: Bench) -> dict[str, float]:
    """Seconds of every candidate, the least of ``bench.repeat`` interleaved runs."""
    setting = bench.setting
    if on_device(bench):
        return _measured_together(_compiled_together(job, bench), job, bench.repeat)

    def build(algorithm: Algorithm) -> LayerTimer:
        program = single_layer_program(job.node, replace(setting, algorithms={key(job.node): algorithm.key}))
        return open_timer(Bundle.of(program, bench.compilation), setting.threads, bench.runner)

    with ThreadPoolExecutor(2) as pool:
        timers = list(pool.map(build, job.candidates))
    best = [float("inf")] * len(timers)
    contenders = list(range(len(timers)))
    for attempt in range(bench.repeat):
        for i in contenders:
            best[i] = min(best[i], timers[i].seconds())
        if attempt == 2:
            fastest = min(best)
            contenders = [i for i in contenders if best[i] < 1.5 * fastest]
    for timer in timers:
        timer.close()
    return {each.key: t for each, t in zip(job.candidates, best, strict=True)}


def in_turn(programs: Sequence[Program]) -> Program:
    """Programs of the same inputs and outputs as one, whose calls run one after the other in the same memory."""
    constant = block = 0
    items, constants = list[Item](), list[StoredConstant]()
    for program in programs:
        items += mapped(program.items, partial(_moved, constant=constant, block=block))
        constants += [replace(each, offset=each.offset + constant) for each in program.constants]
        constant += -(-program.memory.constant // ALIGNMENT) * ALIGNMENT
        block += 1 + max((place.block for call in program.calls for place in call.args), default=0)
    sizes = [program.memory for program in programs]
    memory = Memory(
        constant,
        max(size.mutable for size in sizes),
        max(size.activations for size in sizes),
        max(size.bound for size in sizes),
    )
    return replace(programs[0], items=tuple(items), constants=tuple(constants), memory=memory)


def _moved(call: Call, constant: int, block: int) -> Call:
    """A call whose constants lie so many bytes further, and whose blocks of the arena have other numbers."""

    def place(old: Place) -> Place:
        if old.region is Region.CONSTANT:
            return replace(old, offset=old.offset + constant)
        return replace(old, block=old.block + block) if old.region is Region.ACTIVATIONS else old

    return replace(call, args=tuple(map(place, call.args)))


def single_layer_program(node: Node, setting: Setting) -> Program:
    """A program of one layer, without layout conversions, which neighbours would share."""
    program = plan(_single_layer(node), setting, "layer")
    return replace(program, items=mapped(program.items, lambda call: call if call.op != "Reorder" else None))


def _single_layer(node: Node) -> Graph:
    """A graph of this node alone, whose inputs are the node's."""
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
    return graph
