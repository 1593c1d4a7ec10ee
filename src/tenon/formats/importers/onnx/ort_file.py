"""ONNX Runtime's own files (.ort) as the protobuf of the ONNX model that they hold.

The file is a FlatBuffer with the identifier "ORTM": a session, whose model has the graphs, nodes, attributes and
tensors of ONNX in tables.  What ONNX Runtime keeps for itself (edges between nodes, hashes of kernels, optimisations to
replay) is not read.  Source: onnxruntime/core/flatbuffers/schema/ort.fbs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenon.errors import FormatError
from tenon.formats.wire.flatbuffer import FlatBuffer, FlatTable

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

IDENTIFIER = b"ORTM"

SESSION = {"model": 1}
MODEL = {
    "ir_version": 0,
    "opset_import": 1,
    "producer_name": 2,
    "producer_version": 3,
    "domain": 4,
    "model_version": 5,
    "doc_string": 6,
    "graph": 7,
    "metadata": 9,
}
GRAPH = {"initializers": 0, "node_args": 1, "nodes": 2, "inputs": 5, "outputs": 6, "sparse_initializers": 7}
NODE = {"name": 0, "domain": 2, "op_type": 5, "type": 6, "inputs": 8, "outputs": 9, "attributes": 10}
ATTRIBUTE = {
    "name": 0,
    "type": 2,
    "f": 3,
    "i": 4,
    "s": 5,
    "t": 6,
    "g": 7,
    "floats": 8,
    "ints": 9,
    "strings": 10,
    "tensors": 11,
    "graphs": 12,
}
TENSOR = {"name": 0, "dims": 2, "data_type": 3, "raw_data": 4, "string_data": 5, "external_offset": 6}
SPARSE_TENSOR = {"values": 0, "indices": 1, "dims": 2}
VALUE_INFO = {"name": 0, "type": 2}
TYPE_INFO = {"value_type": 1, "value": 2}
TENSOR_TYPE = {"elem_type": 0, "shape": 1}
SEQUENCE_TYPE = {"elem_type": 0}
MAP_TYPE = {"key_type": 0, "value_type": 1}
SHAPE = {"dims": 0}
DIMENSION = {"value": 0}
DIMENSION_VALUE = {"kind": 0, "value": 1, "name": 2}
OPSET = {"domain": 0, "version": 1}
ENTRY = {"key": 0, "value": 1}

TENSOR_KIND, SEQUENCE_KIND, MAP_KIND = 1, 2, 3
"""The kinds of value that a TypeInfo holds, by their numbers."""

DIM_VALUE, DIM_PARAM = 1, 2
"""The kinds of dimension: a number or a name; 0 is unknown."""

FUSED = 1
"""The type of a node that an execution provider compiled."""

_MAX_DEPTH = 32
"""Graphs within graphs, and types within types."""


def is_ort(data: bytes) -> bool:
    """Whether a file with these first bytes is one of ONNX Runtime."""
    return data[4:8] == IDENTIFIER


def parse_ort(data: bytes, where: str) -> ModelProto:
    """The model in a file.  Nodes are in the file's order, in which a node may stand before one that it reads.

    Raises FormatError, naming ``where``.
    """
    from onnx import ModelProto

    try:
        model = FlatBuffer(data).root().table(SESSION["model"])
        if model is None:
            raise FormatError("it holds no model; it is truncated or damaged")
        proto = ModelProto()
        _fill_model(proto, model)
    except FormatError as error:
        raise FormatError(f"{where}: not a readable file of ONNX Runtime: {error}") from None
    except (ValueError, TypeError, UnicodeError) as error:  # protobuf, of a number or text out of range
        raise FormatError(f"{where}: not a readable file of ONNX Runtime: it is damaged ({error})") from None
    return proto


def _fill_model(proto: ModelProto, model: FlatTable) -> None:
    graph = model.table(MODEL["graph"])
    if graph is None:
        raise FormatError("its model has no graph; it is truncated or damaged")
    proto.ir_version = model.get(MODEL["ir_version"], "i64")
    proto.model_version = model.get(MODEL["model_version"], "i64")
    for field in ("producer_name", "producer_version", "domain", "doc_string"):
        setattr(proto, field, model.text(MODEL[field]))
    for opset in model.tables(MODEL["opset_import"]):
        version = opset.get(OPSET["version"], "i64")
        proto.opset_import.add(domain=opset.text(OPSET["domain"]), version=version)
    for entry in model.tables(MODEL["metadata"]):
        proto.metadata_props.add(key=entry.text(ENTRY["key"]), value=entry.text(ENTRY["value"]))
    _fill_graph(proto.graph, graph, 0)


def _fill_graph(proto: GraphProto, graph: FlatTable, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise FormatError(f"sub-graphs are nested more than {_MAX_DEPTH} deep; it is damaged")
    proto.name = "graph"  # the files keep no names of graphs, and ONNX demands one
    for tensor in graph.tables(GRAPH["initializers"]):
        _fill_tensor(proto.initializer.add(), tensor)
    for sparse in graph.tables(GRAPH["sparse_initializers"]):
        new = proto.sparse_initializer.add(dims=sparse.ints(SPARSE_TENSOR["dims"], "i64"))
        for part, into in (("values", new.values), ("indices", new.indices)):
            held = sparse.table(SPARSE_TENSOR[part])
            if held is None:
                raise FormatError(f"a sparse tensor has no {part}; it is damaged")
            _fill_tensor(into, held)
    for node in graph.tables(GRAPH["nodes"]):
        _fill_node(proto.node.add(), node, depth)
    types: dict[str, FlatTable | None] = {}
    for info in graph.tables(GRAPH["node_args"]):
        types[info.text(VALUE_INFO["name"])] = info.table(VALUE_INFO["type"])
    inputs, outputs = graph.texts(GRAPH["inputs"]), graph.texts(GRAPH["outputs"])
    for names, ports in ((inputs, proto.input), (outputs, proto.output)):
        for name in names:
            _fill_type(ports.add(name=name).type, types.get(name), 0)
    ports_of_graph = {"", *inputs, *outputs}
    for name, type in types.items():
        if name not in ports_of_graph and type is not None:
            _fill_type(proto.value_info.add(name=name).type, type, 0)


def _fill_node(proto: NodeProto, node: FlatTable, depth: int) -> None:
    name, op_type = node.text(NODE["name"]), node.text(NODE["op_type"])
    if node.get(NODE["type"], "i32") == FUSED:
        remedy = "export it again for the processor, without execution providers that compile parts"
        raise FormatError(f"the node '{name or op_type}' is a part compiled for another device; {remedy}")
    proto.name, proto.op_type, proto.domain = name, op_type, node.text(NODE["domain"])
    proto.input.extend(node.texts(NODE["inputs"]))
    proto.output.extend(node.texts(NODE["outputs"]))
    for attribute in node.tables(NODE["attributes"]):
        _fill_attribute(proto.attribute.add(), attribute, depth)


def _fill_attribute(proto: AttributeProto, attribute: FlatTable, depth: int) -> None:
    from onnx import AttributeProto

    proto.name = attribute.text(ATTRIBUTE["name"])
    type = attribute.get(ATTRIBUTE["type"], "i32")
    if type not in AttributeProto.AttributeType.values():
        raise FormatError(f"the attribute '{proto.name}' is of type {type}, which does not exist; it is damaged")
    proto.type = type
    match type:
        case AttributeProto.FLOAT:
            proto.f = attribute.get(ATTRIBUTE["f"], "f32", 0.0)
        case AttributeProto.INT:
            proto.i = attribute.get(ATTRIBUTE["i"], "i64")
        case AttributeProto.STRING:
            proto.s = attribute.vector(ATTRIBUTE["s"], "u8").tobytes()
        case AttributeProto.TENSOR:
            _fill_tensor(proto.t, _held(attribute, "t", proto.name))
        case AttributeProto.GRAPH:
            _fill_graph(proto.g, _held(attribute, "g", proto.name), depth + 1)
        case AttributeProto.FLOATS:
            proto.floats.extend(attribute.vector(ATTRIBUTE["floats"], "f32").tolist())
        case AttributeProto.INTS:
            proto.ints.extend(attribute.ints(ATTRIBUTE["ints"], "i64"))
        case AttributeProto.STRINGS:
            proto.strings.extend(attribute.byte_strings(ATTRIBUTE["strings"]))
        case AttributeProto.TENSORS:
            for tensor in attribute.tables(ATTRIBUTE["tensors"]):
                _fill_tensor(proto.tensors.add(), tensor)
        case AttributeProto.GRAPHS:
            for graph in attribute.tables(ATTRIBUTE["graphs"]):
                _fill_graph(proto.graphs.add(), graph, depth + 1)
        case _:
            raise FormatError(f"the attribute '{proto.name}' is of a type that these files cannot hold; it is damaged")


def _held(attribute: FlatTable, field: str, name: str) -> FlatTable:
    table = attribute.table(ATTRIBUTE[field])
    if table is None:
        raise FormatError(f"the attribute '{name}' has no value; it is damaged")
    return table


def _fill_tensor(proto: TensorProto, tensor: FlatTable) -> None:
    proto.name = tensor.text(TENSOR["name"])
    proto.dims.extend(tensor.ints(TENSOR["dims"], "i64"))
    proto.data_type = tensor.get(TENSOR["data_type"], "i32")
    if tensor.get(TENSOR["external_offset"], "i64", -1) >= 0:
        what = "lies in another file, as in a checkpoint of training"
        raise FormatError(f"the data of the tensor '{proto.name}' {what}; export the model for inference")
    if proto.data_type == proto.STRING:
        proto.string_data.extend(tensor.byte_strings(TENSOR["string_data"]))
    else:
        proto.raw_data = tensor.vector(TENSOR["raw_data"], "u8").tobytes()


def _fill_type(proto: TypeProto, type: FlatTable | None, depth: int) -> None:
    """The type of a value; nothing where the file does not state it."""
    if type is None:
        return
    if depth > _MAX_DEPTH:
        raise FormatError(f"types are nested more than {_MAX_DEPTH} deep; it is damaged")
    value, kind = type.table(TYPE_INFO["value"]), type.get(TYPE_INFO["value_type"], "u8")
    if value is None:
        return
    if kind == TENSOR_KIND:
        _fill_tensor_type(proto.tensor_type, value)
    elif kind == SEQUENCE_KIND:
        proto.sequence_type.SetInParent()
        _fill_type(proto.sequence_type.elem_type, value.table(SEQUENCE_TYPE["elem_type"]), depth + 1)
    elif kind == MAP_KIND:
        proto.map_type.key_type = value.get(MAP_TYPE["key_type"], "i32")
        _fill_type(proto.map_type.value_type, value.table(MAP_TYPE["value_type"]), depth + 1)


def _fill_tensor_type(proto: TypeProto.Tensor, type: FlatTable) -> None:
    proto.elem_type = type.get(TENSOR_TYPE["elem_type"], "i32")
    shape = type.table(TENSOR_TYPE["shape"])
    if shape is None:
        return
    proto.shape.SetInParent()
    for dimension in shape.tables(SHAPE["dims"]):
        value, new = dimension.table(DIMENSION["value"]), proto.shape.dim.add()
        kind = DIM_PARAM if value is None else value.get(DIMENSION_VALUE["kind"], "i8")
        if value is not None and kind == DIM_VALUE:
            new.dim_value = value.get(DIMENSION_VALUE["value"], "i64")
        elif value is not None and kind == DIM_PARAM:
            new.dim_param = value.text(DIMENSION_VALUE["name"])
