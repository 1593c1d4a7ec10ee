"""A graph as Graphviz .dot text."""

from __future__ import annotations

from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.operation_text import show_operation

_COLOURS = {"Conv": "#cfe8ff", "Gemm": "#cfe8ff", "MatMul": "#cfe8ff", "Fused": "#bfe0c8", "Reorder": "#ffe3b8"}


def to_dot(graph: Graph) -> str:
    """Nodes are boxes with their operator and attributes, edges carry types, weights are omitted, but their number is
    shown."""
    ids = {id(v): f"v{i}" for i, v in enumerate(graph.values())}
    ids |= {id(v): f"n{i}" for i, node in enumerate(graph) for v in node.outputs}
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box, style=filled, fillcolor=white, fontname=sans];"]
    for value in graph.inputs:
        lines.append(f"  {ids[id(value)]} [label={_label(value.name, _type(value))}, shape=ellipse];")
    for i, node in enumerate(graph):
        weights = sum(v.array.size for v in node.inputs if v is not None and v.constant)
        label = _label(show_operation(node.op), node.origin.layer, *([f"{weights} parameters"] if weights else ()))
        colour = _COLOURS.get(node.op.name, "white")
        lines.append(f"  n{i} [label={label}, fillcolor={_quoted(colour)}];")
        for read in node.inputs:
            if read is not None and not read.constant:
                lines.append(f"  {ids[id(read)]} -> n{i} [label={_quoted(_type(read))}];")
    for i, value in enumerate(graph.outputs):
        lines.append(f"  o{i} [label={_label(value.name, _type(value))}, shape=ellipse];")
        lines.append(f"  {ids[id(value)]} -> o{i};")
    return "\n".join([*lines, "}", ""])


def _type(value: Value) -> str:
    return str(value.type) if value.typed else "?"


def _label(*lines: str) -> str:
    return '"' + "\\n".join(map(_escaped, lines)) + '"'


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
