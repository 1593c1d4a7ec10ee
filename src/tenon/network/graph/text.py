"""Graphs as text: for golden tests, bug reports and reading.

    graph "lenet" {
      input %x: f32[1,1,28,28]
      const %w: f32[2] = [0.5, -1]
      %y: f32[1,8,28,28] = Conv(pads=(2, 2, 2, 2)) %x, %k, _ @ "conv1" "Conv"
      output %y
    }

``_`` is an absent input.  A node ends with its origin: the layer's name and type in the model file.  The graphs that
it owns follow it, each between ``body "name" {`` and ``}``.
Constants of up to 16 elements are inline; larger ones, as ``weights`` says, as base64, as a checksum, or not at
all (``...``).  The text with base64 is exact: ``parse(show(g, weights="base64"))`` equals ``g``.  ``parse``
rejects constants without data, unless ``fill`` is set: then they get random numbers seeded by the name.
``random(SEED)`` in place of data requests random numbers explicitly.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from typing import Literal

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.operation_text import Constructors, parse_operation, show_operation
from tenon.network.graph.types import DType, Layout, Quant, TensorType

Weights = Literal["base64", "checksum", "none"]

INLINE = 16
"""Constants with up to so many elements are printed inline."""

_PLAIN_NAME = re.compile(r"[\w./$-]+")


# --------------------------------------------------------------------------------------------- printing
def show_name(name: str) -> str:
    return f"%{name}" if _PLAIN_NAME.fullmatch(name) else f"%{json.dumps(name)}"


def show_type(type: TensorType) -> str:
    """As ``str`` does, but a quantisation shows."""
    text = str(type)
    if type.quant is not None:
        scales, zeros = " ".join(map(repr, type.quant.scale)), " ".join(map(str, type.quant.zero_point))
        steps = "; steps" if type.quant.steps else ""
        text += f"{{{scales}; {zeros}; {'_' if type.quant.axis is None else type.quant.axis}{steps}}}"
    return text


def show_data(data: Array, weights: Weights) -> str:
    if data.size <= INLINE:
        return "[" + ", ".join(str(x) for x in data.ravel()) + "]"
    if weights == "none":
        return "..."
    little = np.ascontiguousarray(data.astype(data.dtype.newbyteorder("<"), copy=False)).tobytes()
    if weights == "checksum":
        return f"sha256:{hashlib.sha256(little).hexdigest()[:16]}"
    return f'base64 "{base64.b64encode(little).decode()}"'


def show_node(node: Node) -> str:
    """One line: outputs, operation, inputs, origin."""
    outputs = ", ".join(_declared(v) for v in node.outputs)
    inputs = ", ".join("_" if v is None else show_name(v.name) for v in node.inputs)
    return f"{outputs} = {show_operation(node.op)} {inputs}".rstrip() + _show_origin(node.origin)


def _declared(value: Value) -> str:
    return show_name(value.name) + (f": {show_type(value.type)}" if value.typed else "")


def _show_origin(origin: Origin) -> str:
    parts = [origin.layer, origin.type, origin.file]
    while parts and not parts[-1]:
        parts.pop()
    return f" @ {' '.join(json.dumps(p) for p in parts)}" if parts else ""


def show(graph: Graph, weights: Weights = "checksum") -> str:
    """The text of a graph whose values have unique names."""
    source = f" from {json.dumps(graph.source)}" if graph.source else ""
    return "\n".join([f"graph {json.dumps(graph.name)}{source} {{", *_content(graph, weights, "  "), "}", ""])


def _content(graph: Graph, weights: Weights, margin: str) -> Iterator[str]:
    yield from (f"{margin}input {_declared(v)}" for v in graph.inputs)
    yield from (f"{margin}const {_declared(v)} = {show_data(v.array, weights)}" for v in graph.constants())
    for node in graph:
        yield f"{margin}{show_node(node)}"
        for body in node.bodies:
            yield f"{margin}body {json.dumps(body.name)} {{"
            yield from _content(body, weights, f"{margin}  ")
            yield f"{margin}}}"
    yield from (f"{margin}output {show_name(v.name)}" for v in graph.outputs)


# ---------------------------------------------------------------------------------------------- parsing
_NAME = r'%(?:"(?:[^"\\]|\\.)*"|[\w./$-]+)'
_TYPE = r"[a-z]+\d*\[[^\]]*\](?:@[\w-]+(?:\([\d+,=-]*\))?)?(?:\{[^}]*\})?"
_DECLARED = re.compile(rf"\s*({_NAME})\s*(?::\s*({_TYPE}))?\s*,?")
_NODE = re.compile(rf"((?:{_NAME}(?:\s*:\s*{_TYPE})?(?:\s*,\s*)?)+)\s*=\s*(\w+\(.*)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BODY = re.compile(r'body\s+("(?:[^"\\]|\\.)*")\s*\{')
_HEAD = re.compile(r'graph\s+("(?:[^"\\]|\\.)*")(?:\s+from\s+("(?:[^"\\]|\\.)*"))?\s*\{')


class _GraphParser:
    def __init__(self, operators: Constructors, fill: bool) -> None:
        self.operators = operators
        self.fill = fill
        self.values: dict[str, Value] = {}

    def define(self, name: str, type: str | None, data: str | None = None) -> Value:
        name = _name(name)
        if name in self.values:
            raise FormatError(f"%{name} is defined twice")
        known = parse_type(type) if type else None
        if data is not None and known is None:
            raise FormatError(f"constant %{name} has no type")
        array = None if data is None or known is None else self.data(name, known, data)
        value = self.values[name] = Value(name, known, array)
        return value

    def data(self, name: str, type: TensorType, text: str) -> Array:
        dims, dtype = type.dims, type.dtype.numpy
        given = re.fullmatch(r"random\((\d+)\)", text)
        if given or ((text == "..." or text.startswith("sha256:")) and self.fill):
            rng = np.random.default_rng(int(given[1]) if given else zlib.crc32(name.encode()))
            return rng.uniform(-1, 1, dims).astype(dtype)
        if text.startswith("["):
            elements = [w.strip() for w in text[1:-1].split(",") if w.strip()]
            if type.dtype is DType.BOOL:
                return np.array([w == "True" for w in elements], dtype).reshape(dims)
            return np.array([dtype.type(w) for w in elements], dtype).reshape(dims)
        if text.startswith("base64"):
            raw = base64.b64decode(text.split('"')[1], validate=True)
            return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype).reshape(dims)
        raise FormatError(f"constant %{name} was printed without its data")

    def use(self, name: str) -> Value:
        name = _name(name)
        if name not in self.values:
            raise FormatError(f"%{name} is used before it is defined")
        return self.values[name]

    def node(self, graph: Graph, line: str) -> None:
        match = _NODE.fullmatch(line)
        if match is None:
            raise FormatError("not a node")
        op, rest = parse_operation(match[2], self.operators)
        text, _, origin = _split_origin(rest)
        inputs = [None if w == "_" else self.use(w) for w in re.findall(rf"{_NAME}|\b_\b", text)]
        declared = [m for m in _DECLARED.finditer(match[1]) if m[1]]
        node = graph.add(op, inputs, [_name(m[1]) for m in declared], _origin(origin), infer=False)
        for value, m in zip(node.outputs, declared, strict=True):
            defined = self.define(m[1], m[2])
            if defined.typed:
                value.type = defined.type
            self.values[value.name] = value


def _split_origin(rest: str) -> tuple[str, str, str]:
    masked = _STRING.sub(lambda m: "x" * len(m[0]), rest)
    at = masked.find(" @ ")
    return (rest, "", "") if at < 0 else (rest[:at], " @ ", rest[at + 3 :])


def _origin(text: str) -> Origin:
    layer, type, file = ([json.loads(s) for s in _STRING.findall(text)] + ["", "", ""])[:3]
    return Origin(file, layer, type)


def _name(text: str) -> str:
    return str(json.loads(text[1:])) if text.startswith('%"') else text[1:]


def parse_type(text: str) -> TensorType:
    """The inverse of ``show_type``."""
    match = re.fullmatch(r"([a-z]+\d*)\[([^\]]*)\]((?:@[^{]*)?)(?:\{([^}]*)\})?", text)
    if match is None:
        raise FormatError(f"'{text}' is not a type")
    dims = tuple(int(d) if re.fullmatch(r"-?\d+", d) else d for d in match[2].split(",") if d)
    try:
        layout = Layout.parse(match[3])
    except ValueError as error:
        raise FormatError(f"'{text}' is not a type: {error}") from None
    quant = None
    if match[4] is not None:
        scales, zeros, axis, *steps = (part.strip() for part in match[4].split(";"))
        along = None if axis == "_" else int(axis)
        quant = Quant(tuple(map(float, scales.split())), tuple(map(int, zeros.split())), along, steps == ["steps"])
    return TensorType(DType(match[1]), dims, layout, quant)


def parse(text: str, operators: Constructors, *, fill: bool = False) -> Graph:
    """The graph that a text describes; ``operators`` maps names to operator classes.

    Raises FormatError naming the line.
    """
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line and not line.startswith("#")]
    head = _HEAD.fullmatch(lines[0][1]) if lines else None
    if head is None or lines[-1][1] != "}":
        raise FormatError("the text of a graph begins with 'graph \"name\" {' and ends with '}'")
    graph = Graph(json.loads(head[1]), json.loads(head[2]) if head[2] else "")
    rest = iter(lines[1:])
    _parse_lines(_GraphParser(operators, fill), graph, rest)
    for number, line in rest:
        raise FormatError(f"line {number}: behind the end of the graph: {line}")
    return graph


def _parse_lines(parser: _GraphParser, graph: Graph, lines: Iterator[tuple[int, str]]) -> None:
    """The lines of a graph, and its end."""
    for number, line in lines:
        if line == "}":
            return
        try:
            if head := _BODY.fullmatch(line):
                inner = Graph(json.loads(head[1]))
                _parse_lines(_GraphParser(parser.operators, parser.fill), inner, lines)
                graph.nodes[-1].bodies += (inner,)
            else:
                _parse_line(parser, graph, line)
        except (FormatError, ValueError, TypeError, KeyError, IndexError) as error:
            where = "" if isinstance(error, FormatError) and str(error).startswith("line ") else f"line {number}: "
            raise FormatError(f"{where}{error}" if not where else f"{where}{error}: {line}") from error
    raise FormatError("a body has no end")


def _parse_line(parser: _GraphParser, graph: Graph, line: str) -> None:
    word, _, rest = line.partition(" ")
    if word == "output":
        graph.outputs.append(parser.use(rest.strip()))
    elif word in ("input", "const"):
        match = re.fullmatch(rf"({_NAME})(?:\s*:\s*({_TYPE}))?(?:\s*=\s*(.*))?", rest.strip())
        if match is None or (word == "const") != (match[3] is not None):
            raise FormatError(f"not a declaration of an {word}")
        value = parser.define(match[1], match[2], match[3])
        if word == "input":
            graph.inputs.append(value)
    else:
        parser.node(graph, line)


def same(a: Graph, b: Graph) -> bool:
    """Whether two graphs print alike, data included."""
    return show(a, "base64") == show(b, "base64")
