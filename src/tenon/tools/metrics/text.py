"""Metrics of speech and text recognition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array


class WordErrorRate:
    """Substitutions, deletions and insertions of words over the number of true words, and of sentences with any.

    Predictions and truths are texts, or sequences of words (or of their numbers).
    """

    lower_is_better = True

    def __init__(self) -> None:
        self._errors = self._words = self._wrong = self._count = 0

    def add(self, prediction: Any, truth: Any) -> None:
        got, expected = _words(prediction), _words(truth)
        errors = edit_distance(got, expected)
        self._errors += errors
        self._words += len(expected)
        self._wrong += bool(errors)
        self._count += 1

    def results(self) -> dict[str, float]:
        return {"wer": self._errors / max(self._words, 1), "ser": self._wrong / max(self._count, 1)}


def edit_distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The least number of substitutions, deletions and insertions from one to the other (Levenshtein, 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def ctc_labels(scores: Array, blank: int = 0) -> list[int]:
    """The best labels of connectionist temporal classification, of scores [..., time, classes]: repeats are one, and
    ``blank`` separates."""
    best = scores.reshape(-1, scores.shape[-1]).argmax(-1)
    kept = best[np.concatenate([[True], best[1:] != best[:-1]])]
    return [int(label) for label in kept if label != blank]


def _words(text: Any) -> list[Any]:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if isinstance(text, str):
        return text.split()
    items = np.asarray(text).reshape(-1).tolist()
    return items[0].split() if len(items) == 1 and isinstance(items[0], str) else items
