"""Explicit padding made part of the convolution or pooling that follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tenon.ir.graph import Node
from tenon.passes.base import Match, Result, attribute, rule, rules
from tenon.passes.patterns import Apply


def _spatial_pads(pad: Node) -> tuple[int, ...] | None:
    """The pads before and after each spatial axis, if nothing else is padded and none is negative."""
    data, rank = pad.input(1).data, pad.output.type.rank
    axes = pad.inputs[3].data if len(pad.inputs) > 3 and pad.inputs[3] is not None else np.arange(rank)
    if data is None or axes is None or attribute(pad, "mode") != "constant":
        return None
    full = np.zeros((2, rank), np.int64)
    full[:, axes] = data.reshape(2, -1)
    if full[:, :2].any() or (full < 0).any():
        return None
    return tuple(int(n) for n in full[:, 2:].ravel())


def _value(pad: Node) -> float | None:
    """The value of the padding, if it is constant."""
    if len(pad.inputs) < 3 or pad.inputs[2] is None:
        return 0.0
    data = pad.input(2).data
    return None if data is None else float(data.reshape(-1)[0])


@rule(Apply("Conv|MaxPool"))
def padding_into_window(match: Match) -> Result:
    """Conv(Pad(x, 0)) and MaxPool(Pad(x, lowest)) are a Conv and a MaxPool with padding"""
    node = match.root
    pad = node.input(0).producer
    if pad is None or pad.op.name != "Pad" or len(node.outputs) != 1:
        return None
    if not match.sole(node.input(0)):
        return f"the result of {pad.origin} has other readers"
    spatial, value = _spatial_pads(pad), _value(pad)
    dtype = node.output.type.dtype
    neutral = value == 0 if node.op.name == "Conv" else dtype.is_float and value is not None and value <= -3e38
    quiet = attribute(node, "auto_pad") in ("NOTSET", "VALID")
    if spatial is None or not neutral or not quiet or (node.op.name == "MaxPool" and attribute(node, "ceil_mode")):
        return "its padding is not what the operator would add"
    own = attribute(node, "pads") if attribute(node, "auto_pad") == "NOTSET" else ()
    pads = tuple(a + b for a, b in zip(spatial, own or (0,) * len(spatial), strict=True))
    if node.op.name == "MaxPool" and not _window_holds(node, pads):
        return "a window would lie in the padding alone"
    op: Any = node.op
    return match.add(replace(op, pads=pads, auto_pad="NOTSET"), pad.input(0), *node.inputs[1:])


def _window_holds(node: Node, pads: tuple[int, ...]) -> bool:
    """Whether every pad is smaller than the window, as pooling requires."""
    kernel = attribute(node, "kernel_shape")
    return all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True))


PADDING = rules(
    "fold padding",
    padding_into_window,
    level=2,
    ensures="no padding stands before what can pad by itself",
)
