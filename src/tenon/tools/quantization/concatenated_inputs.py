"""Gates of recurrent cells that read a concatenation of the input and the state before: each gets a grid of its own."""

from __future__ import annotations

from collections.abc import Container

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.move import Concat
from tenon.network.passes.base import attribute, make
from tenon.tools.quantization.placement import has_constant_weights


def separate_inputs(graph: Graph, states: Container[str], kept: Container[str]) -> None:
    """Change products of a concatenation, whose results ``states`` names, to sums of products of its parts, but where
    ``kept`` names the concatenation.

    Features and states have different ranges: in one grid of 8 bits the smaller has few steps.  Sums of 16 bits add
    little noise.
    """
    shared: dict[tuple[Value, int, int], Value] = {}
    for node in list(graph):
        joined = node.inputs[0].producer if isinstance(node.op, Gemm | MatMul) and node.inputs[0] is not None else None
        if joined is None or not isinstance(joined.op, Concat) or node.output.name not in states:
            continue
        whole = joined.output
        if len(whole.uses) > 1 or graph.is_output(whole) or whole.name in kept or whole.type.rank != 2:
            continue
        if has_constant_weights(node) and attribute(joined, "axis") in (1, -1):
            _separate(graph, node, joined, shared)


def _separate(graph: Graph, node: Node, joined: Node, shared: dict[tuple[Value, int, int], Value]) -> None:
    """Weights of parts are ``shared`` by all products with the same weights."""
    weights, name, start = node.input(1), node.output.name, 0
    by_columns = isinstance(node.op, Gemm) and attribute(node, "transB")
    bias, result = list(node.inputs[2:]), None
    for i, part in enumerate(v for v in joined.inputs if v is not None):
        end = start + part.type.dims[1]
        key = weights, start, end
        start = end
        if part.constant and not part.array.any():  # the state before the first step
            continue
        if key not in shared:
            rows = slice(*key[1:])
            data = weights.array[:, rows] if by_columns else weights.array[rows]
            shared[key] = graph.constant(f"{weights.name or name}_rows_{key[1]}", data.copy())
        made = graph.add(node.op, [part, shared[key], *bias], [f"{name}_part_{i}"], node.origin, before=node).output
        bias = []
        if result is not None:
            made = graph.add(make("Add"), [result, made], [f"{name}_sum_{i}"], node.origin, before=node).output
        result = made
    if result is None:
        return
    graph.replace(node.output, result)
    graph.remove(node)
    graph.remove(joined)
    result.name = name
