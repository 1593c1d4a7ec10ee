"""Where onnxruntime is known to answer otherwise than ONNX says, and why."""

from __future__ import annotations

from fuzzing.generate import Sample

KNOWN: dict[str, str] = {
    "TopK": "TopK: without an order, anything goes",
    "RoiAlign": "RoiAlign: its mode max is known to be wrong, and it says so",
}
"""Operators whose results from onnxruntime say nothing."""


def excused(sample: Sample) -> str:
    """Why onnxruntime's answer for this graph says nothing; empty if it should be right."""
    empty = any(n.op.name.startswith("Reduce") and not n.input(0).type.size for n in sample.graph)
    if empty:
        return "reductions of nothing: it may leave out the reduction"
    return next((KNOWN[node.op.name] for node in sample.graph if node.op.name in KNOWN), "")
