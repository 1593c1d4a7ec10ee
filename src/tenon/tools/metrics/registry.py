"""Metrics by name, and plug-ins by the module or file that they are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.metrics.base import Evaluation, MeanScore, Outputs
from tenon.tools.metrics.classification import AreaUnderCurve, TopK
from tenon.tools.metrics.detection import MeanAveragePrecision
from tenon.tools.metrics.plugin_code import PluginCode, imported_module
from tenon.tools.metrics.text import WordErrorRate, ctc_labels

Score = Callable[[Mapping[str, Array], int], float]
"""The score of the outputs (by name) for a sample (by its number), 1 for a right answer; higher is better."""


def _recognised(outputs: Outputs, number: int) -> Any:
    """The text of a string output, or the labels of one of scores [time, classes]."""
    first = next(iter(outputs.values()))
    return ctc_labels(first) if first.dtype.kind == "f" else first


METRICS: dict[str, Evaluation] = {
    "top1": Evaluation(TopK),
    "top5": Evaluation(lambda: TopK(1, 5)),
    "auc": Evaluation(AreaUnderCurve),
    "map": Evaluation(MeanAveragePrecision, detections=True),
    "wer": Evaluation(WordErrorRate, _recognised),
}
"""``top1`` and ``top5`` of scores [classes]; ``map`` of boxes; ``wer`` of text, or of labels by CTC with blank 0."""


def scored(score: Score) -> Evaluation:
    """The mean of a function of the outputs and of the number of a sample."""
    return Evaluation(MeanScore, score, needs_truth=False)


def read_evaluation(name: str) -> Evaluation:
    """A metric by name, or a plug-in, MODULE:NAME or FILE.py:NAME: an ``Evaluation``, a function that returns one
    without arguments, or a ``Score`` function.  Raises InputError if there is none."""
    if name in METRICS:
        return METRICS[name]
    plugin, code = read_plugin(name)
    if callable(plugin) and not isinstance(plugin, type) and not _takes_nothing(plugin):
        return scored(_score_of(code, plugin))
    made = code.guarded(plugin)() if callable(plugin) else plugin
    if not isinstance(made, Evaluation):
        raise InputError(f"--metric {name}: it is neither an Evaluation nor a function of outputs and sample number")
    return code.evaluation(made)


def _score_of(code: PluginCode, score: Score) -> Score:
    called = code.guarded(score)
    return lambda outputs, number: code.number(called(outputs, number), f"the score of sample {number}")


def read_plugin(name: str) -> tuple[Any, PluginCode]:
    """The object that MODULE:NAME or FILE.py:NAME names.  Raises InputError if it does not exist."""
    module, _, attribute = name.rpartition(":")
    where = f"--metric {name}"
    if not module or not attribute:
        raise InputError(f"{where}: there is no such metric: give one of {', '.join(METRICS)}, or MODULE:NAME")
    home = imported_module(module, where)
    try:
        return getattr(home, attribute), PluginCode(where, getattr(home, "__file__", None) or "")
    except AttributeError as error:
        raise InputError(f"{where}: {error}: give MODULE:NAME of a module that Python finds, or FILE.py:NAME") from None


def _takes_nothing(function: Callable[..., Any]) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == 0
