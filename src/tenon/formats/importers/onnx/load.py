"""ONNX models, any opset, as graphs.

The file is parsed with the onnx package's protobuf classes, or is one of ONNX Runtime (``ort_file``), and nothing of it
is ever run.  Every node becomes one operator of the newest ONNX (``upgrade`` rewrites old forms) or a Problem; all
problems are reported together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tenon.errors import FormatError, InputError, ModelError
from tenon.formats.graph_builder.errors import no_such_tensors
from tenon.formats.importers.onnx.labels import stated_labels
from tenon.formats.importers.onnx.node_context import reads
from tenon.formats.importers.onnx.ort_file import is_ort, parse_ort
from tenon.formats.importers.onnx.speech import is_part, load_part
from tenon.formats.importers.shared.decoder_ports import text_settings
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.file_kinds import told_kind
from tenon.formats.wire.protobuf import DamagedError, varint
from tenon.network.graph.bind import ANY_RANK, Shapes, bind_types, open_batches
from tenon.network.graph.fixed import bindings, check_names
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import DType, TensorType

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto

    from tenon.formats.importers.onnx.nodes import OnnxImporter

_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
"""Field numbers of ModelProto and their wire types: 0 a number, 2 bytes with a length."""

_GRAPH_FIELD = 7


def recognise(file: ModelFile) -> bool:
    """Named .onnx or .ort, a file of ONNX Runtime, or fields of a ModelProto up to and including its graph."""
    return file.suffix in (".onnx", ".ort") or is_ort(file.data) or _reaches_graph(file.data)


def _reaches_graph(data: bytes) -> bool:
    at = 0
    while at < len(data):
        try:
            key, at = varint(data, at)
            field, wire = key >> 3, key & 7
            if _MODEL_FIELDS.get(field) != wire:
                return False
            if field == _GRAPH_FIELD:
                return True
            value, at = varint(data, at)
        except DamagedError:
            return False
        at += value if wire == 2 else 0
    return False


_HEAD = 4096
"""Bytes that tell what a file is that is no model."""


def parse(file: ModelFile) -> ModelProto:
    """The model's protobuf.  Raises FormatError."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from onnx import ModelProto

    if is_ort(file.data):
        return parse_ort(file.data, file.name)
    model = ModelProto()
    try:
        model.ParseFromString(file.data)
    except (DecodeError, ValueError) as error:
        what = told_kind(file.data[:_HEAD]) or f"it is truncated or damaged ({error})"
        raise FormatError(f"{file.name}: not a readable ONNX model; {what}") from error
    if not model.HasField("graph"):
        raise FormatError(f"{file.name}: an ONNX model without a graph; the file is truncated or damaged")
    if not all(isinstance(name, str) for name in _names(model)):
        raise FormatError(f"{file.name}: a name in it is not text; the file is damaged")
    return model


def _names(model: ModelProto) -> Iterator[object]:
    """Every name in the model.  What is not UTF-8 comes as bytes from the parser of protobuf."""
    graphs, nodes = [model.graph], [node for function in model.functions for node in function.node]
    for function in model.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            nodes += graph.node
            yield graph.name
            yield from (v.name for v in (*graph.input, *graph.output, *graph.initializer, *graph.value_info))
            yield from (d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim)
        for node in nodes:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            for attribute in node.attribute:
                yield attribute.name
                graphs += [attribute.g] if attribute.HasField("g") else []
                graphs += attribute.graphs
        nodes = []


def opset(model: ModelProto, name: str) -> int:
    """The version of the standard operators that the model is written in."""
    from onnx.defs import onnx_opset_version

    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    version = max(versions, default=1)
    if not 1 <= version <= onnx_opset_version():
        raise FormatError(
            f"{name}: written in opset {version}; the installed onnx package knows 1 to {onnx_opset_version()} "
            "(export with an older opset, or upgrade the package onnx)"
        )
    return version


