"""Plan a batch of graphs at every optimisation level, compile, run and compare them."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.batch import Library, Plan, planned
from fuzzing.generate import Sample, sample
from fuzzing.known import excused
from fuzzing.peer import Refused, answer
from tenon.errors import TenonError
from tenon.machine.targets import find as find_target
from tenon.machine.toolchain.compiler import Compiler
from tenon.network.graph.graph import Array, Node
from tenon.network.passes.tolerance import MARGIN, Extra, Reference, no_extra
from tenon.options import Precision

LEVELS = (0, 1, 2)
LONGEST = 600
"""Timeout of a batch in seconds; it usually takes about ten."""

POISON = (0xFF, 0x5A)
"""Poison values of memory before a run: as f32, NaN and a large number."""


@dataclass(frozen=True)
class Finding:
    """A finding: ``kind`` is the stage, ``what`` the description."""

    seed: int
    kind: str
    level: int
    what: str
    target: str
    threads: int
    precision: str = "fp32"
    compiler: str = "gcc"
    quantised: bool = False

    @property
    def command(self) -> str:
        """The command that reproduces it."""
        if self.quantised:
            return f"scripts/fuzz --quantised --seed {self.seed} --graphs 1 --target {self.target}"
        how = f"--precision {self.precision} --compiler {self.compiler}"
        return f"scripts/fuzz --seed {self.seed} --graphs 1 --target {self.target} --threads {self.threads} {how}"


@dataclass
class Report:
    """The findings of some graphs, and the number of graphs that onnxruntime ran, or why it did not."""

    graphs: int = 0
    nodes: int = 0
    programs: int = 0
    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.graphs += other.graphs
        self.nodes += other.nodes
        self.programs += other.programs
        self.answered += other.answered
        self.refused += other.refused
        self.excused += other.excused
        self.operators += other.operators
        self.findings += other.findings

    def record(self) -> dict[str, Any]:
        """The report as JSON values."""
        findings = [{**asdict(f), "command": f.command} for f in self.findings]
        return {**vars(self), "findings": findings}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Report:
        """The report from the result of ``record``."""
        for finding in record["findings"]:
            del finding["command"]
        counters = {name: Counter(record.pop(name)) for name in ("refused", "excused", "operators")}
        return cls(**{**record, **counters, "findings": [Finding(**f) for f in record["findings"]]})


@dataclass(frozen=True)
class Configuration:
    """Target, compiler, threads and precision."""

    target: str
    threads: int
    precision: Precision
    compiler: Compiler

    @property
    def compiler_name(self) -> str:
        """As ``--compiler`` takes it."""
        return "zig" if self.compiler.zig else Path(self.compiler.command[0]).name

    def finding(self, seed: int, kind: str, level: int, what: str) -> Finding:
        return Finding(seed, kind, level, what, self.target, self.threads, self.precision, self.compiler_name)


def judge(seeds: Sequence[int], configuration: Configuration) -> Report:
    """Test the graphs of these seeds in this process."""
    batch = Batch(configuration)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of empty arrays
        batch.work([sample(seed) for seed in seeds])
    return batch.report


def judge_apart(seeds: Sequence[int], configuration: Configuration) -> Report:
    """Test them in a child process; after a crash the batch is split until the graph is found."""
    with tempfile.TemporaryDirectory(prefix="tenon-fuzz-") as place:
        path = Path(place) / "report.json"
        process = multiprocessing.get_context("fork").Process(
            target=lambda: path.write_text(json.dumps(judge(seeds, configuration).record()))
        )
        process.start()
        process.join(LONGEST)
        if process.exitcode == 0:
            return Report.of(json.loads(path.read_text()))
        how = "took too long" if process.exitcode is None else f"ended with {process.exitcode}"
        process.kill()
        process.join()
    if len(seeds) == 1:
        return Report(graphs=1, findings=[configuration.finding(seeds[0], "crash", -1, f"the process {how}")])
    report, middle = Report(), len(seeds) // 2
    for half in (seeds[:middle], seeds[middle:]):
        report.add(judge_apart(half, configuration))
    return report


class Batch:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration, self.target = configuration, find_target(configuration.target)
        self.report = Report()

    def found(self, sample: Sample, kind: str, what: str, level: int = -1) -> None:
        self.report.findings.append(self.configuration.finding(sample.seed, kind, level, what))

    def work(self, samples: Sequence[Sample]) -> None:
        report = self.report
        report.graphs, report.nodes = len(samples), sum(len(s.graph) for s in samples)
        report.operators = Counter(node.op.name for s in samples for node in s.graph)
        plans = [plan for s in samples for level in LEVELS if (plan := self.planned(s, level))]
        report.programs = len(plans)
        references: dict[int, Reference] = {}
        for s in samples:
            error = max((plan.program.error for plan in plans if plan.sample is s), default=0.0)
            references[s.seed] = Reference(s.graph, s.feeds, algorithms(error))
            self.ask(s, references[s.seed])
        self.run(plans, references)
        if aliased := next((s for s in samples if swapped(s)), None):
            self.views(aliased)

    def ask(self, sample: Sample, reference: Reference) -> None:
        """Compare the reference with onnxruntime."""
        if sample.endless:
            self.report.refused[sample.endless] += 1
            return
        try:
            theirs = answer(sample.graph, sample.feeds)
        except Refused as why:
            self.report.refused[_short(str(why))] += 1
            return
        self.report.answered += 1
        if wrong := reference.differs(theirs):
            if reason := excused(sample):
                self.report.excused[reason] += 1
            else:
                self.found(sample, "onnxruntime", wrong)

    def planned(self, sample: Sample, level: int) -> Plan | None:
        try:
            return planned(sample, level, self.target, self.configuration.threads, self.configuration.precision)
        except Exception as error:
            self.found(sample, "compile", f"{type(error).__name__}: {error}", level)
            return None

    def run(self, plans: Sequence[Plan], references: dict[int, Reference]) -> None:
        if not plans:
            return None
        with tempfile.TemporaryDirectory(prefix="tenon-fuzz-") as place:
            try:
                library = Library(plans, self.configuration.compiler, self.target, Path(place))
            except subprocess.CalledProcessError as error:
                return self.split(plans, references, error.stderr.decode(errors="replace"))
            except TenonError as error:
                return self.split(plans, references, str(error))
        for plan in plans:
            self.compare(plan, library.run, references[plan.sample.seed])
        return None

    def split(self, plans: Sequence[Plan], references: dict[int, Reference], words: str) -> None:
        """Find the program that cannot be proved or compiled."""
        if len(plans) == 1:
            return self.found(plans[0].sample, "code", words[-2000:], plans[0].level)
        middle = len(plans) // 2
        for half in (plans[:middle], plans[middle:]):
            self.run(half, references)
        return None

    def views(self, sample: Sample) -> None:
        """Feed an engine with views of its own inputs; the results must equal those of copies."""
        import tenon

        try:
            bundle = tenon.compile(
                sample.graph.copy(),
                target=self.configuration.target,
                threads=self.configuration.threads,
                precision=self.configuration.precision,
                compiler=None if self.configuration.compiler.zig else self.configuration.compiler_name,
            )
            engine, others = tenon.open(bundle), swapped(sample)
            wanted = engine.run({**sample.feeds, **{name: sample.feeds[other] for name, other in others.items()}})
            wanted = {name: np.array(array) for name, array in wanted.items()}
            for name, array in sample.feeds.items():
                engine.inputs[name][...] = array
            actual = engine.run({**sample.feeds, **{name: engine.inputs[other] for name, other in others.items()}})
            wrong = [name for name in wanted if wanted[name].tobytes() != np.asarray(actual[name]).tobytes()]
        except tenon.TenonError as error:
            return self.found(sample, "engine", f"{type(error).__name__}: {error}")
        if wrong:
            self.found(sample, "views", f"outputs {wrong} change when inputs are views of the engine's own")
        return None

    def compare(self, plan: Plan, run: Callable[[Plan, int], dict[str, Array]], reference: Reference) -> None:
        try:
            results = [run(plan, poison) for poison in POISON]
        except AssertionError as error:
            return self.found(plan.sample, "memory", str(error), plan.level)
        for name, array in results[0].items():
            if array.tobytes() != results[1][name].tobytes():
                self.found(plan.sample, "memory", f"output '{name}' depends on what memory held before", plan.level)
        if plan.rounded is not None:
            extra = algorithms(plan.program.error)
            reference = Reference(plan.rounded, plan.sample.feeds, extra)
        if wrong := reference.differs(results[0]):
            self.found(plan.sample, "wrong", wrong, plan.level)
        return None


def swapped(sample: Sample) -> dict[str, str]:
    """Another input of the same type for each of some inputs."""
    swaps: dict[str, str] = {}
    for value in sample.graph.inputs:
        alike = [v.name for v in sample.graph.inputs if v.type == value.type and v.type.size]
        if len(alike) > 1:
            swaps[value.name] = alike[alike.index(value.name) - 1]
    return swaps


def algorithms(error: float) -> Extra:
    """The additional tolerance for fast convolutions: the program's ``error`` times the RMS of the layer."""

    def extra(node: Node, result: Array) -> float:
        wide = result.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        if node.op.name != "Conv" or not finite.size:
            return 0.0
        return error / MARGIN * float(np.sqrt(np.mean(finite**2)))

    return extra if error else no_extra


def _short(text: str) -> str:
    """The part of onnxruntime's message that is common to similar graphs."""
    for mark in ("NOT_IMPLEMENTED", "INVALID_GRAPH", "INVALID_ARGUMENT", "not ONNX"):
        if mark in text:
            return mark.lower().replace("_", " ")
    return "other"
