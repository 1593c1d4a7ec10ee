"""Tengine's detection layers: prior boxes, proposals, pooling of regions, and post-processing.

Sources: source/device/cpu/op/{priorbox,detection_output,detection_postprocess,region,rpn,roipooling,...} of
OAID/Tengine.
"""

from __future__ import annotations

import math

import numpy as np

from tenon.formats.decompositions.layers import region_head
from tenon.formats.decompositions.prior_boxes import PriorGrid, prior_boxes, sizes, within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tengine.node import LayerRow, TengineNode
from tenon.network.graph.graph import Value


def prior_box(node: TengineNode) -> Value:
    """SSD's boxes and variances, [1, 2, 4 P, 1]; their order is Tengine's: smallest, largest, then each ratio."""
    p, (h, w), (image_h, image_w) = node.attributes, node.dims[2:], node.dims_of(1)[2:]
    if p["img_h"] and p["img_w"]:
        image_h, image_w = p["img_h"], p["img_w"]
    step_h, step_w = (p["step_h"], p["step_w"]) if p["step_h"] and p["step_w"] else (image_h / h, image_w / w)
    positions = PriorGrid((h, w), (image_h, image_w), (step_h, step_w), p["offset"])
    boxes = prior_boxes(
        positions, sizes(p["min_size"], p["max_size"], p["ratios"], p["flip"]), p["variance"], bool(p["clip"])
    )
    return node.builder.constant(boxes.reshape(1, 2, -1, 1), "priors")


def detection_output(node: TengineNode) -> Value:
    if len(node.inputs) != 3:
        raise RefusedError(f"it has {len(node.inputs)} inputs instead of 3")
    p, count = node.attributes, math.prod(node.dims_of(2)) // 8
    flat = [node.reshape(v, node.dims[0], -1) for v in node.inputs[:2]]
    priors = node.reshape(node.inputs[2], 1, 2, -1)
    top = within(p["nms_top_k"], count)
    return node.add(
        "DetectionOutput",
        *flat,
        priors,
        classes=p["num_classes"],
        code_type="center_size",
        nms_top_k=top,
        confidence_threshold=p["confidence"],
        nms_threshold=p["nms"],
        keep_top_k=p["keep_top_k"],
    )


def post_process(node: TengineNode) -> Outputs:
    """TFLite's detection post-processing: boxes, classes, scores, count; boxes [1, 4, n] are transposed, and the
    result too."""
    p, transposed = node.attributes, node.dims[-1] != 4
    boxes, scores = (node.add("Transpose", v, perm=(0, 2, 1)) if transposed else v for v in (node.x, node.input(1)))
    outputs = node.builder.adds(
        "DetectionPostProcess",
        4,
        boxes,
        scores,
        node.input(2),
        max_detections=p["max_detections"],
        num_classes=p["num_classes"],
        max_classes_per_detection=p["max_classes"],
        score_threshold=p["score"],
        iou_threshold=p["iou"],
        scales=p["scales"],
    )
    return [node.add("Transpose", outputs[0], perm=(0, 2, 1)) if transposed else outputs[0], *outputs[1:]]


def region(node: TengineNode) -> Value:
    return region_head(
        node, node.x, node.attributes["num_box"], node.attributes["num_classes"], node.attributes["coords"]
    )


def proposals(node: TengineNode) -> Value:
    """Faster R-CNN's regions [1, R, 4, 1] of scores, deltas and (height, width, scale); zeros past the last."""
    p = node.attributes
    anchors = np.array(p["anchors"][: len(p["anchors"]) // 4 * 4], np.float32).reshape(-1, 4)
    rows = node.add(
        "Proposal",
        node.x,
        node.input(1),
        node.reshape(node.input(2), 1, -1),
        anchors,
        feat_stride=p["stride"],
        pre_nms=p["before"],
        post_nms=p["after"],
        nms_threshold=p["nms"],
        min_size=float(p["min_size"]),
    )
    return node.reshape(node.slice(rows, [1], [5], [1]), 1, -1, 4, 1)


def _regions(node: TengineNode) -> Value:
    """Corners [R, 4]."""
    return node.reshape(node.input(1), -1, 4)


def _of_first_image(node: TengineNode) -> Value:
    return node.add("Pad", _regions(node), node.ints(0, 1, 0, 0), 0.0)


def roi_pooling(node: TengineNode) -> Value:
    shape = (node.attributes["rows"], node.attributes["columns"])
    return node.add(
        "MaxRoiPool", node.x, _of_first_image(node), pooled_shape=shape, spatial_scale=node.attributes["scale"]
    )


def roi_align(node: TengineNode) -> Value:
    regions = _regions(node)
    image_indices = np.zeros(node.builder.dims(regions)[0], np.int64)
    return node.add(
        "RoiAlign",
        node.x,
        regions,
        image_indices,
        output_height=node.attributes["rows"],
        output_width=node.attributes["columns"],
        spatial_scale=node.attributes["scale"],
        coordinate_transformation_mode="output_half_pixel",
    )


def position_sensitive(node: TengineNode) -> Value:
    size, output = node.attributes["rows"], node.attributes["output"]
    if size != node.attributes["columns"] or size * size * output != node.dims[1]:
        raise RefusedError(
            f"takes {node.dims[1]} channels for {output} outputs of {size} x {node.attributes['columns']}"
        )
    return node.add(
        "PsRoiPool",
        node.x,
        _of_first_image(node),
        output_dim=output,
        group_size=size,
        spatial_scale=node.attributes["scale"],
    )


_PRIOR = (
    "min_size:F max_size:F variance:F ratios:F flip clip img_size img_h img_w step_w:f step_h:f offset:f "
    "num_priors out_dim"
)

LAYERS: dict[int, LayerRow] = {
    7: ("DetectionOutput", "num_classes keep_top_k nms_top_k confidence:f nms:f", detection_output),
    18: ("PriorBox", _PRIOR, prior_box),
    19: ("Region", "num_classes side num_box coords confidence:f nms:f biases:F", region),
    24: ("ROIPooling", "rows columns scale:f", roi_pooling),
    25: ("RPN", "ratios:F scales:F stride base min_size before after nms:f anchors:A", proposals),
    30: ("DetectionPostProcess", "max_detections max_classes score:f iou:f num_classes scales:F", post_process),
    57: ("Roialign", "columns rows scale:f", roi_align),
    58: ("Psroipooling", "columns rows scale:f output", position_sensitive),
}
