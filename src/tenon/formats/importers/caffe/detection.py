"""Caffe layers of detectors: PriorBox, DetectionOutput, ROIPooling, PSROIPooling, PSROIAlign, Proposal, Region."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from tenon.formats.decompositions.layers import region_head
from tenon.formats.decompositions.prior_boxes import PriorGrid, anchors, prior_boxes, sizes, within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.caffe.node import CaffeLayer, Table
from tenon.network.graph.graph import Array, Value


def prior_box(layer: CaffeLayer) -> Value:
    """Boxes and their variances [1, 2, 4 P], a constant: they follow from the shapes of the two bottoms."""
    p, (h, w), image = layer.p, layer.image(layer.x)[2:], layer.image(layer.input(1))
    size = p.img_h or p.img_size or image[2], p.img_w or p.img_size or image[3]
    steps = p.step_h or p.step or size[0] / h, p.step_w or p.step or size[1] / w
    boxes = sizes(p.min_size.tolist(), p.max_size.tolist(), _ratios(p.aspect_ratio.tolist(), p.flip), False)
    priors = prior_boxes(PriorGrid((h, w), size, steps, p.offset), boxes, p.variance.tolist() or [0.1], p.clip)
    return layer.builder.constant(priors[None], "priors")


def _ratios(given: Sequence[float], flip: bool) -> list[float]:
    """The distinct ratios, each with its inverse: Caffe skips repeated ones."""
    ratios = [1.0]
    for ratio in given:
        if ratio <= 0:
            raise RefusedError(f"has the aspect ratio {ratio}")
        if all(abs(ratio - r) >= 1e-6 for r in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    return ratios[1:]


def detection_output(layer: CaffeLayer) -> Value:
    p, suppression = layer.p, layer.p.nms_param
    if len(layer.inputs) != 3:
        raise RefusedError(
            f"has {len(layer.inputs)} bottoms", "only SSD's three (location, confidence, priors) are known"
        )
    return layer.add(
        "DetectionOutput",
        *layer.inputs,
        classes=p.num_classes,
        share_location=int(p.share_location),
        background=p.background_label_id,
        code_type=p.code_type.lower(),
        variance_in_target=int(p.variance_encoded_in_target),
        confidence_threshold=p.confidence_threshold if p.has("confidence_threshold") else -3e38,
        nms_threshold=suppression.nms_threshold,
        eta=suppression.eta,
        nms_top_k=within(suppression.top_k, math.prod(layer.dims_of(2)) // 8),
        keep_top_k=p.keep_top_k,
    )


def roi_pooling(layer: CaffeLayer) -> Value:
    shape = (layer.p.pooled_h, layer.p.pooled_w)
    if not all(0 < n < 1 << 12 for n in shape):
        raise RefusedError(f"pools to {list(shape)}")
    return layer.add("MaxRoiPool", layer.x, layer.input(1), pooled_shape=shape, spatial_scale=layer.p.spatial_scale)


def position_sensitive_roi_pooling(layer: CaffeLayer) -> Value:
    p, channels = layer.p, layer.dims[1]
    options = {"output_dim": p.output_dim, "group_size": p.group_size, "spatial_scale": p.spatial_scale}
    if min(p.group_size, p.output_dim) < 1 or p.group_size**2 * p.output_dim != channels:
        raise RefusedError(
            f"takes {channels} channels for {p.output_dim} outputs in {p.group_size} x {p.group_size} groups"
        )
    if layer.type == "PSROIPooling":
        return layer.add("PsRoiPool", layer.x, layer.input(1), **options)
    if not 0 < p.sample_num < 1 << 8:
        raise RefusedError(f"takes {p.sample_num} points along each side of a bin")
    return layer.add("PsRoiAlign", layer.x, layer.input(1), **options, sample_num=p.sample_num)


def proposal(layer: CaffeLayer) -> Value:
    """Region proposals of Faster R-CNN: the layer of the C++ ports."""
    p = layer.p
    boxes = anchors(p.base_size, p.ratio.tolist(), p.scale.tolist())
    return _proposals(layer, boxes, p.feat_stride, p.pre_nms_topn, p.post_nms_topn, p.nms_thresh, p.min_size)


def python(layer: CaffeLayer) -> Value:
    """The Python layer of py-faster-rcnn: its region proposals."""
    p = layer.p
    if p.layer != "ProposalLayer":
        raise RefusedError(f"is code: {p.module}.{p.layer}", "cut the net around it with inputs and outputs")
    options = _python_options(p.param_str)
    scales = options.get("scales", [8, 16, 32])
    if not isinstance(scales, list | tuple):
        raise RefusedError(f"has the scales {scales!r}")
    stride = int(str(options.get("feat_stride", 16)))
    return _proposals(layer, anchors(16, [], [float(s) for s in scales]), stride, 6000, 300, 0.7, 16.0)


def _python_options(text: str) -> dict[str, object]:
    """The literal dictionary of a Python layer, with or without its braces.  Nothing is run."""
    text = text.strip()
    for literal in (text, "{" + text + "}"):
        try:
            options = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(options, dict):
            return {str(k): v for k, v in options.items()}
    raise RefusedError(f"its options {text[:60]!r} are not a plain dictionary")


def _proposals(
    layer: CaffeLayer, boxes: Array, stride: int, before: int, after: int, threshold: float, min_size: float
) -> Value:
    if layer.dims[0] != 1:
        raise RefusedError(f"proposes for {layer.dims[0]} images at once; it can for one")
    options = {"feat_stride": stride, "pre_nms": before, "post_nms": after, "nms_threshold": threshold}
    return layer.add("Proposal", layer.x, layer.input(1), layer.input(2), boxes, min_size=min_size, **options)


def region(layer: CaffeLayer) -> Value:
    p = layer.p
    return region_head(layer, layer.x, p.boxes_of_each_grid, p.classes, p.coords, softmax=p.softmax)


LAYERS: Table = {
    "DetectionOutput": ("detection_output_param", detection_output),
    "PriorBox": ("prior_box_param", prior_box),
    "Proposal": ("proposal_param", proposal),
    "PSROIAlign": ("psroi_align_param", position_sensitive_roi_pooling),
    "PSROIPooling": ("psroi_pooling_param", position_sensitive_roi_pooling),
    "Python": ("python_param", python),
    "Region": ("region_param", region),
    "ROIPooling": ("roi_pooling_param", roi_pooling),
}
