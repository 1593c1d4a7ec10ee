"""Patterns of subgraphs for rewrite rules.

A pattern is matched from a node back towards the inputs:

    Apply("Mul", ANY, Apply("Sigmoid", ANY))         x * Sigmoid(x): both ANY are the same value
    Apply("Clip", Any("x"), Number(0), Number(6))    constants by value

Inner nodes must have no reader except their parent, so that the whole match can be removed.  Commutative operators
match with their operands in either order.

    Apply("*", where=lambda op: op.bilinear)         any operator of that trait
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.base import Operator

Trait = Callable[[Operator], bool]
"""A predicate on operators: ``lambda op: op.moves``."""


@dataclass(frozen=True)
class Any:
    """Any value; two with the same name must be the same value."""

    name: str


@dataclass(frozen=True)
class Constant:
    """Any constant."""

    name: str


@dataclass(frozen=True)
class Number:
    """A constant all of whose elements are ``value``, to single precision."""

    value: float


class IsOp:
    """A node of one of these operators, separated by "|"; "*" stands for any.  ``where`` may ask for a trait.

    Without inputs given, any match.  ``name`` binds the node for the rewrite.
    """

    def __init__(self, ops: str, *inputs: Pattern, name: str = "", where: Trait | None = None) -> None:
        self.ops = frozenset(ops.split("|"))
        self.inputs = inputs
        self.name = name
        self.where = where

    def takes(self, node: Node) -> bool:
        named = node.op.name in self.ops or "*" in self.ops
        return named and (self.where is None or (isinstance(node.op, Operator) and self.where(node.op)))


Pattern = Any | Constant | Number | IsOp

ANY = Any("x")


@dataclass(frozen=True)
class Bound:
    """The values and nodes bound to the names of a pattern."""

    values: Mapping[str, Value]
    nodes: Mapping[str, Node]


NOTHING = Bound({}, {})


def find(pattern: IsOp, root: Node, graph: Graph) -> Bound | None:
    """The first match of ``root``."""
    return next(_node(pattern, root, graph, NOTHING), None)


def sole_reader(value: Value, graph: Graph) -> bool:
    """Whether exactly one node reads the value, once, and the graph does not return it."""
    return len(value.uses) == 1 and not graph.is_output(value)


def _node(pattern: IsOp, node: Node, graph: Graph, bound: Bound) -> Iterator[Bound]:
    if not pattern.takes(node):
        return
    if pattern.name:
        bound = Bound(bound.values, {**bound.nodes, pattern.name: node})
    if not pattern.inputs:
        yield bound
        return
    given = [v for v in node.inputs if v is not None]
    if len(given) != len(pattern.inputs) or len(given) != len(node.inputs):
        return
    yield from _all(pattern.inputs, given, graph, bound)
    if isinstance(node.op, Operator) and node.op.commutative:
        yield from _all(pattern.inputs, given[::-1], graph, bound)


def _all(patterns: tuple[Pattern, ...], values: list[Value], graph: Graph, bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for inner in _value(patterns[0], values[0], graph, bound):
        yield from _all(patterns[1:], values[1:], graph, inner)


def _value(pattern: Pattern, value: Value, graph: Graph, bound: Bound) -> Iterator[Bound]:
    match pattern:
        case Number(number):
            if value.data is not None and value.data.size and np.allclose(value.data, number, 1e-6, 1e-12):
                yield bound
        case IsOp():
            if value.producer is not None and sole_reader(value, graph):
                yield from _node(pattern, value.producer, graph, bound)
        case Any(name) | Constant(name):
            if isinstance(pattern, Constant) and not value.constant:
                return
            if bound.values.get(name, value) is value:
                yield Bound({**bound.values, name: value}, bound.nodes)
