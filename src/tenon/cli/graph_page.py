"""A graph as a self-contained HTML page with zoom, pan, search and details; it opens offline."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from string import Template
from typing import Any

from tenon.cli.console import count, size
from tenon.cli.device_placement import device_colours
from tenon.cli.graph_layout import GraphLayout, Point, arrange
from tenon.cli.graph_script import SCRIPT, STYLE
from tenon.cli.text_table import shortened
from tenon.machine.plan.lowering_context import operator
from tenon.network.graph.device_placement import DevicePlacement, PlacedLayer
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.operation_text import show_operation

_HUES = (212, 28, 150, 345, 265, 190, 48, 95, 310, 5)
_NAME = 30  # characters of a name in a box
_SIDES, _LETTER, _BOLD, _HEIGHT = 28.0, 7.0, 8.2, 44.0  # pixels: both sides of a text, a letter, a box
_MOST_TEXT = 2000  # characters of an operator's attributes


@dataclass
class _Box:
    """The text in a box, and its details."""

    title: str
    name: str
    about: str
    facts: list[tuple[str, str]]
    kind: str = "op"
    reads: list[int] = field(default_factory=list)
    device: str = ""


def page(graph: Graph, placement: DevicePlacement | None = None) -> str:
    """The text of the page.  Names from the model are escaped.  With a ``placement`` frames have the colours of the
    devices that run operators, by the names of layers."""
    boxes, edges = _boxes(graph)
    frames = device_colours(placement)
    for box, placed in _placed(boxes, placement):
        box.device = placed.device
        box.facts += [("device", placed.device), *([("because", placed.reason)] if placed.reason else [])]
    names = shortened([box.name for box in boxes], _NAME)
    texts = zip(boxes, names, strict=True)
    widths = [_SIDES + max(_BOLD * len(b.title), _LETTER * max(len(name), len(b.about))) for b, name in texts]
    layout = arrange(widths, [(a, b) for a, b, _ in edges])
    kinds = Counter(box.title for box in boxes if box.kind == "op")
    hues = {title: hue for (title, _), hue in zip(kinds.most_common(), _HUES, strict=False)}
    constants = graph.constants()
    macs = sum(_macs(node) or 0 for node in graph)
    about = [
        f"{len(graph)} operators",
        f"{count(sum(v.array.size for v in constants))} parameters",
        f"{count(macs)} multiply-accumulates",
    ]
    facts = [
        {
            "title": box.title,
            "name": box.name,
            "facts": box.facts,
            "reads": sorted(set(box.reads)),
            "device": box.device,
            "x": round(x, 1),
            "y": round(y, 1),
        }
        for box, (x, y) in zip(boxes, layout.positions, strict=True)
    ]
    legend = "".join(
        f"<button data-type='{escape(title, quote=True)}'><i style='background:{_colour(hues, title)}'></i>"
        f"{escape(title)} <b>{n}</b></button>"
        for title, n in kinds.most_common()
    ) + "".join(
        f"<button data-device='{escape(device, quote=True)}'><i class='frame' style='border-color:{colour}'></i>"
        f"{escape(device)} <b>{sum(box.device == device for box in boxes)}</b></button>"
        for device, colour in frames.items()
    )
    return Template(_PAGE).substitute(
        name=escape(graph.name),
        about=escape(" · ".join(about)),
        style=STYLE,
        width=f"{layout.size[0]:.0f}",
        height=f"{layout.size[1]:.0f}",
        edges=_edges(layout, [label for _, _, label in edges]),
        boxes="".join(
            _drawn(i, box, name, width, position, _colour(hues, box.title), frames.get(box.device, ""))
            for i, (box, name, width, position) in enumerate(zip(boxes, names, widths, layout.positions, strict=True))
        ),
        legend=legend,
        data=json.dumps(facts, ensure_ascii=False).replace("<", "\\u003c"),
        script=SCRIPT,
    )


def _boxes(graph: Graph) -> tuple[list[_Box], list[tuple[int, int, str]]]:
    """Boxes of inputs, operators and outputs in topological order, and edges with their types."""
    boxes: list[_Box] = []
    edges: list[tuple[int, int, str]] = []
    index_of: dict[int, int] = {}

    def read(value: Value, reader: int) -> None:
        if (source := index_of.get(id(value))) is not None:
            edges.append((source, reader, _type(value)))
            boxes[reader].reads.append(source)

    for value in graph.inputs:
        index_of[id(value)] = len(boxes)
        boxes.append(_Box("input", value.name, _type(value), [("type", _type(value))], "port"))
    for node in graph:
        index = len(boxes)
        boxes.append(_operator(node))
        for operand in node.inputs:
            if operand is not None:
                read(operand, index)
        index_of |= {id(value): index for value in node.outputs}
    for value in graph.outputs:
        boxes.append(_Box("output", value.name, _type(value), [("type", _type(value))], "port"))
        read(value, len(boxes) - 1)
    return boxes, edges


def _operator(node: Node) -> _Box:
    name = node.origin.layer or node.output.name
    text = show_operation(node.op)
    facts = [("operator", text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ...")]
    if node.origin.type and node.origin.type != node.op.name:
        facts.append(("in the model", node.origin.type))
    facts += [("reads", f"{v.name}  {_type(v)}") for v in node.inputs if v is not None and not v.constant]
    constants = [v for v in node.inputs if v is not None and v.constant]
    facts += [("constant", f"{v.name}  {_type(v)}  {size(v.array.nbytes)}") for v in constants]
    facts += [("makes", f"{v.name}  {_type(v)}") for v in node.outputs]
    if macs := _macs(node):
        facts.append(("multiply-accumulates", f"{macs:,}"))
    if constants:
        facts.append(("parameters", f"{sum(v.array.size for v in constants):,}"))
    return _Box(node.op.name, name, _shape(node.output), facts)


def _placed(boxes: Sequence[_Box], placement: DevicePlacement | None) -> Iterator[tuple[_Box, PlacedLayer]]:
    """The operators of which the placement says where they run."""
    layers = {each.layer: each for each in placement.layers} if placement else {}
    return ((box, layers[box.name]) for box in boxes if box.kind == "op" and box.name in layers)


def _macs(node: Node) -> int | None:
    """Multiply-accumulates; None while types are not known."""
    if not all(v is None or (v.typed and v.type.bound) for v in (*node.inputs, *node.outputs)):
        return None
    return operator(node).macs([None if v is None else v.type for v in node.inputs], [v.type for v in node.outputs])


def _type(value: Value) -> str:
    return str(value.type) if value.typed else "?"


def _shape(value: Value) -> str:
    return "x".join(map(str, value.type.shape)) if value.typed else "?"


def _colour(hues: dict[str, int], title: str) -> str:
    return f"hsl({hues[title]} 62% 52%)" if title in hues else "hsl(220 6% 60%)"


def _edges(layout: GraphLayout, labels: Sequence[str]) -> str:
    return "".join(
        f"<path d='{_curve(path)}'><title>{escape(label)}</title></path>"
        for path, label in zip(layout.paths, labels, strict=True)
    )


def _curve(path: Sequence[Point]) -> str:
    """A curve from the bottom of a box to the top of another, vertical next to the boxes in between."""
    half = _HEIGHT / 2
    text = f"M{path[0][0]:.0f} {path[0][1] + half:.0f}"
    for (x, y), (to, below) in pairwise(path):
        middle = (y + below) / 2
        text += f"C{x:.0f} {middle:.0f} {to:.0f} {middle:.0f} {to:.0f} {below - half:.0f}"
        text += "" if (to, below) == path[-1] else f"V{below + half:.0f}"
    return text


def _drawn(i: int, box: _Box, name: str, width: float, position: Point, colour: str, frame: str) -> str:
    x, y = position
    style: dict[str, Any] = {"x": f"{x - width / 2:.0f}", "y": f"{y - _HEIGHT / 2:.0f}"}
    rounded = 22 if box.kind == "port" else 6
    mark = "" if box.kind == "port" else f"<rect width='6' height='{_HEIGHT:.0f}' rx='3' fill='{colour}'/>"
    outline = f" style='stroke:{frame};stroke-width:2.5'" if frame else ""
    lines = [(box.title, 14, "t"), (name, 26, "n"), (box.about, 38, "s")]
    texts = "".join(
        f"<text x='{width / 2:.0f}' y='{down}' class='{kind}'>{escape(text)}</text>" for text, down, kind in lines
    )
    return (
        f"<g class='{box.kind}' data-i='{i}' transform='translate({style['x']} {style['y']})'>"
        f"<title>{escape(box.name)}</title><rect class='box' width='{width:.0f}' height='{_HEIGHT:.0f}' "
        f"rx='{rounded}'{outline}/>{mark}{texts}</g>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$name: graph</title>
<style>$style</style>
<header><h1>$name</h1><p>$about</p>
<input id="search" type="search" placeholder="name or operator ( / )" aria-label="search"><span id="found"></span>
<button id="less" title="zoom out">&minus;</button><button id="more" title="zoom in">+</button>
<button id="fit" title="all of it">fit</button></header>
<main><svg id="view" tabindex="0"><g id="world" data-width="$width" data-height="$height">
<g id="edges">$edges</g><g id="boxes">$boxes</g></g></svg>
<aside id="legend">$legend</aside><aside id="details" hidden></aside></main>
<script type="application/json" id="graph">$data</script>
<script>$script</script>
</html>
"""
