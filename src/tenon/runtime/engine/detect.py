"""Decode detection outputs to boxes in pixels of the image."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import Box, Heads
from tenon.runtime.bundle.manifest import Manifest
from tenon.runtime.engine.engine import Engine
from tenon.runtime.engine.image import InputImage, image_shape, read_image

THRESHOLD = 0.5
NO_CLASS = -1
OVERLAP = 0.45
SAME = 0.85
"""NMS threshold across classes: boxes with more overlap are the same object with several labels."""


@dataclass(frozen=True)
class Detection:
    """A detected object: class, score, and box in pixels of the image."""

    kind: int
    score: float
    box: Box


@dataclass(frozen=True)
class _Candidates:
    """Boxes [n, 4] relative to the input's size, with classes [n] and scores [n]."""

    boxes: Array
    kinds: Array
    scores: Array

    def keep(self, which: Array) -> _Candidates:
        return _Candidates(self.boxes[which], self.kinds[which], self.scores[which])


class DetectionNetwork(Protocol):
    """A network that can be run: an ``Engine``, or a ``RemoteBundle``."""

    @property
    def name(self) -> str: ...

    @property
    def manifest(self) -> Manifest: ...

    @property
    def inputs(self) -> Mapping[str, Array]: ...


def image_input(engine: DetectionNetwork, without: Container[str] = ()) -> str:
    """The only image input, except those in ``without``.  Raises InputError if there is none or several."""
    names = [name for name in engine.inputs if name in engine.manifest.preprocessing and name not in without]
    if len(names) != 1:
        listed = ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in engine.inputs.items())
        raise InputError(f"{len(names)} inputs of '{engine.name}' could take an image; its inputs are {listed}")
    return names[0]


def detect(
    engine: Engine, path: str | Path, *, threshold: float = THRESHOLD, overlap: float = OVERLAP
) -> list[Detection]:
    """All detections in an image with a score of at least ``threshold``, highest score first.

    Outputs without NMS go through NMS: boxes that overlap a better one of the same class by more than ``overlap``
    (intersection over union) are removed.  Raises InputError for a file that is not an image, for networks that are not
    detectors, and for networks with further inputs.
    """
    name = image_input(engine)
    if len(engine.manifest.needed_inputs) > 1:
        raise InputError(f"'{engine.name}' has other inputs than the image: use Engine.run")
    shape = image_shape(engine.manifest.inputs, name)
    image = read_image(path, shape, engine.manifest.preprocessing[name], engine.inputs[name].dtype)
    return detections(engine, image, engine.run({name: image.pixels}), threshold, overlap)


def detections(
    engine: DetectionNetwork,
    image: InputImage,
    outputs: Mapping[str, Array],
    threshold: float = THRESHOLD,
    overlap: float = OVERLAP,
) -> list[Detection]:
    """The detections (see ``detect``) of outputs that are already computed."""
    heads = engine.manifest.heads
    if heads is None:
        raise InputError(f"the outputs of '{engine.name}' list no detections that Tenon can tell: {why_none(engine)}")
    candidates = _read(heads, {n: np.asarray(outputs[n], np.float32) for n in heads.outputs}, threshold)
    boxes = _corners(heads, candidates.boxes.astype(np.float64))
    in_pixels = heads.pixels if heads.pixels is not None else bool(boxes.size and np.abs(boxes).max() > 4)
    if in_pixels:
        boxes = boxes / np.array(image.inner[::-1] * 2)
    candidates = _Candidates(boxes, candidates.kinds, candidates.scores)
    if heads.kind in ("boxes", "yolo", "columns"):
        candidates = candidates.keep(nms_indices(candidates.boxes, candidates.kinds, candidates.scores, overlap))
    in_image = image.on_image(candidates.boxes)
    order = np.argsort(-candidates.scores, kind="stable")
    return [Detection(int(candidates.kinds[i]), float(candidates.scores[i]), _box(in_image[i])) for i in order]


