"""Lets producers store images in the blocks that their readers ask for, instead of reordering them afterwards, and in
narrower blocks where these hold all channels.

Layouts are assigned in order of execution, so that a producer does not know its readers.  Where one of these reads a
``Reorder`` of the result, all others take any block (``Operator.any_block``) and so does the producer, it stores the
result as reordered.  Where all take any block, the image is as narrow as its channels allow: 16 channels in blocks of
32 would be half padding, which is written and read.
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


def narrower(graph: Graph, setting: Setting) -> list[tuple[Value, int]]:
    """The images of a single block of which half is padding or more, and the block that they need, where whatever
    stores or reads them takes any."""
    listed, lanes = [], setting.machine.lanes
    for value in graph.values():
        layout, kept = value.type.layout, any(value is output for output in graph.outputs)
        if kept or not layout.image or value.producer is None or value.type.rank < 3:
            continue
        need = -(-value.type.dims[1] // lanes) * lanes
        if 0 < 2 * need <= layout.block and _takes(value.producer, None, setting) and _read(value, None, setting):
            listed.append((value, need))
    return listed


def _flexible(graph: Graph, node: Node, image: Value, result: Value, setting: Setting) -> bool:
    """Whether all but ``node`` take the block of ``result``."""
    blocked = image.type.layout.image and result.type.layout.image
    if not blocked or image.producer is None or any(value in (image, result) for value in graph.outputs):
        return False
    return _takes(image.producer, None, setting) and _read(image, node, setting)


def _read(image: Value, but: Node | None, setting: Setting) -> bool:
    """Whether all readers take any block of the image, ``but`` one."""
    readers = [reader for reader in dict.fromkeys(image.uses) if reader is not but]
    return all(
        _takes(reader, i, setting) for reader in readers for i, value in enumerate(reader.inputs) if value is image
    )


def _takes(node: Node, i: int | None, setting: Setting) -> bool:
    return operator(node).any_block(site(node, setting), i)
