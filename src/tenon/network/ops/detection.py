"""Detector heads that ONNX has no operator for: SSD's DetectionOutput and Faster R-CNN's Proposal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.boxes import DetectionParameters, decode, suppress
from tenon.machine.kernels.proposals import Proposals, propose
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, TensorType
from tenon.network.ops.base import Arg, Case, Input, Operator, Output, Scratch, Site, Step, register, typed
from tenon.network.ops.data_dependent import choice

CODES = ("corner", "center_size", "corner_size")


@register
@dataclass(frozen=True)
class DetectionOutput(Operator):
    """Inputs: location [N, P * 4 * sets], confidence [N, P * classes], priors [1, 2, P * 4] (corners, variances).

    Output f32 [1, 1, N * keep, 7]: rows (image, class, score, x0, y0, x1, y1), ordered by class and then by score.
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

    def plan(self, types: Sequence[TensorType]) -> DetectionParameters:
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
        return DetectionParameters(
            items,
            count,
            self.classes,
            sets,
            self.background,
            self.code_type,
            bool(self.variance_in_target),
            self.confidence_threshold,
            self.nms_threshold,
            self.eta,
            candidates,
            min(keep, most),
            self.keep_top_k > 0,
        )

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        plan = self.plan(types)
        return (TensorType(types[0].dtype, (1, 1, plan.items * plan.keep, 7)),)

    def reference(self, location: Array, confidence: Array, priors: Array) -> Array:
        d = self.plan([TensorType(F32, a.shape) for a in (location, confidence, priors)])
        corners, variances = priors.reshape(2, d.priors, 1, 4)
        deltas = location.reshape(d.items, d.priors, d.sets, 4)
        boxes = _decode(d.code, corners, deltas if d.encoded else deltas * variances)
        scores = confidence.reshape(d.items, d.priors, d.classes)
        rows = np.full((d.items, d.keep, 7), -1, np.float32)
        for n in range(d.items):
            detected = [
                row for c in range(d.classes) if c != d.background for row in _class_rows(d, n, c, boxes, scores)
            ]
            if d.cut and len(detected) > d.keep:
                best = np.argsort([-row[2] for row in detected], kind="stable")[: d.keep]
                detected = [detected[i] for i in sorted(best)]
            rows[n, : len(detected)] = np.array(detected, np.float32).reshape(-1, 7)
        return rows.reshape(1, 1, -1, 7)

    def lower(self, site: Site) -> list[Step]:
        d = self.plan([site.input(i) for i in range(3)])
        boxes = Scratch("boxes", d.items * d.sets * d.priors * 16)
        most = d.longest
        work: tuple[Arg, ...] = (
            *choice(most),
            Scratch("found", d.most * 24),
            Scratch("chosen", d.most * 4),
            Output(),
            Scratch("count", 12),
            Scratch("limit", 4),
        )
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

        ssd = cls(classes=classes, nms_threshold=0.45, confidence_threshold=0.4)
        some = replace(ssd, code_type="center_size", nms_top_k=10, keep_top_k=7)
        yield Case(some, inputs(1), (2,), label="ssd")
        yield Case(replace(ssd, nms_top_k=6, keep_top_k=-1), inputs(1), (2,), label="all")
        own = replace(ssd, share_location=0, code_type="corner_size", eta=0.8, nms_top_k=12, keep_top_k=30)
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


def _class_rows(d: DetectionParameters, n: int, c: int, boxes: Array, scores: Array) -> list[tuple[float, ...]]:
    """The detections of one class of one image after NMS."""
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


