"""MXNet networks: a symbol as JSON, and its parameters (``net-symbol.json`` and ``net-0007.params``).

Inputs have no shapes in these files and must be bound, but for those that carry ``__shape__``.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder, required_input
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.mxnet.control_flow import CONTROL, ControlNode, described
from tenon.formats.importers.mxnet.node import LABELLED, MxnetNode
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import ANY_RANK, Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, TensorType
from tenon.network.graph.writer import reason

_LIST = 0x112
_V1, _V2, _V3 = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
_DTYPES = {0: "<f4", 1: "<f8", 2: "<f2", 3: "<u1", 4: "<i4", 5: "<i1", 6: "<i8", 7: "?"}
_PARAMETERS = re.compile(r"(weight|bias|gamma|beta|moving_mean|moving_var|running_mean|running_var|alpha)$")
"""Suffixes of the names of learned parameters; other variables are inputs."""


def recognise(file: ModelFile) -> bool:
    """A symbol; of parameters, those beside one."""
    return _is_symbol(file) or (_is_parameters(file) and _symbol_of(file) is not None)


def _is_symbol(file: ModelFile) -> bool:
    head = file.data[:4096].lstrip()
    return head[:1] == b"{" and b'"nodes"' in head and b'"op"' in head


def _is_parameters(file: ModelFile) -> bool:
    return file.data[:16] == struct.pack("<QQ", _LIST, 0)


def _symbol_of(file: ModelFile) -> ModelFile | None:
    stem = re.sub(r"-\d{4}$", "", file.stem)
    return file.find_partner("the symbol", f"{stem}-symbol.json", f"{stem}.json", "*-symbol.json", fits=_is_symbol)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a network given by either of its files.  See ``importers.load`` for errors."""
    symbol, weights = file, file
    if _is_symbol(file):
        stem = file.stem.removesuffix("-symbol")
        patterns = (f"{stem}-0000.params", f"{stem}-*.params", f"{stem}.params")
        parameters_file = file.find_partner("the parameters", *patterns, fits=_is_parameters)
    else:
        symbol, parameters_file = _symbol_of(file) or file, weights
    stored = read_parameters(parameters_file) if parameters_file is not None and not parameters_file.is_folder else None
    name = symbol.stem.removesuffix("-symbol")
    builder = GraphBuilder(
        symbol, name, shapes, inputs, outputs, len(parameters_file.data) if parameters_file else 1 << 22
    )
    if stored is None:
        builder.graph.incomplete = MISSING_WEIGHTS
    try:
        return _SymbolReader(builder, parse(symbol), stored).load()
    except (TypeError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise FormatError(f"{symbol.name}: not the JSON of a symbol; the file is damaged ({reason(error)})") from error


def parse(file: ModelFile) -> dict[str, Any]:
    """The JSON of a symbol.  Raises FormatError."""
    try:
        description = json.loads(file.data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file.name}: not readable as JSON; the file is truncated or damaged ({error})") from error
    return check_symbol(description, file.name)


def check_symbol(description: Any, where: str) -> dict[str, Any]:
    """A symbol, whose nodes read outputs of others.  Raises FormatError."""
    if not isinstance(description, dict) or not isinstance(description.get("nodes"), list):
        raise FormatError(f"{where}: the JSON of a symbol has a list of nodes; the file is damaged")
    nodes = description["nodes"]
    for i, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("op"), str) or not isinstance(node.get("name"), str):
            raise FormatError(f"{where}: node {i} has no operator or no name; the file is damaged")
        sources = node.get("inputs", [])
        if not isinstance(sources, list) or not all(_is_output(source, len(nodes)) for source in sources):
            raise FormatError(f"{where}: node '{node['name']}' reads what is no node's output; the file is damaged")
    heads = description.get("heads") or []
    if not isinstance(heads, list) or not all(_is_output(head, len(nodes)) for head in heads):
        raise FormatError(f"{where}: what it gives is no node's output; the file is damaged")
    return description


def _is_output(reference: object, nodes: int) -> bool:
    """Whether this is the number of a node and the number of one of its outputs."""
    if not isinstance(reference, list) or len(reference) < 2:
        return False
    node, output = reference[:2]
    return isinstance(node, int) and isinstance(output, int) and 0 <= node < nodes and output >= 0


