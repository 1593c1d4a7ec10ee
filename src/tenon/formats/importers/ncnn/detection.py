"""ncnn's layers of detectors: prior boxes, and the post-processing that lists detections.

Post-processing gives rows (class, score, left, top, right, bottom), classes counted from 1 and corners over the
image's size; rows past the last hold zeros (Yolo) or -1 (SSD).  Definitions: src/layer/{priorbox,detectionoutput,
yolodetectionoutput,yolov3detectionoutput}.cpp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions import yolo_grid
from tenon.formats.decompositions.prior_boxes import PriorGrid, multibox, prior_boxes, sizes, within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.preprocessing import Heads
from tenon.network.graph.types import F32

AUTOMATIC = -233
MAX_CELLS = 1 << 20
MAX_DETECTIONS = 300
"""Detections that YOLO's post-processing lists at most."""


def prior_box(layer: NcnnLayer) -> Value:
    min_sizes, max_sizes, ratios = (layer.numbers(id) for id in (0, 1, 2))
    h, w = layer.image(layer.x)[2:]
    clip = bool(layer.integer(8))
    if len(layer.inputs) == 1 and not max_sizes and layer.integer(9) == layer.integer(10) == AUTOMATIC:
        return _multibox(layer, min_sizes, ratios, (h, w), clip)
    image = [float(layer.integer(id)) for id in (10, 9)]
    if AUTOMATIC in image:
        whole = layer.image(layer.inputs[1])[2:]
        image = [float(n) if given == AUTOMATIC else given for given, n in zip(image, whole, strict=True)]
    steps = [layer.number(id, AUTOMATIC) for id in (12, 11)]
    steps = [n / k if s == AUTOMATIC else s for s, n, k in zip(steps, image, (h, w), strict=True)]
    variance = [layer.number(id, v) for id, v in ((3, 0.1), (4, 0.1), (5, 0.2), (6, 0.2))]
    positions = PriorGrid((h, w), (image[0], image[1]), (steps[0], steps[1]), layer.number(13))
    boxes = prior_boxes(positions, sizes(min_sizes, max_sizes, ratios, bool(layer.integer(7, 1))), variance, clip)
    return layer.builder.constant(boxes[None], "priors")


def _multibox(
    layer: NcnnLayer, min_sizes: Sequence[float], ratios: Sequence[float], plane: tuple[int, int], clip: bool
) -> Value:
    """MXNet's prior boxes, without variances."""
    given = layer.number(12, AUTOMATIC), layer.number(11, AUTOMATIC)
    down, across = (1 / n if s == AUTOMATIC else s for s, n in zip(given, plane, strict=True))
    positions = PriorGrid(plane, (1.0, 1.0), (down, across), layer.number(13))
    return layer.builder.constant(multibox(positions, min_sizes, ratios, clip), "priors")


def detection_output(layer: NcnnLayer) -> Value:
    """Inputs: location, confidence and priors; variances are options of the layer where the priors have none.

    -233 classes means MXNet's: as many as there are rows of scores, each row a class.  The row with the highest score
    comes first."""
    if len(layer.inputs) != 3:
        raise RefusedError(f"it has {len(layer.inputs)} inputs instead of 3")
    location, confidence, priors = layer.inputs
    classes, count = layer.integer(0), math.prod(layer.builder.dims(location)) // 4
    if classes == AUTOMATIC:
        classes, confidence = layer.builder.dims(confidence)[1], layer.transpose_last(confidence)
    location, confidence = layer.reshape(location, 1, -1), layer.reshape(confidence, 1, -1)
    if math.prod(layer.builder.dims(priors)) == 4 * count:
        spread = np.resize(
            np.array([layer.number(id, v) for id, v in ((5, 0.1), (6, 0.1), (7, 0.2), (8, 0.2))]), 4 * count
        )
        whole = layer.reshape(priors, 1, 1, -1)
        priors = layer.add("Concat", whole, spread.astype(np.float32).reshape(1, 1, -1), axis=1)
    rows = layer.add(
        "DetectionOutput",
        location,
        confidence,
        layer.reshape(priors, 1, 2, -1),
        classes=classes,
        code_type="center_size",
        nms_threshold=layer.number(1, 0.05),
        nms_top_k=within(layer.integer(2, 300), count),
        keep_top_k=layer.integer(3, 100),
        confidence_threshold=layer.number(4, 0.5),
    )
    rows = layer.slice(layer.reshape(rows, -1, 7), [1], [7], [1])
    row_limit = layer.builder.dims(rows)[0]
    _, order = layer.builder.adds(
        "TopK", 2, layer.reshape(layer.slice(rows, [1], [2], [1]), row_limit), layer.ints(row_limit), axis=0
    )
    return _end(layer, layer.reshape(layer.add("Gather", rows, order, axis=0), 1, row_limit, 6))


def _end(layer: NcnnLayer, rows: Value) -> Value:
    layer.builder.graph.heads = Heads("rows", layer.record.tops[:1], pixels=False, background=0)
    return rows


