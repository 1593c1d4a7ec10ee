"""Layers in fp16 for formats whose operators compute in f32: weights stay in f16, behind a Cast."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import Operator
from tenon.network.ops.convert import Cast


def products_in_f32(graph: Graph) -> Graph:
    """A copy in which products of f16 between Casts compute in f32: results and operands are no longer rounded to f16.

    The same graph if it has none.
    """
    if not any(_between_casts(node) for node in graph):
        return graph
    copy = graph.copy()
    for node in list(copy):
        if node in copy and _between_casts(node):
            _widen(copy, node)
    copy.prune()
    return copy


def _between_casts(node: Node) -> bool:
    if not (isinstance(node.op, Operator) and node.op.bilinear and node.output.type.dtype is DType.F16):
        return False
    before = node.input(0).producer
    casts = [*([] if before is None else [before]), *node.output.uses]
    constants = all(v is None or v.constant for v in node.inputs[1:])
    return before is not None and constants and bool(node.output.uses) and all(map(_is_cast, casts))


def _is_cast(node: Node) -> bool:
    return isinstance(node.op, Cast) and {node.input(0).type.dtype, node.output.type.dtype} == {F32, DType.F16}


def _widen(graph: Graph, node: Node) -> None:
    before = node.input(0).producer
    assert before is not None
    inputs: list[Value | None] = [before.input(0)]
    for i, value in enumerate(node.inputs[1:]):
        if value is not None and i == 0:
            inputs.append(graph.add(Cast(F32.value), [value], [f"{value.name}_f32"], before=node).output)
        else:
            inputs.append(value and graph.constant(f"{value.name}_f32", value.array.astype(F32.numpy)))
    product = graph.add(node.op, inputs, [node.output.name], node.origin, before=node)
    for cast in list(node.output.uses):
        _take_name(graph, cast, product)


def _take_name(graph: Graph, cast: Node, product: Node) -> None:
    """Let what reads the Cast of the old product read the new one, by the name that it has."""
    product.output.name = cast.output.name
    graph.replace(cast.output, product.output)
    graph.remove(cast)
