#!/usr/bin/env python3
"""Detect objects in a photo with a Darknet YOLO network and draw their boxes.

    python examples/yolo/detect.py MODEL.cfg PHOTO [--names coco.names] [--out boxes.png] [--threshold 0.5]

The weights are next to the .cfg (or given with --weights).  The boxes are decoded by the network: its outputs are
``boxes`` [1, N, 4] (left, top, right, bottom in 0..1) and ``scores`` [1, N, classes].
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import tenon


@dataclass(frozen=True)
class Detection:
    """A detected object: label, score, and (left, top, right, bottom) in pixels of the photo."""

    label: str
    score: float
    box: tuple[int, int, int, int]


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box [4] with others [n, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    area = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return np.asarray(shared / area)


def keep_best(boxes: np.ndarray, scores: np.ndarray, threshold: float, limit: float = 0.45) -> list[int]:
    """Greedy NMS: keep boxes whose intersection over union with all better ones is at most ``limit``."""
    kept: list[int] = []
    for i in np.argsort(-scores):
        if scores[i] < threshold:
            break
        if not kept or overlap(boxes[i], boxes[kept]).max() <= limit:
            kept.append(int(i))
    return kept


def read_photo(image: Image.Image, height: int, width: int) -> np.ndarray:
    """f32 [1, 3, height, width] in 0..1, resized without antialiasing, as in Darknet."""
    whole = (0, 0, *image.size)
    small = image.convert("RGB").transform((width, height), Image.Transform.EXTENT, whole, Image.Resampling.BILINEAR)
    return np.ascontiguousarray((np.asarray(small, np.float32) / 255).transpose(2, 0, 1)[None])


def detect_objects(engine: tenon.Engine, photo: Path, names: list[str], threshold: float = 0.5) -> list[Detection]:
    """All objects with a score of at least ``threshold``, highest score first."""
    _, _, height, width = engine.inputs["data"].shape
    with Image.open(photo) as image:
        pixels, size = read_photo(image, height, width), np.array([*image.size, *image.size])
    out = engine.run({"data": pixels})
    boxes, scores = out["boxes"][0], out["scores"][0]
    kinds, best = scores.argmax(axis=1), scores.max(axis=1)
    detections = []
    for i in keep_best(boxes, best, threshold):
        left, top, right, bottom = (int(v) for v in np.round(boxes[i] * size))
        label = names[kinds[i]] if kinds[i] < len(names) else str(kinds[i])
        detections.append(Detection(label, float(best[i]), (left, top, right, bottom)))
    return detections


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--names", type=Path)
    parser.add_argument("--out", type=Path, default=Path("boxes.png"))
    parser.add_argument("--threshold", type=float, default=0.5)
    options = parser.parse_args()
    names = options.names.read_text().splitlines() if options.names else []
    with tenon.open(tenon.compile(options.model, weights=options.weights)) as engine:
        detections = detect_objects(engine, options.photo, names, options.threshold)
    with Image.open(options.photo) as image:
        drawn = image.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    for detection in detections:
        print(f"{detection.label} {detection.score:.2f} at {list(detection.box)}")
        pen.rectangle(detection.box, outline=(255, 64, 64), width=3)
        pen.text(
            (detection.box[0] + 4, detection.box[1] + 4),
            f"{detection.label} {detection.score:.2f}",
            fill=(255, 255, 255),
        )
    drawn.save(options.out)
    print(f"{len(detections)} objects drawn in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
