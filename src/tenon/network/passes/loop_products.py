"""Products with constant weights of all slices that a loop cuts, computed slice by slice inside of the loop.

Importers compute what a recurrent layer multiplies its inputs by in one product of all steps, which takes the least
time.  Inside of the loop it takes less memory, that of one step's result, and less code where a step has products of
its own: each is a vector times a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.writer import Names
from tenon.network.ops.conv import Conv
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_wide import IntegerWideConv
from tenon.network.ops.matmul import Gemm, MatMul
from tenon.network.ops.pointwise import Binary
from tenon.network.ops.scan import Scan
from tenon.network.ops.shape import Reshape
from tenon.network.passes.base import Log, Pass
from tenon.network.passes.patterns import sole_reader

_PRODUCTS = (MatMul, Gemm, Conv, IntegerConv, IntegerGemm, IntegerWideConv)
"""Operators of which each entry along axis 0 of the result follows from that of the first operand."""


def multiply_inside_of_loops(graph: Graph, log: Log) -> int:
    """Move products of all slices of loops, and what is computed of them before the loop, into its body; returns how
    many."""
    count = 0
    for node in graph:
        for body in node.bodies:
            count += multiply_inside_of_loops(body, log)
        if isinstance(node.op, Scan):
            count += sum(_move(graph, node, i) for i in range(node.op.states, node.op.shared))
    return count


def _move(graph: Graph, loop: Node, i: int) -> bool:
    """Whether what makes the slices of operand ``i`` was moved into the body."""
    assert isinstance(loop.op, Scan)
    slices = _SliceCount(graph, loop.op.count)
    nodes = slices.leading_to(loop.input(i))
    if not nodes:
        return False
    whole, (body,) = nodes[0].input(_varying(nodes[0])[0]), loop.bodies
    rows = (loop.op.count, slices.per_slice(whole), *whole.type.dims[1:])
    names = Names(graph)
    shape = graph.constant(names.fresh("slices"), np.array(rows, np.int64))
    cut = graph.add(Reshape(), [whole, shape], [names.fresh(f"{whole.name}_slices")], loop.origin, before=loop).output
    graph.rewire(loop, [cut if k == i else v for k, v in enumerate(loop.inputs)])
    _BodyOfSlices(body, slices).add(body.inputs[i], cut, nodes)
    graph.prune()
    return True


@dataclass(frozen=True)
class _SliceCount:
    """Values whose entries along axis 0 belong to ``count`` slices, as many to each."""

    graph: Graph
    count: int

    def per_slice(self, value: Value) -> int:
        """The entries along axis 0 that belong to one slice."""
        return value.type.dims[0] // self.count

    def leading_to(self, value: Value) -> list[Node]:
        """The nodes, in order, that compute ``value`` slice by slice, from the first product on; none without one."""
        nodes = list[Node]()
        while (node := value.producer) is not None and self.by_slices(node):
            nodes.append(node)
            value = node.input(_varying(node)[0])
        first = next((k for k in reversed(range(len(nodes))) if isinstance(nodes[k].op, _PRODUCTS)), -1)
        return nodes[: first + 1][::-1]

    def by_slices(self, node: Node) -> bool:
        """Whether each slice of the only result follows from that of one operand and constants, and nothing else reads
        the result."""
        varying = _varying(node)
        if len(node.outputs) != 1 or len(varying) != 1 or not sole_reader(node.output, self.graph):
            return False
        x = node.input(varying[0])
        whole = all(v.type.rank and v.type.dims[0] and v.type.dims[0] % self.count == 0 for v in (x, node.output))
        return whole and _keeps_rows(node.op, x, [v for v in node.inputs if v is not None and v is not x], varying[0])


def _varying(node: Node) -> list[int]:
    """The numbers of the operands that are no constants."""
    return [i for i, v in enumerate(node.inputs) if v is not None and not v.constant]


def _keeps_rows(op: object, x: Value, constants: Sequence[Value], number: int) -> bool:
    """Whether an operator computes each entry along axis 0 of its result from that of ``x``, its operand of that
    number, and constants alone."""
    match op:
        case Reshape():
            return number == 0  # of values that can be cut into slices before and after
        case MatMul():
            return number == 0 and constants[0].type.rank == 2 <= x.type.rank
        case Gemm():
            fits = all(v.type.rank < 2 or v.type.dims[0] == 1 for v in constants[1:])
            return number == 0 and not op.transA and fits
        case Binary():
            return all(v.type.rank < x.type.rank or v.type.dims[0] == 1 for v in constants)
        case Pointwise():
            return all(v.type.size == 1 for v in constants)
    return number == 0 and isinstance(op, _PRODUCTS)


class _BodyOfSlices:
    """Adds nodes of the graph around a loop to its body, for one slice."""

    def __init__(self, body: Graph, slices: _SliceCount) -> None:
        self.body, self.slices, self.names = body, slices, Names(body)
        self.first = next(iter(body), None)

    def add(self, slice: Value, cut: Value, nodes: Sequence[Node]) -> None:
        """Let the input ``slice`` be one of ``cut``, and compute with ``nodes`` what it was before."""
        dims, old = slice.type.dims, Value(slice.name, slice.type)
        self.body.replace(slice, old)
        slice.type = replace(cut.type, shape=cut.type.dims[1:])
        value = slice
        for node in nodes:
            value = self.copied(node, value)
        self.body.replace(old, self.reshaped(value, dims, nodes[-1]))

    def copied(self, node: Node, value: Value) -> Value:
        if isinstance(node.op, Reshape):
            rows = self.slices.per_slice(node.output)
            return self.reshaped(value, (rows, *node.output.type.dims[1:]), node)
        given = [self.constant(v) if v is not None and v.constant else v and value for v in node.inputs]
        name = self.names.fresh(node.output.name)
        made = self.body.add(node.op, given, [name], node.origin, before=self.first).output
        made.type = replace(made.type, quant=node.output.type.quant)
        return made

    def constant(self, value: Value) -> Value:
        twin = value.twin()
        twin.name = self.names.fresh(value.name)
        return twin

    def reshaped(self, value: Value, dims: Sequence[int], node: Node) -> Value:
        shape = self.body.constant(self.names.fresh("dims"), np.array(dims, np.int64))
        name = self.names.fresh(f"{value.name}_rows")
        return self.body.add(Reshape(allowzero=1), [value, shape], [name], node.origin, before=self.first).output


LOOP_PRODUCTS = Pass(
    "products inside of loops",
    multiply_inside_of_loops,
    1,
    "no loop cuts slices of a product with constant weights that it alone reads",
)
