"""A graph as Graphviz .dot text."""

from __future__ import annotations

from tenon.ir.graph import Graph, Value

_COLOURS = {"Conv": "#cfe8ff", "Gemm": "#cfe8ff", "MatMul": "#cfe8ff", "Fused": "#bfe0c8", "Reorder": "#ffe3b8"}


def to_dot(graph: Graph) -> str:
    """Nodes are boxes with their operator and attributes, edges carry types, weights are left out but counted."""
    ids = {id(v): f"v{i}" for i, v in enumerate(graph.values())}
    lines = [f"digraph {_quoted(graph.name)} {{", "  node [shape=box, style=filled, fillcolor=white, fontname=sans];"]
    for value in graph.inputs:
        lines.append(f"  {ids[id(value)]} [label={_quoted(_title(value))}, shape=ellipse];")
    for i, node in enumerate(graph):
        weights = sum(v.array.size for v in node.inputs if v is not None and v.constant)
        label = f"{node.op}\\n{node.origin.layer}" + (f"\\n{weights} parameters" if weights else "")
        colour = _COLOURS.get(node.op.name, "white")
        lines.append(f"  n{i} [label={_quoted(label)}, fillcolor={_quoted(colour)}];")
        for read in node.inputs:
            if read is not None and not read.constant:
                lines.append(f"  {_source(graph, read, ids)} -> n{i} [label={_quoted(_type(read))}];")
    for i, value in enumerate(graph.outputs):
        lines.append(f"  o{i} [label={_quoted(_title(value))}, shape=ellipse];")
        lines.append(f"  {_source(graph, value, ids)} -> o{i};")
    return "\n".join([*lines, "}", ""])


def _source(graph: Graph, value: Value, ids: dict[int, str]) -> str:
    if value.producer is None:
        return ids[id(value)]
    return f"n{graph.nodes.index(value.producer)}"


def _type(value: Value) -> str:
    return str(value.type) if value.typed else "?"


def _title(value: Value) -> str:
    return f"{value.name}\\n{_type(value)}"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'
