"""MACE models: a graph (.pb) and its weights (.data), as its converter writes them for the CPU.

Three layouts of the messages are in use: networks of 2018, bare networks since, and since 1.1 several networks in
one.  The options of operators count axes as NHWC, so images are NHWC here and are transposed around convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder, required_input
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.mace.node import MaceNode
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import DamagedError, Message, Schema, raw_fields
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, I32, TensorType


def _schema(net: dict[str, int], operator: dict[str, int]) -> Schema:
    """The messages with these numbers of the fields that have moved."""
    return Schema(
        {
            "Argument": {
                "name": (1, "string"),
                "f": (2, "float"),
                "i": (3, "int64"),
                "s": (4, "bytes"),
                "floats": (5, "*float"),
                "ints": (6, "*int64"),
            },
            "Shape": {"dims": (1, "*int64")},
            "Tensor": {
                "dims": (1, "*int64"),
                "data_type": (2, "int32", 1),
                "float_data": (3, "*float"),
                "int32_data": (4, "*int32"),
                "name": (5, "string"),
                "offset": (6, "int64"),
                "data_size": (7, "int64"),
                "scale": (8, "float"),
                "zero_point": (9, "int32"),
                "quantized": (12, "bool"),
            },
            "Info": {
                "name": (1, "string"),
                "dims": (3, "*int32"),
                "data_type": (5, "int32", 1),
                "data_format": (6, "int32", 1),
            },
            "Operator": {
                "input": (1, "*string"),
                "output": (2, "*string"),
                "name": (3, "string"),
                "type": (4, "string"),
                "arg": (operator["arg"], "*Argument"),
                "output_shape": (operator["output_shape"], "*Shape"),
            },
            "Net": {
                "op": (net["op"], "*Operator"),
                "arg": (net["arg"], "*Argument"),
                "tensors": (net["tensors"], "*Tensor"),
                "input_info": (100, "*Info"),
                "output_info": (101, "*Info"),
            },
            "Multi": {"net_def": (3, "*Net")},
        }
    )


NEW = _schema({"op": 1, "arg": 2, "tensors": 3}, {"arg": 6, "output_shape": 7})
OLD = _schema({"op": 2, "arg": 4, "tensors": 5}, {"arg": 5, "output_shape": 6})
_TYPES = {1: "<f4", 2: "<u1", 3: "<f2", 4: "<i4", 5: "<f2", 7: "<i2"}
_BFLOAT = 6


def recognise(file: ModelFile) -> bool:
    """A network whose operators carry MACE's argument "T" or its data formats; of data, those beside one."""
    return _is_graph(file.data) or (file.suffix == ".data" and _graph_of(file) is not None)


def _is_graph(data: bytes) -> bool:
    return (b"data_format" in data or b"\x0a\x01T" in data) and _read(data, "") is not None


def _graph_of(file: ModelFile) -> ModelFile | None:
    return file.find_partner("the graph", "{stem}.pb", "*.pb", fits=lambda other: _is_graph(other.data))


