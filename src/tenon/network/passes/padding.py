"""Explicit padding made part of the convolution or pooling that follows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array, Node
from tenon.network.ops.conv import Conv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.slice_gather import Pad
from tenon.network.passes.base import Match, Result, attribute, rule, rules
from tenon.network.passes.canonicalize import permutation
from tenon.network.passes.patterns import IsOp

WINDOWS = (Conv, IntegerConv, MaxPool)
"""Operators that can pad."""


def _pads(pad: Node) -> Array | None:
    """[2, rank]: the pads before and after each axis, if they are filled with a constant."""
    data, rank = pad.input(1).data, pad.output.type.rank
    axes = pad.inputs[3].data if len(pad.inputs) > 3 and pad.inputs[3] is not None else np.arange(rank)
    if data is None or axes is None or attribute(pad, "mode") != "constant":
        return None
    full = np.zeros((2, rank), np.int64)
    full[:, axes] = data.reshape(2, -1)
    return full


def _spatial_pads(pad: Node) -> tuple[int, ...] | None:
    """The pads before and after each spatial axis, if nothing else is padded and none is negative."""
    full = _pads(pad)
    if full is None or full[:, :2].any() or (full < 0).any():
        return None
    return tuple(int(n) for n in full[:, 2:].ravel())


def _value(pad: Node) -> float | None:
    """The value of the padding, if it is constant."""
    if len(pad.inputs) < 3 or pad.inputs[2] is None:
        return 0.0
    data = pad.input(2).data
    return None if data is None else float(data.reshape(-1)[0])


def _is_neutral(node: Node, value: float | None) -> bool:
    """Whether padding by ``value`` is what the operator itself pads with."""
    if isinstance(node.op, IntegerConv):
        return value == node.op.x_zero
    return (
        value == 0
        if isinstance(node.op, Conv)
        else (node.output.type.dtype.is_float and value is not None and value <= -3e38)
    )


@rule(IsOp("Transpose"))
def padding_after_transpose(match: Match) -> Result:
    """Transpose(Pad(x)) = Pad(Transpose(x)), where the padding may become part of a window"""
    node = match.root
    pad = node.input(0).producer
    windows = all(type(user.op) in WINDOWS and user.input(0) is node.output for user in node.output.uses)
    if (
        pad is None
        or not isinstance(pad.op, Pad)
        or not windows
        or not match.sole(node.input(0))
        or not match.sole(node.output)
    ):
        return None
    perm, full = permutation(node.input(0), attribute(node, "perm")), _pads(pad)
    if full is None:
        return None
    pads = match.constant(f"{node.output.name}_pads", full[:, perm].ravel())
    turned = match.add(node.op, pad.input(0), origin=node.origin)
    return match.add(pad.op, turned, pads, *pad.inputs[2:3], origin=pad.origin)


@rule(IsOp("|".join(each.__name__ for each in WINDOWS)))
def padding_into_window(match: Match) -> Result:
    """Conv(Pad(x, zero point)) and MaxPool(Pad(x, lowest)) are a Conv and a MaxPool with padding"""
    node = match.root
    pad = node.input(0).producer
    if pad is None or not isinstance(pad.op, Pad) or len(node.outputs) != 1:
        return None
    if not match.sole(node.input(0)):
        return f"the result of {pad.origin} has other readers"
    spatial, value = _spatial_pads(pad), _value(pad)
    named = "NOTSET" if isinstance(node.op, IntegerConv) else attribute(node, "auto_pad")
    quiet = named in ("NOTSET", "VALID")
    ceiled = isinstance(node.op, MaxPool) and attribute(node, "ceil_mode")
    if spatial is None or not _is_neutral(node, value) or not quiet or ceiled:
        return "its padding value is not that of the operator"
    own = attribute(node, "pads") if named == "NOTSET" else ()
    pads = tuple(a + b for a, b in zip(spatial, own or (0,) * len(spatial), strict=True))
    if isinstance(node.op, MaxPool) and not _window_holds(node, pads):
        return "a window would contain padding only"
    op: Any = node.op
    made = replace(op, pads=pads) if isinstance(node.op, IntegerConv) else replace(op, pads=pads, auto_pad="NOTSET")
    return match.add(made, pad.input(0), *node.inputs[1:])


def _window_holds(node: Node, pads: tuple[int, ...]) -> bool:
    """Whether every pad is smaller than the window, as pooling requires."""
    kernel = attribute(node, "kernel_shape")
    return all(p < k for p, k in zip(pads, (*kernel, *kernel), strict=True))


PADDING = rules(
    "fold padding",
    padding_after_transpose,
    padding_into_window,
    level=2,
    ensures="no Pad precedes an operator that can include it",
)
