"""Known deviations of onnxruntime from ONNX, with reasons."""

from __future__ import annotations

import math

import numpy as np

from fuzzing.generate import Sample
from tenon.network.graph.graph import Node
from tenon.network.ops.conv import ConvTranspose

WILD: dict[str, str] = {
    "Clip": "Clip: a bound that is absent is the largest finite number",
    "GlobalMaxPool": "pooling: the least result is the lowest finite number",
    "LRN": "LRN: sums run along the channels, so that what is not finite stays in them",
    "InstanceNormalization": "InstanceNormalization: it scales before it subtracts the mean, and large numbers cancel",
    "ReduceLogSumExp": "ReduceLogSumExp: NaN is lost beside infinities in long rows",
    "MaxPool": "pooling: the least result is the lowest finite number",
}
"""By operator, for infinite or extreme operands."""


def excused(sample: Sample) -> str:
    """Why onnxruntime's result for this graph is not comparable; empty if it is."""
    return next((why for node in sample.graph if (why := _excused(node, wild=sample.wild))), "")


def _excused(node: Node, *, wild: bool) -> str:
    name, x = node.op.name, node.input(0).type if node.inputs else None
    if name.startswith("Reduce") and x and not x.size:
        return "reductions of nothing: it may leave out the reduction"
    if name == "ReduceSum" and x and not x.dtype.is_float:
        return "ReduceSum: sums of integers saturate"
    if name == "ReduceMean" and wild and x and not x.dtype.is_float:
        return "ReduceMean: sums of integers do not wrap around"
    if name in ("MatMul", "DirectMatMul") and x and x.rank > 1 and x.dims[-1] == 0 and node.input(1).type.rank == 1:
        return "MatMul: a matrix without columns times a vector leaves its result uninitialised"
    if name == "InstanceNormalization" and x and math.prod(x.dims[2:]) == 1:
        return "InstanceNormalization: it multiplies by scale / sqrt(epsilon) before it subtracts the mean"
    if name == "TopK" and not getattr(node.op, "sorted", 1):
        return "TopK: without an order, anything goes"
    if name == "OneHot" and x and x.dtype.is_float:
        return "OneHot: fractions are no class, where ONNX casts them to integers"
    if name == "LayerNormalization" and x:
        normalized = x.rank - getattr(node.op, "axis", -1) % x.rank
        if any(v and v.type.rank < normalized for v in node.inputs):
            return "LayerNormalization: scale and bias of fewer axes are not broadcast"
        if wild and (scale := node.inputs[1]) and scale.type.dims != x.dims[x.rank - normalized :]:
            return "LayerNormalization: with a scale to broadcast variances are f64, where those of ONNX overflow"
    if name == "Slice" and _backwards_to_the_largest(node):
        return (
            "Slice: backwards, the largest number is an end behind the first element, where ONNX clamps it to the last"
        )
    if name == "ConvTranspose" and _falls_short(node):
        return "ConvTranspose: SAME gives less than input times stride for a stride past the kernel"
    return WILD.get(name, "") if wild else ""


def _falls_short(node: Node) -> bool:
    """Whether ONNX's output, of input times stride, has elements that no tap of the kernel reaches."""
    op, sizes = node.op, node.input(1).type.dims[2:]
    if not isinstance(op, ConvTranspose) or not op.auto_pad.startswith("SAME"):
        return False
    strides, dilations = op.strides or (1,) * len(sizes), op.dilations or (1,) * len(sizes)
    return any((k - 1) * d + 1 < s for k, d, s in zip(sizes, dilations, strides, strict=True))


def _backwards_to_the_largest(node: Node) -> bool:
    """Whether a Slice with a negative step ends at the largest i32 or i64, which onnxruntime takes for "to the end"."""
    ends, steps = (v.data if v is not None else None for v in (*node.inputs, None, None)[2:5:2])
    if ends is None or steps is None:
        return False
    largest = [np.iinfo(kind).max for kind in (np.int32, np.int64)]
    return any(end in largest and step < 0 for end, step in zip(ends.tolist(), steps.tolist(), strict=False))
