"""Landmarks: the coordinates of points, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, sigmoid
from tenon.runtime.answers.boxes import shown_image
from tenon.runtime.answers.keypoints import points_answer
from tenon.runtime.answers.skeletons import find_edges
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.validation import least

_KNOWN = {(1404, 3): ("none", 0), (63, 3): ("hand21", 0), (195, 5): ("body33", 33)}
"""(numbers in the output, numbers of a point) of MediaPipe's face mesh, hand and body: lines, and points that are
meant (0: all)."""
_RELATIVE = 4
"""Coordinates up to this are relative to the input's size, larger ones are pixels of it."""


@dataclass(frozen=True, kw_only=True)
class Points(Head):
    """The first of ``outputs`` holds ``values`` numbers for each point: x, y and further ones, in pixels of the input
    or relative to its size.  ``visibility`` is the place of a point's logit of being visible among them; -1: there is
    none.  ``presence`` names an output with the score that there is such an object (a logit, unless it is within 0 and
    1).  ``edges`` are lines between points (0-1-2/5-6, or coco, body33, hand21, ...), ``points`` how many are meant."""

    kind = "points"
    about = "the coordinates of points, [.., points * values]"

    values: Annotated[int, least(2)] = 2
    visibility: int = -1
    points: Annotated[int, least(0)] = 0
    presence: str = ""
    edges: str = "none"

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        if not any(planes(tensor.shape) for tensor in manifest.inputs) or not manifest.outputs:
            return None
        sizes = {tensor.name: int(np.prod(tensor.shape)) for tensor in manifest.outputs}
        first = next(iter(sizes))
        single = [name for name, size in sizes.items() if size == 1]
        for (size, values), (edges, points) in _KNOWN.items():
            if single and sizes[first] == size:
                seen = values - 2 if values > 3 else -1
                return cls(
                    outputs=(first,), values=values, edges=edges, presence=single[0], points=points, visibility=seen
                )
        return None

    def named(self, outputs: Sequence[BundleTensor]) -> tuple[str, ...]:
        if self.presence:
            replace(self, outputs=(self.presence,), presence="").named(outputs)
        return super().named(outputs)

    def answer(self, run: Run) -> Answer:
        numbers = run.outputs[self.outputs[0]].reshape(-1).astype(np.float64)
        if numbers.size % self.values or self.visibility >= self.values:
            raise InputError(f"--head points: {numbers.size} numbers are no points of {self.values} values each")
        rows = numbers.reshape(-1, self.values)[: self.points or None]
        height, width = shown_image(run, self.kind).inner
        in_pixels = bool(np.abs(rows[:, :2]).max(initial=0) > _RELATIVE)
        where = rows[:, :2] / (width, height) if in_pixels else rows[:, :2]
        scores = sigmoid(rows[:, self.visibility]) if self.visibility >= 0 else np.ones(len(rows))
        return points_answer(run, self.kind, where, scores, find_edges(self.edges, len(rows)), self._presence(run))

    def _presence(self, run: Run) -> float | None:
        if not self.presence:
            return None
        score = float(run.outputs[self.presence].reshape(-1)[0])
        return score if 0 <= score <= 1 else float(sigmoid(np.array(score)))
