"""MediaPipe's detectors (BlazeFace, BlazePalm, BlazePose): boxes and points as offsets from anchors of one size.

Source: Bazarevsky et al., BlazeFace: Sub-millisecond Neural Face Detection on Mobile GPUs (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, sigmoid
from tenon.runtime.answers.boxes import grid, shown_image, suppressed
from tenon.runtime.bundle.manifest import BundleTensor, Manifest

_LAYOUTS = (((8, 2), (16, 6)), ((8, 2), (16, 2), (32, 6)), ((4, 1),), ((16, 6),))
"""(stride, anchors in each cell) of the maps of MediaPipe's detectors: short range, pose, full range, back camera."""
_OVERLAP = 0.3


@dataclass(frozen=True, kw_only=True)
class Anchors(Head):
    """``outputs`` are offsets [1, n, 4 + 2 points] (centre x, y, width, height, then x, y of each point), in pixels of
    the input, and scores [1, n, 1] as logits.  ``strides`` are those of the maps, ``per_cell`` the anchors in each cell
    of each map; without them the layout of MediaPipe's detectors that has n anchors is used."""

    kind = "anchors"
    about = "boxes and points [1, n, 4 + 2 points] with scores [1, n, 1], as MediaPipe's detectors give"
    count = 2

    strides: tuple[int, ...] = ()
    per_cell: tuple[int, ...] = ()

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        images = [image for tensor in manifest.inputs if (image := planes(tensor.shape))]
        pair = cls.fitting(manifest.outputs)
        if len(images) != 1 or len(pair) != 2 or pair[0].shape[-1] == 4:
            return None
        layout = _layout(images[0][1], images[0][2], pair[0].shape[-2])
        return layout and cls(outputs=(pair[0].name, pair[1].name), strides=layout[0], per_cell=layout[1])

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        lists = [t for t in outputs if len(t.shape) == 3 and t.shape[0] == 1]
        scores = [t for t in lists if t.shape[-1] == 1]
        boxes = [
            t
            for t in lists
            if t.shape[-1] >= 4 and not t.shape[-1] % 2 and any(s.shape[1] == t.shape[1] for s in scores)
        ]
        return [boxes[0], scores[0]] if len(boxes) == len(scores) == 1 else []

    def answer(self, run: Run) -> Answer:
        height, width = shown_image(run, self.kind).inner
        rows = run.outputs[self.outputs[0]].reshape(-1, run.outputs[self.outputs[0]].shape[-1])
        centres = self._centres(height, width, len(rows))
        size = np.array([width, height], np.float64)
        centre, half = rows[:, :2] / size + centres, rows[:, 2:4] / size / 2
        points = rows[:, 4:].reshape(len(rows), -1, 2) / size + centres[:, None]
        scores = sigmoid(run.outputs[self.outputs[1]].reshape(-1))
        kinds = np.zeros(len(rows), np.int64)
        boxes = np.concatenate([centre - half, centre + half], axis=1)
        return suppressed(run, self.kind, boxes, kinds, scores, points, _OVERLAP)

    def _centres(self, height: int, width: int, count: int) -> Array:
        """The anchors' centres relative to the input's size, f64 [n, 2]."""
        head = self
        if not self.strides and (layout := _layout(height, width, count)):
            head = replace(self, strides=layout[0], per_cell=layout[1])
        if not head.strides or len(head.strides) != len(head.per_cell):
            raise InputError(
                "--head anchors: give strides=8,16 per_cell=2,6: for each stride a number of anchors in a cell"
            )
        centres = _anchor_centres(height, width, tuple(zip(head.strides, head.per_cell, strict=True)))
        if len(centres) != count:
            raise InputError(f"--head anchors: these strides make {len(centres)} anchors, and the output has {count}")
        return centres


def _layout(height: int, width: int, count: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(strides, anchors in a cell) of MediaPipe's detector with ``count`` anchors."""
    for layout in _LAYOUTS:
        if sum(-(-height // s) * -(-width // s) * n for s, n in layout) == count:
            return tuple(s for s, _ in layout), tuple(n for _, n in layout)
    return None


def _anchor_centres(height: int, width: int, layout: tuple[tuple[int, int], ...]) -> Array:
    maps = []
    for stride, number in layout:
        rows, columns = -(-height // stride), -(-width // stride)
        centres = (grid(rows, columns) + 0.5) / np.array([columns, rows])
        maps.append(np.repeat(centres, number, axis=0))
    return np.concatenate(maps)
