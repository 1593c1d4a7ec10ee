"""Products and means of quantised integers that are read as floats alone: the launch that stores a result converts it,
because one more launch takes as long as a small layer."""

from __future__ import annotations

from tenon.network.graph.graph import Node
from tenon.network.ops.fused import fuse
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_pool import IntegerAveragePool
from tenon.network.passes.base import Match, Result, rule, rules
from tenon.network.passes.patterns import IsOp


@rule(IsOp("DequantizeLinear"))
def dequantised_result(match: Match) -> Result:
    """DequantizeLinear(f(x)) is one operator where one scale and zero point are known"""
    node, integers = match.root, match.root.input(0)
    if integers.producer is None or not match.sole(integers) or not _stores(integers.producer):
        return None
    if any(v is None or not v.constant or v.type.size != 1 for v in node.inputs[1:]):
        return "its scale and zero point are not one constant number each"
    op, inputs = fuse(integers.producer, node)
    return match.add(op, *inputs, origin=integers.producer.origin)


def _stores(node: Node) -> bool:
    """Whether an operator can apply a function to the integers that it rounds to."""
    return isinstance(node.op, IntegerAveragePool) or (isinstance(node.op, IntegerGemm) and node.op.rounding != "none")


REAL_RESULTS = rules(
    "dequantised results",
    dequantised_result,
    level=2,
    ensures="no DequantizeLinear alone reads a product of rows or a mean of quantised integers",
)
