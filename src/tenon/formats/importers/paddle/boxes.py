"""Paddle's boxes: prior boxes, their decoding, matrix NMS, and pooling of regions.

Definitions: paddle/phi/kernels/cpu/{prior_box,box_coder,matrix_nms,roi_align,roi_pool,psroi_pool}_kernel.cc.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions.prior_boxes import PriorGrid, prior_boxes, within
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode
from tenon.network.graph.graph import Value
from tenon.network.graph.preprocessing import Heads

MAX_PAIRS = 1 << 26
"""Pairs of boxes that matrix NMS compares."""


def _floats(node: PaddleNode, name: str) -> list[float]:
    value = node.attributes.get(name, [])
    return [float(v) for v in value] if isinstance(value, list | np.ndarray) else [float(value)]


def prior_box(node: PaddleNode) -> dict[str, Value]:
    """[H, W, boxes, 4] and their variances, constants: they follow from the shapes of the feature map and of the
    image."""
    (h, w), (high, wide) = node.dims[2:], node.builder.dims(node.slot("Image"))[2:]
    min_sizes, max_sizes, ratios = (_floats(node, f"{name}s") for name in ("min_size", "max_size", "aspect_ratio"))
    known = [1.0]
    for ratio in ratios:
        if all(abs(ratio - r) >= 1e-6 for r in known) and ratio > 0:
            known += [ratio, 1 / ratio] if node.integer("flip") else [ratio]
    sizes: list[tuple[float, float]] = []
    for i, size in enumerate(min_sizes):
        between = [(math.sqrt(size * max_sizes[i]),) * 2] if i < len(max_sizes) and size * max_sizes[i] > 0 else []
        shaped = [(size * math.sqrt(r), size / math.sqrt(r)) for r in known]
        order = node.integer("min_max_aspect_ratios_order")
        sizes += [shaped[0], *between, *shaped[1:]] if order else [*shaped, *between]
    if not sizes or min(min_sizes) <= 0:
        raise RefusedError(f"it has the sizes {min_sizes}")
    down, across = node.number("step_h") or high / h, node.number("step_w") or wide / w
    positions = PriorGrid((h, w), (high, wide), (down, across), node.number("offset", 0.5))
    boxes, spread = prior_boxes(positions, sizes, _floats(node, "variances"), bool(node.integer("clip")))
    dims = (h, w, len(sizes), 4)
    return {
        "Boxes": node.builder.constant(boxes.reshape(dims), "boxes"),
        "Variances": node.builder.constant(spread.reshape(dims), "variances"),
    }


def box_coder(node: PaddleNode) -> Value:
    """Boxes decoded from their centres' and sizes' differences to prior boxes, [N, M, 4]."""
    if node.text("code_type", "encode_center_size") != "decode_center_size":
        raise RefusedError("only decoding is supported")
    target, priors = node.slot("TargetBox"), node.reshape(node.slot("PriorBox"), -1, 4)
    extra = 0.0 if node.integer("box_normalized", 1) else 1.0
    if node.builder.rank(target) == 2:
        target = node.reshape(target, *node.builder.dims(target)[:1], 1, 4)
    along = node.integer("axis")
    shape = (1, -1, 4) if along == 0 else (-1, 1, 4)
    low, high = node.split(node.reshape(priors, *shape), 2, [2, 2])
    size = node.add("Add", node.add("Sub", high, low), extra)
    centre = node.add("Add", low, node.add("Mul", size, 0.5))
    spread = node.optional_slot("PriorBoxVar")
    if spread is not None:
        factors = node.reshape(spread, *shape) if node.builder.rank(spread) > 1 else spread
        target = node.add("Mul", target, factors)
    elif _floats(node, "variance"):
        target = node.add("Mul", target, np.array(_floats(node, "variance"), np.float32))
    moved, grown = node.split(target, 2, [2, 2])
    middle = node.add("Add", node.add("Mul", moved, size), centre)
    half = node.add("Mul", node.add("Mul", node.add("Exp", grown), size), 0.5)
    return node.add(
        "Concat", node.add("Sub", middle, half), node.add("Sub", node.add("Add", middle, half), extra), axis=2
    )


def _overlaps(node: PaddleNode, boxes: Value, extra: float) -> Value:
    """[C, k, k]: the intersection of each two boxes [C, k, 4] over their union."""
    classes, count, _ = node.builder.dims(boxes)
    row, column = (node.reshape(boxes, classes, *dims, 4) for dims in ((count, 1), (1, count)))
    pairs = [node.split(v, 3, [2, 2]) for v in (row, column)]
    low = node.add("Max", pairs[0][0], pairs[1][0])
    high = node.add("Min", pairs[0][1], pairs[1][1])
    sides = node.add("Max", node.add("Add", node.add("Sub", high, low), extra), 0.0)
    shared = node.add("ReduceProd", sides, node.ints(3), keepdims=0)
    area = [
        node.add("ReduceProd", node.add("Add", node.add("Sub", b, a), extra), node.ints(3), keepdims=0)
        for a, b in pairs
    ]
    union = node.add("Sub", node.add("Add", *area), shared)
    return node.add("Div", shared, node.add("Max", union, 1e-10))


def matrix_nms(node: PaddleNode) -> dict[str, Value]:
    """Matrix NMS: scores decay with the overlap with better boxes of the class.  Rows (class, score, 4 corners), the
    best first, -1 past the last, and how many count."""
    boxes, scores = node.slot("BBoxes"), node.slot("Scores")
    items, classes, count = node.builder.dims(scores)
    if items != 1 or node.builder.dims(boxes) != (1, count, 4):
        raise RefusedError(
            f"boxes {list(node.builder.dims(boxes))} with scores {[items, classes, count]} are not supported"
        )
    real = [k for k in range(classes) if k != node.integer("background_label")]
    top = within(node.integer("nms_top_k", -1), count)
    if not real or len(real) * top * top > MAX_PAIRS:
        raise RefusedError(f"{len(real)} classes of {top} boxes are too many to compare", "lower nms_top_k")
    score_threshold, post_threshold = node.number("score_threshold"), node.number("post_threshold")
    rows = node.reshape(scores, classes, count)
    rows = rows if len(real) == classes else node.add("Gather", rows, np.array(real, np.int64), axis=0)
    certain, order = node.builder.adds("TopK", 2, rows, node.ints(top), axis=1)
    chosen = node.add("Gather", node.reshape(boxes, count, 4), order)  # [C, top, 4]
    upper = np.triu(np.ones((top, top), np.float32), 1)
    overlap = node.add("Mul", _overlaps(node, chosen, 0.0 if node.integer("normalized", 1) else 1.0), upper)
    covered = node.reshape(
        node.add("ReduceMax", overlap, node.ints(1), keepdims=0), len(real), top, 1
    )  # of each, by a better one
    if node.integer("use_gaussian"):
        gap = node.add("Sub", node.add("Mul", covered, covered), node.add("Mul", overlap, overlap))
        decay = node.add("Exp", node.add("Mul", gap, node.number("gaussian_sigma", 2.0)))
    else:
        decay = node.add("Div", node.add("Sub", 1.0, overlap), node.add("Max", node.add("Sub", 1.0, covered), 1e-10))
    decay = node.add("Where", upper > 0, decay, 1.0)
    faded = node.add("Mul", certain, node.add("ReduceMin", decay, node.ints(1), keepdims=0))
    valid = node.add("And", node.add("Greater", certain, score_threshold), node.add("Greater", faded, post_threshold))
    flat = node.reshape(node.add("Where", valid, faded, -1.0), -1)
    keep = within(node.integer("keep_top_k", -1), len(real) * top)
    best, positions = node.builder.adds("TopK", 2, flat, node.ints(keep))
    kinds = np.repeat(np.array(real, np.float32), top)
    listed = [
        node.reshape(node.add("Gather", kinds, positions), keep, 1),
        node.reshape(best, keep, 1),
        node.add("Gather", node.reshape(chosen, -1, 4), positions),
    ]
    there = node.reshape(node.add("GreaterOrEqual", best, 0.0), keep, 1)
    result = node.add("Where", there, node.add("Concat", *listed, axis=1), -1.0)
    number = node.add("ReduceSum", node.add("Cast", there, to="i32"), node.ints(0, 1), keepdims=0)
    node.builder.graph.heads = Heads("rows", tuple(node.outputs.get("Out", [])[:1]), pixels=None)
    return {"Out": result, "RoisNum": node.reshape(number, 1)}


# ------------------------------------------------------------------------------------------------------- regions
def _single(node: PaddleNode) -> int:
    """How many regions there are.  Raises RefusedError for those of several images."""
    regions = node.builder.dims(node.slot("ROIs"))
    if node.dims[0] != 1 or len(regions) != 2 or regions[1] != 4:
        raise RefusedError(f"regions {list(regions)} of {node.dims[0]} images are not supported; those of one are")
    return regions[0]


def _numbered(node: PaddleNode) -> Value:
    _single(node)
    return node.add("Pad", node.slot("ROIs"), node.ints(0, 1, 0, 0), 0.0)


def roi_align(node: PaddleNode) -> Value:
    image_indices = np.zeros(_single(node), np.int64)
    return node.add(
        "RoiAlign",
        node.x,
        node.slot("ROIs"),
        image_indices,
        output_height=node.integer("pooled_height", 1),
        output_width=node.integer("pooled_width", 1),
        spatial_scale=node.number("spatial_scale", 1.0),
        sampling_ratio=max(0, node.integer("sampling_ratio", -1)),
        coordinate_transformation_mode="half_pixel" if node.integer("aligned") else "output_half_pixel",
    )


def roi_pool(node: PaddleNode) -> Value:
    shape = (node.integer("pooled_height", 1), node.integer("pooled_width", 1))
    return node.add(
        "MaxRoiPool", node.x, _numbered(node), pooled_shape=shape, spatial_scale=node.number("spatial_scale", 1.0)
    )


def position_sensitive(node: PaddleNode) -> Value:
    size = node.integer("pooled_height", 1)
    if size != node.integer("pooled_width", 1):
        raise RefusedError("results that are not square are not supported")
    return node.add(
        "PsRoiPool",
        node.x,
        _numbered(node),
        output_dim=node.integer("output_channels", 1),
        group_size=size,
        spatial_scale=node.number("spatial_scale", 1.0),
    )


def box_clip(node: PaddleNode) -> Value:
    """Boxes moved into the image, whose (height, width, scale) is an input."""
    boxes = node.x
    info = node.reshape(node.slot("ImInfo"), -1)
    size = node.add("Div", node.slice(info, [0], [2], [0]), node.slice(info, [2], [3], [0]))
    corner = node.add("Sub", node.add("Round", size), 1.0)
    limit = node.add("Gather", corner, np.array([1, 0, 1, 0], np.int64))
    return node.add("Max", node.add("Min", boxes, limit), 0.0)


BOXES: dict[str, Callable[[PaddleNode], Value | dict[str, Value]]] = {
    "prior_box": prior_box,
    "box_coder": box_coder,
    "matrix_nms": matrix_nms,
    "roi_align": roi_align,
    "roi_pool": roi_pool,
    "psroi_pool": position_sensitive,
    "box_clip": box_clip,
}