def why_none(engine: DetectionNetwork) -> str:
    """The reason why a network's outputs are not recognised as detections, and the remedy."""
    shapes = {tensor.name: tensor.shape for tensor in engine.manifest.outputs}
    if pair := raw_boxes(shapes):
        return (
            f"'{pair[0]}' and '{pair[1]}' look like boxes and scores, but nothing in the network turns these offsets "
            'into boxes. Say from which prior boxes they are when compiling, as in --head "ssd strides=8,16,32,64 '
            'sizes=10/16/24,32/48,64/96,128/192/256 variances=0.1,0.2" (docs/howto/images.md)'
        )
    listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    return (
        f"none of {listed} has the shape of them. Say which outputs they are when compiling, as in "
        '--head "boxes outputs=BOXES,SCORES" (docs/howto/images.md)'
    )


def raw_boxes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str] | None:
    """The names of outputs that have the shapes of boxes [.., n, 4] and scores [.., n, classes]."""
    lists = {name: shape for name, shape in shapes.items() if len(shape) in (2, 3) and shape[-2] > 1}
    for name, shape in lists.items():
        scores = [other for other, its in lists.items() if other != name and its[:-1] == shape[:-1]]
        if shape[-1] == 4 and len(scores) == 1:
            return name, scores[0]
    return None


def nms_indices(boxes: Array, kinds: Array, scores: Array, overlap: float) -> Array:
    """Greedy NMS within classes, and across classes above ``SAME``: indices of the kept boxes, best first."""
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    area = np.prod((boxes[:, 2:] - boxes[:, :2]).clip(0), axis=1)
    while order.size:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        low, high = np.maximum(boxes[best, :2], boxes[order, :2]), np.minimum(boxes[best, 2:], boxes[order, 2:])
        shared = np.prod((high - low).clip(0), axis=1)
        union = area[best] + area[order] - shared
        allowed = np.where(kinds[order] == kinds[best], overlap, max(overlap, SAME))
        order = order[shared <= allowed * union]
    return np.array(kept, np.int64)


def _read(heads: Heads, outputs: Mapping[str, Array], threshold: float) -> _Candidates:
    """The detections in the outputs with a score of at least ``threshold``."""
    first = outputs[heads.outputs[0]]
    match heads.kind:
        case "rows":
            rows = first.reshape(-1, first.shape[-1])[:, -6:]
            candidates = _Candidates(rows[:, 2:], rows[:, 0].astype(np.int64), rows[:, 1])
            real = (candidates.kinds >= 0) & (candidates.kinds != heads.background)
        case "lists":
            boxes, kinds, scores, *counts = (outputs[name] for name in heads.outputs)
            candidates = _Candidates(boxes.reshape(-1, 4), kinds.reshape(-1).astype(np.int64), scores.reshape(-1))
            real = np.arange(candidates.scores.size) < (counts[0].reshape(-1)[0] if counts else candidates.scores.size)
        case "boxes":
            scores = outputs[heads.outputs[1]]
            scores = scores.reshape(-1, scores.shape[-1])
            candidates, real = _best(first.reshape(-1, 4), scores, _background(scores, heads.background))
        case "yolo":
            rows = first.reshape(-1, first.shape[-1])
            candidates, real = _best(rows[:, :4], rows[:, 5:] * rows[:, 4:5], NO_CLASS)
        case "columns":
            rows = first.reshape(first.shape[-2:]).T
            candidates, real = _best(rows[:, :4], rows[:, 4:], NO_CLASS)
    return candidates.keep(real & (candidates.scores >= threshold))


def _background(scores: Array, background: int) -> int:
    """The background class: the first one if the scores are probabilities that sum to 1, unless stated otherwise."""
    probabilities = scores.shape[1] > 1 and np.allclose(scores.sum(1), 1, atol=1e-2)
    return 0 if background < 0 and probabilities else background


def _best(boxes: Array, scores: Array, background: int) -> tuple[_Candidates, Array]:
    """The best class of every box, and whether it is not the background."""
    kinds = scores.argmax(axis=1)
    return _Candidates(boxes, kinds, scores.max(axis=1)), kinds != background


def _corners(heads: Heads, boxes: Array) -> Array:
    """Boxes as left, top, right, bottom."""
    if heads.corners == "yxyx":
        return boxes[:, [1, 0, 3, 2]]
    if heads.corners == "cxcywh":
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return boxes


def _box(numbers: Array) -> Box:
    left, top, right, bottom = (float(n) for n in numbers)
    return left, top, right, bottom
