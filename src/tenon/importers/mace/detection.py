"""MACE's ends of detectors, which are those of Caffe's SSD, Faster R-CNN and R-FCN.

Definitions: mace/ops/{prior_box,detection_output,proposal,psroi_align} of XiaoMi/mace.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tenon.decompositions.prior_boxes import Places, anchors, prior_boxes, sizes
from tenon.graph_builder.errors import RefusedError
from tenon.importers.mace.context import Context
from tenon.ir.graph import Value
from tenon.ir.preprocessing import Heads


def prior_box(c: Context) -> Value:
    """[1, 2, 4 P], a constant: it follows from the shapes of the map and of the picture."""
    maps, picture = c.dims, c.builder.dims(c.input(1))
    if len(maps) != 4 or len(picture) != 4:
        raise RefusedError(f"it needs images, not {list(maps)} and {list(picture)}")
    (h, w), (high, wide) = maps[1:3], picture[1:3]
    down, across = c.number("step_h"), c.number("step_w")
    if down <= 1e-6 or across <= 1e-6:
        down, across = high / h, wide / w
    ratios = [ratio for ratio in c.numbers("aspect_ratio") if abs(ratio - 1) >= 1e-6]
    places = Places((h, w), (high, wide), (down, across), c.number("offset", 0.5))
    boxes = sizes(c.numbers("min_size"), c.numbers("max_size"), ratios, False)
    made = prior_boxes(places, boxes, c.numbers("variance"), bool(c.integer("clip")))
    return c.builder.constant(made[None], "priors")


def detection_output(c: Context) -> Value:
    """[1, 1, rows, 7], the best of all classes first; -1 past the last."""
    flat = [c.reshape(c.input(i), 1, -1) for i in (0, 1)]
    count, classes, kept = (
        math.prod(c.builder.dims(c.input(2))) // 8,
        c.integer("num_classes", 1),
        c.integer("keep_top_k"),
    )
    top = c.integer("nms_top_k", 100)
    rows = c.add(
        "DetectionOutput",
        *flat,
        c.reshape(c.input(2), 1, 2, -1),
        classes=classes,
        code_type="center_size",
        confidence_threshold=c.number("confidence_threshold", 0.05),
        nms_threshold=c.number("nms_threshold", 0.3),
        nms_top_k=top if 0 < top < count else count,
        keep_top_k=kept or 100,
    )
    rows = c.reshape(rows, -1, 7)
    found = c.builder.dims(rows)[0]
    _, order = c.builder.adds("TopK", 2, c.reshape(c.slice(rows, [2], [3], [1]), found), c.ints(found))
    c.builder.graph.heads = Heads("rows", (str(c.op.output[0]),), pixels=False)
    return c.reshape(c.add("Gather", rows, order), 1, 1, found, 7)


def proposal(c: Context) -> Value:
    """Faster R-CNN's regions (0, x0, y0, x1, y1), zeros past the last; scores and deltas have their channels last."""
    known = anchors(c.integer("base_size", 16), c.numbers("ratios"), [float(s) for s in c.integers("scales")])
    scores, deltas = (c.add("Transpose", c.input(i), perm=(0, 3, 1, 2)) for i in (0, 1))
    return c.add(
        "Proposal",
        scores,
        deltas,
        c.reshape(c.input(2), 1, -1),
        known,
        feat_stride=c.integer("feat_stride", 16),
        pre_nms=c.integer("pre_nms_top_n", 6000),
        post_nms=c.integer("post_nms_top_n", 300),
        nms_threshold=c.number("nms_thresh", 0.7),
        min_size=c.number("min_size", 16.0),
    )


def position_sensitive_align(c: Context) -> Value:
    """Regions [R, 5]; the result is [R, size, size, outputs]."""
    options = {"output_dim": c.integer("output_dim"), "group_size": c.integer("group_size")}
    regions = c.reshape(c.input(1), -1, 5)
    y = c.add("PsRoiAlign", c.channels_first(), regions, spatial_scale=c.number("spatial_scale"), **options)
    return c.channels_last(y)


DETECTION: dict[str, Callable[[Context], Value]] = {
    "DetectionOutput": detection_output,
    "PriorBox": prior_box,
    "Proposal": proposal,
    "PSROIAlign": position_sensitive_align,
}
