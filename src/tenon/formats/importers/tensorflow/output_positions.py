"""References between the nodes of a function, "node:name:i" by the names of outputs, as those of a graph: "node:i".

Source: the operator definitions in tensorflow/core/ops.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.output_names import OUTPUT_NAMES
from tenon.formats.wire.protobuf import Message


def by_position(function: Message, functions: Mapping[str, Message]) -> tuple[dict[str, Message], list[str]]:
    """The nodes of a function by name, and where its results come from; the inputs of the nodes are rewritten.

    Raises RefusedError for an output that a node does not have.
    """
    nodes = {node.name: node for node in function.node}
    for node in function.node:
        node.set(input=[_positioned(reference, nodes, functions) for reference in node.input])
    returned = dict(function.ret)
    results = [returned.get(output.name, output.name) for output in function.signature.output]
    return nodes, [_positioned(reference, nodes, functions) for reference in results]


def _positioned(reference: str, nodes: Mapping[str, Message], functions: Mapping[str, Message]) -> str:
    """The reference with a number only; one to an argument or to control stays."""
    name, _, output = reference.partition(":")
    output, _, index = output.partition(":")
    if not output or output.isdecimal() or name.startswith("^") or name not in nodes:
        return reference
    number = _first(nodes[name], output, functions) + (int(index) if index.isdecimal() else 0)
    return f"{name}:{number}" if number else name


def _first(node: Message, output: str, functions: Mapping[str, Message]) -> int:
    """The number of the first tensor of a named output.  An operator of one output has no row in the table."""
    called = functions.get(node.op)
    names = [o.name for o in called.signature.output] if called is not None else OUTPUT_NAMES.get(node.op, [output])
    first = 0
    for entry in names:
        name, _, length = entry.partition("*")
        if name == output:
            return first
        first += _length(node, length) if length else 1
    raise RefusedError(f"'{node.name}' ({node.op}) has no output '{output}'; it has {', '.join(names)}")


def _length(node: Message, attribute: str) -> int:
    """The tensors of an output whose number is an attribute, or the length of one that lists types."""
    value = dict(node.attr).get(attribute)
    if value is None:
        raise RefusedError(f"'{node.name}' ({node.op}) has no attribute '{attribute}'")
    return len(value.list.type) if value.has("list") else int(value.i)
