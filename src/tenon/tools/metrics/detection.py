"""Metrics of detectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

OVERLAPS = tuple(0.5 + 0.05 * i for i in range(10))
"""Least intersections over union that COCO's average precision is a mean over."""

_RECALLS = np.linspace(0, 1, 101)


class MeanAveragePrecision:
    """The mean over classes of the average precision (interpolated at 101 recalls, as COCO's), at an intersection over
    union of at least 0.5, and the mean over 0.5 to 0.95.

    Predictions are sequences of (class, score, box), truths of (class, box), or a mapping with ``boxes`` and
    ``classes``; a box is (left, top, right, bottom).
    """

    lower_is_better = False

    def __init__(self) -> None:
        self._found: list[tuple[int, int, float, tuple[float, ...]]] = []
        self._true: dict[tuple[int, int], list[tuple[float, ...]]] = {}
        self._images = 0

    def add(self, prediction: Any, truth: Any) -> None:
        image, self._images = self._images, self._images + 1
        for kind, score, box in prediction:
            self._found.append((int(kind), image, float(score), tuple(map(float, box))))
        for kind, box in _boxes(truth):
            self._true.setdefault((int(kind), image), []).append(tuple(map(float, box)))

    def results(self) -> dict[str, float]:
        kinds = sorted({kind for kind, _ in self._true})
        means = [sum(self._precision(kind, least) for kind in kinds) / max(len(kinds), 1) for least in OVERLAPS]
        return {"map50": means[0], "map50-95": sum(means) / len(means)}

    def _precision(self, kind: int, least: float) -> float:
        """The average precision of a class: every true box is found at most once, by the highest score."""
        total = sum(len(boxes) for (each, _), boxes in self._true.items() if each == kind)
        taken: set[tuple[int, int]] = set()
        right = []
        for _, image, _, box in sorted((f for f in self._found if f[0] == kind), key=lambda f: -f[2]):
            boxes = self._true.get((kind, image), [])
            free = [(overlap(box, other), i) for i, other in enumerate(boxes) if (image, i) not in taken]
            best = max(free, default=(0.0, -1))
            right.append(best[0] >= least)
            if right[-1]:
                taken.add((image, best[1]))
        if not right:
            return 0.0
        hits = np.cumsum(right)
        recall, precision = hits / total, hits / np.arange(1, len(right) + 1)
        best_from = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, _RECALLS, side="left")
        return float(np.mean([best_from[i] if i < len(best_from) else 0.0 for i in at]))


def overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def _boxes(truth: Any) -> list[tuple[Any, Any]]:
    if isinstance(truth, dict):
        return list(zip(truth["classes"], truth["boxes"], strict=True))
    return [(kind, box) for kind, box in truth]
