"""The digest of the results of an integer network for the fixed input, by the references."""

from __future__ import annotations

from tenon.ir.evaluate import evaluate
from tenon.ir.fixed_input import answer_digest, fixed_input
from tenon.ir.graph import Graph, Node
from tenon.ops.base import Operator
from tenon.ops.resize import Resize

ROUNDED_ONCE = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Conversions between integers and floats, in which every operation rounds once (IEEE 754)."""


def is_exact(graph: Graph) -> bool:
    """Whether every target gives the same bits: some operator computes in integers, and no operator rounds floats."""
    nodes = [(node, node.op) for node in graph if isinstance(node.op, Operator)]
    integers = any(op.name.startswith(("Integer", "Lookup")) for _, op in nodes)
    return integers and all(_rounds_alike(node, op) for node, op in nodes)


def _rounds_alike(node: Node, op: Operator) -> bool:
    """Whether an operator rounds on no machine, or on all in the same way."""
    types = [v.type.dtype for v in (*node.inputs, *node.outputs) if v is not None]
    if not any(t.is_float or t.is_small_float for t in types):
        return True  # integers wrap around everywhere
    return op.exact() or op.name in ROUNDED_ONCE or (isinstance(op, Resize) and op.mode == "nearest")


def expected_digest(graph: Graph) -> str:
    """The digest that the bundles of all targets must give; empty if rounding depends on the machine, or the network
    takes indices, which the fixed input has out of bounds."""
    if not is_exact(graph):
        return ""
    feeds = {v.name: fixed_input(v.type.dtype, v.type.dims, i) for i, v in enumerate(graph.inputs)}
    try:
        answers = evaluate(graph, feeds)
    except IndexError:
        return ""
    return answer_digest(answers[v.name] for v in graph.outputs)
