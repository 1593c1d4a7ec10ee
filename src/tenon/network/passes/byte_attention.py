"""Attention of quantised integers as one operator, where a machine computes it so (``ops.byte_attention``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.byte_attention import ByteAttention, attends
from tenon.network.ops.byte_softmax import ByteSoftmax
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.ops.integer_matmul import IntegerMatMul
from tenon.network.passes.attention_parts import sole_producer
from tenon.network.passes.base import Log, Pass, drop_dead, substitute

Able = Callable[[ByteAttention, Sequence[TensorType | None]], bool]
"""Whether a machine computes attention of these types in one kernel."""


def byte_attention(machine: Machine) -> Pass:
    """A pass that joins the products of bytes, the softmax between them, and a table in front of that."""
    able = partial(attends, machine=machine)
    return Pass(
        "byte attention",
        lambda graph, log: sum(_joined(graph, node, able, log) for node in list(graph) if node in graph),
        level=2,
        ensures="attention of bytes that the machine computes as one operator is one",
    )


def _joined(graph: Graph, last: Node, able: Able, log: Log) -> bool:
    """Replace the operators that end in the product by the values."""
    softmax = sole_producer(graph, last.input(0)) if _is_product(last) else None
    if softmax is None or not isinstance(softmax.op, ByteSoftmax):
        return False
    scores, tables = sole_producer(graph, softmax.input(0)), list[Value]()
    if scores is not None and isinstance(scores.op, Lookup) and scores.input(1).constant:
        tables = [scores.input(1)]
        scores = sole_producer(graph, scores.input(0))
    if scores is None or not _is_product(scores):
        return False
    assert isinstance(scores.op, IntegerMatMul)
    assert isinstance(last.op, IntegerMatMul)
    op, inputs = ByteAttention(scores.op, softmax.op, last.op), [*scores.inputs, last.input(1), *tables]
    bytes = not tables or tables[0].type.dtype is scores.output.type.dtype
    if not bytes or not able(op, [None if v is None else v.type for v in inputs]):
        return False
    made = graph.add(op, inputs, [f"{last.output.name}_attention"], last.origin, before=last)
    substitute(graph, last.output, made.output, fresh=True)
    drop_dead(graph, last)
    log(f"byte attention: {last.origin} in one operator")
    return True


def _is_product(node: Node) -> bool:
    """Whether it is a requantised product of two matrices that both are computed."""
    return isinstance(node.op, IntegerMatMul) and node.op.rounding != "none" and len(node.inputs) == 2
