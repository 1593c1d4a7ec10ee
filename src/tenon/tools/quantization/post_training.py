"""Post-training quantisation: a float graph and samples to a graph of integers."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from tenon.errors import InputError, ModelError, guarded
from tenon.formats.exporters.save import save
from tenon.network.graph.bind import with_open_batches
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType
from tenon.network.ops.traits import is_quantised
from tenon.network.ops.unroll import unrolled
from tenon.network.passes.integers.splits import slice_splits
from tenon.network.passes.precision import states_f16
from tenon.options import Options
from tenon.pipeline import Model, Progress, compile, load
from tenon.runtime.bundle import Bundle
from tenon.tools.cluster import open_pool
from tenon.tools.metrics import Evaluation, read_evaluation
from tenon.tools.metrics.registry import Score, scored
from tenon.tools.quantization.calibration import Step
from tenon.tools.quantization.concatenated_inputs import separate_inputs
from tenon.tools.quantization.default_scheme import AUTO as AUTO_SCHEME
from tenon.tools.quantization.default_scheme import default_scheme
from tenon.tools.quantization.ground_truth import GroundTruth, read_truth, truth_in_archive, truth_of
from tenon.tools.quantization.half_precision import in_fp16
from tenon.tools.quantization.known_ranges import Ranges, missing, quantized_by
from tenon.tools.quantization.known_ranges import read as read_known
from tenon.tools.quantization.mixed_precision import TYPES, Contract, Mixture, mixed
from tenon.tools.quantization.placement import rounded_with_others, rounded_with_readers, summed
from tenon.tools.quantization.range_files import write_ranges
from tenon.tools.quantization.ranges import Range
from tenon.tools.quantization.recipe import AUTO, Recipe, Request, checked, inserted, recipe
from tenon.tools.quantization.recurrent_states import recurrent_states
from tenon.tools.quantization.report import Report, reported
from tenon.tools.quantization.samples import Data, Numbered, Sample, finite, numbered_samples
from tenon.tools.quantization.scheme import Scheme, named_scheme
from tenon.tools.quantization.tensor_names import optimized_names, renamed
from tenon.tools.quantization.trained import grid_ranges, take_out
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
    if scheme != AUTO_SCHEME:
        named_scheme(scheme)
    graph, trained, names = _float_graph_and_ranges(model)
    given = trained or ranges is not None or int16 or fp16 or min_sqnr is not None or max_drop is not None
    scheme, reason = _chosen(graph, scheme, "host" if given else target)
    kind = named_scheme(scheme)
    if not separate_activations:
        slice_splits(graph)
    separate = rounded_with_readers(graph) if separate_activations else _separate(graph, kind)
    wanted = {} if kind.weights_only else renamed(read_known(ranges, kind), names) | trained
    states = set() if separate_activations else _states(graph, kind, wanted) - set(trained)
    _check_layers(graph, (*exclude, *int16, *fp16))
    exclude = (*exclude, *fp16)
    if kind.weights_only:
        if trained:
            raise _quantised_already(graph)
        if int16 or fp16:
            raise InputError(f"int16, fp16: with scheme={kind.name} all layers compute in floats: leave them out")
        return _unsearched(quantize_weights(graph, kind, tuple(exclude)), kind, "none", reason)
    if trained or ranges is not None or data is None:
        if min_sqnr is not None or max_drop is not None:
            raise InputError("min_sqnr, max_drop: with known ranges nothing is searched: leave these or the ranges out")
        if trained and data is not None and not missing(graph, wanted, exclude, separate):
            raise _quantised_already(graph)
        known, fed = quantized_by(
            graph,
            wanted,
            kind,
            data,
            method="min-max" if method == "auto" else method,
            samples=samples,
            seed=seed,
            exclude=exclude,
            wide=int16,
            preprocess=preprocess,
            threads=threads,
            step=step,
            change_concat_ranges=change_concat_ranges,
            separate=separate,
            states=states,
        )
        return _of_known(graph, known, fed, kind, fp16, reason, threads)
    numbered = list(numbered_samples(graph, data, samples, seed, preprocess))
    fed = finite(each.sample for each in numbered)
    contract = _contract(min_sqnr, max_drop, metric, ground_truth, data, numbered)
    with nullcontext() if cluster is None else open_pool(cluster) as pool:
        request = Request(
            kind,
            AUTO if method == "auto" else (method,),
            equalisation,
            rounding,
            bias_correction,
            range_search,
            exclude,
            int16,
            threads,
            step,
            pool,
            separate,
            change_concat_ranges,
            states,
        )
        if contract.asked:
            mixture = mixed(graph, fed, request, contract, target, mixed_types, fp16)
        else:
            mixture = Mixture(recipe(graph, fed, request))
    chosen, layers = mixture.recipe, mixture.layers
    result = inserted(chosen, kind)
    in_fp16(result[0], (*fp16, *layers.fp16))
    report = reported(graph, chosen, *result, fed[:SCORED], kind, threads)
    return Quantized(result[0], replace(report, **vars(layers), points=tuple(mixture.points), scheme_reason=reason))


def _separate(graph: Graph, scheme: Scheme) -> set[str]:
    """The results that get a grid in any case: 16 bits are not added to sums of 32."""
    return set() if scheme.activations.bytes == 1 else summed(graph)


def _states(graph: Graph, scheme: Scheme, known: Container[str]) -> set[str]:
    """The tensors that take 16 bits where the others take 8, when inputs of gates have grids of their own unless their
    range is ``known``."""
    if scheme.activations is not DType.I8 or scheme.power_of_two:
        return set()
    separate_inputs(graph, recurrent_states(graph), known)
    return recurrent_states(graph)


def _of_known(
    graph: Graph, known: Recipe, fed: Sequence[Sample], kind: Scheme, fp16: Sequence[str], reason: str, threads: int
) -> Quantized:
    """What known ranges make of ``graph``, measured on samples where there are some."""
    made, values = inserted(known, kind)
    in_fp16(made, fp16)
    if not fed:
        return _unsearched(made, kind, known.method, reason)
    report = reported(graph, known, made, values, fed[:SCORED], kind, threads)
    return Quantized(made, replace(report, scheme_reason=reason))


def _check_layers(graph: Graph, names: Sequence[str]) -> None:
    if unknown := sorted(set(names) - {n for node in graph for n in (str(node.origin.layer), node.output.name)}):
        raise InputError(f"exclude, int16, fp16: there is no layer '{unknown[0]}': 'tenon inspect --layers' lists them")


def _quantised_already(graph: Graph) -> ModelError:
    return ModelError(f"{graph.source or graph.name}: is quantised already")


def _chosen(graph: Graph, scheme: str, target: str) -> tuple[str, str]:
    """The name of the scheme, and why it was chosen."""
    return default_scheme(graph, target) if scheme == AUTO_SCHEME else (scheme, "")


def _unsearched(graph: Graph, kind: Scheme, method: str, reason: str) -> Quantized:
    """With an empty report."""
    return Quantized(graph, Report(kind.name, method, 0, (), (), (), None, None, {}, {}, scheme_reason=reason))


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


def float_graph(model: Model | Graph) -> Graph:
    """The graph with normalisations folded, of ONNX's own operators."""
    graph, trained, _ = _float_graph_and_ranges(model)
    if trained:
        raise _quantised_already(graph)
    return graph


def _float_graph_and_ranges(model: Model | Graph) -> tuple[Graph, dict[str, Range], dict[str, str]]:
    """And the ranges that a quantised one brings along, and what its tensors are called in the graph."""
    given = with_open_batches(unrolled(model.copy() if isinstance(model, Graph) else load(model)))
    if given.incomplete:
        raise ModelError(f"{given.source or given.name}: cannot be quantised: {given.incomplete}")
    if not all(v.type.bound for v in given.inputs):
        raise ModelError(f"{given.source or given.name}: bind the shapes of its inputs first (--shape)")
    trained = take_out(given) if is_quantised(given) else {}
    names = optimized_names(given)
    return given, renamed(trained, names), names


__all__ = ["Quantized", "quantize"]
