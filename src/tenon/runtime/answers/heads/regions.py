"""Text detection by a map of scores (DBNet): the areas above a threshold, as boxes.

Source: Liao et al., Real-time Scene Text Detection with Differentiable Binarization (2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run
from tenon.runtime.answers.boxes import suppressed
from tenon.runtime.bundle.manifest import BundleTensor
from tenon.validation import least


@dataclass(frozen=True, kw_only=True)
class Regions(Head):
    """The output is a map of scores [1, 1, h, w].  Connected pixels above ``level`` are an area, whose score is their
    mean; its upright box is made larger on each side by ``grow`` * area / perimeter of the box, because such networks
    learn shrunken areas.  Areas of fewer than ``smallest`` pixels on a side are dropped."""

    kind = "regions"
    about = "a map of scores, [1, 1, h, w]"

    level: float = 0.3
    grow: Annotated[float, least(0)] = 1.6
    smallest: Annotated[int, least(1)] = 3

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if len(t.shape) == 4 and 1 in (t.shape[1], t.shape[3])]

    def answer(self, run: Run) -> Answer:
        values = run.outputs[self.outputs[0]]
        if values.ndim != 4 or values.shape[0] != 1 or 1 not in (values.shape[1], values.shape[3]):
            raise InputError(f"--head regions: an output of {list(values.shape)} is no map [1, 1, h, w]")
        scores = values[0, 0] if values.shape[1] == 1 else values[0, :, :, 0]
        height, width = scores.shape
        boxes, sure = [], []
        for box, score in areas(scores, self.level):
            left, top, right, bottom = box
            if min(right - left, bottom - top) >= self.smallest:
                more = self.grow * (right - left) * (bottom - top) / (2 * (right - left + bottom - top))
                boxes.append((left - more, top - more, right + more, bottom + more))
                sure.append(score)
        relative = np.array(boxes).reshape(-1, 4) / (width, height, width, height)
        return suppressed(run, self.kind, relative, np.zeros(len(boxes), np.int64), np.array(sure))


def areas(scores: Array, level: float) -> Iterator[tuple[tuple[int, int, int, int], float]]:
    """The box (left, top, right, bottom, exclusive) and mean score of each area of pixels [h, w] above ``level`` that
    touch, corners included."""
    runs = [(y, int(a), int(b)) for y, row in enumerate(scores > level) for a, b in _runs(row)]
    parent = list(range(len(runs)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in _touching(runs):
        parent[root(j)] = root(i)
    groups: dict[int, list[tuple[int, int, int]]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(root(i), []).append(run)
    for group in groups.values():
        pixels = np.concatenate([scores[y, a:b] for y, a, b in group])
        ys, lefts, rights = zip(*group, strict=True)
        yield (min(lefts), min(ys), max(rights), max(ys) + 1), float(pixels.mean())


def _runs(row: Array) -> Array:
    """The half-open ranges of true values in a row, [n, 2]."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], row.view(np.int8), [0]])))
    return steps.reshape(-1, 2)


def _touching(runs: Sequence[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
    """Pairs of runs in consecutive rows that touch."""
    rows: dict[int, list[int]] = {}
    for i, (y, _, _) in enumerate(runs):
        rows.setdefault(y, []).append(i)
    for above, below in pairwise(sorted(rows)):
        if below != above + 1:
            continue
        for i in rows[above]:
            yield from ((i, j) for j in rows[below] if runs[i][1] <= runs[j][2] and runs[j][1] <= runs[i][2])
