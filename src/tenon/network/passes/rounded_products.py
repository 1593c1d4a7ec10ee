"""Products by weights in blocks with both factors in bf16, where that is asked for and rows are many enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tenon.machine.kernels.block_tiles import ROWS
from tenon.network.graph.graph import Graph, Node, Operation, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.activation import Gelu, Swish
from tenon.network.ops.block_product import BlockMatMul, BlockQuantize
from tenon.network.ops.normalize import RMSNormalization
from tenon.network.ops.pointwise import Add, Mul
from tenon.network.ops.rounded_product import RoundedGate, RoundedMatMul, RoundedNormalization, RoundRows
from tenon.network.passes.base import Log, Pass, drop_dead, substitute
from tenon.network.passes.patterns import sole_reader

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
            _add(graph, names, _replace(graph, names, node, op, [rounded[x], weights]))
            count += 1
        for value in rounded.values():
            rounding = value.producer
            if rounding is not None and not _gate(graph, names, rounding):
                _normalise(graph, names, rounding)
        return count

    return Pass("rounded products", run, level=0, ensures="products of many rows by weights in blocks are in bf16")


def _add(graph: Graph, names: Names, y: Value) -> None:
    """Let a product be added to the sum that it is a term of, where nothing else reads it."""
    product, node = y.producer, y.uses[0] if sole_reader(y, graph) else None
    if product is None or node is None or not isinstance(node.op, Add):
        return
    before = node.input(1) if node.input(0) is y else node.input(0)
    if before.type == y.type:
        _replace(graph, names, node, product.op, [*product.inputs, before])


def _whole(graph: Graph, node: Node) -> Node | None:
    """The producer of the rows that a node rounds, if nothing else reads them, and they are whole tiles."""
    x = node.input(0)
    return x.producer if sole_reader(x, graph) and math.prod(x.type.dims[:-1]) % ROWS == 0 else None


def _normalise(graph: Graph, names: Names, node: Node) -> None:
    """Let a normalisation round its results, if they are what a node rounds."""
    source = _whole(graph, node)
    if source is None or not isinstance(source.op, RMSNormalization):
        return
    x, scale = source.input(0), source.input(1)
    if source.op.axis % x.type.rank == x.type.rank - 1 and scale.type.dims == x.type.dims[-1:]:
        _replace(graph, names, node, RoundedNormalization(source.op.epsilon), [x, scale])


def _gate(graph: Graph, names: Names, node: Node) -> bool:
    """Let two products and their activation round their results, if they are what a node rounds."""
    source = _whole(graph, node)
    if source is None or not isinstance(source.op, Mul):
        return False
    for activated, up in ((source.input(0), source.input(1)), (source.input(1), source.input(0))):
        activation = activated.producer
        if activation is None or not isinstance(activation.op, Swish | Gelu) or not sole_reader(activated, graph):
            continue
        one, other = _product(graph, activation.input(0)), _product(graph, up)
        if one is None or other is None or not isinstance(one.op, RoundedMatMul) or one.op != other.op:
            continue
        if one.input(0) is other.input(0) and one.input(1).type == other.input(1).type:
            inputs = [one.input(0), one.input(1), other.input(1)]
            _replace(graph, names, node, RoundedGate(one.op.format, activation.op), inputs)
            return True
    return False


def _product(graph: Graph, value: Value) -> Node | None:
    """The product in bf16, added to nothing, that a value is, if it is read once."""
    node = value.producer
    plain = node is not None and isinstance(node.op, RoundedMatMul) and len(node.inputs) == 2
    return node if plain and sole_reader(value, graph) else None


def _replace(graph: Graph, names: Names, node: Node, op: Operation, inputs: Sequence[Value | None]) -> Value:
    """The result of ``op``, which takes the place and the name of a node's; what only that node read is removed."""
    y = graph.add(op, inputs, [names.fresh(f"{node.output.name}_rounded")], node.origin, before=node).output
    substitute(graph, node.output, y, fresh=True)
    drop_dead(graph, node)
    return y


def _source(node: Node) -> Value | None:
    """The activations of a product before they become bytes; None if it is no product of bytes."""
    producer = node.inputs[0].producer if isinstance(node.op, BlockMatMul) and node.inputs[0] is not None else None
    return producer.input(0) if producer is not None and isinstance(producer.op, BlockQuantize) else None
