"""Post-training quantisation by ranges that are known: no samples are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenon.errors import InputError, ModelError, guarded
from tenon.network.graph.graph import Graph
from tenon.pipeline import Model
from tenon.tools.quantization.calibration import Step, observed
from tenon.tools.quantization.candidates import grids
from tenon.tools.quantization.equalisation import equalised
from tenon.tools.quantization.float_model import float_graph
from tenon.tools.quantization.insertion import insert, products
from tenon.tools.quantization.moments import moments
from tenon.tools.quantization.placement import placement, rounded_with_readers
from tenon.tools.quantization.ranges import HISTOGRAMS, METHODS
from tenon.tools.quantization.rounding import rounded
from tenon.tools.quantization.samples import Data, Sample, finite, read_samples
from tenon.tools.quantization.scheme import named_scheme


@guarded
def quantize_by_ranges(
    model: Model | Graph,
    ranges: Mapping[str, tuple[float, float]],
    *,
    scheme: str = "int8",
    exclude: Sequence[str] = (),
    fitted: Sequence[Sample] = (),
    threads: int = 1,
    everywhere: bool = False,
) -> Graph:
    """A float model with QuantizeLinear and DequantizeLinear around what integers compute.

    ``ranges`` are the least and the greatest value of tensors by their names, of those that ``profiled`` names at
    least.  ``scheme`` and ``exclude`` are as for ``quantize``.  With samples in ``fitted``, weights are not rounded to
    the nearest integer, but by what that does to the sums of their layers ("gptq").  With ``everywhere``
    outputs and all that operators compute are integers, not only what products need.  Raises ModelError, and InputError
    for a tensor without a range.
    """
    graph, kind = float_graph(model), named_scheme(scheme)
    placed = placement(graph, exclude, separate=ranges, everywhere=everywhere)
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    if missing := [value.name for value in placed.tensors if value.name not in ranges]:
        raise InputError(f"there is no range for tensor '{missing[0]}': profile the same model again")
    quants = grids(placed, {value: ranges[value.name] for value in placed.tensors}, kind)
    made = products(placed, quants, kind)
    if fitted:
        made = rounded(made, moments(graph, made, fitted, threads=threads, step=_silent), "gptq", step=_silent)
    insert(graph, placed, made, quants, kind)
    return graph


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@guarded
def equalised_model(
    model: Model | Graph, samples: Sequence[Sample], *, scheme: str = "int8", threads: int = 1
) -> Graph:
    """The float model with channels of tensors scaled to similar ranges, which computes the same.

    Raises ModelError for a model that is quantised already.
    """
    return equalised(float_graph(model), samples, per_channel=named_scheme(scheme).per_channel, threads=threads)[0]


@guarded
def calibrated_ranges(
    model: Model | Graph,
    data: Data,
    *,
    method: str = "min-max",
    samples: int = 128,
    seed: int = 0,
    exclude: Sequence[str] = (),
    preprocess: Mapping[str, Any] | None = None,
    threads: int = 1,
    step: Step = lambda stage, done, total: None,
    everywhere: bool = False,
) -> dict[str, tuple[float, float]]:
    """The ranges of tensors on samples, by their names: those that ``quantize_by_ranges`` asks for.

    The arguments are as for ``quantize`` and ``quantize_by_ranges``.  Raises ModelError, and InputError for bad options
    and data.
    """
    if method not in METHODS:
        raise InputError(f"there is no method '{method}': choose one of {', '.join(METHODS)}")
    graph = float_graph(model)
    given = finite(read_samples(graph, data, samples, seed, preprocess))
    tensors = placement(graph, exclude, separate=rounded_with_readers(graph), everywhere=everywhere).tensors
    seen = observed(graph, tensors, given, histograms=method in HISTOGRAMS, threads=threads, step=step)
    return {value.name: METHODS[method](each) for value, each in seen.items()}


def tensors_with_ranges(model: Model | Graph) -> set[str]:
    """The names of the tensors whose ranges ``quantize_by_ranges`` reads."""
    return {value.name for value in placement(float_graph(model)).tensors}


def profiled(model: Model | Graph) -> Graph:
    """The graph whose tensors ``quantize_by_ranges`` needs the ranges of, by their names."""
    return float_graph(model)
