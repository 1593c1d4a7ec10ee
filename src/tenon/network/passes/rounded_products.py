"""Products by weights in blocks with both factors in bf16, where that is asked for and rows are many enough."""

from __future__ import annotations

from collections.abc import Callable

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.block_product import BlockMatMul, BlockQuantize
from tenon.network.ops.pointwise import Add
from tenon.network.ops.rounded_product import RoundedMatMul, RoundRows
from tenon.network.passes.base import Log, Pass, drop_dead

Chosen = Callable[[str, int, int, int], bool]
"""f(format, rows, columns, outputs): whether a product is computed in bf16."""


def rounded_products(chosen: Chosen) -> Pass:
    """The pass that lets products read rounded activations in place of bytes; those that share activations share the
    rounded ones, too.  What a product alone is added to becomes its third operand."""

    def run(graph: Graph, log: Log) -> int:
        names, rounded, count = Names(graph), dict[Value, Value](), 0
        for node in list(graph):
            x = _source(node)
            if x is None or x.type.rank < 2 or not isinstance(node.op, BlockMatMul):
                continue
            weights, (*rows, columns) = node.input(3), x.type.dims
            if not chosen(node.op.format, node.output.type.size // weights.type.dims[0], columns, weights.type.dims[0]):
                continue
            if x not in rounded:
                name = [names.fresh(f"{x.name}_rounded")]
                rounded[x] = graph.add(RoundRows(), [x], name, node.origin, before=node).output
            op = RoundedMatMul(node.op.format, tuple(rows))
            name = [names.fresh(f"{node.output.name}_product")]
            (y,) = graph.add(op, [rounded[x], weights], name, node.origin, before=node).outputs
            y.name, node.output.name = node.output.name, y.name
            graph.replace(node.output, y)
            drop_dead(graph, node)
            _add(graph, names, y)
            count += 1
        return count

    return Pass("rounded products", run, level=0, ensures="products of many rows by weights in blocks are in bf16")


def _add(graph: Graph, names: Names, y: Value) -> None:
    """Let a product be added to the sum that it is a term of, where nothing else reads it."""
    product, node = y.producer, y.uses[0] if len(y.uses) == 1 else None
    if product is None or node is None or graph.is_output(y) or not isinstance(node.op, Add):
        return
    before = node.input(1) if node.input(0) is y else node.input(0)
    if before.type != y.type:
        return
    name = [names.fresh(f"{node.output.name}_sum")]
    (total,) = graph.add(product.op, (*product.inputs, before), name, node.origin, before=node).outputs
    total.name, node.output.name = node.output.name, total.name
    graph.replace(node.output, total)
    drop_dead(graph, node)


def _source(node: Node) -> Value | None:
    """The activations of a product before they become bytes; None if it is no product of bytes."""
    producer = node.inputs[0].producer if isinstance(node.op, BlockMatMul) and node.inputs[0] is not None else None
    return producer.input(0) if producer is not None and isinstance(producer.op, BlockQuantize) else None
