"""Post-training quantisation: a float graph and samples to a graph of integers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import PurePath
from typing import Any

from tenon import passes
from tenon.atomic_write import write
from tenon.errors import InputError, ModelError, guarded
from tenon.ir.graph import Graph, Value
from tenon.passes.integers import is_quantised
from tenon.pipeline import Model, load
from tenon.quantization.bias_correction import corrected, twins
from tenon.quantization.calibration import Step, observed
from tenon.quantization.insertion import Product, insert, products
from tenon.quantization.placement import Placement, placement
from tenon.quantization.ranges import HISTOGRAMS, METHODS, Observed
from tenon.quantization.report import Report, measured, worst_output
from tenon.quantization.samples import Data, Sample, read_samples
from tenon.quantization.scheme import Grid, Scheme, named_scheme

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

    def save(self, path: str | PathLike[str]) -> None:
        """Write an ONNX file with QuantizeLinear/DequantizeLinear pairs.  Raises InputError for another suffix."""
        if PurePath(path).suffix != ".onnx":
            raise InputError(f"{os.fspath(path)}: quantised models are written as ONNX: give a name that ends in .onnx")
        from tenon.exporters.onnx import to_onnx

        write(path, to_onnx(self.graph).SerializeToString(), "the quantised model")


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
    samples: int = 128,
    seed: int = 0,
    scheme: str = "int8",
    method: str = "auto",
    bias_correction: bool = True,
    exclude: Sequence[str] = (),
    preprocess: Mapping[str, Any] | None = None,
    threads: int = 1,
    step: Step = lambda stage, done, total: None,
) -> Quantized:
    """Quantise a float model, calibrated on ``samples`` samples of ``data``, which ``seed`` chooses of more.

    ``data`` is a folder of images (preprocessed as the model says, changed by ``preprocess``) or of .npy files, an .npy
    or .npz file with samples along the first axis, ``module:function``, or an iterable; a sample is an array of the
    only input's shape, or a mapping of names to arrays; of an iterable the first are taken.

    ``scheme`` is one of ``SCHEMES``, ``method`` how ranges of activations follow from what was observed: one of
    ``METHODS``, or "auto", which takes the one with the best signal-to-noise ratio of the outputs.  Layers that
    ``exclude`` names stay in float.  ``bias_correction`` puts back the means of channels.  Raises ModelError, and
    InputError for bad options and data.
    """
    kind = named_scheme(scheme)
    if method != "auto" and method not in METHODS:
        raise InputError(f"there is no method '{method}': choose auto or one of {', '.join(METHODS)}")
    if samples < 1:
        raise InputError(f"samples={samples}: at least one is needed")
    graph = _floats(model)
    given = read_samples(graph, data, samples, seed, preprocess)
    placed = placement(graph, exclude)
    if unknown := sorted(set(exclude) - {n for node in graph for n in (str(node.origin.layer), node.output.name)}):
        raise InputError(f"exclude: there is no layer '{unknown[0]}': 'tenon inspect --layers' lists them")
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    names = AUTO if method == "auto" else (method,)
    seen = observed(graph, placed.tensors, given, histograms=bool(HISTOGRAMS & set(names)), threads=threads, step=step)
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
    noise, agreement = measured(graph, *result, placed.tensors, given[:SCORED], threads)
    outputs = len(graph.outputs)
    methods = work.chosen if len(names) > 1 else {}
    return Quantized(
        result[0],
        Report(kind.name, best, len(given[:SCORED]), noise[:outputs], noise[outputs:], agreement, methods, report),
    )


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


def _inserted(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> tuple[Graph, dict[Value, Value]]:
    """The quantised graph, and its values by those of the float graph."""
    copy, placed, again, theirs, values = twins(work.graph, work.placed, made, grids)
    dequantised = insert(copy, placed, again, theirs, work.scheme)
    return copy, {old: dequantised.get(new, new) for old, new in values.items()}


def _score(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> float:
    """The least signal-to-noise ratio of the outputs, in dB."""
    return worst_output(work.graph, *_inserted(work, grids, made), work.samples[:SCORED], work.threads)


__all__ = ["Quantized", "quantize"]
