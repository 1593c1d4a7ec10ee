"""Attention of 16-bit floats as one operator, where a machine computes it in one launch (``ops.head_attention``)."""

from __future__ import annotations

from collections.abc import Callable

from tenon.machine.kernels.attention import HeadSizes
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import DType
from tenon.network.ops.head_attention import HeadAttention
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Transpose
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.softmax import LogSoftmax, Softmax
from tenon.network.passes.base import Log, Pass, drop_dead, make, substitute

Able = Callable[[HeadSizes], bool]
"""Whether the machine computes attention of these sizes in one launch."""

_NARROW = (DType.F16, DType.BF16)


def attention(able: Able) -> Pass:
    """A pass that joins the products, the softmax between them and the transpositions around them."""
    return Pass(
        "attention",
        lambda graph, log: sum(_joined(graph, node, able, log) for node in list(graph) if node in graph),
        level=2,
        ensures="attention that the machine computes in one launch is one operator",
    )


def _joined(graph: Graph, last: Node, able: Able, log: Log) -> bool:
    """Replace the operators that end in the product by the values, or in the transposition of its result."""
    product = _sole(graph, last.input(0)) if isinstance(last.op, Transpose) else last
    if product is None or not isinstance(product.op, MatMul) or product.output.type.dtype not in _NARROW:
        return False
    rank = product.output.type.rank
    merged = last is not product
    if merged and (rank < 3 or last.op != Transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1))):
        return False
    if not merged and _merges(graph, product):
        return False  # the transposition is the last
    parts = _parts(graph, product)
    if parts is None:
        return False
    queries, keys, scale = parts
    op = HeadAttention(scale, merged and rank >= 3)
    if not able(op.heads(queries.type, keys.type)):
        return False
    inputs = (queries, keys, product.input(1))
    name = f"{last.output.name}_attention"
    made = graph.add(make("HeadAttention", scale=scale, merged=op.merged), inputs, [name], last.origin, before=last)
    substitute(graph, last.output, made.output, fresh=True)
    drop_dead(graph, last)
    log(f"attention: {last.origin} in one launch")
    return True


def _merges(graph: Graph, product: Node) -> bool:
    """Whether only a transposition reads the result that puts the heads behind the queries."""
    rank, users = product.output.type.rank, list(product.output.uses)
    order = (*range(max(0, rank - 3)), rank - 2, rank - 3, rank - 1)
    alone = len(users) == 1 and not graph.is_output(product.output)
    return rank >= 3 and alone and isinstance(users[0].op, Transpose) and users[0].op == Transpose(order)


def _parts(graph: Graph, product: Node) -> tuple[Value, Value, float] | None:
    """Queries, keys and the scale of softmax(scale * Q K') V; None for another product."""
    softmax = _sole(graph, product.input(0))
    if softmax is None or not isinstance(softmax.op, Softmax) or isinstance(softmax.op, LogSoftmax):
        return None
    rank = softmax.output.type.rank
    if softmax.op.axis % rank != rank - 1:
        return None
    scores, scale = _sole(graph, softmax.input(0)), 1.0
    if scores is not None and isinstance(scores.op, Mul):
        factor = scores.input(1)
        if factor.data is None or factor.data.size != 1:
            return None
        scale = float(factor.array.astype("float32").reshape(-1)[0])
        scores = _sole(graph, scores.input(0))
    if scores is None or not isinstance(scores.op, MatMul):
        return None
    turned = _sole(graph, scores.input(1))
    swapped = Transpose((*range(rank - 2), rank - 1, rank - 2))
    if turned is None or not isinstance(turned.op, Transpose) or turned.op != swapped:
        return None
    queries, keys, values = scores.input(0), turned.input(0), product.input(1)
    alike = queries.type.rank == keys.type.rank == rank and queries.type.dims[:-2] == keys.type.dims[:-2]
    return (queries, keys, scale) if alike and keys.type.dims == values.type.dims else None


def _sole(graph: Graph, value: Value) -> Node | None:
    """The node that makes a value, if it is read once and is no output."""
    return value.producer if len(list(value.uses)) == 1 and not graph.is_output(value) else None
