"""Square roots and logarithms of sums of squares: what stays in float because squares have twice the range in dB."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.pointwise import Log, Mul, Pow, Sqrt
from tenon.network.ops.reduce import ReduceMean, ReduceSum
from tenon.network.passes.integers.operands import can_move

_REDUCTIONS = (ReduceMean, ReduceSum)


def roots_of_squares(graph: Graph, kept: Container[str] = ()) -> set[Node]:
    """The nodes from squares to the square root or logarithm of their sum, that included: the magnitude of a spectrum,
    or the deviation of a normalisation.

    8 bits of a square hold 4 bits of the number, so a grid for it costs the SQNR of all that follows.  A sum is left
    out if ``kept`` names one of its tensors, or something else reads one.
    """
    selected = set[Node]()
    for node in graph:
        if not (isinstance(node.op, Log | Sqrt) or _exponent(node) == 0.5):
            continue
        nodes = _between(graph, node.input(0))
        if any(_is_square(n) for n in nodes) and not any(n.output.name in kept for n in nodes):
            selected |= {node, *nodes}
    return selected


def _between(graph: Graph, value: Value) -> set[Node]:
    """The squares that ``value`` is a sum of, and what computes it from them."""
    node = value.producer
    if node is None or len(value.uses) > 1 or graph.is_output(value):
        return set()
    if _is_square(node):
        return {node}
    if not (isinstance(node.op, (Pointwise, *_REDUCTIONS)) or can_move(node)):
        return set()
    before = [_between(graph, v) for v in node.inputs if v is not None and not v.constant]
    return {node}.union(*before) if any(before) else set()


def _is_square(node: Node) -> bool:
    return (isinstance(node.op, Mul) and node.input(0) is node.input(1)) or _exponent(node) == 2


def _exponent(node: Node) -> float | None:
    """The exponent of a Pow by one constant, else None."""
    if not isinstance(node.op, Pow) or not node.input(1).constant or node.input(1).type.size != 1:
        return None
    return float(np.asarray(node.input(1).array).reshape(()))