@register
@dataclass(frozen=True)
class Proposal(Operator):
    """Inputs: scores [1, 2 A, H, W] (background first), deltas [1, 4 A, H, W], image [1, 3] (height, width, scale)
    and anchors [A, 4] in pixels.

    Output f32 [post_nms, 5]: (0, x0, y0, x1, y1), the best first; rows past the last proposal are zero.  Boxes narrower
    or lower than ``min_size`` times the image's scale are dropped, and the ``pre_nms`` best enter NMS.  The far
    corner is the one past the box, or with ``inclusive`` its last pixel.
    Source: Ren et al., Faster R-CNN, and the layer that came with it.
    """

    feat_stride: int = 16
    pre_nms: int = 6000
    post_nms: int = 300
    nms_threshold: float = 0.7
    min_size: float = 16.0
    inclusive: int = 0
    arity: ClassVar[tuple[int, int]] = (4, 4)

    def plan(self, types: Sequence[TensorType]) -> Proposals:
        """Raises ShapeError when the inputs do not fit together."""
        scores, deltas, image, anchors = (t.dims for t in types)
        fits = len(scores) == 4 and scores[0] == 1 and len(anchors) == 2 and anchors[1:] == (4,) and len(image) > 0
        fits = fits and scores[1] == 2 * anchors[0] and deltas == (1, 4 * anchors[0], *scores[2:])
        if not fits or types[2].size < 3 or self.post_nms < 1 or self.pre_nms < 1 or 0 in scores:
            shapes = ", ".join(str(list(t.dims)) for t in types)
            raise ShapeError(f"Proposal: scores, deltas, image and anchors {shapes} do not fit together")
        sizes = (anchors[0], scores[2], scores[3], self.feat_stride)
        return Proposals(*sizes, self.pre_nms, self.post_nms, self.nms_threshold, self.min_size, self.inclusive)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        return (TensorType(types[0].dtype, (self.plan(types).after, 5)),)

    def reference(self, scores: Array, deltas: Array, image: Array, anchors: Array) -> Array:
        d = self.plan([TensorType(F32, a.shape) for a in (scores, deltas, image, anchors)])
        y, x = np.mgrid[0 : d.height, 0 : d.width].astype(np.float32) * np.float32(d.stride)
        corner = np.stack([x, y, x, y], -1)[:, :, None] + anchors
        delta = deltas.reshape(d.anchors, 4, d.height, d.width).transpose(2, 3, 0, 1)
        size = corner[..., 2:] - corner[..., :2] + 1
        centre = delta[..., :2] * size + (corner[..., :2] + size * np.float32(0.5))
        half = np.exp(delta[..., 2:]) * size * np.float32(0.5)
        height, width, scale = image.reshape(-1)[:3]
        edge = np.array([width, height] * 2, np.float32) - 1
        corners = np.concatenate([centre - half, centre + half - np.float32(d.inclusive)], -1)
        boxes = np.maximum(np.minimum(corners, edge), 0).reshape(-1, 4)
        fore = scores[0, d.anchors :].transpose(1, 2, 0).reshape(-1)
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= np.float32(scale * np.float32(d.least))).all(1)
        order = [i for i in np.argsort(-fore, kind="stable") if large[i]][: d.before]
        kept: list[Array] = []
        for i in order:
            if len(kept) == d.after:
                break
            if all(_free(boxes[i], other, np.float32(d.threshold), 1.0) for other in kept):
                kept.append(boxes[i])
        rows = np.zeros((d.after, 5), np.float32)
        rows[: len(kept), 1:] = np.array(kept, np.float32).reshape(-1, 4)
        return rows

    def lower(self, site: Site) -> list[Step]:
        d = self.plan([site.input(i) for i in range(4)])
        work: tuple[Arg, ...] = (*choice(d.count), Scratch("boxes", d.count * 16), Output(), Scratch("count", 4))
        return [Step(propose(d), (Input(0), Input(1), Input(2), Input(3), *work))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(5)
        anchors = np.array([[0, 0, 15, 15], [-8, 0, 23, 15], [0, -8, 15, 23]], np.float32)

        def inputs(h: int, w: int) -> tuple[Array, ...]:
            scores = rng.uniform(0, 1, (1, 6, h, w)).astype(np.float32)
            deltas = rng.uniform(-0.5, 0.5, (1, 12, h, w)).astype(np.float32)
            return scores, deltas, np.array([[h * 16, w * 16, 1.5]], np.float32), anchors

        yield Case(cls(post_nms=12, nms_threshold=0.3, min_size=8.0), inputs(4, 5), (3,), label="few")
        yield Case(cls(post_nms=60, pre_nms=20, min_size=12.0), inputs(3, 6), (3,), label="more_than_there_are")
        yield Case(cls(post_nms=9, inclusive=1), inputs(4, 3), (3,), label="last_pixels")
