"""The states of LSTM cells, which are carried from step to step."""

from __future__ import annotations

from tenon.ir.graph import Graph, Node, Value
from tenon.quantization.placement import PRODUCTS, root, rounded_result

_GATES = frozenset({"HardSigmoid", "Sigmoid"})


def cell_states(graph: Graph) -> set[str]:
    """The names of cell states, f * c + i * g, and of the two products of each, where no operator with weights reads
    them.

    In 8 bits every step would round a state that no weights and no function come between, and their errors add up.
    TFLite's LSTM has states of 16 bits for that reason.
    """
    read = {root(node.input(0)) for node in graph if node.op.name in PRODUCTS}
    found = set[str]()
    for node in graph:
        if node.op.name != "Add":
            continue
        parts = [_gated(v) for v in node.inputs if v is not None]
        if len(parts) == 2 and all(parts):
            results = [rounded_result(graph, n) for n in (node, *parts) if n is not None]
            found |= {v.name for v in results if v not in read}
            for part in filter(None, parts):  # the state before the first Add: i * g
                found |= {v.name for v in map(root, _others(part)) if v not in read and _is_product_of_gate(v)}
    return found


def _gated(value: Value) -> Node | None:
    """The Mul of a gate that computes ``value``."""
    value = root(value)
    return value.producer if _is_product_of_gate(value) else None


def _is_product_of_gate(value: Value) -> bool:
    node = value.producer
    return node is not None and node.op.name == "Mul" and any(_is_gate(v) for v in node.inputs if v is not None)


def _others(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None and not v.constant and not _is_gate(v)]


def _is_gate(value: Value) -> bool:
    node = root(value).producer
    return node is not None and node.op.name in _GATES
