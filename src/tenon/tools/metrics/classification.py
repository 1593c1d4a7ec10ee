"""Metrics of classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.errors import InputError


class TopK:
    """The share of samples whose true class is among the ``ks`` highest scores.

    Predictions are scores [classes], or a class; equal scores count in the order of classes.
    """

    lower_is_better = False

    def __init__(self, *ks: int) -> None:
        self._right = dict.fromkeys(ks or (1,), 0)
        self._count = 0

    def add(self, prediction: Any, truth: Any) -> None:
        """Count a prediction, the scores of all classes; ``truth`` is a class, from 0."""
        scores = np.asarray(prediction)
        order = np.argsort(-scores.reshape(-1), kind="stable") if scores.size > 1 else scores.reshape(-1)
        label = int(np.asarray(truth).reshape(()))
        if scores.size > 1 and not 0 <= label < scores.size:
            raise InputError(f"the true class {label} is none of the {scores.size} classes: classes count from 0")
        for k in self._right:
            self._right[k] += int(label in order[:k])
        self._count += 1

    def results(self) -> dict[str, float]:
        """The share of right answers for each k: ``top1``, ``top5``."""
        return {f"top{k}": right / max(self._count, 1) for k, right in self._right.items()}


class AreaUnderCurve:
    """The area under the receiver operating characteristic: the probability that a positive sample has a higher score
    than a negative one (equal scores count half).

    Predictions are the score of the positive class, or scores [2] of both; truths are 0 or 1.  Of more classes, the
    mean over those that have positive and negative samples, each against the rest.
    """

    lower_is_better = False

    def __init__(self) -> None:
        self._scores: list[Any] = []
        self._truths: list[int] = []

    def add(self, prediction: Any, truth: Any) -> None:
        self._scores.append(np.asarray(prediction, np.float64).reshape(-1))
        self._truths.append(int(np.asarray(truth).reshape(())))

    def results(self) -> dict[str, float]:
        scores, truths = np.stack(self._scores), np.array(self._truths)
        if scores.shape[1] <= 2:
            areas = [_area(scores[:, -1], truths == 1)]
        else:
            areas = [_area(scores[:, kind], truths == kind) for kind in range(scores.shape[1])]
        known = [each for each in areas if each is not None]
        if not known:
            raise InputError("the area under the curve needs positive and negative samples: give samples of both")
        return {"auc": float(np.mean(known))}


def _area(scores: Any, positive: Any) -> float | None:
    """By the rank sum (Mann and Whitney, 1947); None without samples of both kinds."""
    yes, no = int(positive.sum()), int((~positive).sum())
    if not yes or not no:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]
    return float((ranks[positive].sum() - yes * (yes + 1) / 2) / (yes * no))
