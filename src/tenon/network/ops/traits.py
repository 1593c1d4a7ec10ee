"""Traits of nodes: those of their operators; an operation that is no ``Operator`` has none."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.base import Operator
from tenon.network.ops.quantize import Quantisation


def is_product(node: Node) -> bool:
    """Whether an operator sums products of its first operand with its weights."""
    return isinstance(node.op, Operator) and node.op.bilinear


def rearranges(node: Node) -> bool:
    """Whether results are elements of the first operand, at places that do not depend on its values."""
    return isinstance(node.op, Operator) and node.op.rearranges


def selects(node: Node) -> bool:
    """Whether results are elements of the first operand, selected by their order."""
    return isinstance(node.op, Operator) and node.op.selects


def computes_on_integers(node: Node) -> bool:
    """Whether a node computes on integers that stand for real numbers; conversions from and to them do not count."""
    return isinstance(node.op, Operator) and node.op.quantised


def is_quantised(graph: Graph) -> bool:
    """Whether a graph or a body in it has conversions between integers and floats, or operators on quantised integers
    (SVDF)."""
    return any(
        isinstance(node.op, Quantisation) or computes_on_integers(node) or any(map(is_quantised, node.bodies))
        for node in graph
    )
