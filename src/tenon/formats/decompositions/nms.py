"""Non-maximum suppression as TensorFlow and TFLite have it: as many rows as there can be, zeros past the last."""

from __future__ import annotations

import numpy as np

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value

MAX_ROWS = 1 << 20
"""Rows of a result."""


def suppressed(
    builder: GraphBuilder, boxes: Value, scores: Value, max_boxes: int, iou_threshold: Value, score_threshold: Value
) -> tuple[Value, ...]:
    """i32 indices [max_boxes] of the boxes that stay of boxes [n, 4] with scores [n], their scores, their count."""
    if not 0 < max_boxes < MAX_ROWS:
        raise RefusedError(f"{max_boxes} boxes at most is not a possible limit")
    limits = [
        builder.ints(max_boxes),
        *(builder.add("Reshape", limit, builder.ints(1)) for limit in (iou_threshold, score_threshold)),
    ]
    batched = builder.add("Unsqueeze", boxes, builder.ints(0)), builder.add("Unsqueeze", scores, builder.ints(0, 1))
    rows, count = builder.adds("NonMaxSuppression", 2, *batched, *limits)
    numbers = builder.add(
        "Reshape",
        builder.add("Slice", rows, builder.ints(2), builder.ints(3), builder.ints(1)),
        builder.ints(max_boxes),
    )
    real = builder.add("Less", _constant(builder, np.arange(max_boxes)), count)
    kept = builder.add("Where", real, builder.add("Gather", scores, numbers), builder.scalar(0))
    chosen = builder.add("Where", real, numbers, _constant(builder, np.array(0)))
    return builder.add("Cast", chosen, to="i32"), kept, builder.add("Cast", count, to="i32")


def combined(
    builder: GraphBuilder,
    boxes: Value,
    scores: Value,
    per_class: int,
    total: int,
    iou_threshold: Value,
    score_threshold: Value,
    *,
    clip: bool,
) -> tuple[Value, ...]:
    """Boxes [1, total, 4], scores and classes [1, total] and how many count [1], the best of all classes first, of
    boxes [1, n, 1, 4] and scores [1, n, classes]."""
    batch, n, shared, _ = builder.dims(boxes)
    classes = builder.dims(scores)[2]
    per_class = min(per_class, n)
    if batch != 1 or shared != 1 or not 0 < per_class * classes < MAX_ROWS or not 0 < total < MAX_ROWS:
        raise RefusedError(
            f"{builder.dims(boxes)} boxes, of which {total} stay, are not supported: one image, one box for all classes"
        )
    every = builder.add("Reshape", boxes, builder.ints(1, n, 4))
    transposed = builder.add("Transpose", scores, perm=(0, 2, 1))
    limits = [builder.add("Reshape", limit, builder.ints(1)) for limit in (iou_threshold, score_threshold)]
    rows, count = builder.adds("NonMaxSuppression", 2, every, transposed, builder.ints(per_class), *limits)
    kind, number = _column(builder, rows, 1), _column(builder, rows, 2)
    index = builder.add("Add", builder.add("Mul", kind, _constant(builder, np.array(n))), number)
    flat = builder.add("Gather", builder.add("Reshape", transposed, builder.ints(-1)), index)
    real = builder.add("Less", _constant(builder, np.arange(per_class * classes)), count)
    ranked = builder.add("Where", real, flat, builder.scalar(-np.inf))
    kept = min(total, per_class * classes)
    best, order = builder.adds("TopK", 2, ranked, builder.ints(kept))
    is_detection = builder.add("Greater", best, builder.scalar(-np.inf))
    zero = builder.scalar(0)
    chosen = builder.add("Gather", builder.add("Squeeze", every, builder.ints(0)), builder.add("Gather", number, order))
    if clip:
        chosen = builder.add("Clip", chosen, zero, builder.scalar(1))
    parts = (
        builder.add("Where", builder.add("Unsqueeze", is_detection, builder.ints(1)), chosen, zero),
        builder.add("Where", is_detection, best, zero),
        builder.add("Where", is_detection, builder.add("Cast", builder.add("Gather", kind, order), to="f32"), zero),
    )
    listed = [_padded(builder, builder.add("Unsqueeze", part, builder.ints(0)), total - kept) for part in parts]
    valid = builder.add("Cast", builder.add("Min", count, _constant(builder, np.array(total))), to="i32")
    return (*listed, builder.add("Reshape", valid, builder.ints(1)))


def _column(builder: GraphBuilder, rows: Value, i: int) -> Value:
    """Column ``i`` of a matrix as a vector."""
    column = builder.add("Slice", rows, builder.ints(i), builder.ints(i + 1), builder.ints(1))
    return builder.add("Reshape", column, builder.ints(-1))


def _padded(builder: GraphBuilder, value: Value, more: int) -> Value:
    rank = builder.rank(value)
    pads = [0] * (2 * rank)
    pads[rank + 1] = more
    return builder.add("Pad", value, builder.ints(*pads)) if more else value


def _constant(builder: GraphBuilder, data: Array) -> Value:
    return builder.constant(data.astype(np.int64), "numbers")
