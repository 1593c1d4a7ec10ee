"""Detection post-processing of a single-shot detector: boxes decoded from anchors, then NMS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.post_process import PostProcess, choose, decode
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import F32, TensorType
from tenon.network.ops.base import Arg, Case, Input, Operator, Output, Scratch, Site, Step, register, typed
from tenon.network.ops.data_dependent import choice


@register
@dataclass(frozen=True)
class DetectionPostProcess(Operator):
    """TFLite_Detection_PostProcess.  Inputs: encodings [1, n, 4] and anchors [n, 4] as (y, x, height, width) of
    centres, scores [1, n, classes], the first of which is the background if there is one class more.

    Outputs: boxes [1, d, 4] as (top, left, bottom, right), classes [1, d], scores [1, d], their number [1]; d is
    ``max_detections * max_classes_per_detection``, unused rows are zero.  ``regular`` suppresses within each
    class, otherwise every anchor competes with its best class.
    """

    max_detections: int
    num_classes: int
    iou_threshold: float
    score_threshold: float
    scales: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    max_classes_per_detection: int = 1
    detections_per_class: int = 100
    regular: int = 0
    arity: ClassVar[tuple[int, int]] = (3, 3)

    @property
    def rows(self) -> int:
        return self.max_detections * self.max_classes_per_detection

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        boxes, scores, anchors = typed(inputs)
        n = anchors.dims[0] if anchors.rank == 2 else -1
        fits = boxes.dims == (1, n, 4) and anchors.dims == (n, 4) and scores.dims[:2] == (1, n) and scores.rank == 3
        if not fits or not 0 <= scores.dims[2] - self.num_classes <= 1 or len(self.scales) != 4 or not all(self.scales):
            raise ShapeError(
                f"DetectionPostProcess: encodings {boxes}, scores {scores} and anchors {anchors} do not fit "
                f"{self.num_classes} classes"
            )
        if not 0 < self.rows < 1 << 20 or not 0 < self.max_classes_per_detection <= self.num_classes:
            raise ShapeError(f"DetectionPostProcess: {self.max_detections} detections of one run are impossible")
        d = self.rows
        return tuple(TensorType(F32, dims) for dims in ((1, d, 4), (1, d), (1, d), (1,)))

    def reference(self, encodings: Array, scores: Array, anchors: Array) -> tuple[Array, ...]:
        boxes = self.decoded(encodings[0], anchors)
        scores = scores[0, :, scores.shape[2] - self.num_classes :]
        detections = self.by_class(boxes, scores) if self.regular else self.by_anchor(boxes, scores)
        out = np.zeros((1, self.rows, 4), np.float32), np.zeros((1, self.rows), np.float32)
        values = np.zeros((1, self.rows), np.float32)
        for row, (anchor, kind) in enumerate(detections):
            out[0][0, row], out[1][0, row], values[0, row] = boxes[anchor], kind, scores[anchor, kind]
        count = len(detections) // (1 if self.regular else self.max_classes_per_detection)
        return out[0], out[1], values, np.array([count], np.float32)

    def decoded(self, encodings: Array, anchors: Array) -> Array:
        """Corners of the boxes, [n, 4]."""
        y, x, h, w = (encodings / np.array(self.scales, np.float32)).T.astype(np.float32)
        at_y, at_x, high, wide = anchors.T
        cy, cx = y * high + at_y, x * wide + at_x
        half_h, half_w = np.float32(0.5) * np.exp(h) * high, np.float32(0.5) * np.exp(w) * wide
        return np.stack([cy - half_h, cx - half_w, cy + half_h, cx + half_w], axis=1).astype(np.float32)

    def by_anchor(self, boxes: Array, scores: Array) -> list[tuple[int, int]]:
        kinds = np.argsort(-scores, axis=1, kind="stable")[:, : self.max_classes_per_detection]
        best = scores[np.arange(len(scores)), kinds[:, 0]]
        kept = self.suppressed(boxes, best, self.max_detections)
        return [(anchor, int(kind)) for anchor in kept for kind in kinds[anchor]]

    def by_class(self, boxes: Array, scores: Array) -> list[tuple[int, int]]:
        detections: list[tuple[int, int]] = []
        for kind in range(self.num_classes):
            detections += [(a, kind) for a in self.suppressed(boxes, scores[:, kind], self.detections_per_class)]
            detections.sort(key=lambda pair: -scores[pair])
            detections = detections[: self.max_detections]
        return detections

    def suppressed(self, boxes: Array, scores: Array, most: int) -> list[int]:
        """Greedy NMS: boxes from the best score down, without those that overlap one kept by more than allowed."""
        order = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] >= np.float32(self.score_threshold)]
        kept: list[int] = []
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        area = sides[:, 0] * sides[:, 1]
        for i in order:
            if len(kept) == most:
                break
            low, high = np.maximum(boxes[kept, :2], boxes[i, :2]), np.minimum(boxes[kept, 2:], boxes[i, 2:])
            common = np.prod(np.maximum(high - low, 0), axis=1)
            both = area[kept] + area[i] - common
            if (common <= np.float32(self.iou_threshold) * both).all():
                kept.append(i)
        return kept

    def plan(self, types: Sequence[TensorType]) -> PostProcess:
        anchors, classes = types[2].dims[0], types[1].dims[2]
        cap = min(anchors, self.detections_per_class if self.regular else self.max_detections)
        per = 1 if self.regular else self.max_classes_per_detection
        return PostProcess(
            anchors,
            classes,
            classes - self.num_classes,
            bool(self.regular),
            cap,
            self.max_detections,
            per,
            self.score_threshold,
            self.iou_threshold,
            self.scales,
        )

    def supported(self, site: Site) -> str:
        if self.regular and self.max_classes_per_detection > 1:
            return "several classes for one box, and suppression within each class"
        return "" if all(site.input(i).dtype is F32 for i in range(3)) else "only f32 is compiled"

    def lower(self, site: Site) -> list[Step]:
        d = self.plan([site.input(i) for i in range(3)])
        boxes, longest = Scratch("boxes", d.anchors * 16), d.longest
        work: tuple[Arg, ...] = (
            *choice(longest),
            Scratch("anchor", d.kept * 4),
            Scratch("kind", d.kept * 4),
            Scratch("score", d.kept * 4),
            Scratch("corners", d.kept * 16),
            Scratch("count", 8),
            *map(Output, range(4)),
        )
        return [Step(decode(d), (Input(0), Input(2), boxes)), Step(choose(d), (Input(1), boxes, *work))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(0)
        anchors = rng.uniform(0.1, 0.9, (30, 4)).astype(np.float32)
        scales = (10.0, 10.0, 5.0, 5.0)
        inputs = ((1, 30, 4), (1, 30, 4), anchors)
        yield Case(cls(5, 3, 0.5, 0.2, scales), inputs, (2,), label="fast")
        yield Case(cls(5, 3, 0.5, 0.2, scales, detections_per_class=4, regular=1), inputs, (2,), label="regular")
        yield Case(cls(5, 3, 0.5, 0.2, scales, detections_per_class=0, regular=1), inputs, (2,), label="nothing_kept")
        yield Case(cls(9, 4, 0.3, 0.9, scales, 2), inputs, (2,), label="two_classes")
