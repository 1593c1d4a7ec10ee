"""MXNet's operators of detectors: prior boxes, post-processing of SSD, and pooling of regions.

Definitions: src/operator/contrib/{multibox_prior,multibox_detection,roi_align,psroi_pooling}.cc and
src/operator/roi_pooling.cc of apache/mxnet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.decompositions.layers import nms_by_class
from tenon.formats.decompositions.prior_boxes import PriorGrid, anchors, multibox, within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.mxnet.node import MxnetNode
from tenon.network.graph.graph import Value
from tenon.network.graph.preprocessing import Heads


def _floats(node: MxnetNode, name: str, default: Sequence[float]) -> list[float]:
    """``(0.1, 0.2)``, ``[0.1]`` or ``0.1``."""
    matches = re.findall(r"[-+]?[0-9.]+(?:e[-+]?\d+)?", node.text(name), re.IGNORECASE)
    return [float(word) for word in matches] or list(default)


def multibox_prior(node: MxnetNode) -> Value:
    """[1, P, 4]: they follow from the shape of the map."""
    h, w = node.dims[2:]
    steps, offsets = _floats(node, "steps", (-1, -1)), _floats(node, "offsets", (0.5, 0.5))
    if len(node.dims) != 4 or len(steps) != 2 or len(offsets) != 2:
        raise RefusedError(f"steps {steps} and offsets {offsets} on {list(node.dims)} are not supported")
    down, across = (1 / n if step <= 0 else step for step, n in zip(steps, (h, w), strict=True))
    positions = PriorGrid((h, w), (1.0, 1.0), (down, across), (offsets[0], offsets[1]))
    boxes = multibox(positions, _floats(node, "sizes", (1,)), _floats(node, "ratios", (1,)), node.flag("clip"))
    return node.builder.constant(boxes.reshape(1, -1, 4), "priors")


def multibox_detection(node: MxnetNode) -> Value:
    """[1, P, 6]: rows (class, score, 4 corners), the best first and -1 past the last; class 0 is the first real one.

    Every box competes with its best class alone.
    """
    batch, classes, count = node.dims
    variances = _floats(node, "variances", (0.1, 0.1, 0.2, 0.2))
    if batch != 1 or classes < 2 or len(variances) != 4 or node.integer("background_id") != 0:
        raise RefusedError(f"{batch} images with {classes} classes and variances {variances} are not supported")
    if node.flag("force_suppress") and classes > 2:
        raise RefusedError("NMS across classes is not supported")
    scores = node.add("Transpose", node.x, perm=(0, 2, 1))
    best = node.add("ReduceMax", node.slice(scores, [1], [classes], [2]), node.ints(2))
    alone = node.add("Where", node.add("Equal", scores, best), scores, 0.0)
    spread = np.resize(np.array(variances, np.float32), 4 * count).reshape(1, 1, -1)
    priors = node.add("Concat", node.reshape(node.parameter(2), 1, 1, -1), spread, axis=1)
    rows = node.add(
        "DetectionOutput",
        node.reshape(node.parameter(1), 1, -1),
        node.reshape(alone, 1, -1),
        priors,
        classes=classes,
        code_type="center_size",
        confidence_threshold=node.number("threshold", 0.01),
        nms_threshold=node.number("nms_threshold", 0.5),
        nms_top_k=within(node.integer("nms_topk", -1), count),
        keep_top_k=count,
    )
    rows = node.reshape(rows, -1, 7)
    row_count = node.builder.dims(rows)[0]
    score = node.reshape(node.slice(rows, [2], [3], [1]), row_count)
    _, order = node.builder.adds("TopK", 2, score, node.ints(min(row_count, count)))
    rows = node.add("Gather", node.slice(rows, [1], [7], [1]), order)
    kind, rest = node.split(rows, 1, [1, 5])
    if node.flag("clip", True):
        certain, corners = node.split(rest, 1, [1, 4])
        inside = node.add("Where", node.add("Less", certain, 0.0), corners, node.add("Clip", corners, 0.0, 1.0))
        rest = node.add("Concat", certain, inside, axis=1)
    result = node.add("Concat", node.add("Max", node.add("Sub", kind, 1.0), np.array(-1, np.float32)), rest, axis=1)
    if row_count < count:
        result = node.add("Pad", result, node.ints(0, 0, count - row_count, 0), -1.0)
    node.builder.graph.heads = Heads("rows", (node.builder.origin.layer,), pixels=False)
    return node.reshape(result, 1, count, 6)


def box_nms(node: MxnetNode) -> Value:
    """NMS: rows (.., score, .., 4 corners) sorted by score; rows that are suppressed or below the threshold are -1, at
    the end."""
    *outer, count, width = node.dims
    if math.prod(outer) != 1 or not 0 < count < 1 << 20:
        raise RefusedError(f"NMS for {math.prod(outer)} images at once is not supported")
    rows = node.reshape(node.x, count, width)
    start = node.integer("coord_start", 2)
    score_at = node.integer("score_index", 1)
    kind_at = node.integer("id_index", -1)
    if node.text("in_format", "corner") != node.text("out_format", "corner"):
        raise RefusedError("boxes that change their form are not supported")
    score = node.reshape(node.slice(rows, [score_at], [score_at + 1], [1]), count)
    valid = node.add("Greater", score, node.number("valid_thresh"))
    kinds = node.reshape(node.slice(rows, [kind_at], [kind_at + 1], [1]), count) if kind_at >= 0 else None
    if kinds is not None and node.integer("background_id", -1) >= 0:
        foreground = node.add("Not", node.add("Equal", kinds, node.number("background_id")))
        valid = node.add("And", valid, foreground)
    ranked = node.add("Where", valid, score, -np.inf)
    row_limit = within(node.integer("topk", -1), count)
    best, order = node.builder.adds("TopK", 2, ranked, node.ints(row_limit))
    rows = node.add("Gather", rows, order)
    boxes = node.slice(rows, [start], [start + 4], [1])
    if node.text("in_format", "corner") == "center":
        centre, size = node.split(boxes, 1, [2, 2])
        half = node.add("Mul", size, 0.5)
        boxes = node.add("Concat", node.add("Sub", centre, half), node.add("Add", centre, half), axis=1)
    alone = kinds is None or node.flag("force_suppress")
    of_each = None if alone else node.reshape(node.slice(rows, [kind_at], [kind_at + 1], [1]), row_limit)
    numbers, kept_count = nms_by_class(node, boxes, best, of_each, node.number("overlap_thresh", 0.5))
    there = node.reshape(node.add("Less", np.arange(row_limit), kept_count), row_limit, 1)
    result = node.add("Where", there, node.add("Gather", rows, numbers), -1.0)
    result = node.add("Pad", result, node.ints(0, 0, count - row_limit, 0), -1.0) if row_limit < count else result
    return node.reshape(result, *outer, count, width)


def box_iou(node: MxnetNode) -> Value:
    """The intersection of each two boxes over their union, [.., N, M]."""
    a, b = node.x, node.parameter(1)
    if node.text("format", "corner") != "corner" or len(node.dims) != 2 or len(node.builder.dims(b)) != 2:
        raise RefusedError("only corners [n, 4] are supported")
    pairs = [node.split(node.reshape(v, *dims, 4), 2, [2, 2]) for v, dims in ((a, (-1, 1)), (b, (1, -1)))]
    low, high = node.add("Max", pairs[0][0], pairs[1][0]), node.add("Min", pairs[0][1], pairs[1][1])
    shared = node.add("ReduceProd", node.add("Max", node.add("Sub", high, low), 0.0), node.ints(2), keepdims=0)
    area = [node.add("ReduceProd", node.add("Sub", q, p), node.ints(2), keepdims=0) for p, q in pairs]
    union = node.add("Sub", node.add("Add", *area), shared)
    return node.add(
        "Where", node.add("Greater", union, 0.0), node.add("Div", shared, node.add("Max", union, 1e-30)), 0.0
    )


def proposal(node: MxnetNode) -> Value:
    """Faster R-CNN's regions (0, x0, y0, x1, y1), zeros past the last."""
    if node.flag("output_score") or node.flag("iou_loss"):
        raise RefusedError("scores beside the regions are not supported")
    stride = node.integer("feature_stride", 16)
    known = anchors(stride, _floats(node, "ratios", (0.5, 1, 2)), _floats(node, "scales", (4, 8, 16, 32)))
    return node.add(
        "Proposal",
        node.x,
        node.parameter(1),
        node.parameter(2),
        known,
        feat_stride=stride,
        pre_nms=node.integer("rpn_pre_nms_top_n", 6000),
        post_nms=node.integer("rpn_post_nms_top_n", 300),
        nms_threshold=node.number("threshold", 0.7),
        min_size=node.number("rpn_min_size", 16.0),
        inclusive=1,
    )


