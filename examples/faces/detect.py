#!/usr/bin/env python3
"""Detect faces in a photo with the RFB-320 detector and draw their boxes.

    python examples/faces/detect.py MODEL PHOTO [--out boxes.png] [--threshold 0.7]

MODEL is "version-RFB-320.onnx" of the project Ultra-Light-Fast-Generic-Face-Detector-1MB, or its Caffe or ncnn version:
input [1, 3, 240, 320], RGB, (pixel - 127) / 128; outputs scores [1, 4420, 2] and boxes [1, 4420, 4], as corners in 0..1
or as offsets from prior boxes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import tenon
from tenon.errors import InputError
from tenon.images import Preprocessing, read_image

SCALED = Preprocessing(mean=(127,), scale=(1 / 128,))
PRIORS = {
    "kind": "ssd",
    "boxes": "boxes",
    "scores": "scores",
    "strides": (8, 16, 32, 64),
    "sizes": ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256)),
    "variances": (0.1, 0.2),
}
"""Prior boxes, for exports that end before the decoding of boxes."""


def compiled(model: Path) -> tenon.Bundle:
    """The detector with decoded boxes.  Raises tenon.TenonError for another network."""
    shapes = {"input": (1, 3, 240, 320)} if model.suffix == ".param" else None  # which ncnn's file does not say
    graph = tenon.load(model, shapes=shapes)
    bundle = tenon.compile(graph)
    if bundle.heads is None:
        return tenon.compile(graph, head=PRIORS)
    if set(bundle.heads.outputs) != {"boxes", "scores"}:
        raise InputError(f"{model}: lists detections in {', '.join(bundle.heads.outputs)}: it is not RFB-320")
    return bundle


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box [4] with others [n, 4]."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    area = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    return shared / area


def keep_best(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    """Greedy NMS with an intersection over union of 0.3."""
    kept: list[int] = []
    for i in np.argsort(-scores):
        if scores[i] < threshold:
            break
        if not kept or overlap(boxes[i], boxes[kept]).max() <= 0.3:
            kept.append(int(i))
    return kept


def find_faces(engine: tenon.Engine, photo: Path, threshold: float = 0.7) -> list[tuple[float, list[int]]]:
    """(score, [left, top, right, bottom] in pixels of the photo) of every face, best first."""
    ((name, memory),) = engine.inputs.items()
    out = engine.run({name: read_image(photo, memory.shape, SCALED).pixels})
    whole = np.all(out["boxes"][0, :, 2:] > out["boxes"][0, :, :2], axis=1)
    scores, boxes = out["scores"][0, whole, 1], out["boxes"][0, whole]
    with Image.open(photo) as image:
        size = np.array([*image.size, *image.size])
    chosen = keep_best(boxes, scores, threshold)
    return [(float(scores[i]), [int(v) for v in np.round(boxes[i] * size)]) for i in chosen]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--out", type=Path, default=Path("faces.png"))
    parser.add_argument("--threshold", type=float, default=0.7)
    options = parser.parse_args()
    try:
        with tenon.open(compiled(options.model)) as engine:
            faces = find_faces(engine, options.photo, options.threshold)
    except tenon.TenonError as error:
        print(f"detect.py: {error}", file=sys.stderr)
        return 2
    with Image.open(options.photo) as image:
        drawn = image.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    for score, box in faces:
        print(f"face {score:.2f} at {box}")
        pen.rectangle(box, outline=(255, 64, 64), width=3)
    try:
        drawn.save(options.out)
    except (OSError, ValueError) as error:
        print(f"detect.py: --out {options.out}: cannot be written ({error})", file=sys.stderr)
        return 2
    print(f"{len(faces)} faces drawn in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
