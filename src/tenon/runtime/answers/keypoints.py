"""Named points of a body, face or hand as an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Run
from tenon.runtime.answers.boxes import shown_image
from tenon.runtime.answers.drawing import Pen
from tenon.runtime.answers.skeletons import Edges
from tenon.runtime.engine.detect import THRESHOLD

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

_LISTED = 40
"""Points are listed one by one up to this number."""


def points_answer(run: Run, kind: str, points: Array, scores: Array, edges: Edges, presence: float | None) -> Answer:
    """``points`` [n, 2] are x, y relative to the input's size, ``scores`` [n] how sure each is; ``presence`` is the
    score that there is such an object at all."""
    placed = shown_image(run, kind).points_on_image(points)
    least = THRESHOLD if run.threshold is None else run.threshold
    there = presence is None or presence >= least
    shown = (scores >= least) & there
    rows = tuple(
        (run.label(i), f"{scores[i]:.3f}", f"{x:.0f}", f"{y:.0f}")
        for i, (x, y) in enumerate(placed)
        if shown[i] and len(placed) <= _LISTED
    )
    listed = [
        {"point": i, "label": run.label(i), "score": float(s), "x": float(x), "y": float(y)}
        for i, (s, (x, y)) in enumerate(zip(scores, placed, strict=True))
    ]

    def draw(photo: Photo) -> Photo:
        pen = Pen(photo)
        pen.points(placed, edges, shown)
        return pen.photo

    known = "" if presence is None else f", score {presence:.3f}"
    summary = f"{int(np.sum(shown))} of {len(placed)} points{known}"
    data = {"points": listed, **({} if presence is None else {"score": presence})}
    return Answer(summary, ("point", "score", "x", "y") if rows else (), rows, data, draw)
