"""What a node computes, for tables."""

from __future__ import annotations

from tenon.ir.graph import Node
from tenon.ops.fused import Fused
from tenon.plan.program import Facts
from tenon.plan.sites import operator


def facts(node: Node) -> Facts:
    """Facts about a node whose values have their layouts.

    The filter is the constant second operand of an operator that multiplies and adds, or the window of a pooling.
    """
    op = operator(node)
    base = op.base if isinstance(op, Fused) else op
    types = [None if v is None else v.type for v in node.inputs]
    window: tuple[int, ...] = getattr(base, "kernel_shape", ())
    weights = node.inputs[1] if len(node.inputs) > 1 else None
    if weights is not None and weights.constant and op.macs(types, [v.type for v in node.outputs]):
        window = weights.type.dims
    touched = {id(v): v.type.nbytes for v in (*node.inputs, *node.outputs) if v is not None}
    return Facts(
        output=node.output.type.dims,
        filter=window,
        strides=getattr(base, "strides", ()),
        pads=getattr(base, "pads", ()),
        dilations=getattr(base, "dilations", ()),
        group=getattr(base, "group", 1),
        bytes=sum(touched.values()),
    )
