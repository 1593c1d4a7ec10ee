"""Attention as one operator, where a machine computes it so in less time (``ops.head_attention``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tenon.machine.algorithms.attention import gains
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.mask import Mask
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.move import Transpose
from tenon.network.ops.softmax import LogSoftmax, Softmax
from tenon.network.passes.attention_parts import FLOATS, parts_of, sole_producer
from tenon.network.passes.base import Log, Pass, drop_dead, substitute
from tenon.network.passes.byte_attention import byte_attention

Able = Callable[[HeadSizes], bool]
"""Whether a machine gains where attention of these sizes is one operator."""


def attention(able: Able) -> Pass:
    """A pass that joins the products, the softmax between them, masks and the transpositions around them."""
    return Pass(
        "attention",
        lambda graph, log: sum(_joined(graph, node, able, log) for node in list(graph) if node in graph),
        level=2,
        ensures="attention that the machine computes faster as one operator is one",
    )


def attention_of(machine: Machine) -> list[Pass]:
    """The passes for attention of f32, where one operator takes less time by estimate, and for that of bytes.  Devices
    have attention of 16 bits with a precision (``passes.precision``)."""
    return [attention(partial(gains, machine=machine)), byte_attention(machine)]


def _joined(graph: Graph, last: Node, able: Able, log: Log) -> bool:
    """Replace the operators that end in the product by the values, or in the transposition of its result."""
    product = sole_producer(graph, last.input(0)) if isinstance(last.op, Transpose) else last
    if product is None or not isinstance(product.op, MatMul) or product.output.type.dtype not in FLOATS:
        return False
    rank = product.output.type.rank
    merged = last is not product
    if merged and (rank < 3 or last.op != _merging(rank)):
        return False
    if not merged and _merges(graph, product):
        return False  # the transposition is the last
    shares = sole_producer(graph, product.input(0))
    zeros = shares if shares is not None and isinstance(shares.op, Mask) else None
    softmax = shares if zeros is None else sole_producer(graph, zeros.input(0))
    if softmax is None or not isinstance(softmax.op, Softmax) or isinstance(softmax.op, LogSoftmax):
        return False
    if softmax.op.axis % rank != rank - 1:
        return False
    parts = parts_of(graph, softmax.input(0))
    if parts is None or (zeros is not None and not parts.ends_as(zeros)):
        return False
    parts = parts.with_values(product.input(1))
    op = replace(parts.op, merged=merged)
    if not parts.fit or not able(op.heads(parts.types)):
        return False
    inputs = parts.inputs(graph, last)
    made = graph.add(op, inputs, [f"{last.output.name}_attention"], last.origin, before=last)
    substitute(graph, last.output, made.output, fresh=True)
    drop_dead(graph, last)
    log(f"attention: {last.origin} in one operator")
    return True


def _merging(rank: int) -> Transpose:
    """The transposition that puts the axis of the heads behind that of the queries."""
    return Transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1))


def _merges(graph: Graph, product: Node) -> bool:
    """Whether only a transposition reads the result that puts the heads behind the queries."""
    rank, users = product.output.type.rank, list(product.output.uses)
    alone = len(users) == 1 and not graph.is_output(product.output)
    return rank >= 3 and alone and users[0].op == _merging(rank)
