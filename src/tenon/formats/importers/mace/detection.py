"""MACE's detection post-processing, that of Caffe's SSD, Faster R-CNN and R-FCN.

Definitions: mace/ops/{prior_box,detection_output,proposal,psroi_align} of XiaoMi/mace.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tenon.formats.decompositions.prior_boxes import PriorGrid, anchors, prior_boxes, sizes
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.mace.node import MaceNode
from tenon.network.graph.graph import Value
from tenon.network.graph.preprocessing import Heads


def prior_box(node: MaceNode) -> Value:
    """[1, 2, 4 P], a constant: it follows from the shapes of the feature map and of the image."""
    maps, image_dims = node.dims, node.builder.dims(node.input(1))
    if len(maps) != 4 or len(image_dims) != 4:
        raise RefusedError(f"it needs images, not {list(maps)} and {list(image_dims)}")
    (h, w), (high, wide) = maps[1:3], image_dims[1:3]
    down, across = node.number("step_h"), node.number("step_w")
    if down <= 1e-6 or across <= 1e-6:
        down, across = high / h, wide / w
    ratios = [ratio for ratio in node.numbers("aspect_ratio") if abs(ratio - 1) >= 1e-6]
    positions = PriorGrid((h, w), (high, wide), (down, across), node.number("offset", 0.5))
    boxes = sizes(node.numbers("min_size"), node.numbers("max_size"), ratios, False)
    outputs = prior_boxes(positions, boxes, node.numbers("variance"), bool(node.integer("clip")))
    return node.builder.constant(outputs[None], "priors")


def detection_output(node: MaceNode) -> Value:
    """[1, 1, rows, 7], the best of all classes first; -1 past the last."""
    flat = [node.reshape(node.input(i), 1, -1) for i in (0, 1)]
    count = math.prod(node.builder.dims(node.input(2))) // 8
    classes = node.integer("num_classes", 1)
    kept = node.integer("keep_top_k")
    top = node.integer("nms_top_k", 100)
    rows = node.add(
        "DetectionOutput",
        *flat,
        node.reshape(node.input(2), 1, 2, -1),
        classes=classes,
        code_type="center_size",
        confidence_threshold=node.number("confidence_threshold", 0.05),
        nms_threshold=node.number("nms_threshold", 0.3),
        nms_top_k=top if 0 < top < count else count,
        keep_top_k=kept or 100,
    )
    rows = node.reshape(rows, -1, 7)
    row_count = node.builder.dims(rows)[0]
    _, order = node.builder.adds(
        "TopK", 2, node.reshape(node.slice(rows, [2], [3], [1]), row_count), node.ints(row_count)
    )
    node.builder.graph.heads = Heads("rows", (str(node.op.output[0]),), pixels=False)
    return node.reshape(node.add("Gather", rows, order), 1, 1, row_count, 7)


def proposal(node: MaceNode) -> Value:
    """Faster R-CNN's regions (0, x0, y0, x1, y1), zeros past the last; scores and deltas have their channels last."""
    known = anchors(node.integer("base_size", 16), node.numbers("ratios"), [float(s) for s in node.integers("scales")])
    scores, deltas = (node.add("Transpose", node.input(i), perm=(0, 3, 1, 2)) for i in (0, 1))
    return node.add(
        "Proposal",
        scores,
        deltas,
        node.reshape(node.input(2), 1, -1),
        known,
        feat_stride=node.integer("feat_stride", 16),
        pre_nms=node.integer("pre_nms_top_n", 6000),
        post_nms=node.integer("post_nms_top_n", 300),
        nms_threshold=node.number("nms_thresh", 0.7),
        min_size=node.number("min_size", 16.0),
    )


def position_sensitive_align(node: MaceNode) -> Value:
    """Regions [R, 5]; the result is [R, size, size, outputs]."""
    options = {"output_dim": node.integer("output_dim"), "group_size": node.integer("group_size")}
    regions = node.reshape(node.input(1), -1, 5)
    y = node.add("PsRoiAlign", node.channels_first(), regions, spatial_scale=node.number("spatial_scale"), **options)
    return node.channels_last(y)


DETECTION: dict[str, Callable[[MaceNode], Value]] = {
    "DetectionOutput": detection_output,
    "PriorBox": prior_box,
    "Proposal": proposal,
    "PSROIAlign": position_sensitive_align,
}
