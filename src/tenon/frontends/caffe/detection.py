"""Caffe layers of detectors: PriorBox, DetectionOutput, ROIPooling, PSROIPooling, PSROIAlign, Proposal, Region."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.frontends.caffe.layer import Layer, Tops
from tenon.frontends.prior_boxes import Places, prior_boxes, sizes
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Array, Value


def prior_box(layer: Layer) -> Value:
    """Boxes and their variances [1, 2, 4 P], a constant: they follow from the shapes of the two bottoms."""
    parameter = layer.message.prior_box_param
    (h, w), image = layer.dims()[2:4], layer.dims(1)
    img_h, img_w = parameter.img_h or parameter.img_size or image[2], parameter.img_w or parameter.img_size or image[3]
    step_h = float(parameter.step_h or parameter.step) or img_h / h
    step_w = float(parameter.step_w or parameter.step) or img_w / w
    least, most = [float(s) for s in parameter.min_size], [float(s) for s in parameter.max_size]
    ratios = _ratios([float(r) for r in parameter.aspect_ratio], bool(parameter.flip))
    places = Places((h, w), (img_h, img_w), (step_h, step_w), float(parameter.offset))
    variance = [float(v) for v in parameter.variance] or [0.1]
    boxes = prior_boxes(places, sizes(least, most, ratios, False), variance, bool(parameter.clip))
    return layer.net.constant(boxes[None], "priors")


def _ratios(given: Sequence[float], flip: bool) -> list[float]:
    """The ratios that are new, each with its inverse: Caffe leaves out what was there before."""
    found = [1.0]
    for ratio in given:
        if ratio <= 0:
            raise RefusedError(f"has the aspect ratio {ratio}")
        if all(abs(ratio - r) >= 1e-6 for r in found):
            found += [ratio, 1 / ratio] if flip else [ratio]
    return [ratio for ratio in found if abs(ratio - 1) >= 1e-6]


def detection_output(layer: Layer) -> Value:
    parameter = layer.message.detection_output_param
    if len(layer.bottoms) != 3:
        raise RefusedError(
            f"has {len(layer.bottoms)} bottoms", "only SSD's three (location, confidence, priors) are known"
        )
    priors = layer.dims(2)
    count, classes = math.prod(priors) // 8, parameter.num_classes
    top_k = parameter.nms_param.top_k if parameter.nms_param.has("top_k") else -1
    return layer.add(
        "DetectionOutput",
        *layer.bottoms,
        classes=classes,
        share_location=int(parameter.share_location),
        background=parameter.background_label_id,
        code_type=parameter.code_type.lower(),
        variance_in_target=int(parameter.variance_encoded_in_target),
        confidence_threshold=float(parameter.confidence_threshold) if parameter.has("confidence_threshold") else -3e38,
        nms_threshold=float(parameter.nms_param.nms_threshold),
        eta=float(parameter.nms_param.eta),
        nms_top_k=top_k if 0 < top_k < count else count,
        keep_top_k=parameter.keep_top_k,
    )


def roi_pooling(layer: Layer) -> Value:
    parameter = layer.message.roi_pooling_param
    shape = (parameter.pooled_h, parameter.pooled_w)
    if not all(0 < n < 1 << 12 for n in shape):
        raise RefusedError(f"pools to {list(shape)}")
    scale = float(parameter.spatial_scale)
    return layer.add("MaxRoiPool", layer.x, layer.bottom(1), pooled_shape=shape, spatial_scale=scale)


def position_sensitive_roi_pooling(layer: Layer) -> Value:
    aligned = layer.type == "PSROIAlign"
    parameter = layer.message.psroi_align_param if aligned else layer.message.psroi_pooling_param
    group, output, channels = parameter.group_size, parameter.output_dim, layer.dims()[1]
    if group < 1 or output < 1 or group * group * output != channels:
        raise RefusedError(f"takes {channels} channels for {output} outputs in {group} x {group} groups")
    options = {"output_dim": output, "group_size": group, "spatial_scale": float(parameter.spatial_scale)}
    if not aligned:
        return layer.add("PsRoiPool", layer.x, layer.bottom(1), **options)
    if not 0 < parameter.sample_num < 1 << 8:
        raise RefusedError(f"takes {parameter.sample_num} points along each side of a bin")
    return layer.add("PsRoiAlign", layer.x, layer.bottom(1), **options, sample_num=parameter.sample_num)


def proposal(layer: Layer) -> Value:
    """Region proposals of Faster R-CNN: the layer of the C++ ports."""
    parameter = layer.message.proposal_param
    return _proposals(
        layer,
        anchors(parameter.base_size, [float(r) for r in parameter.ratio], [float(s) for s in parameter.scale]),
        parameter.feat_stride,
        (parameter.pre_nms_topn, parameter.post_nms_topn, float(parameter.nms_thresh), float(parameter.min_size)),
    )


def python(layer: Layer) -> Value:
    """The one layer in Python that everyone has: py-faster-rcnn's proposals."""
    parameter = layer.message.python_param
    if parameter.layer != "ProposalLayer":
        raise RefusedError(
            f"is code: {parameter.module}.{parameter.layer}", "cut the net around it with inputs and outputs"
        )
    options = _python_options(parameter.param_str)
    scales = options.get("scales", [8, 16, 32])
    if not isinstance(scales, list | tuple):
        raise RefusedError(f"has the scales {scales!r}")
    stride = int(str(options.get("feat_stride", 16)))
    return _proposals(layer, anchors(16, [], [float(s) for s in scales]), stride, (6000, 300, 0.7, 16.0))