def yolo_output(layer: NcnnLayer) -> Value:
    """YOLO v2 and v3: every anchor of every cell has one class; the best go first, whatever their classes."""
    third = layer.record.type == "Yolov3DetectionOutput"
    classes, count = layer.integer(0, 20), layer.integer(1, 5)
    if not 0 < classes < 1 << 16 or not 0 < count < 1 << 10:
        raise RefusedError(f"has {classes} classes and {count} anchors")
    decoded_maps = [_decoded(layer, x, i, classes, third) for i, x in enumerate(layer.inputs)]
    if not decoded_maps:
        raise RefusedError("it has no input")
    every = [
        layer.add("Concat", *parts, axis=1) if len(decoded_maps) > 1 else parts[0]
        for parts in zip(*decoded_maps, strict=True)
    ]
    return _thinned(layer, every[0], every[1])


def _decoded(layer: NcnnLayer, x: Value, head: int, classes: int, third: bool) -> tuple[Value, Value]:
    """Corners [1, n, 4], and objectness times class probability [1, n, classes], of one map."""
    count, (h, w) = layer.integer(1, 5), layer.image(x)[2:]
    if layer.builder.dims(x)[1] != count * (classes + 5):
        raise RefusedError(
            f"it reads {count} anchors of {classes + 5} numbers from {layer.builder.dims(x)[1]} channels"
        )
    if count * h * w > MAX_CELLS:
        raise RefusedError(f"decodes {count} anchors at {h} x {w} positions")
    parts = layer.reshape(x, 1, count, classes + 5, h * w)
    xy, wh, objectness, kinds = layer.split(parts, 2, [2, 2, 1, classes])
    cells = yolo_grid.extents(h, w)
    centre = layer.add("Mul", layer.add("Add", layer.add("Sigmoid", xy), yolo_grid.positions(h, w)), 1 / cells)
    boxes = yolo_grid.corners(
        layer, centre, layer.add("Mul", layer.add("Exp", wh), _anchors(layer, head, third, cells) / 2)
    )
    probable = layer.add("Sigmoid", kinds) if third else layer.add("Softmax", kinds, axis=2)
    scores = layer.add("Mul", probable, layer.add("Sigmoid", objectness))
    return _listed(layer, boxes, count * h * w, 4), _listed(layer, scores, count * h * w, classes)


def _listed(layer: NcnnLayer, x: Value, rows: int, numbers: int) -> Value:
    return layer.reshape(layer.add("Transpose", x, perm=(0, 1, 3, 2)), 1, rows, numbers)


def _anchors(layer: NcnnLayer, head: int, third: bool, cells: Array) -> Array:
    """[1, anchors, 2, 1] over the size of the image; of YOLO v2 they are counted in cells."""
    count, numbers = layer.integer(1, 5), layer.numbers(4)
    chosen, unit = list(range(count)), 1.0
    if third:
        mask, scales = layer.numbers(5), layer.numbers(6)
        if len(mask) < (head + 1) * count or len(scales) <= head or scales[head] <= 0:
            raise RefusedError(f"it has {len(mask)} numbers in its mask and {len(scales)} scales for {head + 1} inputs")
        chosen, unit = [int(n) for n in mask[head * count : (head + 1) * count]], scales[head]
    if any(not 0 <= i < len(numbers) // 2 for i in chosen):
        raise RefusedError(f"it has {len(numbers)} numbers for its anchors {chosen}")
    pairs = np.array([numbers[2 * i : 2 * i + 2] for i in chosen], np.float32).reshape(1, -1, 2, 1)
    return np.asarray(pairs / (cells * np.float32(unit)), np.float32)


def _thinned(layer: NcnnLayer, boxes: Value, scores: Value) -> Value:
    """NMS: rows of the boxes that stay, then zeros."""
    best = layer.add("ReduceMax", scores, layer.ints(2))
    kinds = layer.add("Add", layer.add("Cast", layer.add("ArgMax", scores, axis=2, keepdims=1), to=str(F32)), 1.0)
    rows = layer.add("Squeeze", layer.add("Concat", kinds, best, boxes, axis=2), layer.ints(0))
    row_limit = min(MAX_DETECTIONS, layer.builder.dims(boxes)[1])
    score_threshold = np.nextafter(
        np.float32(layer.number(2, 0.01)), np.float32(-1)
    )  # ncnn keeps a score equal to the threshold
    limits = (
        layer.ints(row_limit),
        layer.builder.floats(layer.number(3, 0.45)),
        layer.builder.floats(float(score_threshold)),
    )
    transposed = layer.add("Transpose", best, perm=(0, 2, 1))
    chosen, count = layer.builder.adds("NonMaxSuppression", 2, boxes, transposed, *limits)
    picked = layer.add("Gather", rows, layer.reshape(layer.slice(chosen, [2], [3], [1]), row_limit), axis=0)
    real = layer.add("Less", np.arange(row_limit, dtype=np.int64).reshape(-1, 1), count)
    return _end(
        layer, layer.reshape(layer.add("Where", real, picked, np.zeros((row_limit, 6), np.float32)), 1, row_limit, 6)
    )


DETECTION: dict[str, Callable[[NcnnLayer], Outputs]] = {
    "PriorBox": prior_box,
    "DetectionOutput": detection_output,
    "YoloDetectionOutput": yolo_output,
    "Yolov3DetectionOutput": yolo_output,
}
