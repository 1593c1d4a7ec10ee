"""Post-training quantisation: a float graph and samples to a graph of integers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tenon import passes
from tenon.errors import InputError, ModelError, guarded
from tenon.exporters.save import save
from tenon.ir.graph import Graph, Value
from tenon.passes.integers import is_quantised
from tenon.pipeline import Model, load
from tenon.quantization.bias_correction import corrected
from tenon.quantization.calibration import Step, observed
from tenon.quantization.copies import twins
from tenon.quantization.insertion import Product, insert, products
from tenon.quantization.placement import Placement, placement
from tenon.quantization.range_search import expected_scores, searched
from tenon.quantization.ranges import HISTOGRAMS, METHODS, Range
from tenon.quantization.report import Report, measured, worst_output
from tenon.quantization.samples import Data, Sample, read_samples
from tenon.quantization.scheme import Grid, Scheme, named_scheme
from tenon.quantization.simulation import Simulation

AUTO = ("min-max", "percentile", "mse")
"""Methods that ``auto`` chooses from."""

SCORED = 32
"""Samples on which recipes are compared."""

CORRECTED = 128
"""Most samples that means of channels are measured on."""


@dataclass(frozen=True)
class Quantized:
    """``graph`` has QuantizeLinear and DequantizeLinear around what integers compute; ``report`` says what it costs."""

    graph: Graph
    report: Report

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file of ONNX (with QuantizeLinear/DequantizeLinear pairs), TFLite or tmfile, as its name ends.

        Raises InputError for another ending, and UnsupportedError for layers that the format does not have.
        """
        save(self.graph, path, "the quantised model")


@dataclass(frozen=True)
class _Work:
    """What all recipes share."""

    graph: Graph
    placed: Placement
    scheme: Scheme
    samples: Sequence[Sample]
    threads: int
    step: Step


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
    range_search: bool = True,
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
    ``METHODS``, or "auto", which takes the one with the best signal-to-noise ratio of the outputs.  ``range_search``
    then tries narrower and wider ranges of each tensor, ``bias_correction`` puts back the means of channels.  Layers
    that ``exclude`` names stay in float.  Raises ModelError, and InputError for bad options and data.
    """
    kind = named_scheme(scheme)
    if method != "auto" and method not in METHODS:
        raise InputError(f"there is no method '{method}': choose auto or one of {', '.join(METHODS)}")
    if samples < 1:
        raise InputError(f"samples={samples}: at least one is needed")
    graph = float_graph(model)
    given = read_samples(graph, data, samples, seed, preprocess)
    placed = placement(graph, exclude)
    if unknown := sorted(set(exclude) - {n for node in graph for n in (str(node.origin.layer), node.output.name)}):
        raise InputError(f"exclude: there is no layer '{unknown[0]}': 'tenon inspect --layers' lists them")
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    names = AUTO if method == "auto" else (method,)
    seen = observed(graph, placed.tensors, given, histograms=bool(HISTOGRAMS & set(names)), threads=threads, step=step)
    work = _Work(graph, placed, kind, given, threads, step)
    tried = {name: {v: METHODS[name](each) for v, each in seen.items()} for name in names}
    chosen, made, methods = _recipe(work, tried, bias_correction=bias_correction, range_search=range_search)
    grids = _grids(work, chosen[1])
    repairs = {"": _score(work, grids, products(placed, grids, kind)), "bias correction": _score(work, grids, made)}
    if not bias_correction or repairs["bias correction"] <= repairs[""]:
        made = products(placed, grids, kind)
    if not bias_correction:
        del repairs["bias correction"]
    result = _inserted(work, grids, made)
    noise, agreement = measured(graph, *result, placed.tensors, given[:SCORED], threads)
    outputs = len(graph.outputs)
    return Quantized(
        result[0],
        Report(
            kind.name, chosen[0], len(given[:SCORED]), noise[:outputs], noise[outputs:], agreement, methods, repairs
        ),
    )


def _recipe(
    work: _Work, tried: Mapping[str, Mapping[Value, Range]], *, bias_correction: bool, range_search: bool
) -> tuple[tuple[str, Mapping[Value, Range]], list[Product], dict[str, float]]:
    """The best method with its ranges, the products for them, and the SQNR in dB of what was tried.

    Biases are corrected before ranges are compared, because shifted means hide the rest of the noise, and again for
    those that were chosen.
    """
    graph, placed = work.graph, work.placed
    search, check, many = work.samples[::2], work.samples[1::2] or work.samples, work.samples[:CORRECTED]
    name, ranges = next(iter(tried.items()))
    grids = _grids(work, ranges)
    made = products(placed, grids, work.scheme)
    simulation = Simulation(graph, placed, made, grids, work.scheme, work.threads)
    methods: dict[str, float] = {}
    try:
        if bias_correction and made:
            corrected(graph, made, simulation, search, threads=work.threads, step=work.step)
        expected = [expected_scores(graph, part, work.threads) for part in (search, check)]

        def quality(ranges: Mapping[Value, Range]) -> float:
            """SQNR in dB on samples that nothing was fitted to."""
            simulation.set_grids(_grids(work, ranges))
            return -10 * math.log10(max(simulation.noise(check, expected[1]), 1e-30))

        methods = {each: quality(found) for each, found in tried.items()}
        name = max(methods, key=lambda each: methods[each])
        ranges = tried[name]
        simulation.set_grids(_grids(work, ranges))
        if range_search:
            found = searched(
                graph, placed, ranges, simulation, work.scheme, search, expected=expected[0], step=work.step
            )
            methods["range search"] = quality(found)
            if methods["range search"] > methods[name]:
                ranges = found
        simulation.set_grids(_grids(work, ranges))
        made = products(placed, _grids(work, ranges), work.scheme)
        if bias_correction and made:
            simulation.reset_shifts()
            made = corrected(graph, made, simulation, many, threads=work.threads, step=work.step)
    finally:
        simulation.close()
    return (name, ranges), made, methods


def float_graph(model: Model | Graph) -> Graph:
    """The graph with normalisations folded, of ONNX's own operators."""
    given = model.copy() if isinstance(model, Graph) else load(model)
    if given.incomplete:
        raise ModelError(f"{given.source or given.name}: cannot be quantised: {given.incomplete}")
    if not all(v.type.bound for v in given.inputs):
        raise ModelError(f"{given.source or given.name}: bind the shapes of its inputs first (--shape)")
    if is_quantised(given):
        raise ModelError(f"{given.source or given.name}: is quantised already")
    return passes.optimize(given, fuse=False)


def _grids(work: _Work, ranges: Mapping[Value, Range]) -> dict[Value, Grid]:
    return {v: work.scheme.activation_grid(*ranges[work.placed.end(v)]) for v in work.placed.tensors}


def _inserted(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> tuple[Graph, dict[Value, Value]]:
    """The quantised graph, and its values by those of the float graph."""
    copy, placed, again, theirs, values = twins(work.graph, work.placed, made, grids)
    dequantised = insert(copy, placed, again, theirs, work.scheme)
    return copy, {old: dequantised.get(new, new) for old, new in values.items()}


def _score(work: _Work, grids: Mapping[Value, Grid], made: list[Product]) -> float:
    """The least signal-to-noise ratio of the outputs, in dB."""
    return worst_output(work.graph, *_inserted(work, grids, made), work.samples[:SCORED], work.threads)


__all__ = ["Quantized", "quantize"]
