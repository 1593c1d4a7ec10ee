"""MXNet's operators of detectors: boxes to begin with, the end of SSD, and pooling of regions.

Definitions: src/operator/contrib/{multibox_prior,multibox_detection,roi_align,psroi_pooling}.cc and
src/operator/roi_pooling.cc of apache/mxnet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from tenon.decompositions.layers import kept_of_each_class
from tenon.decompositions.prior_boxes import Places, anchors, multibox, within
from tenon.graph_builder.errors import RefusedError
from tenon.importers.mxnet.context import Context
from tenon.ir.graph import Value
from tenon.ir.preprocessing import Heads


def _floats(c: Context, name: str, default: Sequence[float]) -> list[float]:
    """``(0.1, 0.2)``, ``[0.1]`` or ``0.1``."""
    found = re.findall(r"[-+]?[0-9.]+(?:e[-+]?\d+)?", c.text(name), re.IGNORECASE)
    return [float(word) for word in found] or list(default)


def multibox_prior(c: Context) -> Value:
    """[1, P, 4]: they follow from the shape of the map."""
    h, w = c.dims[2:]
    steps, offsets = _floats(c, "steps", (-1, -1)), _floats(c, "offsets", (0.5, 0.5))
    if len(c.dims) != 4 or len(steps) != 2 or len(offsets) != 2:
        raise RefusedError(f"steps {steps} and offsets {offsets} on {list(c.dims)} are not supported")
    down, across = (1 / n if step <= 0 else step for step, n in zip(steps, (h, w), strict=True))
    places = Places((h, w), (1.0, 1.0), (down, across), (offsets[0], offsets[1]))
    boxes = multibox(places, _floats(c, "sizes", (1,)), _floats(c, "ratios", (1,)), c.flag("clip"))
    return c.builder.constant(boxes.reshape(1, -1, 4), "priors")


def multibox_detection(c: Context) -> Value:
    """[1, P, 6]: rows (class, score, 4 corners), the best first and -1 past the last; class 0 is the first real one.

    Every box competes with its best class alone.
    """
    batch, classes, count = c.dims
    variances = _floats(c, "variances", (0.1, 0.1, 0.2, 0.2))
    if batch != 1 or classes < 2 or len(variances) != 4 or c.integer("background_id") != 0:
        raise RefusedError(f"{batch} pictures with {classes} classes and variances {variances} are not supported")
    if c.flag("force_suppress") and classes > 2:
        raise RefusedError("suppression across classes is not supported")
    scores = c.add("Transpose", c.x, perm=(0, 2, 1))
    best = c.add("ReduceMax", c.slice(scores, [1], [classes], [2]), c.ints(2))
    alone = c.add("Where", c.add("Equal", scores, best), scores, 0.0)
    spread = np.resize(np.array(variances, np.float32), 4 * count).reshape(1, 1, -1)
    priors = c.add("Concat", c.reshape(c.parameter(2), 1, 1, -1), spread, axis=1)
    rows = c.add(
        "DetectionOutput",
        c.reshape(c.parameter(1), 1, -1),
        c.reshape(alone, 1, -1),
        priors,
        classes=classes,
        code_type="center_size",
        confidence_threshold=c.number("threshold", 0.01),
        nms_threshold=c.number("nms_threshold", 0.5),
        nms_top_k=within(c.integer("nms_topk", -1), count),
        keep_top_k=count,
    )
    rows = c.reshape(rows, -1, 7)
    found = c.builder.dims(rows)[0]
    score = c.reshape(c.slice(rows, [2], [3], [1]), found)
    _, order = c.builder.adds("TopK", 2, score, c.ints(min(found, count)))
    rows = c.add("Gather", c.slice(rows, [1], [7], [1]), order)
    kind, rest = c.split(rows, 1, [1, 5])
    if c.flag("clip", True):
        certain, corners = c.split(rest, 1, [1, 4])
        inside = c.add("Where", c.add("Less", certain, 0.0), corners, c.add("Clip", corners, 0.0, 1.0))
        rest = c.add("Concat", certain, inside, axis=1)
    made = c.add("Concat", c.add("Max", c.add("Sub", kind, 1.0), np.array(-1, np.float32)), rest, axis=1)
    if found < count:
        made = c.add("Pad", made, c.ints(0, 0, count - found, 0), -1.0)
    c.builder.graph.heads = Heads("rows", (c.builder.origin.layer,), pixels=False)
    return c.reshape(made, 1, count, 6)


def box_nms(c: Context) -> Value:
    """Rows (.., score, .., 4 corners) sorted by score; in place of those that are covered or unsure -1, at the end."""
    *outer, count, width = c.dims
    if math.prod(outer) != 1 or not 0 < count < 1 << 20:
        raise RefusedError(f"suppression for {math.prod(outer)} pictures at once is not supported")
    rows = c.reshape(c.x, count, width)
    start, score_at, kind_at = c.integer("coord_start", 2), c.integer("score_index", 1), c.integer("id_index", -1)
    if c.text("in_format", "corner") != c.text("out_format", "corner"):
        raise RefusedError("boxes that change their form are not supported")
    score = c.reshape(c.slice(rows, [score_at], [score_at + 1], [1]), count)
    valid = c.add("Greater", score, c.number("valid_thresh"))
    kinds = c.reshape(c.slice(rows, [kind_at], [kind_at + 1], [1]), count) if kind_at >= 0 else None
    if kinds is not None and c.integer("background_id", -1) >= 0:
        foreground = c.add("Not", c.add("Equal", kinds, c.number("background_id")))
        valid = c.add("And", valid, foreground)
    ranked = c.add("Where", valid, score, -np.inf)
    most = within(c.integer("topk", -1), count)
    best, order = c.builder.adds("TopK", 2, ranked, c.ints(most))
    rows = c.add("Gather", rows, order)
    boxes = c.slice(rows, [start], [start + 4], [1])
    if c.text("in_format", "corner") == "center":
        centre, size = c.split(boxes, 1, [2, 2])
        half = c.add("Mul", size, 0.5)
        boxes = c.add("Concat", c.add("Sub", centre, half), c.add("Add", centre, half), axis=1)
    alone = kinds is None or c.flag("force_suppress")
    of_each = None if alone else c.reshape(c.slice(rows, [kind_at], [kind_at + 1], [1]), most)
    numbers, found = kept_of_each_class(c, boxes, best, of_each, c.number("overlap_thresh", 0.5))
    there = c.reshape(c.add("Less", np.arange(most), found), most, 1)
    made = c.add("Where", there, c.add("Gather", rows, numbers), -1.0)
    made = c.add("Pad", made, c.ints(0, 0, count - most, 0), -1.0) if most < count else made
    return c.reshape(made, *outer, count, width)


def box_iou(c: Context) -> Value:
    """The intersection of each two boxes over their union, [.., N, M]."""
    a, b = c.x, c.parameter(1)
    if c.text("format", "corner") != "corner" or len(c.dims) != 2 or len(c.builder.dims(b)) != 2:
        raise RefusedError("only corners [n, 4] are supported")
    pairs = [c.split(c.reshape(v, *dims, 4), 2, [2, 2]) for v, dims in ((a, (-1, 1)), (b, (1, -1)))]
    low, high = c.add("Max", pairs[0][0], pairs[1][0]), c.add("Min", pairs[0][1], pairs[1][1])
    shared = c.add("ReduceProd", c.add("Max", c.add("Sub", high, low), 0.0), c.ints(2), keepdims=0)
    area = [c.add("ReduceProd", c.add("Sub", q, p), c.ints(2), keepdims=0) for p, q in pairs]
    union = c.add("Sub", c.add("Add", *area), shared)
    return c.add("Where", c.add("Greater", union, 0.0), c.add("Div", shared, c.add("Max", union, 1e-30)), 0.0)


def proposal(c: Context) -> Value:
    """Faster R-CNN's regions (0, x0, y0, x1, y1), zeros past the last."""
    if c.flag("output_score") or c.flag("iou_loss"):
        raise RefusedError("scores beside the regions are not supported")
    stride = c.integer("feature_stride", 16)
    known = anchors(stride, _floats(c, "ratios", (0.5, 1, 2)), _floats(c, "scales", (4, 8, 16, 32)))
    return c.add(
        "Proposal",
        c.x,
        c.parameter(1),
        c.parameter(2),
        known,
        feat_stride=stride,
        pre_nms=c.integer("rpn_pre_nms_top_n", 6000),
        post_nms=c.integer("rpn_post_nms_top_n", 300),
        nms_threshold=c.number("threshold", 0.7),
        min_size=c.number("rpn_min_size", 16.0),
        inclusive=1,
    )


