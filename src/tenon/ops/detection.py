"""Detector heads that ONNX has no operator for: SSD's DetectionOutput and Faster R-CNN's Proposal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.ir.graph import Array, Value
from tenon.ir.types import TensorType
from tenon.kernels.boxes import Detection, decode, positions, suppress
from tenon.ops.base import Case, Input, Operator, Output, Scratch, Site, Step, Weights, register, typed

CODES = ("corner", "center_size", "corner_size")


@register
@dataclass(frozen=True)
class DetectionOutput(Operator):
    """Inputs: location [N, P * 4 * sets], confidence [N, P * classes], priors [1, 2, P * 4] (corners, variances).

    Output f32 [1, 1, N * keep, 7]: rows (picture, class, score, x0, y0, x1, y1), class by class and the best first.
    Rows are as many as there can be; those past the last detection hold -1 throughout.  ``sets`` is 1, or the number
    of classes when ``share_location`` is 0.  ``keep`` is ``keep_top_k``, or all candidates when that is -1.
    Source: Liu et al., SSD: Single Shot MultiBox Detector, and the layer of its Caffe.
    """

    classes: int = 21
    share_location: int = 1
    background: int = 0
    code_type: str = "corner"
    variance_in_target: int = 0
    confidence_threshold: float = 0.0
    nms_threshold: float = 0.3
    eta: float = 1.0
    nms_top_k: int = 400
    keep_top_k: int = 200
    arity: ClassVar[tuple[int, int]] = (3, 3)

    def plan(self, types: Sequence[TensorType]) -> Detection:
        """Raises ShapeError when the inputs do not fit together."""
        location, confidence, priors = types
        count, items = priors.size // 8, location.dims[0]
        sets = 1 if self.share_location else self.classes
        fits = location.size == items * count * 4 * sets and confidence.size == items * count * self.classes
        if self.code_type not in CODES or self.classes < 1 or not fits or not count or priors.size != count * 8:
            shapes = ", ".join(str(list(t.dims)) for t in types)
            raise ShapeError(f"DetectionOutput: {shapes} do not fit {self.classes} classes of {count} boxes")
        candidates = max(1, min(self.nms_top_k, count))
        most = candidates * self.classes
        keep = self.keep_top_k if self.keep_top_k > 0 else most
        return Detection(
            items, count, self.classes, sets, self.background, self.code_type, bool(self.variance_in_target),
            self.confidence_threshold, self.nms_threshold, self.eta, candidates, min(keep, most), self.keep_top_k > 0,
        )  # fmt: skip

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        plan = self.plan(types)
        return (TensorType(types[0].dtype, (1, 1, plan.items * plan.keep, 7)),)

    def reference(self, location: Array, confidence: Array, priors: Array) -> Array:
        d = self.plan([TensorType("f32", a.shape) for a in (location, confidence, priors)])  # type: ignore[arg-type]
        corners, variances = priors.reshape(2, d.priors, 1, 4)
        deltas = location.reshape(d.items, d.priors, d.sets, 4)
        boxes = _decode(d.code, corners, deltas if d.encoded else deltas * variances)
        scores = confidence.reshape(d.items, d.priors, d.classes)
        rows = np.full((d.items, d.keep, 7), -1, np.float32)
        for n in range(d.items):
            found = [row for c in range(d.classes) if c != d.background for row in _class_rows(d, n, c, boxes, scores)]
            if d.cut and len(found) > d.keep:
                best = np.argsort([-row[2] for row in found], kind="stable")[: d.keep]
                found = [found[i] for i in sorted(best)]
            rows[n, : len(found)] = np.array(found, np.float32).reshape(-1, 7)
        return rows.reshape(1, 1, -1, 7)

    def lower(self, site: Site) -> list[Step]:
        d = self.plan([site.input(i) for i in range(3)])
        boxes = Scratch("boxes", d.items * d.sets * d.priors * 16)
        most = max(d.priors, d.most)
        work = (
            Scratch("scores", most * 4), Scratch("which", most * 4), Scratch("state", 8), Scratch("best", 4),
            Weights(positions(most)), Scratch("found", d.most * 24), Scratch("chosen", d.most * 4), Output(),
            Scratch("count", 12), Scratch("limit", 4),
        )  # fmt: skip
        return [Step(decode(d), (Input(0), Input(2), boxes)), Step(suppress(d), (Input(1), boxes, *work))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(3)
        count, classes = 24, 4
        low = rng.uniform(0, 0.7, (count, 2))
        corners = np.concatenate([low, low + rng.uniform(0.1, 0.3, (count, 2))], 1)
        priors = np.stack([corners, np.full((count, 4), 0.1)]).reshape(1, 2, -1).astype(np.float32)

        def inputs(items: int, sets: int = 1) -> tuple[Array, Array, Array]:
            location = rng.uniform(-1, 1, (items, count * 4 * sets)).astype(np.float32)
            return location, rng.uniform(0, 1, (items, count * classes)).astype(np.float32), priors

        ssd = {"classes": classes, "nms_threshold": 0.45, "confidence_threshold": 0.4}
        yield Case(cls(**ssd, code_type="center_size", nms_top_k=10, keep_top_k=7), inputs(1), (2,), label="ssd")
        yield Case(cls(**ssd, nms_top_k=6, keep_top_k=-1), inputs(1), (2,), label="all")
        own = cls(**ssd, share_location=0, code_type="corner_size", eta=0.8, nms_top_k=12, keep_top_k=30)
        yield Case(own, inputs(2, classes), (2,), label="own_boxes")
        few = cls(classes=classes, confidence_threshold=0.99, variance_in_target=1, background=-1, keep_top_k=9)
        yield Case(few, inputs(2), label="few")


def _decode(code: str, corners: Array, deltas: Array) -> Array:
    """Boxes as corners [N, P, sets, 4]."""
    if code == "corner":
        return np.asarray(corners + deltas)
    size = corners[..., 2:] - corners[..., :2]
    if code == "corner_size":
        return np.asarray(corners + deltas * np.concatenate([size, size], -1))
    centre = deltas[..., :2] * size + (corners[..., :2] + corners[..., 2:]) * np.float32(0.5)
    half = np.exp(deltas[..., 2:]) * size * np.float32(0.5)
    return np.concatenate([centre - half, centre + half], -1)


def _class_rows(d: Detection, n: int, c: int, boxes: Array, scores: Array) -> list[tuple[float, ...]]:
    """What is left of one class of one picture after suppression."""
    mine, limit = scores[n, :, c], np.float32(d.threshold)
    order = np.argsort(-mine, kind="stable")
    kept: list[Array] = []
    rows = []
    for p in [p for p in order if mine[p] > np.float32(d.least_score)][: d.candidates]:
        box = boxes[n, p, c if d.sets > 1 else 0]
        if all(_free(box, other, limit) for other in kept):
            kept.append(box)
            rows.append((n, c, mine[p], *box))
            if d.eta < 1 and limit > 0.5:
                limit = np.float32(limit * np.float32(d.eta))
    return rows


def _free(a: Array, b: Array, limit: np.float32, extra: float = 0.0) -> bool:
    """Whether the intersection of two boxes is at most ``limit`` of their union."""
    size = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + np.float32(extra), 0)
    inside = size[0] * size[1]
    area = [np.prod(np.maximum(box[2:] - box[:2] + np.float32(extra), 0)) for box in (a, b)]
    return bool(inside <= limit * (area[0] + area[1] - inside))
