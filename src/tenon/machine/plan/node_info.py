"""Shapes and attributes of a node, for tables."""

from __future__ import annotations

from dataclasses import fields

from tenon.machine.plan.lowering_context import operator
from tenon.machine.plan.program import Facts
from tenon.network.graph.graph import Node
from tenon.network.ops.base import Operator
from tenon.network.ops.clipped import Clipped
from tenon.network.ops.conv import Conv, ConvTranspose
from tenon.network.ops.fused import Fused


def facts(node: Node) -> Facts:
    """Facts about a node whose values have their layouts.

    The filter is the constant second operand of an operator that multiplies and adds, or the window of a pooling.
    """
    op = operator(node)
    op = op.base if isinstance(op, Clipped) else op
    base = op.base if isinstance(op, Fused) else op
    types = [None if v is None else v.type for v in node.inputs]
    window = _extents(base, "kernel_shape")
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    if weights is not None and weights.constant and op.macs(types, [v.type for v in node.outputs]):
        window = weights.type.dims
    touched = {id(v): v.type.nbytes for v in (*node.inputs, *node.outputs) if v is not None}
    return Facts(
        output=node.output.type.dims,
        filter=window,
        strides=_extents(base, "strides"),
        pads=_extents(base, "pads"),
        dilations=_extents(base, "dilations"),
        group=base.group if isinstance(base, Conv | ConvTranspose) else 1,
        bytes=sum(touched.values()),
    )


def _extents(op: Operator, name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers; empty if the operator has no such attribute."""
    value = getattr(op, name, ()) if name in {f.name for f in fields(op)} else ()
    return value if isinstance(value, tuple) else ()
