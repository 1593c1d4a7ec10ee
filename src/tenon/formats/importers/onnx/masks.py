"""Attention masks of ONNX models, left out where all positions count.

A batch of one sound has no padding, so that a mask of ones is added to the scores of attention as zeros.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from tenon.formats.importers.onnx.node_context import in_order, reads

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


def drop_mask(model: ModelProto, name: str) -> bool:
    """Take the input ``name``, a mask whose ones are positions that count, out of the model, as if it were all ones.

    What is computed of it may only be added to what a Softmax reads, as the scores of attention are.  Returns whether
    that is so; else the model is unchanged.
    """
    from onnx import GraphProto

    graph = GraphProto()
    graph.CopyFrom(model.graph)
    own = _of_mask(graph, {name})
    if any(value.name in own for value in graph.output):
        return False
    _prune(graph)
    kept = [value for value in graph.input if value.name != name]
    if any(name in reads(node) for node in graph.node):
        return False
    del graph.input[:]
    graph.input.extend(kept)
    model.graph.CopyFrom(graph)
    return True


def _of_mask(graph: GraphProto, outside: Set[str]) -> set[str]:
    """The tensors that depend on those of ``outside`` once no scores do."""
    own = set(outside)
    read_by_softmax = {name for node in graph.node if node.op_type == "Softmax" for name in node.input}
    for node in in_order(graph.node)[0]:
        rest = [name for name in node.input if name not in own]
        if len(rest) == len(node.input) and not _gives_mask(node, own):
            continue
        if node.op_type == "Add" and len(rest) == 1 and read_by_softmax.issuperset(node.output):
            node.op_type = "Identity"
            del node.input[:]
            node.input.extend(rest)
        else:
            own.update(node.output)
    return own


def _gives_mask(node: NodeProto, outside: Set[str]) -> bool:
    """Whether a body's result depends on the tensors of ``outside`` once no scores do."""
    given = False
    for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
        own = _of_mask(body, outside)
        given |= any(value.name in own for value in body.output)
    return given


def _prune(graph: GraphProto) -> None:
    """Remove the nodes that no output needs, in bodies too."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _prune(attribute.g)
    makers: dict[str, NodeProto] = {name: node for node in graph.node for name in node.output}
    needed: set[str] = set()
    todo = [value.name for value in graph.output]
    while todo:
        node = makers.get(todo.pop())
        if node is not None and needed.isdisjoint(node.output):
            needed.update(name for name in node.output if name)
            todo += reads(node)
    kept = [node for node in graph.node if not needed.isdisjoint(node.output)]
    del graph.node[:]
    graph.node.extend(kept)
