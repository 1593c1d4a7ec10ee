"""Paddle's detection post-processing: decoding of YOLO's maps, and NMS class by class.

Definitions: paddle/phi/kernels/cpu/{yolo_box,multiclass_nms3}_kernel.cc.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions import yolo_grid
from tenon.formats.decompositions.prior_boxes import within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode
from tenon.network.graph.graph import Value
from tenon.network.graph.preprocessing import Heads
from tenon.network.graph.types import F32

MAX_BOXES = 1 << 20


def yolo_box(node: PaddleNode) -> dict[str, Value]:
    """Boxes [N, n, 4] in pixels of the image whose (height, width) is an input, and scores [N, n, classes].

    Anchor by anchor, then row by row.  Both are zeros where the objectness is below the threshold.
    """
    n, channels, h, w = node.dims if node.x_rank == 4 else (0,) * 4
    sizes = node.integers("anchors")
    classes = node.integer("class_num", 1)
    aware = bool(node.integer("iou_aware"))
    count, cells = len(sizes) // 2, h * w
    if min(count, classes) < 1 or channels != count * (5 + classes + aware) or count * cells > MAX_BOXES:
        raise RefusedError(f"it reads {count} anchors of {5 + classes + aware} numbers from {list(node.dims)}")
    x = node.x
    overlap = None
    if aware:
        overlap, x = node.split(x, 1, [count, channels - count])
        overlap = node.reshape(overlap, n, count, 1, cells)
    xy, wh, objectness, kinds = node.split(node.reshape(x, n, count, 5 + classes, cells), 2, [2, 2, 1, classes])
    sure = _confidence(node, node.add("Sigmoid", objectness), overlap)
    real = node.add("GreaterOrEqual", sure, node.number("conf_thresh", 0.01))
    boxes = node.add("Where", real, _corners(node, xy, wh, (count, h, w)), 0.0)
    scores = node.add("Where", real, node.add("Mul", sure, node.add("Sigmoid", kinds)), 0.0)
    listed = (node.add("Transpose", part, perm=(0, 1, 3, 2)) for part in (boxes, scores))
    return {
        slot: node.reshape(part, n, count * cells, k)
        for slot, part, k in zip(("Boxes", "Scores"), listed, (4, classes), strict=True)
    }


def _confidence(node: PaddleNode, objectness: Value, overlap: Value | None) -> Value:
    """The objectness, weighted with the predicted IoU of its box where the network predicts it."""
    if overlap is None:
        return objectness
    share = node.number("iou_aware_factor", 0.5)
    return node.add("Mul", node.add("Pow", objectness, 1 - share), node.add("Pow", node.add("Sigmoid", overlap), share))


def _corners(node: PaddleNode, xy: Value, wh: Value, grid: tuple[int, int, int]) -> Value:
    """[N, anchors, 4, cells] from raw centres and sizes."""
    count, h, w = grid
    scale, stride = node.number("scale_x_y", 1.0), node.integer("downsample_ratio", 32)
    if stride < 1:
        raise RefusedError(f"downsample_ratio {stride} is impossible")
    positions, cells = yolo_grid.positions(h, w) - np.float32(0.5 * (scale - 1)), yolo_grid.extents(h, w)
    anchors = np.array(node.integers("anchors"), np.float32).reshape(1, count, 2, 1) / (cells * np.float32(stride))
    image_size = node.add("Gather", node.add("Cast", node.slot("ImgSize"), to=str(F32)), np.array([1, 0]), axis=1)
    image_size = node.reshape(image_size, -1, 1, 2, 1)
    centre = node.add("Mul", node.add("Add", node.add("Mul", node.add("Sigmoid", xy), scale), positions), 1 / cells)
    half = node.add("Mul", node.add("Exp", wh), anchors / 2)
    low, high = (node.add("Mul", node.add(type, centre, half), image_size) for type in ("Sub", "Add"))
    if node.integer("clip_bbox", 1):
        low, high = node.add("Max", low, 0.0), node.add("Min", high, node.add("Sub", image_size, 1.0))
    return node.add("Concat", low, high, axis=2)


def multiclass_nms(node: PaddleNode) -> dict[str, Value]:
    """Rows (class, score, 4 corners), class by class and the best first, -1 past the last; and how many count.

    Boxes counted in whole pixels are a pixel larger than their corners say: the far corner is moved while boxes are
    compared.
    """
    boxes, scores = node.slot("BBoxes"), node.slot("Scores")
    dims, (items, classes, count) = node.builder.dims(boxes), (0, 0, *node.builder.dims(scores))[-3:]
    if dims != (1, count, 4) or items != 1:
        shapes = f"boxes {list(dims)} with scores {list(node.builder.dims(scores))}"
        raise RefusedError(f"{shapes}: only one image, whose classes share its boxes [1, n, 4], is supported")
    whole = not node.integer("normalized", 1)
    pixel = np.array([0, 0, 1, 1], np.float32)
    rows = node.add(
        "DetectionOutput",
        node.reshape(node.add("Add", boxes, pixel) if whole else boxes, 1, -1),
        node.reshape(node.add("Transpose", scores, perm=(0, 2, 1)), 1, -1),
        np.zeros((1, 2, 4 * count), np.float32),
        classes=classes,
        background=node.integer("background_label"),
        code_type="corner",
        variance_in_target=1,
        confidence_threshold=node.number("score_threshold"),
        nms_threshold=node.number("nms_threshold", 0.3),
        eta=node.number("nms_eta", 1.0),
        nms_top_k=within(node.integer("nms_top_k", -1), count),
        keep_top_k=node.integer("keep_top_k", -1),
    )
    rows = node.reshape(node.slice(rows, [1], [7], [3]), -1, 6)
    real = node.add("GreaterOrEqual", node.slice(rows, [0], [1], [1]), 0.0)
    if whole:
        rows = node.add("Where", real, node.add("Sub", rows, np.concatenate([0 * pixel[:2], pixel])), -1.0)
    row_count = node.add("ReduceSum", node.add("Cast", real, to="i32"), node.ints(0, 1), keepdims=0)
    names = node.outputs.get("Out", [])
    pixels = True if whole or "yolo_box" in node.others else None
    node.builder.graph.heads = Heads("rows", tuple(names[:1]), pixels=pixels)
    return {"Out": rows, "NmsRoisNum": node.reshape(row_count, 1)}


DETECTION: dict[str, Callable[[PaddleNode], dict[str, Value]]] = {
    "yolo_box": yolo_box,
    "multiclass_nms": multiclass_nms,
    "multiclass_nms2": multiclass_nms,
    "multiclass_nms3": multiclass_nms,
}
