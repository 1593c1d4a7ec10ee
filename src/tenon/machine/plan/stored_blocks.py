"""Lets producers store images in the blocks that their readers ask for, instead of reordering them afterwards.

Layouts are assigned in order of execution, so that a producer does not know its readers.  Where one of these reads a
``Reorder`` of the result, all others take any block (``Operator.any_block``) and so does the producer, it stores the
result as reordered.
"""

from __future__ import annotations

from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.ops.move import Reorder


def reorders(graph: Graph, setting: Setting) -> list[tuple[Node, Value, Value]]:
    """The nodes that can be left out, with the image that each reads and its own result."""
    listed, taken = [], set[Value]()
    for node in graph:
        if not isinstance(node.op, Reorder):
            continue
        image, result = node.input(0), node.output
        if image not in taken and _flexible(graph, node, image, result, setting):
            listed.append((node, image, result))
            taken |= {image, result}
    return listed


def _flexible(graph: Graph, node: Node, image: Value, result: Value, setting: Setting) -> bool:
    """Whether all but ``node`` take the block of ``result``."""
    blocked = image.type.layout.image and result.type.layout.image
    if not blocked or image.producer is None or any(value in (image, result) for value in graph.outputs):
        return False
    readers = [reader for reader in dict.fromkeys(image.uses) if reader is not node]
    producer = image.producer
    return _takes(producer, None, setting) and all(
        _takes(reader, i, setting) for reader in readers for i, value in enumerate(reader.inputs) if value is image
    )


def _takes(node: Node, i: int | None, setting: Setting) -> bool:
    return operator(node).any_block(site(node, setting), i)
