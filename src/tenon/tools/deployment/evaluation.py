"""Accuracy of a network on samples whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, tee
from typing import Any

import numpy as np

from tenon.errors import InputError, guarded
from tenon.network.graph.graph import Array
from tenon.network.graph.types import TensorType
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import open_bundle
from tenon.runtime.engine.detect import detections
from tenon.tools.cluster import open_pool
from tenon.tools.metrics import Evaluation, read_evaluation
from tenon.tools.metrics.base import add_sample
from tenon.tools.metrics.mace_script import MaceScript, read_mace_script
from tenon.tools.peers.base import Network
from tenon.tools.quantization.comparison import BundleNetwork, Given, input_graph, opened
from tenon.tools.quantization.distributed import run_on_workers
from tenon.tools.quantization.ground_truth import GroundTruth, read_truth, truth_in_archive, truth_of
from tenon.tools.quantization.report import standard_error
from tenon.tools.quantization.samples import Data, Numbered, Sample, numbered_samples

ALL = 1 << 60
"""Samples, where no number of them is given."""

RunSamples = Callable[[Iterable[Sample]], Iterator[dict[str, Array]]]
"""Runs a bundle on samples, in their order."""

SHARES = ("top1", "top5", "score")
"""Results that are shares of samples, which have a standard error."""


@dataclass(frozen=True)
class Accuracy:
    """``results`` by name, the most important first, as shares of 1; ``errors`` are standard errors of those that are
    shares of samples."""

    samples: int
    results: Mapping[str, float]
    errors: Mapping[str, float]


@guarded
def evaluate(
    network: Given | Bundle,
    data: Data | None = None,
    *,
    metric: str | Evaluation = "top1",
    ground_truth: GroundTruth | None = None,
    samples: int | None = None,
    seed: int = 0,
    preprocess: Mapping[str, Any] | None = None,
    arithmetic: str | None = None,
    threads: int = 1,
    cluster: str | None = None,
    step: Callable[[int], None] = lambda done: None,
) -> Accuracy:
    """Run a network on samples, and measure how well its outputs agree with what is true.

    ``network`` is as for ``compare``; ``data``, ``seed`` and ``preprocess`` as for ``quantize``, all samples unless
    ``samples`` limits them.  ``metric`` is "top1", "top5", "auc", "map", "wer", an ``Evaluation``, MODULE:NAME or
    FILE.py:NAME of one (which may bring samples and truth along), or the ``AccuracyValidator`` of a script of MACE's.
    ``ground_truth`` has what is true of each sample, by its number or by the name of its file: a list, a mapping, an
    .npy, .npz, .json or .txt file.  ``step`` is told how many samples are done.

    ``cluster`` is the address of a Dask scheduler, or "local:N", whose workers run the network, which is a bundle in
    memory then; the metric is computed here, in the order of the samples.

    Raises InputError for samples and truths that do not fit, and for a metric that does not exist.
    """
    script = read_mace_script(metric) if isinstance(metric, str) else None
    bundle = network if isinstance(network, Bundle) else None
    if cluster is not None and (bundle is None or script is not None):
        raise InputError("cluster: samples go to workers for models, and not for scripts of MACE's")
    side = (
        BundleNetwork(open_bundle(network), owned=True)
        if isinstance(network, Bundle)
        else opened(network, arithmetic, threads)
    )
    try:
        if script is not None:
            return _by_script(side, script, step)
        chosen = read_evaluation(metric) if isinstance(metric, str) else metric
        pairs = _pairs(side, chosen, data, ground_truth, ALL if samples is None else samples, seed, preprocess)
        if cluster is None or bundle is None:
            return _measured(side, chosen, pairs, step)
        with open_pool(cluster) as pool:
            return _measured(side, chosen, pairs, step, partial(run_on_workers, pool, bundle))
    finally:
        side.close()


def _measured(
    side: Network,
    chosen: Evaluation,
    pairs: Iterable[tuple[Numbered, Any]],
    step: Callable[[int], None],
    run_samples: RunSamples | None = None,
) -> Accuracy:
    metric, count = chosen.metric(), 0
    for each, truth, outputs in _answered(side, pairs, run_samples):
        answer = _boxes(side, each, outputs) if chosen.detections else chosen.postprocess(outputs, each.number)
        add_sample(metric, answer, truth, each.number)
        count += 1
        step(count)
    if not count:
        raise InputError("there are no samples to measure the accuracy on")
    results = dict(metric.results())
    errors = {name: standard_error(results[name], count) for name in SHARES if 0 <= results.get(name, -1) <= 1}
    return Accuracy(count, results, errors)


def _answered(
    side: Network, pairs: Iterable[tuple[Numbered, Any]], run_samples: RunSamples | None
) -> Iterator[tuple[Numbered, Any, Mapping[str, Array]]]:
    """Samples, what is true of them, and the outputs; ``run_samples`` runs a bundle."""
    if run_samples is None or not isinstance(side, BundleNetwork):
        for each, truth in pairs:
            yield each, truth, side.run(each.sample)
        return
    given, asked = tee(pairs)
    runs = run_samples(each.sample for each, _ in asked)
    for (each, truth), outputs in zip(given, runs, strict=True):
        yield each, truth, side.real(outputs)


def _boxes(side: Network, each: Numbered, outputs: Mapping[str, Array]) -> list[tuple[int, float, Any]]:
    if not isinstance(side, BundleNetwork):
        raise InputError("boxes are measured of bundles, which say how outputs list them: compile the model first")
    if each.image is None:
        raise InputError("boxes are measured on images: give a folder of images")
    return [(d.kind, d.score, d.box) for d in detections(side.engine, each.image, outputs, threshold=0.01)]


def _pairs(
    side: Network,
    chosen: Evaluation,
    data: Data | None,
    ground_truth: Any,
    count: int,
    seed: int,
    preprocess: Mapping[str, Any] | None,
) -> Iterator[tuple[Numbered, Any]]:
    """Samples and what is true of them."""
    graph = input_graph(side)
    if chosen.dataset is not None and data is None:
        whole = islice(chosen.dataset(), count)
        truths: list[Any] = []

        def inputs() -> Iterator[Any]:
            for item, truth in whole:
                truths.append(truth)
                yield chosen.preprocess(item)

        for each in numbered_samples(graph, inputs(), count):
            yield each, truths.pop(0)
        return
    if data is None:
        raise InputError("there are no samples: give --data, or a metric plug-in with a dataset")
    known = truth_in_archive(data) if ground_truth is None else read_truth(ground_truth)
    if known is None and chosen.needs_truth:
        raise InputError("the metric compares with what is true of each sample: give --ground-truth FILE")
    for each in numbered_samples(graph, data, count, seed, preprocess):
        yield each, None if known is None else truth_of(known, each)


# ------------------------------------------------------------------------------------------ MACE's scripts
def _by_script(side: Network, script: MaceScript, step: Callable[[int], None]) -> Accuracy:
    """All batches of the script; what ``result`` returns, if anything, are the results."""
    total, batch = script.sample_size(), max(1, script.batch_size())
    kinds = {name: kind for name, kind, _ in side.inputs}
    for start in range(0, total, batch):
        end = min(start + batch, total)
        given = script.preprocess(start, end)
        if missing := [name for name in kinds if name not in given]:
            raise InputError(f"the script's preprocess gives no '{missing[0]}', but {', '.join(given)}")
        arrays = {name: _array(name, given[name], kind) for name, kind in kinds.items()}
        parts = _batches(arrays, {name: kind.size for name, kind in kinds.items()}, end - start)
        rows: list[dict[str, Array]] = []
        for part in parts:
            outputs = side.run({name: array.reshape(kinds[name].dims) for name, array in part.items()})
            rows.append({name: np.atleast_1d(outputs[name]).copy() for name in side.outputs})
        script.postprocess(start, end, {name: np.concatenate([row[name] for row in rows]) for name in side.outputs})
        step(end)
    return Accuracy(total, dict(script.result()), {})


def _array(name: str, given: Any, kind: TensorType) -> Array:
    try:
        return np.asarray(given, kind.dtype.numpy)
    except (TypeError, ValueError) as error:
        raise InputError(f"the script's '{name}' is no array of {kind.dtype}: {error}") from None


def _batches(arrays: Mapping[str, Array], sizes: Mapping[str, int], count: int) -> Iterator[dict[str, Array]]:
    """The whole batch at once if the network takes it, else sample by sample."""
    if all(array.size == sizes[name] for name, array in arrays.items()):
        yield dict(arrays)
        return
    for name, array in arrays.items():
        if array.size != count * sizes[name]:
            raise InputError(f"the script's '{name}' has {array.size} elements, the network takes {sizes[name]}")
    for i in range(count):
        yield {name: array.reshape(count, -1)[i] for name, array in arrays.items()}
