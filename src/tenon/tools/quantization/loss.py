"""The loss by quantisation at the outputs: the power of the noise and, for classifiers, the answers that it changes.

A classifier's noise may fall while more of its answers change: scores that are far below the greatest count as much as
those that compete with it.  The Kullback-Leibler divergence of the class probabilities weighs them by how likely they
are.  Where all answers are those in floats already, the noise alone counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tenon.network.graph.graph import Array, Graph
from tenon.tools.quantization.probes import scores

LEAST = 1e-12
"""Divergences below are rounding."""


class Loss(NamedTuple):
    """``total`` is what a search reduces, ``noise`` the power of the noise over that of the signal, ``changed`` the
    number of samples whose largest output of the first is another one."""

    total: float
    noise: float
    changed: int = 0


def loss_of(noise: float, divergence: float | None) -> Loss:
    """The geometric mean of both: either may grow where the other shrinks more.  None: the noise alone."""
    if divergence is None:
        return Loss(noise, noise)
    return Loss((noise * max(divergence, LEAST)) ** 0.5, noise)


class Quality(NamedTuple):
    """The inverse of a loss in dB: ``total`` is what a search raises."""

    total: float
    sqnr: float


def quality_of(loss: Loss) -> Quality:
    return Quality(*(-10 * math.log10(max(each, 1e-30)) for each in (loss.total, loss.noise)))


def is_classifier(graph: Graph) -> bool:
    """Whether the first output is a vector of scores of classes; one as long as the input is its reconstruction."""
    first = scores(graph)[0].type
    return 1 < first.size == first.dims[-1] and all(v.type.size != first.size for v in graph.inputs)


def relative_entropy(expected: Array, actual: Array) -> float:
    """The Kullback-Leibler divergence, in nats, of the softmax of ``actual`` scores from that of ``expected`` ones."""
    p, q = (_log_softmax(each.astype(np.float64).reshape(-1)) for each in (expected, actual))
    return max(float(np.exp(p) @ (p - q)), 0.0)


def _log_softmax(values: Array) -> Array:
    shifted = values - values.max()
    logarithms: Array = shifted - np.log(np.exp(shifted).sum())
    return logarithms
