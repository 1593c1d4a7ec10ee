"""Paddle's ends of detectors: decoding of YOLO's maps, and suppression class by class.

Definitions: paddle/phi/kernels/cpu/{yolo_box,multiclass_nms3}_kernel.cc.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.decompositions import yolo_grid
from tenon.decompositions.prior_boxes import within
from tenon.graph_builder.errors import RefusedError
from tenon.importers.paddle.context import Context
from tenon.ir.graph import Value
from tenon.ir.preprocessing import Heads
from tenon.ir.types import F32

MOST_BOXES = 1 << 20


def yolo_box(c: Context) -> dict[str, Value]:
    """Boxes [N, n, 4] in pixels of the picture whose (height, width) is an input, and scores [N, n, classes].

    Anchor by anchor, then row by row.  Both are zeros where the objectness is below the threshold.
    """
    n, channels, h, w = c.dims if len(c.dims) == 4 else (0,) * 4
    sizes, classes, aware = c.numbers("anchors"), c.integer("class_num", 1), bool(c.integer("iou_aware"))
    count, cells = len(sizes) // 2, h * w
    if min(count, classes) < 1 or channels != count * (5 + classes + aware) or count * cells > MOST_BOXES:
        raise RefusedError(f"it reads {count} anchors of {5 + classes + aware} numbers from {list(c.dims)}")
    x = c.x
    overlap = None
    if aware:
        overlap, x = c.split(x, 1, [count, channels - count])
        overlap = c.reshape(overlap, n, count, 1, cells)
    xy, wh, objectness, kinds = c.split(c.reshape(x, n, count, 5 + classes, cells), 2, [2, 2, 1, classes])
    sure = _confidence(c, c.add("Sigmoid", objectness), overlap)
    real = c.add("GreaterOrEqual", sure, c.number("conf_thresh", 0.01))
    boxes = c.add("Where", real, _corners(c, xy, wh, (count, h, w)), 0.0)
    scores = c.add("Where", real, c.add("Mul", sure, c.add("Sigmoid", kinds)), 0.0)
    listed = (c.add("Transpose", part, perm=(0, 1, 3, 2)) for part in (boxes, scores))
    return {
        slot: c.reshape(part, n, count * cells, k)
        for slot, part, k in zip(("Boxes", "Scores"), listed, (4, classes), strict=True)
    }


def _confidence(c: Context, objectness: Value, overlap: Value | None) -> Value:
    """The objectness, weighed with the overlap that the network expects of its box where it says so."""
    if overlap is None:
        return objectness
    share = c.number("iou_aware_factor", 0.5)
    return c.add("Mul", c.add("Pow", objectness, 1 - share), c.add("Pow", c.add("Sigmoid", overlap), share))


def _corners(c: Context, xy: Value, wh: Value, grid: tuple[int, int, int]) -> Value:
    """[N, anchors, 4, cells] from raw centres and sizes."""
    count, h, w = grid
    scale, stride = c.number("scale_x_y", 1.0), c.integer("downsample_ratio", 32)
    if stride < 1:
        raise RefusedError(f"downsample_ratio {stride} is impossible")
    places, cells = yolo_grid.places(h, w) - np.float32(0.5 * (scale - 1)), yolo_grid.extents(h, w)
    anchors = np.array(c.numbers("anchors"), np.float32).reshape(1, count, 2, 1) / (cells * np.float32(stride))
    picture = c.add("Gather", c.add("Cast", c.input("ImgSize"), to=str(F32)), np.array([1, 0]), axis=1)
    picture = c.reshape(picture, -1, 1, 2, 1)
    centre = c.add("Mul", c.add("Add", c.add("Mul", c.add("Sigmoid", xy), scale), places), 1 / cells)
    half = c.add("Mul", c.add("Exp", wh), anchors / 2)
    low, high = (c.add("Mul", c.add(type, centre, half), picture) for type in ("Sub", "Add"))
    if c.integer("clip_bbox", 1):
        low, high = c.add("Max", low, 0.0), c.add("Min", high, c.add("Sub", picture, 1.0))
    return c.add("Concat", low, high, axis=2)


def multiclass_nms(c: Context) -> dict[str, Value]:
    """Rows (class, score, 4 corners), class by class and the best first, -1 past the last; and how many count.

    Boxes counted in whole pixels are a pixel larger than their corners say: the far corner is moved while boxes are
    compared.
    """
    boxes, scores = c.input("BBoxes"), c.input("Scores")
    dims, (items, classes, count) = c.builder.dims(boxes), (0, 0, *c.builder.dims(scores))[-3:]
    if dims != (1, count, 4) or items != 1:
        shapes = f"boxes {list(dims)} with scores {list(c.builder.dims(scores))}"
        raise RefusedError(f"{shapes}: one picture, whose classes share its boxes [1, n, 4], is supported")
    whole = not c.integer("normalized", 1)
    pixel = np.array([0, 0, 1, 1], np.float32)
    rows = c.add(
        "DetectionOutput",
        c.reshape(c.add("Add", boxes, pixel) if whole else boxes, 1, -1),
        c.reshape(c.add("Transpose", scores, perm=(0, 2, 1)), 1, -1),
        np.zeros((1, 2, 4 * count), np.float32),
        classes=classes,
        background=c.integer("background_label"),
        code_type="corner",
        variance_in_target=1,
        confidence_threshold=c.number("score_threshold"),
        nms_threshold=c.number("nms_threshold", 0.3),
        eta=c.number("nms_eta", 1.0),
        nms_top_k=within(c.integer("nms_top_k", -1), count),
        keep_top_k=c.integer("keep_top_k", -1),
    )
    rows = c.reshape(c.slice(rows, [1], [7], [3]), -1, 6)
    real = c.add("GreaterOrEqual", c.slice(rows, [0], [1], [1]), 0.0)
    if whole:
        rows = c.add("Where", real, c.add("Sub", rows, np.concatenate([0 * pixel[:2], pixel])), -1.0)
    found = c.add("ReduceSum", c.add("Cast", real, to="i32"), c.ints(0, 1), keepdims=0)
    names = c.outputs.get("Out", [])
    pixels = True if whole or "yolo_box" in c.others else None
    c.builder.graph.heads = Heads("rows", tuple(names[:1]), pixels=pixels)
    return {"Out": rows, "NmsRoisNum": c.reshape(found, 1)}


DETECTION: dict[str, Callable[[Context], dict[str, Value]]] = {
    "yolo_box": yolo_box,
    "multiclass_nms": multiclass_nms,
    "multiclass_nms2": multiclass_nms,
    "multiclass_nms3": multiclass_nms,
}
