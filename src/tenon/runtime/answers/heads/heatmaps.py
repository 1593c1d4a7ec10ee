"""Pose estimation by heat maps: a map for each point, with its maximum where the point is.

Sources: Sun et al., Deep High-Resolution Representation Learning for Human Pose Estimation (2019), whose quarter-pixel
refinement this is; Fang et al., RMPE (AlphaPose, 2017); Cao et al., OpenPose (2017).
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
from tenon.runtime.answers.keypoints import points_answer
from tenon.runtime.answers.skeletons import find_edges
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.validation import least

_COCO = 17


@dataclass(frozen=True, kw_only=True)
class Heatmaps(Head):
    """The output is [1, points, h, w], or [1, h, w, points] with ``axes=nhwc``; ``points`` says how many of its maps
    are points (0: all; OpenPose has one more, of the background).  ``activation`` converts logits to scores."""

    kind = "heatmaps"
    about = "one map for each point, [1, points, h, w]"

    points: Annotated[int, least(0)] = 0
    edges: str = "none"
    axes: Literal["nchw", "nhwc"] = "nchw"
    activation: Literal["none", "sigmoid"] = "none"

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """A single output with the 17 maps of COCO at a quarter of the input's size."""
        images = [image for tensor in manifest.inputs if (image := planes(tensor.shape))]
        if len(images) != 1 or len(manifest.outputs) != 1:
            return None
        _, height, width, _ = images[0]
        name, shape = manifest.outputs[0].name, manifest.outputs[0].shape
        if shape == (1, _COCO, height // 4, width // 4):
            return cls(outputs=(name,), edges="coco")
        if shape == (1, height // 4, width // 4, _COCO):
            return cls(outputs=(name,), edges="coco", axes="nhwc")
        return None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if len(t.shape) == 4]

    def answer(self, run: Run) -> Answer:
        maps = run.outputs[self.outputs[0]]
        if maps.ndim != 4 or maps.shape[0] != 1:
            raise InputError(f"--head heatmaps: an output of {list(maps.shape)} is not [1, points, h, w]")
        maps = (maps[0].transpose(2, 0, 1) if self.axes == "nhwc" else maps[0])[: self.points or None]
        where, scores = maxima(maps)
        scores = sigmoid(scores) if self.activation == "sigmoid" else scores
        return points_answer(run, self.kind, where, scores, find_edges(self.edges, len(maps)), None)


def maxima(maps: Array) -> tuple[Array, Array]:
    """The maximum of each map [n, h, w]: its place [n, 2] (x, y relative to the map's size), moved by a quarter of a
    cell towards the larger neighbour, and its value [n]."""
    count, height, width = maps.shape
    flat = maps.reshape(count, -1)
    best = flat.argmax(1)
    y, x = np.divmod(best, width)
    padded = np.pad(maps.astype(np.float64), ((0, 0), (1, 1), (1, 1)), mode="edge")
    n = np.arange(count)
    right = padded[n, y + 1, x + 2] - padded[n, y + 1, x]
    down = padded[n, y + 2, x + 1] - padded[n, y, x + 1]
    where = np.stack([(x + 0.5 + 0.25 * np.sign(right)) / width, (y + 0.5 + 0.25 * np.sign(down)) / height], 1)
    return where, flat[n, best].astype(np.float64)
