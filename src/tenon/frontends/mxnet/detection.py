"""MXNet's operators of detectors: boxes to begin with, the end of SSD, and pooling of regions.

Definitions: src/operator/contrib/{multibox_prior,multibox_detection,roi_align,psroi_pooling}.cc and
src/operator/roi_pooling.cc of apache/mxnet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tenon.frontends.prior_boxes import Places, multibox, within
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Value
from tenon.ir.picture import Heads

if TYPE_CHECKING:
    from tenon.frontends.mxnet.ops import Context


def _floats(c: Context, name: str, default: Sequence[float]) -> list[float]:
    """``(0.1, 0.2)``, ``[0.1]`` or ``0.1``."""
    found = re.findall(r"[-+]?[0-9.]+(?:e[-+]?\d+)?", c.text(name), re.IGNORECASE)
    return [float(word) for word in found] or list(default)


def multibox_prior(c: Context) -> Value:
    """[1, P, 4]: they follow from the shape of the map."""
    h, w = c.dims[2:]
    steps, offsets = _floats(c, "steps", (-1, -1)), _floats(c, "offsets", (0.5, 0.5))
    if len(c.dims) != 4 or len(steps) != 2 or len(offsets) != 2 or offsets[0] != offsets[1]:
        raise RefusedError(f"steps {steps} and offsets {offsets} on {list(c.dims)} are not supported")
    down, across = (1 / n if step <= 0 else step for step, n in zip(steps, (h, w), strict=True))
    places = Places((h, w), (1.0, 1.0), (down, across), offsets[0])
    boxes = multibox(places, _floats(c, "sizes", (1,)), _floats(c, "ratios", (1,)), c.flag("clip"))
    return c.net.constant(boxes.reshape(1, -1, 4), "priors")


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
        "DetectionOutput", c.reshape(c.parameter(1), 1, -1), c.reshape(alone, 1, -1), priors, classes=classes,
        code_type="center_size", confidence_threshold=c.number("threshold", 0.01),
        nms_threshold=c.number("nms_threshold", 0.5), nms_top_k=within(c.integer("nms_topk", -1), count),
        keep_top_k=count,
    )  # fmt: skip
    rows = c.reshape(rows, -1, 7)
    found = c.net.dims(rows)[0]
    score = c.reshape(c.slice(rows, [2], [3], [1]), found)
    _, order = c.net.adds("TopK", 2, score, c.ints(min(found, count)))
    rows = c.add("Gather", c.slice(rows, [1], [7], [1]), order)
    kind, rest = c.split(rows, 1, [1, 5])
    if c.flag("clip", True):
        certain, corners = c.split(rest, 1, [1, 4])
        inside = c.add("Where", c.add("Less", certain, 0.0), corners, c.add("Clip", corners, 0.0, 1.0))
        rest = c.add("Concat", certain, inside, axis=1)
    made = c.add("Concat", c.add("Max", c.add("Sub", kind, 1.0), np.array(-1, np.float32)), rest, axis=1)
    if found < count:
        made = c.add("Pad", made, c.ints(0, 0, count - found, 0), -1.0)
    c.net.graph.heads = Heads("rows", (c.net.origin.layer,), pixels=False)
    return c.reshape(made, 1, count, 6)


def roi_pooling(c: Context) -> Value:
    return c.add("MaxRoiPool", c.x, c.parameter(1), pooled_shape=_pooled(c), spatial_scale=c.number("spatial_scale"))


def roi_align(c: Context) -> Value:
    if c.flag("position_sensitive"):
        raise RefusedError("position-sensitive bins are not supported")
    rows, columns = _pooled(c)
    picture, regions = c.split(c.parameter(1), 1, [1, 4])
    return c.add(
        "RoiAlign", c.x, regions, c.add("Cast", c.reshape(picture, -1), to="i64"),
        output_height=rows, output_width=columns, sampling_ratio=max(0, c.integer("sample_ratio", -1)),
        spatial_scale=c.number("spatial_scale"),
        coordinate_transformation_mode="half_pixel" if c.flag("aligned") else "output_half_pixel",
    )  # fmt: skip


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
}
