"""Where onnxruntime is known to answer otherwise than ONNX says, and why."""

from __future__ import annotations

from fuzzing.generate import Sample

KNOWN: dict[str, str] = {
    "TopK": "TopK: without an order, anything goes",
    "RoiAlign": "RoiAlign: its mode max is known to be wrong, and it says so",
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
    empty = any(n.op.name.startswith("Reduce") and not n.input(0).type.size for n in sample.graph)
    if empty:
        return "reductions of nothing: it may leave out the reduction"
    wild = [WILD[node.op.name] for node in sample.graph if sample.wild and node.op.name in WILD]
    if wild:
        return wild[0]
    return next((KNOWN[node.op.name] for node in sample.graph if node.op.name in KNOWN), "")
