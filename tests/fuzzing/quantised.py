"""Random quantised graphs on machines of their own: many in one program, which gives the references' integers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

import tenon
from fuzzing.judge import Finding, Report
from fuzzing.quantised_onnx import onnx_file
from fuzzing.quantised_tflite import tflite
from tenon.formats import importers
from tenon.machine.toolchain import compiler
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.requantize import limits
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.digest import is_exact
from tenon.network.passes.tolerance import Reference
from tenon.options import Arithmetic
from tenon.runtime.engine.device import RemoteBundle

KINDS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "tflite": tflite,
    "qdq": lambda rng: onnx_file(rng, qlinear=False),
    "qlinear": lambda rng: onnx_file(rng, qlinear=True),
}
TARGETS = ("host", "aarch64", "cortex-m4", "wasm32")
"""The default targets."""

ARITHMETICS: tuple[Arithmetic, ...] = ("tflm", "litert", "onnx")
FEEDS = 3
QUICKLY = tuple("-O1" if flag == "-O3" else flag for flag in compiler.BASE_FLAGS)


@dataclass(frozen=True)
class Quantised:
    """A file in an arithmetic: its graph in integers, as far as these go, and feeds."""

    seed: int
    kind: str
    arithmetic: Arithmetic
    file: bytes
    graph: Graph
    feeds: tuple[dict[str, Array], ...]

    @property
    def exact(self) -> bool:
        """Whether it has to give the same bits everywhere, as its bundles state."""
        return is_exact(self.graph)


def quantised(seed: int) -> Quantised:
    """The file of a seed, imported."""
    rng = np.random.default_rng([seed, 8])
    kind = list(KINDS)[seed % len(KINDS)]
    arithmetic = ARITHMETICS[seed // len(KINDS) % len(ARITHMETICS)]
    file = KINDS[kind](rng)
    graph = importers.load(file)
    to_integers(graph, arithmetic)
    feeds = [{v.name: _integers(rng, v.type, i) for v in graph.inputs} for i in range(FEEDS)]
    return Quantised(seed, kind, arithmetic, file, graph, tuple(feeds))


def _integers(rng: np.random.Generator, type: TensorType, number: int) -> Array:
    """Integers of the whole range; the last ones are its ends."""
    low, high = limits(type.dtype)
    if number == FEEDS - 1:
        return rng.choice(np.array([low, high], type.dtype.numpy), type.dims)
    return rng.integers(low, high + 1, type.dims).astype(type.dtype.numpy)


def union(samples: Sequence[Quantised]) -> Graph:
    """All graphs side by side; names begin with "s", the seed and "_"."""
    whole = Graph("batch")
    for s in samples:
        twin: dict[Value, Value] = {}
        for v in s.graph.inputs:
            twin[v] = whole.add_input(f"s{s.seed}_{v.name}", v.type)
        for node in s.graph:
            inputs = [None if v is None else twin.setdefault(v, _renamed(v, s.seed)) for v in node.inputs]
            names = [f"s{s.seed}_{v.name}" for v in node.outputs]
            made = whole.add(node.op, inputs, names, Origin("", names[0], node.op.name))
            for old, new in zip(node.outputs, made.outputs, strict=True):
                new.type, twin[old] = old.type, new
        whole.outputs += [twin.setdefault(v, _renamed(v, s.seed)) for v in s.graph.outputs]
    return whole


def _renamed(constant: Value, seed: int) -> Value:
    value = constant.twin()
    value.name = f"s{seed}_{constant.name}"
    return value


def judge_quantised(seeds: Sequence[int], targets: Sequence[str], cache: Path) -> Report:
    """Compile and run the graphs of these seeds in one program for each target, and compare."""
    judged, report = [], Report(graphs=len(seeds))
    for seed in seeds:
        try:
            judged.append(Judged(quantised(seed)))
        except Exception as error:
            report.findings += [
                _finding(seed, "import", f"{type(error).__name__}: {error}", target) for target in targets
            ]
    for s in (j.sample for j in judged):
        report.operators.update(node.op.name for node in s.graph)
        report.nodes += len(s.graph)
        report.excused.update([] if s.exact else ["some of it is no integer operator"])
    for target in targets:
        _run([j for j in judged if len(j.sample.graph)], target, cache, report)
    return report


class Judged:
    """A graph and what the references give."""

    def __init__(self, sample: Quantised) -> None:
        self.sample = sample
        self.references = [Reference(sample.graph, given) for given in sample.feeds]

    def differs(self, results: Sequence[dict[str, Array]]) -> str:
        """Empty, or the first output that the references do not give: to the bit, where all of it is integers."""
        s = self.sample
        for reference, result in zip(self.references, results, strict=True):
            own = {v.name: result[f"s{s.seed}_{v.name}"] for v in s.graph.outputs}
            different = [name for name, array in reference.values.items() if not np.array_equal(array, own[name])]
            if s.exact and different:
                array, mine = reference.values[different[0]], own[different[0]]
                steps = np.abs(array.astype(np.int64) - mine.astype(np.int64))
                return f"{s.kind}, {s.arithmetic}: {np.count_nonzero(steps)} of {steps.size} by up to {steps.max()}"
            if different and (wrong := reference.differs(own)):
                return f"{s.kind}, {s.arithmetic}: {wrong}"
        return ""


def _run(judged: Sequence[Judged], target: str, cache: Path, report: Report) -> None:
    if not judged:
        return
    samples = [j.sample for j in judged]
    feeds = [{f"s{s.seed}_{name}": a for s in samples for name, a in s.feeds[i].items()} for i in range(FEEDS)]
    try:
        with patch.object(compiler, "BASE_FLAGS", QUICKLY):
            bundle = tenon.compile(
                union(samples), target=target, arithmetic="float", name="batch", no_tuning=True, cache=cache
            )
            results = RemoteBundle(bundle).run(feeds)
    except Exception as error:
        if len(samples) == 1:
            report.findings.append(_finding(samples[0].seed, "compile", f"{type(error).__name__}: {error}", target))
            return
        middle = len(samples) // 2
        for half in (judged[:middle], judged[middle:]):
            _run(half, target, cache, report)
        return
    finally:
        shutil.rmtree(cache / "objects", ignore_errors=True)
    report.programs += len(samples)
    for j in judged:
        if wrong := j.differs(results):
            report.findings.append(_finding(j.sample.seed, "wrong", wrong, target))


def _finding(seed: int, kind: str, what: str, target: str) -> Finding:
    return Finding(seed, kind, -1, what, target, 1, quantised=True)
