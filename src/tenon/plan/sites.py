"""What an operator is told of where it stands."""

from __future__ import annotations

from tenon.ir.graph import Node
from tenon.kernels.machine import Machine
from tenon.ops.base import Operator, Site


def operator(node: Node) -> Operator:
    """The node's operation, which in a graph made of Tenon's operators is an Operator."""
    assert isinstance(node.op, Operator)
    return node.op


def site(node: Node, machine: Machine, placed: frozenset[int] = frozenset()) -> Site:
    """The site of a node, with the layouts that its values have now."""
    return Site(
        inputs=tuple(None if v is None else v.type for v in node.inputs),
        outputs=tuple(v.type for v in node.outputs),
        constants=tuple(None if v is None else v.data for v in node.inputs),
        machine=machine,
        placed=placed,
    )
