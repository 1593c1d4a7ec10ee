"""Non-maximum suppression as TensorFlow and TFLite have it: as many rows as there can be, zeros past the last."""

from __future__ import annotations

import numpy as np

from tenon.graph_builder.builder import Net
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value

MOST = 1 << 20
"""Rows of a result."""


def suppressed(net: Net, boxes: Value, scores: Value, most: int, overlap: Value, least: Value) -> tuple[Value, ...]:
    """i32 numbers [most] of the boxes that stay of boxes [n, 4] with scores [n], their scores, how many there are."""
    if not 0 < most < MOST:
        raise RefusedError(f"{most} boxes at the most are impossible")
    limits = [net.ints(most), *(net.add("Reshape", limit, net.ints(1)) for limit in (overlap, least))]
    batched = net.add("Unsqueeze", boxes, net.ints(0)), net.add("Unsqueeze", scores, net.ints(0, 1))
    rows, count = net.adds("NonMaxSuppression", 2, *batched, *limits)
    numbers = net.add("Reshape", net.add("Slice", rows, net.ints(2), net.ints(3), net.ints(1)), net.ints(most))
    real = net.add("Less", _constant(net, np.arange(most)), count)
    kept = net.add("Where", real, net.add("Gather", scores, numbers), net.scalar(0))
    chosen = net.add("Where", real, numbers, _constant(net, np.array(0)))
    return net.add("Cast", chosen, to="i32"), kept, net.add("Cast", count, to="i32")


def combined(
    net: Net, boxes: Value, scores: Value, per_class: int, total: int, overlap: Value, least: Value, *, clip: bool
) -> tuple[Value, ...]:
    """Boxes [1, total, 4], scores and classes [1, total] and how many count [1], the best of all classes first, of
    boxes [1, n, 1, 4] and scores [1, n, classes]."""
    batch, n, shared, _ = net.dims(boxes)
    classes = net.dims(scores)[2]
    per_class = min(per_class, n)
    if batch != 1 or shared != 1 or not 0 < per_class * classes < MOST or not 0 < total < MOST:
        raise RefusedError(
            f"{net.dims(boxes)} boxes, of which {total} stay, are not supported: one picture, one box each"
        )
    every = net.add("Reshape", boxes, net.ints(1, n, 4))
    turned = net.add("Transpose", scores, perm=(0, 2, 1))
    limits = [net.add("Reshape", limit, net.ints(1)) for limit in (overlap, least)]
    rows, count = net.adds("NonMaxSuppression", 2, every, turned, net.ints(per_class), *limits)
    kind, number = (
        net.add("Reshape", net.add("Slice", rows, net.ints(i), net.ints(i + 1), net.ints(1)), net.ints(-1))
        for i in (1, 2)
    )
    place = net.add("Add", net.add("Mul", kind, _constant(net, np.array(n))), number)
    flat = net.add("Gather", net.add("Reshape", turned, net.ints(-1)), place)
    real = net.add("Less", _constant(net, np.arange(per_class * classes)), count)
    ranked = net.add("Where", real, flat, net.scalar(-np.inf))
    kept = min(total, per_class * classes)
    best, order = net.adds("TopK", 2, ranked, net.ints(kept))
    found = net.add("Greater", best, net.scalar(-np.inf))
    zero = net.scalar(0)
    chosen = net.add("Gather", net.add("Squeeze", every, net.ints(0)), net.add("Gather", number, order))
    if clip:
        chosen = net.add("Clip", chosen, zero, net.scalar(1))
    parts = (
        net.add("Where", net.add("Unsqueeze", found, net.ints(1)), chosen, zero),
        net.add("Where", found, best, zero),
        net.add("Where", found, net.add("Cast", net.add("Gather", kind, order), to="f32"), zero),
    )
    listed = [_padded(net, net.add("Unsqueeze", part, net.ints(0)), total - kept) for part in parts]
    valid = net.add("Cast", net.add("Min", count, _constant(net, np.array(total))), to="i32")
    return (*listed, net.add("Reshape", valid, net.ints(1)))


def _padded(net: Net, value: Value, more: int) -> Value:
    rank = len(net.dims(value))
    pads = [0] * (2 * rank)
    pads[rank + 1] = more
    return net.add("Pad", value, net.ints(*pads)) if more else value


def _constant(net: Net, data: Array) -> Value:
    return net.constant(data.astype(np.int64), "numbers")
