"""Maps of YOLO before decoding: for each cell and anchor an offset, a size, an objectness and classes.

Source: Redmon and Farhadi, YOLOv3: An Incremental Improvement (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, sigmoid
from tenon.runtime.answers.boxes import grid, shown_image, suppressed
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.validation import least

_YOLO_V3 = (
    10.0,
    13.0,
    16.0,
    30.0,
    33.0,
    23.0,
    30.0,
    61.0,
    62.0,
    45.0,
    59.0,
    119.0,
    116.0,
    90.0,
    156.0,
    198.0,
    373.0,
    326.0,
)
"""The anchors of YOLOv3 and YOLOv5: width and height in pixels, three for each of the strides 8, 16 and 32."""


@dataclass(frozen=True, kw_only=True)
class Grid(Head):
    """``outputs`` are maps [1, anchors * (5 + classes), h, w] or [1, h, w, anchors * (5 + classes)], from the smallest
    stride to the largest.  ``anchors`` are widths and heights in pixels of the input, as many for each map; those of
    YOLOv3 by default.  ``version`` 3: sizes by exp; 5: by (2 sigmoid)^2, and offsets of -0.5 to 1.5."""

    kind = "grid"
    about = "maps of YOLO before decoding, [1, anchors * (5 + classes), h, w] each"

    anchors: tuple[float, ...] = _YOLO_V3
    version: Literal[3, 5] = 3
    per_cell: Annotated[int, least(1)] = 3

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        images = [image for tensor in manifest.inputs if (image := planes(tensor.shape))]
        if len(images) != 1 or len(manifest.outputs) != 3:
            return None
        _, height, width, last = images[0]
        maps = cls.fitting(manifest.outputs)
        channels = {t.shape[-1] for t in maps} if last else {t.shape[1] for t in maps}
        sizes = [t.shape[1:3] if last else t.shape[2:] for t in maps]
        expected = [(height // s, width // s) for s in (8, 16, 32)]
        fits = sizes == expected and len(channels) == 1 and min(channels) >= 18 and not min(channels) % 3
        return cls(outputs=tuple(t.name for t in maps)) if fits else None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        maps = [t for t in outputs if len(t.shape) == 4]
        return sorted(maps, key=lambda t: -np.prod(t.shape))

    def named(self, outputs: Sequence[BundleTensor]) -> tuple[str, ...]:
        return super().named(outputs) if self.outputs else tuple(t.name for t in self.fitting(outputs))

    def answer(self, run: Run) -> Answer:
        height, width = shown_image(run, self.kind).inner
        if len(self.anchors) != 2 * self.per_cell * len(self.outputs):
            raise InputError(
                f"--head grid: {len(self.outputs)} maps with {self.per_cell} anchors need "
                f"{2 * self.per_cell * len(self.outputs)} numbers in anchors=W,H,..., not {len(self.anchors)}"
            )
        anchors = np.array(self.anchors).reshape(len(self.outputs), self.per_cell, 2) / (width, height)
        parts = [self._decoded(run.outputs[name], a) for name, a in zip(self.outputs, anchors, strict=True)]
        boxes, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        return suppressed(run, self.kind, boxes, scores.argmax(1), scores.max(1))

    def _decoded(self, values: Array, anchors: Array) -> tuple[Array, Array]:
        """Boxes [n, 4] relative to the input's size, and scores [n, classes]."""
        rows = self._cells(values)
        where = grid(*rows.shape[:2])[:, None]
        size = np.array([rows.shape[1], rows.shape[0]])
        rows = rows.reshape(len(where), self.per_cell, -1)
        if self.version == 5:
            centre = (2 * sigmoid(rows[..., :2]) - 0.5 + where) / size
            half = (2 * sigmoid(rows[..., 2:4])) ** 2 * anchors / 2
        else:
            centre = (sigmoid(rows[..., :2]) + where) / size
            half = np.exp(np.asarray(rows[..., 2:4], np.float64).clip(-20, 20)) * anchors / 2
        scores = sigmoid(rows[..., 4:5]) * sigmoid(rows[..., 5:])
        return np.concatenate([centre - half, centre + half], -1).reshape(-1, 4), scores.reshape(-1, scores.shape[-1])

    def _cells(self, values: Array) -> Array:
        """[h, w, channels] of a map in either order of axes: the channels are a multiple of the anchors."""
        _, *dims = values.shape
        if len(dims) == 3 and dims[-1] % self.per_cell == 0 and dims[-1] // self.per_cell > 5 and dims[-1] >= dims[0]:
            return np.asarray(values[0])
        if len(dims) == 3 and dims[0] % self.per_cell == 0 and dims[0] // self.per_cell > 5:
            return np.asarray(values[0].transpose(1, 2, 0))
        raise InputError(
            f"--head grid: an output of {list(values.shape)} is no map of {self.per_cell} anchors in a cell"
        )