def roi_pooling(c: Context) -> Value:
    return c.add("MaxRoiPool", c.x, c.parameter(1), pooled_shape=_pooled(c), spatial_scale=c.number("spatial_scale"))


def roi_align(c: Context) -> Value:
    if c.flag("position_sensitive"):
        raise RefusedError("position-sensitive bins are not supported")
    rows, columns = _pooled(c)
    picture, regions = c.split(c.parameter(1), 1, [1, 4])
    return c.add(
        "RoiAlign",
        c.x,
        regions,
        c.add("Cast", c.reshape(picture, -1), to="i64"),
        output_height=rows,
        output_width=columns,
        sampling_ratio=max(0, c.integer("sample_ratio", -1)),
        spatial_scale=c.number("spatial_scale"),
        coordinate_transformation_mode="half_pixel" if c.flag("aligned") else "output_half_pixel",
    )


def psroi_pooling(c: Context) -> Value:
    size = c.integer("pooled_size")
    if c.integer("group_size") not in (0, size):
        raise RefusedError("groups of another size than the result are not supported")
    options = {"output_dim": c.integer("output_dim"), "group_size": size, "spatial_scale": c.number("spatial_scale")}
    return c.add("PsRoiPool", c.x, c.parameter(1), **options)


def _pooled(c: Context) -> tuple[int, int]:
    sizes = c.numbers("pooled_size")
    if len(sizes) not in (1, 2) or min(sizes) < 1 or max(sizes) > 1 << 12:
        raise RefusedError(f"pools to {sizes}")
    return sizes[0], sizes[-1]


DETECTION: dict[str, Callable[[Context], Value]] = {
    "_contrib_MultiBoxPrior": multibox_prior,
    "_contrib_MultiBoxDetection": multibox_detection,
    "ROIPooling": roi_pooling,
    "_contrib_ROIAlign": roi_align,
    "_contrib_PSROIPooling": psroi_pooling,
    "_contrib_box_iou": box_iou,
    **dict.fromkeys(("_contrib_box_nms", "_contrib_box_non_maximum_suppression"), box_nms),
    **dict.fromkeys(("_contrib_Proposal", "_contrib_MultiProposal"), proposal),
}
