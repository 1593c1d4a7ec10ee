"""The digest of the results of an integer network for the fixed input, by the references."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.fixed_input import answer_digest, fixed_input
from tenon.network.graph.graph import Graph, Node
from tenon.network.graph.types import DType
from tenon.network.ops.base import Operator
from tenon.network.ops.quantize import Quantisation
from tenon.network.ops.resize import Resize

_QUANTISED = frozenset({DType.I8, DType.U8, DType.I16, DType.U16})


def is_exact(graph: Graph) -> bool:
    """Whether every target gives the same bits: some tensor is of quantised integers, and no operator rounds floats in
    its own way."""
    nodes = [(node, node.op) for node in _nodes(graph) if isinstance(node.op, Operator)]
    quantised = any(_types(node) & _QUANTISED for node, _ in nodes)
    return quantised and all(_rounds_alike(node, op) for node, op in nodes)


def _nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph; those of its body in place of a loop, which computes nothing itself."""
    for node in graph:
        if node.bodies:
            for body in node.bodies:
                yield from _nodes(body)
        else:
            yield node


def _types(node: Node) -> set[DType]:
    return {v.type.dtype for v in (*node.inputs, *node.outputs) if v is not None}


def _rounds_alike(node: Node, op: Operator) -> bool:
    """Whether an operator rounds on no machine, or on all in the same way."""
    if not any(t.is_float or t.is_small_float for t in _types(node)):
        return True  # integers wrap around everywhere
    # Every operation of a conversion between integers and floats rounds once (IEEE 754).
    return op.exact() or isinstance(op, Quantisation) or (isinstance(op, Resize) and op.mode == "nearest")


def expected_digest(graph: Graph) -> str:
    """The digest that the bundles of all targets must give; empty if rounding depends on the machine, or the network
    takes indices, which the fixed input has out of bounds, or numbers of a storage format (bf16, 4-bit integers), whose
    bits it would draw: some of them are no number."""
    if not is_exact(graph) or any(v.type.dtype.carrier is not v.type.dtype for v in graph.inputs):
        return ""
    feeds = {v.name: fixed_input(v.type.dtype, v.type.dims, i) for i, v in enumerate(graph.inputs)}
    feeds |= {name: np.array(size.most) for name, size in graph.sizes.items()}  # as engine.verify does
    try:
        answers = evaluate(graph, feeds)
    except IndexError:
        return ""
    return answer_digest(answers[v.name] for v in graph.outputs)
