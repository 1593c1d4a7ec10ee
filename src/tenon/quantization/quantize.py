"""Post-training quantisation: a float graph and samples to a graph of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


from tenon import passes
from tenon.errors import InputError, ModelError, guarded
from tenon.ir.graph import Graph, Value
from tenon.passes.integers import is_quantised
from tenon.pipeline import Model, load
from tenon.quantization.bias_correction import corrected, twins
from tenon.quantization.calibration import Step, observed
from tenon.quantization.insertion import Product, insert, products
from tenon.quantization.placement import Placement, placement
from tenon.quantization.ranges import HISTOGRAMS, METHODS, Observed
from tenon.quantization.report import Report, logits, measured
from tenon.quantization.samples import Data, Sample, samples
from tenon.quantization.scheme import Grid, Scheme, scheme

AUTO = ("min-max", "percentile", "mse")
"""Methods that ``auto`` chooses from."""

SCORED = 32
"""Samples on which recipes are compared."""

CORRECTED = 64
"""Most samples that means of channels are measured on."""


@dataclass(frozen=True)
class Quantized:
    """``graph`` has QuantizeLinear and DequantizeLinear around what integers compute; ``report`` says what it costs."""

    graph: Graph
    report: Report


@dataclass(frozen=True)
class _Work:
    """What all recipes share."""

    graph: Graph
    placed: Placement
    scheme: Scheme
    seen: Mapping[Value, Observed]
    samples: Sequence[Sample]
    threads: int
    step: Step
    chosen: dict[str, float] = field(default_factory=dict)


@guarded
def quantize(
    model: Model | Graph,
    data: Data,
    *,
    count: int = 128,
    scheme_name: str = "int8",
    method: str = "auto",
    bias_correction: bool = True,
    exclude: Sequence[str] = (),
    preprocess: Mapping[str, Any] | None = None,
    threads: int = 1,
    step: Step = lambda stage, done, total: None,
) -> Quantized:
    """Quantise a float model, calibrated on the first ``count`` samples of ``data`` (see ``samples``).

    ``scheme_name`` is one of ``SCHEMES``, ``method`` how ranges of activations follow from what was observed: one of
    ``METHODS``, or "auto", which takes the one with the best signal-to-noise ratio of the outputs.  Layers that
    ``exclude`` names stay in float.  ``bias_correction`` puts back the means of channels.  Raises ModelError, and
    InputError for bad options and data.
    """
    kind = scheme(scheme_name)
    if method != "auto" and method not in METHODS:
        raise InputError(f"there is no method '{method}': choose auto or one of {', '.join(METHODS)}")
    if count < 1:
        raise InputError(f"count={count}: at least one sample is needed")
    graph = _floats(model)
    given = samples(graph, data, count, preprocess)
    placed = placement(graph, exclude)
    if unknown := sorted(set(exclude) - {n for node in graph for n in (str(node.origin.layer), node.output.name)}):
        raise InputError(f"exclude: there is no layer '{unknown[0]}': 'tenon inspect --layers' lists them")
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    names = AUTO if method == "auto" else (method,)
    seen = observed(
        graph, placed.tensors, given, histograms=bool(HISTOGRAMS & set(names)), threads=threads, step=step
    )
    work = _Work(graph, placed, kind, seen, given, threads, step)
    best = _best(work, names)
    grids = _grids(work, best)
    made = products(placed, grids, kind)
    before = _score(work, grids, made)
    report = {"": before}
    if bias_correction and made:
        better = corrected(graph, placed, made, grids, kind, given[:CORRECTED], threads=threads, step=step)
        after = _score(work, grids, better)
        report["bias correction"] = after
        if after > before:
            made = better
    result = _inserted(work, grids, made)
    return Quantized(result, measured(graph, result, placed, given[:SCORED], kind.name, best, work.chosen, report, threads))


def _floats(model: Model | Graph) -> Graph:
    """The graph with normalisations folded, of ONNX's own operators."""
    given = model.copy() if isinstance(model, Graph) else load(model)
    if given.incomplete:
        raise ModelError(f"{given.source or given.name}: cannot be quantised: {given.incomplete}")
    if not all(v.type.bound for v in given.inputs):
        raise ModelError(f"{given.source or given.name}: bind the shapes of its inputs first (--shape)")
    if is_quantised(given):
        raise ModelError(f"{given.source or given.name}: is quantised already")
    return passes.optimize(given, fuse=False)


def _best(work: _Work, names: Sequence[str]) -> str:
    for name in names:
        grids = _grids(work, name)
        work.chosen[name] = _score(work, grids, products(work.placed, grids, work.scheme)) if len(names) > 1 else 0.0
    return max(names, key=lambda name: work.chosen[name])


def _grids(work: _Work, method: str) -> dict[Value, Grid]:
    grids = {v: work.scheme.activation_grid(*METHODS[method](work.seen[v])) for v in work.placed.tensors}
    whole = work.placed.parts
    for part in whole:
        end = part
        while end in whole:
            end = whole[end]
        grids[part] = grids[end]
    return grids


def _inserted(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> Graph:
    copy, placed, again, theirs = twins(work.graph, work.placed, made, grids)
    insert(copy, placed, again, theirs, work.scheme)
    return copy


def _score(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> float:
    """The least signal-to-noise ratio of the outputs, in dB."""
    return min(logits(work.graph, _inserted(work, grids, made), work.samples[:SCORED], work.threads).values())



__all__ = ["Quantized", "quantize"]

