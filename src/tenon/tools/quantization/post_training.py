"""Post-training quantisation: a float graph and samples to a graph of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from tenon.errors import InputError, guarded
from tenon.formats.exporters.save import save
from tenon.network.graph.graph import Graph
from tenon.network.passes.precision import states_f16
from tenon.options import Options
from tenon.pipeline import Model, Progress, compile
from tenon.runtime.bundle import Bundle
from tenon.tools.cluster import open_pool
from tenon.tools.metrics import Evaluation, read_evaluation
from tenon.tools.metrics.registry import Score, scored
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.float_model import FloatModel, float_model
from tenon.tools.quantization.ground_truth import GroundTruth, read_truth, truth_in_archive, truth_of
from tenon.tools.quantization.half_precision import in_fp16
from tenon.tools.quantization.known_ranges import Ranges, missing, quantized_by
from tenon.tools.quantization.mixed_precision import TYPES, Contract, Mixture, mixed
from tenon.tools.quantization.placement import rounded_with_others
from tenon.tools.quantization.range_files import write_ranges
from tenon.tools.quantization.recipe import AUTO, Request, checked, inserted, recipe
from tenon.tools.quantization.report import Report, reported
from tenon.tools.quantization.samples import Data, Numbered, Sample, SampleSource, finite
from tenon.tools.quantization.scheme import named_scheme
from tenon.tools.quantization.trained import grid_ranges
from tenon.tools.quantization.weights_only import quantize_weights

SEPARATE = (".tflite", ".tmfile")
"""Endings of formats that have no products that are rounded once with a LeakyRelu or an Add."""

SCORED = 32
"""Samples that the report is measured on."""


@dataclass(frozen=True)
class Quantized:
    """``graph`` has QuantizeLinear and DequantizeLinear around what integers compute; ``report`` says what it costs."""

    graph: Graph
    report: Report

    def save(self, path: str | PathLike[str]) -> None:
        """Write a file of ONNX (with QuantizeLinear/DequantizeLinear pairs), TFLite or tmfile, as its name ends.

        Raises InputError for another ending, and UnsupportedError for layers that the format does not have.
        """
        names = rounded_with_others(self.graph) if Path(path).suffix.lower() in SEPARATE else []
        if names:
            raise InputError(
                f"{path}: layer '{names[0]}' is rounded once with the LeakyRelu or Add after it, which files of TFLite "
                "and Tengine cannot express: quantise with separate_activations=True"
            )
        save(self.graph, path, "the quantised model")

    def compile(self, target: str = "host", progress: Progress = lambda stage: None) -> Bundle:
        """The bundle for a target.  Layers in fp16 are stored so, and computed so where the target does that."""
        precision = "fp16" if states_f16(self.graph) else "fp32"
        return compile(self.graph, Options.from_environment(target=target, precision=precision), progress=progress)

    def save_ranges(self, path: str | PathLike[str], form: str = "") -> None:
        """Write the ranges of the tensors in a format of ``range_files``, by the name of the file if it is empty."""
        scheme = named_scheme(self.report.scheme)
        write_ranges(path, grid_ranges(self.graph, symmetric=scheme.symmetric), scheme, form)


@guarded
def quantize(
    model: Model | Graph,
    data: Data | None = None,
    *,
    samples: int = 128,
    seed: int = 0,
    scheme: str = "auto",
    method: str = "auto",
    ranges: Ranges | None = None,
    change_concat_ranges: bool = False,
    equalisation: bool | None = None,
    rounding: str = "auto",
    bias_correction: bool = True,
    range_search: bool = True,
    exclude: Sequence[str] = (),
    int16: Sequence[str] = (),
    fp16: Sequence[str] = (),
    min_sqnr: float | None = None,
    max_drop: float | None = None,
    metric: Evaluation | Score | str | None = None,
    ground_truth: GroundTruth | None = None,
    mixed_types: Sequence[str] = TYPES,
    target: str = "host",
    preprocess: Mapping[str, Any] | None = None,
    threads: int = 1,
    step: Step = lambda stage, done, total: None,
    cluster: str | None = None,
    separate_activations: bool = False,
) -> Quantized:
    """Quantise a float model, calibrated on ``samples`` samples of ``data``, which ``seed`` chooses of more.

    ``data`` is a folder of images (preprocessed as the model says, changed by ``preprocess``) or of .npy files, an .npy
    or .npz file with samples along the first axis, ``module:function``, or an iterable; a sample is an array of the
    only input's shape, or a mapping of names to arrays.  An iterable gives its first ``samples`` items.

    ``scheme`` is one of ``SCHEMES``, or "auto": "int8" (where ranges are known or a contract, 16-bit or fp16 layers are
    asked for), else what suits ``target`` (``default_scheme``), which the report gives a reason for.  ``method`` is how
    ranges of activations follow from what was observed: one of ``METHODS``, or "auto", which takes the one with the
    best signal-to-noise ratio of the outputs.  ``equalisation``
    scales the channels of tensors to similar ranges (None: if it helps), ``rounding`` is how weights are rounded, one
    of ``ROUNDING``, ``range_search`` tries narrower and wider ranges of each tensor, and ``bias_correction`` puts back
    the means of channels.  Layers that ``exclude`` names stay in float, those that ``int16`` names get
    activations of 16-bit integers, those that ``fp16`` names are products of f16.

    ``min_sqnr`` in dB and ``max_drop``, in hundredths of the result of ``metric``, are a contract: the fewest and
    cheapest layers on ``target`` that meet it stay in float or 16 bits.  ``metric`` and ``ground_truth`` are as for
    ``tenon.evaluate``; it may also be a function (or "module:function") of the outputs by name and the number of the
    sample.  By default it is whether the largest output is that in float.  ``mixed_types`` are what layers may be
    besides integers of the scheme: "int16", "fp16" and "float"; of those that meet the contract, the one that costs
    least on ``target``.

    A product and the LeakyRelu after it are rounded once, and so are a convolution and the Add of another tensor after
    it, which TFLite and Tengine have no operators for: with ``separate_activations`` the product's result is rounded to
    integers, too, for files of theirs.

    States of LSTM and GRU cells and what gates are functions of (``recurrent_states``) take 16 bits where other
    activations are i8, but with ``separate_activations`` and the scheme of powers of two.

    A scheme of weights only (``Scheme.weights_only``) needs neither data nor ranges and repairs nothing.

    ``ranges`` are known ranges of tensors by name, or a file of them (``range_files``); a model of fake quantisation
    brings its own, which stay.  They are taken as they are, ``method`` ("min-max" for "auto") fills in those that are
    missing, and without missing ones no data is needed; nothing is searched or repaired then, and without data the
    report is empty.  ``change_concat_ranges`` gives a concatenation and all that it joins one range, which has all of
    theirs.

    ``cluster`` is the address of a Dask scheduler, or "local:N", whose workers observe parts of the samples; the result
    is the same.

    Raises ModelError, and InputError for bad options and data, and if only float meets the contract.
    """
    checked(rounding, method)
    if samples < 1:
        raise InputError(f"samples={samples}: at least one is needed")
    asked = min_sqnr is not None or max_drop is not None
    plain = ranges is None and not (int16 or fp16 or asked)
    given = float_model(model, scheme, target if plain else "host", ranges, separate_activations=separate_activations)
    given.check_layers((*exclude, *int16, *fp16))
    request = Request(
        given.scheme,
        AUTO if method == "auto" else (method,),
        equalisation,
        rounding,
        bias_correction,
        range_search,
        (*exclude, *fp16),
        int16,
        threads,
        step,
        separate=given.separate,
        joined=change_concat_ranges,
        states=given.states,
    )
    if given.scheme.weights_only:
        return _weights_only(given, request, fp16)
    source = None if data is None else SampleSource(data, samples, seed, preprocess)
    if given.trained or ranges is not None or source is None:
        if asked:
            raise InputError("min_sqnr, max_drop: with known ranges nothing is searched: leave these or the ranges out")
        return _by_known_ranges(given, request, source, fp16)
    numbered = list(source.numbered(given.graph))
    fed = finite(each.sample for each in numbered)
    contract = _contract(min_sqnr, max_drop, metric, ground_truth, source.data, numbered)
    with nullcontext() if cluster is None else open_pool(cluster) as pool:
        request = replace(request, pool=pool)
        if contract.asked:
            mixture = mixed(given.graph, fed, request, contract, target, mixed_types, fp16)
        else:
            mixture = Mixture(recipe(given.graph, fed, request))
    return _of_mixture(given, mixture, fed, fp16, threads)


def _weights_only(given: FloatModel, request: Request, fp16: Sequence[str]) -> Quantized:
    """The graph with weights of integers that are computed with in floats."""
    if given.trained:
        raise given.quantised_already()
    kind = given.scheme
    if request.wide or fp16:
        raise InputError(f"int16, fp16: with scheme={kind.name} all layers compute in floats: leave them out")
    return _unsearched(given, quantize_weights(given.graph, kind, tuple(request.exclude)), "none")


def _by_known_ranges(
    given: FloatModel, request: Request, source: SampleSource | None, fp16: Sequence[str]
) -> Quantized:
    """The graph quantised by known ranges, measured on samples where there are some."""
    if (
        given.trained
        and source is not None
        and not missing(given.graph, given.ranges, request.exclude, request.separate)
    ):
        raise given.quantised_already()
    known, fed = quantized_by(given.graph, given.ranges, request, source)
    made, values = inserted(known, given.scheme)
    in_fp16(made, fp16)
    if not fed:
        return _unsearched(given, made, known.method)
    report = reported(given.graph, known, made, values, fed[:SCORED], given.scheme, request.threads)
    return Quantized(made, replace(report, scheme_reason=given.reason))


def _of_mixture(
    given: FloatModel, mixture: Mixture, fed: Sequence[Sample], fp16: Sequence[str], threads: int
) -> Quantized:
    """The graph of the recipe and types of layers that were searched for."""
    layers = mixture.layers
    made, values = inserted(mixture.recipe, given.scheme)
    in_fp16(made, (*fp16, *layers.fp16))
    report = reported(given.graph, mixture.recipe, made, values, fed[:SCORED], given.scheme, threads)
    points = tuple(mixture.points)
    return Quantized(made, replace(report, **vars(layers), points=points, scheme_reason=given.reason))


def _unsearched(given: FloatModel, made: Graph, method: str) -> Quantized:
    """The graph with an empty report."""
    report = Report(given.scheme.name, method, 0, (), (), (), None, None, {}, {}, scheme_reason=given.reason)
    return Quantized(made, report)


def _contract(
    min_sqnr: float | None,
    max_drop: float | None,
    metric: Evaluation | Score | str | None,
    ground_truth: GroundTruth | None,
    data: Data,
    numbered: Sequence[Numbered],
) -> Contract:
    if metric is None:
        return Contract(min_sqnr, max_drop)
    read = read_evaluation(metric) if isinstance(metric, str) else metric
    chosen = read if isinstance(read, Evaluation) else scored(read)
    if chosen.detections:
        raise InputError(f"metric={metric}: boxes are read from bundles: give a plug-in that decodes outputs by itself")
    known = truth_in_archive(data) if ground_truth is None else read_truth(ground_truth)
    truths = None if known is None else [truth_of(known, each) for each in numbered]
    return Contract(min_sqnr, max_drop, chosen, truths, [each.number for each in numbered])


__all__ = ["Quantized", "quantize"]
