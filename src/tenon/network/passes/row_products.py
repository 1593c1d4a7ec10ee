"""Products of one row with a transposed matrix: a decoder's query with the keys of its cache.

q @ transpose(k) is transpose(k @ transpose(q)).  Of one row, the outer transposes move nothing, so that the keys are
read as they are stored.
"""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Transpose
from tenon.network.passes.base import Log, Pass, substitute


def multiply_columns(graph: Graph, log: Log) -> int:
    """Exchange the operands of such products; returns how many."""
    count = 0
    for node in graph:
        for body in node.bodies:
            count += multiply_columns(body, log)
        matrix = _transposed(node)
        if matrix is not None:
            _exchange(graph, node, matrix)
            count += 1
    return count


def _transposed(node: Node) -> Value | None:
    """The matrices with a transpose of which a node multiplies one row each."""
    if not isinstance(node.op, MatMul) or not all(v is not None and v.typed and v.type.bound for v in node.inputs):
        return None
    row, turned = node.input(0), node.input(1)
    maker = turned.producer
    if maker is None or not isinstance(maker.op, Transpose) or row.type.rank < 2 or turned.type.rank < 2:
        return None
    last = turned.type.rank - 2
    perm = maker.op.order(turned.type.rank)
    one = row.type.dims[-2] == 1 and row.type.rank == turned.type.rank and row.type.dtype.is_float
    fits = one and tuple(perm) == (*range(last), last + 1, last)
    return maker.input(0) if fits and not maker.input(0).constant else None


def _exchange(graph: Graph, node: Node, matrix: Value) -> None:
    names, rank = Names(graph), matrix.type.rank
    swap = Transpose((*range(rank - 2), rank - 1, rank - 2))

    def add(op: MatMul | Transpose, *inputs: Value) -> Value:
        return graph.add(op, inputs, [names.fresh(f"{node.output.name}_column")], node.origin, before=node).output

    result = add(swap, add(MatMul(), matrix, add(swap, node.input(0))))
    substitute(graph, node.output, result, fresh=True)
    graph.remove(node)
    graph.prune()


ROW_PRODUCTS = Pass("products of one row", multiply_columns, 2, "no row is multiplied with a transposed matrix")
"""For processors: kernels of devices read either way."""
