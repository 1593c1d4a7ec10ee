"""Detected objects as an answer: a row for each, and boxes with names drawn into the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Run
from tenon.runtime.answers.drawing import Pen
from tenon.runtime.engine.detect import OVERLAP, THRESHOLD, Detection, nms_indices
from tenon.runtime.engine.image import InputImage

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

COLUMNS = ("class", "score", "left", "top", "right", "bottom")


def label(detection: Detection, names: Sequence[str]) -> str:
    """The name of a detection's class, or its number."""
    return names[detection.kind] if 0 <= detection.kind < len(names) else str(detection.kind)


def detections_answer(
    detected: Sequence[Detection],
    names: Sequence[str],
    points: Sequence[Array] = (),
    edges: Sequence[tuple[int, int]] = (),
) -> Answer:
    """``points``: for each detection [n, 2] points (x, y in pixels) that belong to it."""
    rows = [(label(d, names), f"{d.score:.3f}", *(f"{edge:.0f}" for edge in d.box)) for d in detected]
    listed = [{"class": d.kind, "label": label(d, names), "score": d.score, "box": list(d.box)} for d in detected]
    for each, where in zip(listed, points, strict=False):
        each["points"] = where.tolist()

    def draw(photo: Photo) -> Photo:
        pen = Pen(photo)
        for detection in reversed(detected):  # highest score last, so that it is on top
            pen.box(detection.box, f"{label(detection, names)} {detection.score:.2f}", detection.kind)
        for where in points:
            pen.points(where, edges)
        return pen.photo

    return Answer(f"{len(detected)} found", COLUMNS, tuple(rows), {"detections": listed}, draw)


def shown_image(run: Run, kind: str) -> InputImage:
    """The image of a run.  Raises InputError without one."""
    if run.image is None:
        raise InputError(f"--head {kind}: give an image, whose pixels the answer is about")
    return run.image


def suppressed(
    run: Run,
    kind: str,
    boxes: Array,
    kinds: Array,
    scores: Array,
    points: Array | None = None,
    overlap: float = OVERLAP,
) -> Answer:
    """The answer from candidates before NMS.

    ``boxes`` [n, 4] are left, top, right, bottom and ``points`` [n, k, 2] x, y, both relative to the input's size;
    ``kinds`` and ``scores`` are [n].
    """
    image, least = shown_image(run, kind), THRESHOLD if run.threshold is None else run.threshold
    sure = scores >= least
    boxes, kinds, scores = boxes[sure], kinds[sure], scores[sure]
    kept = nms_indices(boxes, kinds, scores, overlap if run.overlap is None else run.overlap)
    placed = image.on_image(boxes[kept])
    detected = [
        Detection(int(kinds[i]), float(scores[i]), (float(b[0]), float(b[1]), float(b[2]), float(b[3])))
        for i, b in zip(kept, placed, strict=True)
    ]
    where = () if points is None else tuple(image.points_on_image(each) for each in points[sure][kept])
    return detections_answer(detected, run.labels, where)


def grid(height: int, width: int) -> Array:
    """Column and row of each cell, f64 [height * width, 2], row by row."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x, y], -1).reshape(-1, 2).astype(np.float64)