def roi_pooling(node: MxnetNode) -> Value:
    return node.add(
        "MaxRoiPool", node.x, node.parameter(1), pooled_shape=_pooled(node), spatial_scale=node.number("spatial_scale")
    )


def roi_align(node: MxnetNode) -> Value:
    if node.flag("position_sensitive"):
        raise RefusedError("position-sensitive bins are not supported")
    rows, columns = _pooled(node)
    image_index, regions = node.split(node.parameter(1), 1, [1, 4])
    return node.add(
        "RoiAlign",
        node.x,
        regions,
        node.add("Cast", node.reshape(image_index, -1), to="i64"),
        output_height=rows,
        output_width=columns,
        sampling_ratio=max(0, node.integer("sample_ratio", -1)),
        spatial_scale=node.number("spatial_scale"),
        coordinate_transformation_mode="half_pixel" if node.flag("aligned") else "output_half_pixel",
    )


def psroi_pooling(node: MxnetNode) -> Value:
    size = node.integer("pooled_size")
    if node.integer("group_size") not in (0, size):
        raise RefusedError("groups of another size than the result are not supported")
    options = {
        "output_dim": node.integer("output_dim"),
        "group_size": size,
        "spatial_scale": node.number("spatial_scale"),
    }
    return node.add("PsRoiPool", node.x, node.parameter(1), **options)


def _pooled(node: MxnetNode) -> tuple[int, int]:
    sizes = node.integers("pooled_size")
    if len(sizes) not in (1, 2) or min(sizes) < 1 or max(sizes) > 1 << 12:
        raise RefusedError(f"pools to {sizes}")
    return sizes[0], sizes[-1]


DETECTION: dict[str, Callable[[MxnetNode], Value]] = {
    "_contrib_MultiBoxPrior": multibox_prior,
    "_contrib_MultiBoxDetection": multibox_detection,
    "ROIPooling": roi_pooling,
    "_contrib_ROIAlign": roi_align,
    "_contrib_PSROIPooling": psroi_pooling,
    "_contrib_box_iou": box_iou,
    **dict.fromkeys(("_contrib_box_nms", "_contrib_box_non_maximum_suppression"), box_nms),
    **dict.fromkeys(("_contrib_Proposal", "_contrib_MultiProposal"), proposal),
}