def _read(data: bytes, where: str) -> list[Message] | None:
    """The networks, by whichever layout of the messages fits."""
    try:
        if not any(number == 100 and wire == 2 for number, wire, _ in raw_fields(memoryview(data))):
            return None
    except DamagedError:  # no message
        return None
    for schema, type in ((NEW, "Multi"), (NEW, "Net"), (OLD, "Net")):
        try:
            model = schema.parse(type, data, where)
        except FormatError:
            continue
        nets = list(model.net_def) if type == "Multi" else [model]
        if nets and all(net.op and all(op.type.isidentifier() and op.output for op in net.op) for net in nets):
            return nets
    return None


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a model given by either of its files.  See ``importers.load`` for errors."""
    graph, data = file, file
    if _is_graph(file.data):
        data_file = file.find_partner(
            "the weights", "{stem}.data", "*.data", fits=lambda other: not _is_graph(other.data)
        )
    else:
        graph, data_file = _graph_of(file) or file, data
    nets = _read(graph.data, graph.name)
    if nets is None:
        raise FormatError(f"{graph.name}: not a readable model of MACE; it is truncated or damaged")
    builder = GraphBuilder(graph, graph.stem, shapes, inputs, outputs, len(data_file.data) if data_file else 1 << 22)
    return _MaceModel(
        builder, nets, data_file.data if data_file is not None and not data_file.is_folder else None
    ).load()


class _MaceModel:
    """The loop over the operators of all networks."""

    def __init__(self, builder: GraphBuilder, nets: Sequence[Message], data: bytes | None) -> None:
        self.builder = builder
        self.nets = nets
        self.data = data

    def load(self) -> Graph:
        read = {name for part in self.nets for op in part.op for name in op.input}
        outputs = {name for part in self.nets for op in part.op for name in op.output}
        results: list[str] = []
        base = 0
        for part in self.nets:
            end = base
            for info in part.input_info:
                if info.name not in outputs and info.name not in self.builder:
                    self.input(info)
            for tensor in part.tensors:
                with self.builder.layer(tensor.name, "tensor", tensor.name):
                    if tensor.name in read:
                        self.builder[tensor.name] = self.constant(tensor, base)
                end = max(end, base + tensor.offset + tensor.data_size * 4) if len(self.nets) > 1 else end
            for op in part.op:
                self.operator(op, {a.name: a for a in part.arg})
            results = [info.name for info in part.output_info] or [part.op[-1].output[0]]
            base = end
        return self.builder.finish(results)

    def input(self, info: Message) -> None:
        """Images given as NCHW are transposed when they enter."""
        dims = tuple(d if d > 0 else f"{info.name}_{axis}" for axis, d in enumerate(info.dims))
        kind = I32 if info.data_type == 4 else F32
        value = required_input(self.builder, info.name, TensorType(kind, dims))
        if info.data_format == 2 and value.type.rank == 4:
            with self.builder.layer(info.name, "input"):
                self.builder.scope[info.name] = self.builder.add("Transpose", value, perm=(0, 2, 3, 1))

    def constant(self, tensor: Message, base: int) -> Value:
        dims = tuple(tensor.dims)
        count = math.prod(dims)
        if any(d < 0 for d in dims) or math.prod(d or 1 for d in dims) >= 2**31:
            raise FormatError(f"a tensor of shape {list(dims)} is impossible; the file is damaged")
        if len(tensor.float_data) or len(tensor.int32_data):
            numbers = np.asarray(tensor.float_data) if len(tensor.float_data) else np.array(tensor.int32_data, np.int32)
            if numbers.size != count:
                raise FormatError(f"{numbers.size} numbers for a tensor of shape {list(dims)}; the file is damaged")
            return self.builder.constant(numbers.reshape(dims), "data")
        if self.data is None:
            self.builder.graph.incomplete = MISSING_WEIGHTS
            return self.builder.placeholder(dims)
        return self.builder.constant(self.stored(tensor, base + tensor.offset, count).reshape(dims), "data")

    def stored(self, tensor: Message, at: int, count: int) -> Array:
        """Weights of the .data file; fp16 and quantised ones become f32.  Raises FormatError."""
        assert self.data is not None
        kind = "<u2" if tensor.data_type == _BFLOAT else _TYPES.get(tensor.data_type)
        if kind is None:
            raise FormatError(f"elements of type {tensor.data_type} are not supported")
        dtype = np.dtype(kind)
        if at < 0 or at + count * dtype.itemsize > len(self.data):
            raise FormatError("a tensor lies outside the .data file; it is truncated, or belongs to another graph")
        data = np.frombuffer(self.data, dtype, count, at)
        if tensor.data_type == _BFLOAT:
            return np.asarray((data.astype(np.uint32) << 16).view(np.float32))
        if tensor.quantized or (dtype.itemsize < 4 and dtype.kind != "f"):
            return np.asarray((data.astype(np.float32) - tensor.zero_point) * (tensor.scale or 1.0), np.float32)
        return data.astype(np.float32) if dtype.kind == "f" else data

    def operator(self, op: Message, defaults: dict[str, Message]) -> None:
        with self.builder.layer(op.name or op.output[0], op.type, *op.output):
            from tenon.formats.importers.mace.ops import OPERATORS

            context = MaceNode(self.builder, op, defaults)
            if op.type not in OPERATORS:
                raise unknown(op.type, OPERATORS)
            if context.inputs_known:
                outputs = OPERATORS[op.type](context)
                for name, value in zip(op.output, [outputs] if isinstance(outputs, Value) else outputs, strict=False):
                    self.builder[name] = value