def load(
    file: ModelFile,
    shapes: Shapes,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph of an ONNX model, cut at the given tensors.  See ``importers.load`` for errors.

    An open batch dimension stays open, unless operators need the shapes of what they read: then it is 1.
    """
    if is_part(inputs, outputs):
        return load_part(file, shapes, outputs, load, parse)
    model = parse(file)
    try:
        graph = _ParsedModel(model, file).load(shapes, inputs, outputs)
        graph.labels, graph.text = stated_labels(model), text_settings(graph, file.folder)
        return graph
    except (ModelError, InputError):
        raise
    except UnicodeDecodeError as error:
        raise FormatError(f"{file.name}: a name in it is not text; the file is damaged") from error
    except RecursionError as error:
        raise FormatError(f"{file.name}: sub-graphs are nested too deep") from error


class _ParsedModel:
    """A parsed model and what is needed to cut a graph out of it."""

    def __init__(self, model: ModelProto, file: ModelFile) -> None:
        self.model = model
        self.file = file
        self.proto = model.graph
        self.opset = opset(model, file.name)
        self.initialized = {t.name for t in self.proto.initializer}
        self.initialized |= {t.values.name for t in self.proto.sparse_initializer}
        self.makers: dict[str, int] = {}
        for i, node in enumerate(self.proto.node):
            for name in node.output:
                if name and self.makers.setdefault(name, i) != i:
                    raise FormatError(f"{file.name}: '{name}' is made twice; the file is damaged")
        for port in self.proto.input:
            if port.name in self.makers:
                raise FormatError(f"{file.name}: '{port.name}' is an input, and a node makes it; the file is damaged")

    def load(self, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
        declared = [v.name for v in self.proto.input if v.name not in self.initialized]
        wanted = list(dict.fromkeys(outputs or (v.name for v in self.proto.output)))
        if not wanted:
            raise FormatError(f"{self.file.name}: the graph has no outputs; the file is truncated or damaged")
        known = {*self.makers, *self.initialized, *(v.name for v in self.proto.input)}
        absent = [v.name for v in self.proto.output if v.name not in known]
        if absent and not outputs:
            shown = ", ".join(map(repr, absent))
            raise FormatError(f"{self.file.name}: no node computes the output {shown}; the file is damaged")
        if unknown := [name for name in (*(inputs or ()), *(outputs or ())) if name not in known]:
            raise no_such_tensors(self.file.name, unknown, known)
        check_names(self.file.values, [*(inputs or ()), *(v.name for v in self.proto.input)], self.file.name)
        nodes = self.cone(wanted, set(inputs or declared))
        read = {name for i in nodes for name in reads(self.proto.node[i])} | set(wanted)
        ports = [*inputs] if inputs else declared
        missing = [name for name in declared if inputs and name in read and name not in inputs]
        types = self.input_types([*ports, *missing], shapes, bool(inputs))
        try:
            return self.importer(types).run(nodes, wanted)
        except ModelError:
            batches = open_batches(types)
            if not batches:
                raise
        graph = self.importer(bind_types(types, dict.fromkeys(batches.values(), 1))).run(nodes, wanted)
        graph.assumed |= batches
        return graph

    def importer(self, types: Mapping[str, TensorType]) -> OnnxImporter:
        from tenon.formats.importers.onnx.nodes import OnnxImporter

        return OnnxImporter(self.model, self.file, self.opset, types)

    def cone(self, outputs: Iterable[str], stop: set[str]) -> list[int]:
        """The nodes that ``outputs`` need, in the file's order, looking no further than ``stop``."""
        needed: set[int] = set()
        todo = [name for name in outputs if name not in stop]
        while todo:
            i = self.makers.get(todo.pop())
            if i is not None and i not in needed:
                needed.add(i)
                todo += [name for name in reads(self.proto.node[i]) if name not in stop]
        return sorted(needed)

    def input_types(self, names: Sequence[str], shapes: Shapes, cut: bool) -> dict[str, TensorType]:
        """The types of the graph's inputs, bound as far as ``shapes`` says."""
        declared = {v.name: v for v in (*self.proto.value_info, *self.proto.output, *self.proto.input)}
        types: dict[str, TensorType] = {}
        problems = []
        wide: dict[str, int] = {}
        for name in dict.fromkeys(names):
            if name in declared and not _is_tensor(declared[name]):
                types.update(_elements(declared[name], shapes))
                continue
            if name not in declared:
                types[name] = self.inner_type(name, shapes)
                continue
            try:
                types[name] = _declared_type(declared[name])
                if _holds_strings(declared[name]):
                    wide[name] = _width(name, shapes)
            except FormatError as error:
                problems.append(f"  - input '{name}': {error}")
        if problems:
            raise FormatError("\n".join([f"{self.file.name}: inputs that Tenon cannot take", *problems]))
        shapes, types = _widened(shapes, types, wide)
        here = {*types, *(d for t in types.values() for d in t.shape)}
        dims = {d.dim_param for v in self.proto.input for d in v.type.tensor_type.shape.dim}
        outside = {*self.makers, *(v.name for v in self.proto.input), *dims} - here
        bound = {k: v for k, v in shapes.items() if not cut or k not in outside}
        return bind_types(types, {**bound, **bindings(self.file.values, types)})

    def inner_type(self, name: str, shapes: Shapes) -> TensorType:
        """The type of a tensor that the file does not declare, found by importing what comes before it."""
        ports = [v.name for v in self.proto.input if v.name not in self.initialized]
        importer = self.importer(self.input_types(ports, shapes, True))
        value = importer.type_of(self.cone([name], set(ports)), name)
        return value or TensorType(DType.F32, (ANY_RANK,))


def _is_tensor(info: ValueInfoProto) -> bool:
    return info.type.WhichOneof("value") in ("tensor_type", "sparse_tensor_type", None)


def _elements(info: ValueInfoProto, shapes: Shapes) -> dict[str, TensorType]:
    """The tensors that a sequence or an optional holds: those that ``shapes`` names, as x[0], x[1] ... or as x.

    Raises FormatError for what holds no tensors.
    """
    from tenon.formats.wire.onnx_tensors import element_type

    type = info.type
    if type.WhichOneof("value") == "optional_type":
        type = type.optional_type.elem_type
    sequence = type.WhichOneof("value") == "sequence_type"
    if sequence:
        type = type.sequence_type.elem_type
    if type.WhichOneof("value") != "tensor_type":
        raise FormatError(f"input '{info.name}' holds no tensors")
    dtype = element_type(type.tensor_type.elem_type)
    names = [name for name in shapes if name == info.name or (sequence and name.startswith(f"{info.name}["))]
    return {name: TensorType(dtype, (ANY_RANK,)) for name in names}


def _holds_strings(info: ValueInfoProto) -> bool:
    from tenon.formats.wire.onnx_tensors import STRING

    return info.type.tensor_type.elem_type == STRING


def _width(name: str, shapes: Shapes) -> int:
    """Bytes of each string of an input, which ``NAME.width`` binds.  Raises InputError."""
    from tenon.formats.decompositions.strings.text import DEFAULT_WIDTH

    width = shapes.get(f"{name}.width", DEFAULT_WIDTH)
    if not isinstance(width, int) or not 0 < width < 2**20:
        raise InputError(f"--shape {name}.width: {width!r} is not a number of bytes")
    return width


def _widened(
    shapes: Shapes, types: dict[str, TensorType], wide: Mapping[str, int]
) -> tuple[Shapes, dict[str, TensorType]]:
    """Bound shapes, and types, where strings are bytes along a last axis: ``wide`` of them."""
    bound = {name: given for name, given in shapes.items() if name not in {f"{text}.width" for text in wide}}
    for name, width in wide.items():
        given = shapes.get(name)
        if given is not None and not isinstance(given, int | Size):
            bound[name] = (*given, width)
        if types[name].shape != (ANY_RANK,):
            types[name] = replace(types[name], shape=(*types[name].shape, width))
    return bound, types


_UNKNOWN = ("", "?", "-1", "None")
"""Names that exporters write for dimensions of which they know nothing, not even that two of them are equal."""


def _declared_type(info: ValueInfoProto) -> TensorType:
    """The type of a graph input.  Raises FormatError for what is not a tensor."""
    from tenon.formats.wire.onnx_tensors import element_type

    if info.type.WhichOneof("value") != "tensor_type":
        raise FormatError(f"it is a {info.type.WhichOneof('value') or 'value without a type'}, not a tensor")
    tensor = info.type.tensor_type
    dtype = DType.U8 if _holds_strings(info) else element_type(tensor.elem_type)
    if not tensor.HasField("shape"):
        return TensorType(dtype, (ANY_RANK,))
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param for d in tensor.shape.dim]
    named = tuple(f"{info.name}_dim_{axis}" if d in _UNKNOWN else d for axis, d in enumerate(dims))
    return TensorType(dtype, named)
