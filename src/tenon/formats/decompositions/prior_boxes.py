"""Prior boxes (anchors) of detectors: constants that follow from the shapes of the feature map and of the image.

Sources: Liu et al., SSD: Single Shot MultiBox Detector; the layer PriorBox of its Caffe, which other formats adopted;
Ren et al., Faster R-CNN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array

MAX_BOXES = 1 << 24
"""Boxes of one layer."""


@dataclass(frozen=True)
class PriorGrid:
    """Where prior boxes are: at every position of a map of ``cells``, ``steps`` apart from ``offset`` steps on; all
    (down, across), in pixels.  One offset is for both."""

    cells: tuple[int, int]
    image: tuple[float, float]
    steps: tuple[float, float]
    offset: float | tuple[float, float]


Numbers = Sequence[float]


def sizes(min_sizes: Numbers, max_sizes: Numbers, ratios: Numbers, flip: bool) -> list[tuple[float, float]]:
    """(width, height) of the boxes at each position: for each minimum size a square, one of the geometric mean with the
    maximum size, and one for each ratio (and its inverse), in the order of the file.  Raises RefusedError."""
    if not min_sizes or min((*min_sizes, *max_sizes, *ratios)) <= 0 or len(max_sizes) not in (0, len(min_sizes)):
        raise RefusedError(f"has the sizes {list(min_sizes)} and {list(max_sizes)} and the ratios {list(ratios)}")
    boxes: list[tuple[float, float]] = []
    for i, size in enumerate(min_sizes):
        boxes.append((size, size))
        if max_sizes:
            boxes.append((math.sqrt(size * max_sizes[i]),) * 2)
        for root in map(math.sqrt, ratios):
            boxes += [(size * root, size / root), *([(size / root, size * root)] if flip else [])]
    return boxes


def prior_boxes(grid: PriorGrid, boxes: Sequence[tuple[float, float]], variance: Sequence[float], clip: bool) -> Array:
    """f32 [2, 4 P]: corners relative to the image's size, position by position, and their variances.  Raises
    RefusedError."""
    (h, w), (down, across) = grid.cells, grid.steps
    if len(boxes) * h * w > MAX_BOXES or min(grid.image) <= 0:
        raise RefusedError(f"makes {len(boxes)} boxes at each of {h} x {w} places of an image of {grid.image}")
    if len(variance) not in (1, 4):
        raise RefusedError(f"has {len(variance)} variances, not 1 or 4")
    first = np.broadcast_to(np.array(grid.offset, np.float32), 2).reshape(2, 1, 1)
    y, x = np.mgrid[0:h, 0:w].astype(np.float32) + first
    centre = np.stack([x * across, y * down], -1)[:, :, None, :]
    half = np.array(boxes, np.float32) / 2
    corners = np.concatenate([centre - half, centre + half], -1) / np.array(grid.image[::-1] * 2, np.float32)
    flat = corners.reshape(-1).astype(np.float32)
    spread = np.resize(np.array(variance, np.float32), flat.size)
    return np.stack([flat.clip(0, 1) if clip else flat, spread])


def multibox(grid: PriorGrid, sides: Numbers, ratios: Numbers, clip: bool) -> Array:
    """f32 [1, 4 P]: MXNet's boxes on an image of 1 x 1.  Sides are relative to its height: a square of each, and of
    the first one a box of every ratio but the first.  Raises RefusedError."""
    if not sides or min((*sides, *ratios)) <= 0:
        raise RefusedError(f"has the sizes {list(sides)} and the ratios {list(ratios)}")
    h, w = grid.cells
    roots = [(side, 1.0) for side in sides] + [(sides[0], math.sqrt(ratio)) for ratio in ratios[1:]]
    return prior_boxes(grid, [(side * root * h / w, side / root) for side, root in roots], [1.0], clip)[:1]


def within(given: int, count: int) -> int:
    """How many of ``count`` boxes go to NMS: a limit that is not positive means all."""
    return given if 0 < given < count else count


def anchors(base: int, ratios: Sequence[float], scales: Sequence[float]) -> Array:
    """[A, 4] corners of the anchors of Faster R-CNN at the first place, ratios outermost, rounded as it does."""
    middle = 0.5 * (base - 1)
    sizes = []
    for ratio in ratios or (0.5, 1.0, 2.0):
        width = np.round(math.sqrt(base * base / max(ratio, 1e-6)))
        sizes += [(width * s, np.round(width * ratio) * s) for s in scales or (8.0, 16.0, 32.0)]
    half = (np.array(sizes) - 1) * 0.5
    return np.concatenate([middle - half, middle + half], 1).astype(np.float32)