# ------------------------------------------------------------------------------------------ parameters
class _ParameterReader:
    """A place in the file.  Raises FormatError past its end."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.data = file.data
        self.at = 0

    def take(self, format: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from("<" + format, self.data, self.at)
        except struct.error:
            raise self.damage("ends too early") from None
        self.at += struct.calcsize("<" + format)
        return values

    def bytes(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise self.damage("ends too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def damage(self, what: str) -> FormatError:
        return FormatError(f"{self.file.name}: the list of parameters {what}; the file is truncated or damaged")


def read_parameters(file: ModelFile) -> dict[str, Array]:
    """Arrays by name, without ``arg:`` and ``aux:``.  Raises FormatError."""
    cursor = _ParameterReader(file)
    magic, _, count = cursor.take("QQQ")
    if magic != _LIST or count > len(file.data) // 8:
        raise cursor.damage("is not one")
    arrays = [_array(cursor) for _ in range(count)]
    (named,) = cursor.take("Q")
    if named not in (0, count):
        raise cursor.damage(f"has {count} arrays and {named} names")
    names = [cursor.bytes(cursor.take("Q")[0]).decode("utf-8", "replace") for _ in range(named)]
    return {re.sub(r"^(arg|aux):", "", name): array for name, array in zip(names, arrays, strict=False)}


def _array(cursor: _ParameterReader) -> Array:
    """One array of any of the four layouts that MXNet has had."""
    (magic,) = cursor.take("I")
    if magic in (_V2, _V3) and cursor.take("i") != (0,):
        raise cursor.damage("holds sparse arrays, which are not supported, or")
    if magic in (_V1, _V2, _V3):
        (rank,) = cursor.take("I")
        dims = cursor.take(f"{rank}q") if rank <= 32 else None
    else:
        dims = cursor.take(f"{magic}I") if magic <= 32 else None
    if dims is None or any(d < 0 for d in dims) or math.prod(d or 1 for d in dims) >= 2**31:
        raise cursor.damage("holds an array of impossible shape")
    if not dims and magic != _V3:
        return np.zeros(0, np.float32)
    _, _, kind = cursor.take("iii")
    if kind not in _DTYPES:
        raise cursor.damage(f"holds elements of type {kind}")
    dtype = np.dtype(_DTYPES[kind])
    data = np.frombuffer(cursor.bytes(math.prod(dims) * dtype.itemsize), dtype).reshape(dims)
    return data.astype(np.float32) if dtype.kind == "f" else data


# ---------------------------------------------------------------------------------------------- symbol
class _SymbolReader:
    """The loop over the nodes of a symbol."""

    def __init__(self, builder: GraphBuilder, symbol: dict[str, Any], stored: dict[str, Array] | None) -> None:
        self.builder, self.stored = builder, stored
        self.nodes: list[dict[str, Any]] = symbol["nodes"]
        heads = symbol.get("heads") or [[len(self.nodes) - 1, 0]]
        self.heads = [(int(head[0]), int(head[1])) for head in heads]
        self.names = [str(node["name"]) for node in self.nodes]

    def load(self) -> Graph:
        labels = self.labels()
        for i, node in enumerate(self.nodes):
            if node["op"] == "null":
                if i not in labels:
                    self.variable(i, node)
            else:
                self.operator(i, node)
        return self.builder.finish([self.tensor(i, k) for i, k in self.heads])

    def tensor(self, node: int, output: int) -> str:
        """Outputs of a node are called as it is, the second and later ones with a number."""
        return self.names[node] if output == 0 else f"{self.names[node]}_output{output}"

    def labels(self) -> set[int]:
        """Variables that only the second input of a loss reads."""
        used: dict[int, bool] = {}
        for node in self.nodes:
            for at, source in enumerate(node.get("inputs", ())):
                label = node["op"] in LABELLED and at > 0
                used[int(source[0])] = used.get(int(source[0]), True) and label
        return {i for i, only in used.items() if only}

    def variable(self, i: int, node: dict[str, Any]) -> None:
        name = self.names[i]
        if self.stored is not None and name in self.stored:
            with self.builder.layer(name, "variable", name):
                self.builder[name] = self.builder.constant(self.stored[name], "data")
        elif _PARAMETERS.search(name):
            if self.stored is not None:
                with self.builder.layer(name, "variable", name):
                    raise RefusedError("the parameters do not hold it", "the two files do not belong together")
        else:
            text = str(_attributes(node).get("__shape__", ""))
            dims = [int(n) for n in re.findall(r"\d+", text)]
            is_stated = bool(dims) and all(dims)
            required_input(self.builder, name, TensorType(F32, tuple(dims) if is_stated else (ANY_RANK,)))

    def control(self, node: dict[str, Any], names: Sequence[str]) -> ControlNode:
        """A node with subgraphs."""
        inputs, symbols = [self.builder[name] for name in names], described(node)
        for value in inputs:
            self.builder.type(value)
        parts = [partial(self.inside, check_symbol(each, str(node["name"]))) for each in symbols]
        return ControlNode(self.builder, str(node["name"]), _attributes(node), inputs, parts)

    def inside(self, symbol: dict[str, Any], given: Sequence[Value]) -> list[Value]:
        """The results of a subgraph for these inputs."""
        inner, outside = _SymbolReader(self.builder, symbol, self.stored), dict(self.builder.scope)
        variables = [i for i, node in enumerate(inner.nodes) if node["op"] == "null"]
        if len(variables) != len(given):
            raise RefusedError(f"its subgraph has {len(variables)} inputs, and gets {len(given)}")
        self.builder.scope.update(zip((inner.names[i] for i in variables), given, strict=True))
        for i, node in enumerate(inner.nodes):
            if node["op"] != "null":
                inner.operator(i, node)
        results = [self.builder[inner.tensor(*head)] for head in inner.heads]
        self.builder.scope = outside
        return results

    def operator(self, i: int, node: dict[str, Any]) -> None:
        from tenon.formats.importers.mxnet.ops import OPERATORS

        kind, sources = str(node["op"]), [(int(s[0]), int(s[1])) for s in node.get("inputs", ())]
        with self.builder.layer(self.names[i], kind, self.names[i]):
            names = [self.tensor(*source) for source in sources]
            if kind in LABELLED:
                names = names[:1]
            if kind in CONTROL:
                for k, value in enumerate(CONTROL[kind](self.control(node, names))):
                    self.builder[self.tensor(i, k)] = value
                return
            context = MxnetNode(self.builder, kind, names, _attributes(node), self.stored is None)
            if kind not in OPERATORS:
                raise unknown(kind, OPERATORS)
            if context.inputs_known:
                result = OPERATORS[kind](context)
                for k, value in enumerate([result] if isinstance(result, Value) else result):
                    self.builder[self.tensor(i, k)] = value


def _attributes(node: dict[str, Any]) -> dict[str, str]:
    """The options of a node, under the three names that they have had."""
    attributes: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):
        values = node.get(key)
        if isinstance(values, dict):
            attributes |= {str(k): str(v) for k, v in values.items()}
    return attributes
