"""Paddle's boxes: those that detectors begin with, their decoding, suppression by decay, and pooling of regions.

Definitions: paddle/phi/kernels/cpu/{prior_box,box_coder,matrix_nms,roi_align,roi_pool,psroi_pool}_kernel.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.decompositions.prior_boxes import Places, prior_boxes, within
from tenon.graph_builder.errors import RefusedError
from tenon.importers.paddle.context import Context
from tenon.ir.graph import Value
from tenon.ir.preprocessing import Heads

MOST_PAIRS = 1 << 26
"""Pairs of boxes that suppression by decay compares."""


def _floats(c: Context, name: str) -> list[float]:
    found = c.attributes.get(name, [])
    return [float(v) for v in found] if isinstance(found, list | np.ndarray) else [float(found)]


def prior_box(c: Context) -> dict[str, Value]:
    """[H, W, boxes, 4] and their variances, constants: they follow from the shapes of the map and of the picture."""
    (h, w), (high, wide) = c.dims[2:], c.builder.dims(c.input("Image"))[2:]
    least, most, ratios = (_floats(c, f"{name}s") for name in ("min_size", "max_size", "aspect_ratio"))
    known = [1.0]
    for ratio in ratios:
        if all(abs(ratio - r) >= 1e-6 for r in known) and ratio > 0:
            known += [ratio, 1 / ratio] if c.integer("flip") else [ratio]
    sizes: list[tuple[float, float]] = []
    for i, size in enumerate(least):
        between = [(math.sqrt(size * most[i]),) * 2] if i < len(most) and size * most[i] > 0 else []
        shaped = [(size * math.sqrt(r), size / math.sqrt(r)) for r in known]
        order = c.integer("min_max_aspect_ratios_order")
        sizes += [shaped[0], *between, *shaped[1:]] if order else [*shaped, *between]
    if not sizes or min(least) <= 0:
        raise RefusedError(f"it has the sizes {least}")
    down, across = c.number("step_h") or high / h, c.number("step_w") or wide / w
    places = Places((h, w), (high, wide), (down, across), c.number("offset", 0.5))
    boxes, spread = prior_boxes(places, sizes, _floats(c, "variances"), bool(c.integer("clip")))
    dims = (h, w, len(sizes), 4)
    return {
        "Boxes": c.builder.constant(boxes.reshape(dims), "boxes"),
        "Variances": c.builder.constant(spread.reshape(dims), "variances"),
    }


def box_coder(c: Context) -> Value:
    """Boxes decoded from their centres' and sizes' differences to prior boxes, [N, M, 4]."""
    if c.text("code_type", "encode_center_size") != "decode_center_size":
        raise RefusedError("only decoding is supported")
    target, priors = c.input("TargetBox"), c.reshape(c.input("PriorBox"), -1, 4)
    extra = 0.0 if c.integer("box_normalized", 1) else 1.0
    if len(c.builder.dims(target)) == 2:
        target = c.reshape(target, *c.builder.dims(target)[:1], 1, 4)
    along = c.integer("axis")
    shape = (1, -1, 4) if along == 0 else (-1, 1, 4)
    low, high = c.split(c.reshape(priors, *shape), 2, [2, 2])
    size = c.add("Add", c.add("Sub", high, low), extra)
    centre = c.add("Add", low, c.add("Mul", size, 0.5))
    spread = c.get("PriorBoxVar")
    if spread is not None:
        factors = c.reshape(spread, *shape) if len(c.builder.dims(spread)) > 1 else spread
        target = c.add("Mul", target, factors)
    elif _floats(c, "variance"):
        target = c.add("Mul", target, np.array(_floats(c, "variance"), np.float32))
    moved, grown = c.split(target, 2, [2, 2])
    middle = c.add("Add", c.add("Mul", moved, size), centre)
    half = c.add("Mul", c.add("Mul", c.add("Exp", grown), size), 0.5)
    return c.add("Concat", c.add("Sub", middle, half), c.add("Sub", c.add("Add", middle, half), extra), axis=2)


def _overlaps(c: Context, boxes: Value, extra: float) -> Value:
    """[C, k, k]: the intersection of each two boxes [C, k, 4] over their union."""
    classes, count, _ = c.builder.dims(boxes)
    row, column = (c.reshape(boxes, classes, *dims, 4) for dims in ((count, 1), (1, count)))
    pairs = [c.split(v, 3, [2, 2]) for v in (row, column)]
    low = c.add("Max", pairs[0][0], pairs[1][0])
    high = c.add("Min", pairs[0][1], pairs[1][1])
    sides = c.add("Max", c.add("Add", c.add("Sub", high, low), extra), 0.0)
    shared = c.add("ReduceProd", sides, c.ints(3), keepdims=0)
    area = [c.add("ReduceProd", c.add("Add", c.add("Sub", b, a), extra), c.ints(3), keepdims=0) for a, b in pairs]
    union = c.add("Sub", c.add("Add", *area), shared)
    return c.add("Div", shared, c.add("Max", union, 1e-10))


def matrix_nms(c: Context) -> dict[str, Value]:
    """Scores fade with what better boxes of the class cover.  Rows (class, score, 4 corners), the best first, -1 past
    the last, and how many count."""
    boxes, scores = c.input("BBoxes"), c.input("Scores")
    items, classes, count = c.builder.dims(scores)
    if items != 1 or c.builder.dims(boxes) != (1, count, 4):
        raise RefusedError(
            f"boxes {list(c.builder.dims(boxes))} with scores {[items, classes, count]} are not supported"
        )
    real = [k for k in range(classes) if k != c.integer("background_label")]
    top = within(c.integer("nms_top_k", -1), count)
    if not real or len(real) * top * top > MOST_PAIRS:
        raise RefusedError(f"{len(real)} classes of {top} boxes are too many to compare", "lower nms_top_k")
    least, after = c.number("score_threshold"), c.number("post_threshold")
    rows = c.reshape(scores, classes, count)
    rows = rows if len(real) == classes else c.add("Gather", rows, np.array(real, np.int64), axis=0)
    certain, order = c.builder.adds("TopK", 2, rows, c.ints(top), axis=1)
    chosen = c.add("Gather", c.reshape(boxes, count, 4), order)  # [C, top, 4]
    upper = np.triu(np.ones((top, top), np.float32), 1)
    overlap = c.add("Mul", _overlaps(c, chosen, 0.0 if c.integer("normalized", 1) else 1.0), upper)
    covered = c.reshape(
        c.add("ReduceMax", overlap, c.ints(1), keepdims=0), len(real), top, 1
    )  # of each, by a better one
    if c.integer("use_gaussian"):
        gap = c.add("Sub", c.add("Mul", covered, covered), c.add("Mul", overlap, overlap))
        decay = c.add("Exp", c.add("Mul", gap, c.number("gaussian_sigma", 2.0)))
    else:
        decay = c.add("Div", c.add("Sub", 1.0, overlap), c.add("Max", c.add("Sub", 1.0, covered), 1e-10))
    decay = c.add("Where", upper > 0, decay, 1.0)
    faded = c.add("Mul", certain, c.add("ReduceMin", decay, c.ints(1), keepdims=0))
    valid = c.add("And", c.add("Greater", certain, least), c.add("Greater", faded, after))
    flat = c.reshape(c.add("Where", valid, faded, -1.0), -1)
    keep = within(c.integer("keep_top_k", -1), len(real) * top)
    best, places = c.builder.adds("TopK", 2, flat, c.ints(keep))
    kinds = np.repeat(np.array(real, np.float32), top)
    listed = [
        c.reshape(c.add("Gather", kinds, places), keep, 1),
        c.reshape(best, keep, 1),
        c.add("Gather", c.reshape(chosen, -1, 4), places),
    ]
    there = c.reshape(c.add("GreaterOrEqual", best, 0.0), keep, 1)
    made = c.add("Where", there, c.add("Concat", *listed, axis=1), -1.0)
    number = c.add("ReduceSum", c.add("Cast", there, to="i32"), c.ints(0, 1), keepdims=0)
    c.builder.graph.heads = Heads("rows", tuple(c.outputs.get("Out", [])[:1]), pixels=None)
    return {"Out": made, "RoisNum": c.reshape(number, 1)}


# ------------------------------------------------------------------------------------------------------- regions
def _single(c: Context) -> int:
    """How many regions there are.  Raises RefusedError for those of several pictures."""
    regions = c.builder.dims(c.input("ROIs"))
    if c.dims[0] != 1 or len(regions) != 2 or regions[1] != 4:
        raise RefusedError(f"regions {list(regions)} of {c.dims[0]} pictures are not supported; those of one are")
    return regions[0]


def _numbered(c: Context) -> Value:
    _single(c)
    return c.add("Pad", c.input("ROIs"), c.ints(0, 1, 0, 0), 0.0)


def roi_align(c: Context) -> Value:
    picture = np.zeros(_single(c), np.int64)
    return c.add(
        "RoiAlign",
        c.x,
        c.input("ROIs"),
        picture,
        output_height=c.integer("pooled_height", 1),
        output_width=c.integer("pooled_width", 1),
        spatial_scale=c.number("spatial_scale", 1.0),
        sampling_ratio=max(0, c.integer("sampling_ratio", -1)),
        coordinate_transformation_mode="half_pixel" if c.integer("aligned") else "output_half_pixel",
    )


def roi_pool(c: Context) -> Value:
    shape = (c.integer("pooled_height", 1), c.integer("pooled_width", 1))
    return c.add("MaxRoiPool", c.x, _numbered(c), pooled_shape=shape, spatial_scale=c.number("spatial_scale", 1.0))


def position_sensitive(c: Context) -> Value:
    size = c.integer("pooled_height", 1)
    if size != c.integer("pooled_width", 1):
        raise RefusedError("results that are not square are not supported")
    return c.add(
        "PsRoiPool",
        c.x,
        _numbered(c),
        output_dim=c.integer("output_channels", 1),
        group_size=size,
        spatial_scale=c.number("spatial_scale", 1.0),
    )


def box_clip(c: Context) -> Value:
    """Boxes moved into the picture, whose (height, width, scale) is an input."""
    boxes = c.x
    info = c.reshape(c.input("ImInfo"), -1)
    size = c.add("Div", c.slice(info, [0], [2], [0]), c.slice(info, [2], [3], [0]))
    corner = c.add("Sub", c.add("Round", size), 1.0)
    limit = c.add("Gather", corner, np.array([1, 0, 1, 0], np.int64))
    return c.add("Max", c.add("Min", boxes, limit), 0.0)


BOXES: dict[str, Callable[[Context], Value | dict[str, Value]]] = {
    "prior_box": prior_box,
    "box_coder": box_coder,
    "matrix_nms": matrix_nms,
    "roi_align": roi_align,
    "roi_pool": roi_pool,
    "psroi_pool": position_sensitive,
    "box_clip": box_clip,
}
