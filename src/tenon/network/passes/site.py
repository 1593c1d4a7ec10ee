"""The site of a node in a graph that no layouts are assigned to, to ask an operator whether it is compiled."""

from __future__ import annotations

from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Node
from tenon.network.ops.base import Operator, Site
from tenon.network.ops.generic import GENERIC


def plain_site(node: Node) -> Site:
    """The site of a node on a machine without vectors."""
    types = tuple(None if v is None else v.type for v in node.inputs)
    constants = tuple(None if v is None else v.data for v in node.inputs)
    return Site(types, tuple(v.type for v in node.outputs), constants, Machine())


def why_not_compiled(node: Node) -> str:
    """Why no kernel computes this node, not even as a generic loop nest; empty if one does."""
    if not isinstance(node.op, Operator) or node.op.name in GENERIC or not all(v.type.size for v in node.outputs):
        return ""
    return node.op.supported(plain_site(node))
