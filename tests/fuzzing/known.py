"""Where onnxruntime is known to answer otherwise than ONNX says, and why."""

from __future__ import annotations

from fuzzing.generate import Sample
from tenon.ir.graph import Node

KNOWN: dict[str, str] = {
    "TopK": "TopK: without an order, anything goes",
}
"""Operators whose results from onnxruntime say nothing."""


WILD: dict[str, str] = {
    "AveragePool": "AveragePool: zero for windows of nothing but padding",
    "Clip": "Clip: a bound that is absent is the largest finite number",
    "GlobalMaxPool": "pooling: the least result is the lowest finite number",
    "LRN": "LRN: sums run along the channels, so that what is not finite stays in them",
    "MaxPool": "pooling: the least result is the lowest finite number",
}
"""The same for operands that are not finite, or extreme."""


def excused(sample: Sample) -> str:
    """Why onnxruntime's answer for this graph says nothing; empty if it should be right."""
    return next((why for node in sample.graph if (why := _excused(node, wild=sample.wild))), "")


def _excused(node: Node, *, wild: bool) -> str:
    name, x = node.op.name, node.input(0).type if node.inputs else None
    if name.startswith("Reduce") and x and not x.size:
        return "reductions of nothing: it may leave out the reduction"
    if name == "ReduceSum" and x and not x.dtype.is_float:
        return "ReduceSum: sums of integers saturate"
    if name == "LayerNormalization" and x:
        normalized = x.rank - getattr(node.op, "axis", -1) % x.rank
        if any(v and v.type.rank < normalized for v in node.inputs):
            return "LayerNormalization: scale and bias of fewer axes are not broadcast"
    return WILD.get(name, "") if wild and name in WILD else KNOWN.get(name, "")
