"""Group normalisation of one group, as PyTorch exports it: planes are reshaped to one row, normalised, and put back.

Over extents that only a run knows, a reshape moves every element by its own index.  One plane more, in front of the
channels, normalises the same elements where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np

from tenon.formats.importers.onnx.node_context import Scope, reads
from tenon.network.graph.graph import Value

if TYPE_CHECKING:
    from onnx import NodeProto

_FLAT = ([0, 1, -1], [1, 1, -1])
"""The shapes of the row: the second for one sample in a batch."""


def without_reshapes(nodes: Sequence[NodeProto], wanted: Set[str], opset: int, scope: Scope) -> list[NodeProto]:
    """The nodes, in their order, with Unsqueeze and Squeeze for such reshapes around InstanceNormalization.

    ``wanted`` are the outputs of the graph; ``scope`` has the initializers.
    """
    makers = {name: node for node in nodes for name in node.output if name}
    readers: dict[str, list[NodeProto]] = {}
    for node in nodes:
        for name in reads(node):
            readers.setdefault(name, []).append(node)
    changed: dict[int, list[NodeProto]] = {}
    for node in (node for node in nodes if node.op_type == "InstanceNormalization" and not node.domain):
        if not node.input or not node.output:
            continue
        first, behind = makers.get(node.input[0]), readers.get(node.output[0], [])
        last = behind[0] if len(behind) == 1 else None
        if first is None or last is None or not (_is_reshape(first) and _is_reshape(last)):
            continue
        shape, inner = makers.get(last.input[1]), {first.output[0], node.output[0]}
        alone = readers.get(first.output[0]) == [node] and inner.isdisjoint(wanted)
        whole = shape is not None and shape.op_type == "Shape" and shape.input[:1] == first.input[:1]
        if shape is None or not alone or not whole or _starts(shape):
            continue
        if _integers(first.input[1], makers, scope) in _FLAT:
            changed[id(first)] = _moved(first, "Unsqueeze", opset)
            changed[id(last)] = _moved(last, "Squeeze", opset)
    return [new for node in nodes for new in changed.get(id(node), [node])]


def _is_reshape(node: NodeProto) -> bool:
    return node.op_type == "Reshape" and len(node.input) == 2 and len(node.output) == 1


def _integers(name: str, makers: Mapping[str, NodeProto], scope: Scope) -> list[int] | None:
    """The three integers of a constant, if it is one."""
    entry, node = scope.get(name), makers.get(name)
    if isinstance(entry, Value):
        return None if entry.data is None or entry.data.shape != (3,) else entry.data.tolist()
    for attribute in node.attribute if node is not None and node.op_type == "Constant" else ():
        tensor = attribute.t
        if attribute.name == "value_ints":
            return list(attribute.ints)
        if attribute.name == "value" and tensor.data_type == tensor.INT64 and list(tensor.dims) == [3]:
            stored = tensor.raw_data
            return np.frombuffer(stored, "<i8").tolist() if len(stored) == 24 else list(tensor.int64_data)
    return None


def _starts(shape: NodeProto) -> bool:
    """Whether a Shape leaves out axes."""
    return any(a.name == "end" or (a.name == "start" and a.i) for a in shape.attribute)


def _moved(reshape: NodeProto, type: str, opset: int) -> list[NodeProto]:
    """The node that adds or removes the second axis."""
    from onnx import helper

    name, output = reshape.name, reshape.output[0]
    if opset < 13:
        return [helper.make_node(type, [reshape.input[0]], [output], name, axes=[1])]
    axes = f"{output}.axes"
    given = helper.make_node("Constant", [], [axes], f"{name}.axes", value_ints=[1])
    return [given, helper.make_node(type, [reshape.input[0], axes], [output], name)]