def _python_options(text: str) -> dict[str, object]:
    """The literal dictionary of a Python layer, with or without its braces.  Nothing is run."""
    text = text.strip()
    for spelled in (text, "{" + text + "}"):
        try:
            found = ast.literal_eval(spelled)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(found, dict):
            return {str(k): v for k, v in found.items()}
    raise RefusedError(f"its options {text[:60]!r} are not a plain dictionary")


def _proposals(layer: Layer, boxes: Array, stride: int, limits: tuple[int, int, float, float]) -> Value:
    before, after, threshold, least = limits
    if layer.dims()[0] != 1:
        raise RefusedError(f"proposes for {layer.dims()[0]} pictures at once; it can for one")
    options = {"feat_stride": stride, "pre_nms": before, "post_nms": after, "nms_threshold": threshold}
    known = layer.net.constant(boxes, "anchors")
    return layer.add("Proposal", layer.x, layer.bottom(1), layer.bottom(2), known, min_size=least, **options)


def anchors(base: int, ratios: Sequence[float], scales: Sequence[float]) -> Array:
    """[A, 4] corners of the anchors of Faster R-CNN at the first place, ratios outermost, rounded as it does."""
    middle = 0.5 * (base - 1)
    sizes = []
    for ratio in ratios or (0.5, 1.0, 2.0):
        width = np.round(math.sqrt(base * base / max(ratio, 1e-6)))
        sizes += [(width * s, np.round(width * ratio) * s) for s in scales or (8.0, 16.0, 32.0)]
    half = (np.array(sizes) - 1) * 0.5
    return np.concatenate([middle - half, middle + half], 1).astype(np.float32)


def region(layer: Layer) -> Value:
    """YOLO v2's head: logistic centre and objectness, softmax (or logistic) classes; sizes stay raw."""
    parameter, dims = layer.message.region_param, layer.dims()
    boxes, coords, classes = parameter.boxes_of_each_grid, parameter.coords, parameter.classes
    if len(dims) != 4 or dims[1] != boxes * (coords + 1 + classes) or coords < 3 or not classes:
        raise RefusedError(f"takes {list(dims)} for {boxes} boxes of {coords} numbers and {classes} classes")
    n, _, h, w = dims
    x = layer.reshape(layer.x, (n, boxes, coords + 1 + classes, h * w))
    sizes = layer.net.ints(2, coords - 2, 1, classes)
    centre, size, objectness, kinds = layer.net.adds("Split", 4, x, sizes, axis=2)
    sure = layer.add("Sigmoid", objectness)
    kinds = layer.add("Softmax", kinds, axis=2) if parameter.softmax else layer.add("Sigmoid", kinds)
    parts = (layer.add("Sigmoid", centre), size, sure, kinds)
    return layer.reshape(layer.add("Concat", *parts, axis=2), dims)


LAYERS: dict[str, Callable[[Layer], Tops]] = {
    "DetectionOutput": detection_output,
    "PriorBox": prior_box,
    "Proposal": proposal,
    "PSROIAlign": position_sensitive_roi_pooling,
    "PSROIPooling": position_sensitive_roi_pooling,
    "Python": python,
    "Region": region,
    "ROIPooling": roi_pooling,
}
