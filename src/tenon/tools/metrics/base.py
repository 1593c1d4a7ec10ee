"""The interface of metrics, and of what is evaluated by one."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tenon.errors import InputError
from tenon.network.graph.graph import Array

Outputs = Mapping[str, Array]
"""Outputs of a network by name, quantised ones as the real numbers that they stand for."""


class Metric(Protocol):
    """Accumulates predictions.  ``results`` are shares of 1 by name, the most important one first; higher is better
    unless ``lower_is_better``."""

    lower_is_better: bool

    def add(self, prediction: Any, truth: Any) -> None:
        """Count the prediction for a sample; ``truth`` is None where none is known."""

    def results(self) -> Mapping[str, float]:
        """The results of all predictions so far, by name."""


class MeanScore:
    """The mean of scores that predictions are themselves."""

    lower_is_better = False

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, prediction: Any, truth: Any) -> None:
        """``prediction`` is the score of a sample."""
        self._sum += float(prediction)
        self._count += 1

    def results(self) -> dict[str, float]:
        return {"score": self._sum / max(self._count, 1)}


def first_output(outputs: Outputs, number: int) -> Array:
    """The first output, flat."""
    return next(iter(outputs.values())).reshape(-1)


@dataclass(frozen=True)
class Evaluation:
    """A metric and its data: a plug-in is one of these, or a function that returns one.

    ``metric`` makes a metric without predictions.  ``postprocess`` turns the outputs for a sample, and its number, into
    a prediction.  ``dataset`` gives pairs of a sample and what is true of it, ``preprocess`` turns such a sample into
    what the network takes: an array, or a mapping of input names to arrays; without a ``dataset`` both are given by
    the caller.  ``detections`` asks for boxes in pixels (``tenon.detect``) as predictions.
    """

    metric: Callable[[], Metric]
    postprocess: Callable[[Outputs, int], Any] = first_output
    dataset: Callable[[], Iterable[tuple[Any, Any]]] | None = None
    preprocess: Callable[[Any], Any] = lambda sample: sample
    needs_truth: bool = True
    detections: bool = False

    def score(
        self, outputs: Iterable[Outputs], truths: Sequence[Any] | None, numbers: Iterable[int] | None = None
    ) -> dict[str, float]:
        """The results for the outputs of all samples, in the order of ``truths`` and ``numbers`` (0, 1, ...)."""
        if truths is None and self.needs_truth:
            raise InputError("the metric compares with what is true: give the ground truth of the samples")
        metric = self.metric()
        given = list(outputs)
        known = [None] * len(given) if truths is None else truths
        for each, truth, number in zip(given, known, numbers or range(len(given)), strict=True):
            add_sample(metric, self.postprocess(each, number), truth, number)
        return dict(metric.results())

    def drop(self, reference: Mapping[str, float], got: Mapping[str, float]) -> float:
        """By how many hundredths the most important result is worse."""
        name = next(iter(reference))
        worse = 100 * (reference[name] - got[name])
        return -worse if self.metric().lower_is_better else worse


def add_sample(metric: Metric, answer: Any, truth: Any, number: int) -> None:
    """Count an answer.  Raises InputError for what is true of sample ``number`` in a form that the metric has not."""
    try:
        metric.add(answer, truth)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        shown = textwrap.shorten(repr(truth), _LONGEST)
        raise InputError(f"the ground truth of sample {number}, {shown}, does not fit the metric: {error}") from error


_LONGEST = 60
"""Characters of what is true of a sample, in a message."""
