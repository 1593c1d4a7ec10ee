"""Readers of a value that a Mask reads, too, such as a residual connection, read the result of the Mask.

What lies beyond the extent is not specified, so zeros that the Mask stores there are as good to them as anything.  Then
the Mask is the only reader, and stores a few elements in place of a copy of the whole value.
"""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Node
from tenon.network.ops.mask import Mask


def read_masked(graph: Graph) -> None:
    """Let the nodes behind each Mask read its result where they read its operand, unless others see this."""
    for node in graph:
        if isinstance(node.op, Mask) and _sees_alone(graph, node):
            x, place = node.input(0), graph.position(node)
            for reader in [n for n in dict.fromkeys(x.uses) if graph.position(n) > place]:
                graph.rewire(reader, tuple(node.output if v is x else v for v in reader.inputs))


def _sees_alone(graph: Graph, node: Node) -> bool:
    """Whether the operand is an intermediate result, and the Mask the first that reads it."""
    x, place = node.input(0), graph.position(node)
    inside = x.producer is not None and not graph.is_output(x) and not graph.is_output(node.output)
    return inside and len(x.uses) > 1 and all(graph.position(n) >= place for n in x.uses)
