"""From ONNX nodes to operators: the part of the importer that walks a graph."""

from __future__ import annotations

import difflib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon import ops
from tenon.errors import FormatError
from tenon.frontends.onnx_tensors import TensorError, array
from tenon.frontends.onnx_upgrade import Layer, RefusedError, upgrade
from tenon.frontends.source import ModelFile
from tenon.ir.graph import Array, Graph, Origin, Value
from tenon.ir.types import TensorType
from tenon.ir.writer import HOSTILE, LARGEST_TENSOR, Writer, is_known

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
    from onnx.defs import OpSchema

    from tenon.ops.base import Operator

Scope = ChainMap[str, Value]

REMEDIES = {
    "Loop": "unroll the loop when exporting, or cut the model around it with --input and --output",
    "Scan": "unroll the scan when exporting, or cut the model around it with --input and --output",
    "NonMaxSuppression": "cut the model before it with --output and do it in the application",
    "NonZero": "its result has no fixed shape; cut the model before it with --output",
    "Unique": "its result has no fixed shape; cut the model before it with --output",
    "Compress": "its result has no fixed shape; cut the model before it with --output",
    "RandomNormal": "random numbers are not supported; make them an input",
    "RandomUniform": "random numbers are not supported; make them an input",
}
_STANDARD = ("", "ai.onnx")


class Importer:
    """Imports nodes of one model into one graph.  ``types`` are those of the graph's inputs."""

    def __init__(self, model: ModelProto, file: ModelFile, opset: int, types: Mapping[str, TensorType]) -> None:
        self.proto, self.file, self.opset = model.graph, file, opset
        self.functions = {(f.domain, f.name) for f in model.functions}
        self.graph = Graph(self.proto.name or file.stem, file.name)
        self.writer = Writer(self.graph, len(file.data))
        self.scope: Scope = ChainMap({})
        for name, type in types.items():
            self.scope[name] = self.graph.add_input(self.writer.names.fresh(name), type)

    # ----------------------------------------------------------------------------------------- graphs
    def run(self, nodes: Sequence[int], outputs: Sequence[str]) -> Graph:
        """The graph of some of the model's nodes.  Raises ModelError listing every problem."""
        self.walk(self.proto, nodes, outputs, self.scope)
        missing = [name for name in outputs if name not in self.scope]
        if missing and not self.writer.problems:
            raise FormatError(f"{self.file.name}: nothing makes the output(s) {', '.join(map(repr, missing))}")
        self.writer.finish()
        for name in outputs:
            self.graph.outputs.append(self.returned(name, self.scope[name]))
        self.graph.prune()
        return self.graph

    def returned(self, name: str, value: Value) -> Value:
        """``value`` as the output ``name``: a branch that was inlined, or a clash, may have named it otherwise."""
        if value.name == name:
            return value
        if value in self.graph.inputs or self.graph.is_output(value):
            (value,) = self.writer.add(operator("Identity", {}), [value], [name], Origin(self.file.name, name))
        value.name = name
        return value

    def type_of(self, nodes: Sequence[int], name: str) -> TensorType | None:
        """The type of a tensor, if it can be told from the nodes before it."""
        self.walk(self.proto, nodes, [name], self.scope)
        value = self.scope.get(name)
        return value.type if value is not None and is_known(value) else None

    def walk(self, graph: GraphProto, nodes: Sequence[int], outputs: Sequence[str], scope: Scope) -> None:
        """Import initializers and nodes into ``scope``."""
        from tenon.frontends.onnx import reads

        chosen = [graph.node[i] for i in nodes]
        read = {*outputs, *(name for node in chosen for name in reads(node))}
        for sparse in graph.sparse_initializer:
            self.writer.report(f"initializer '{sparse.values.name}'", "sparse tensors are not supported")
        for tensor in graph.initializer:
            if tensor.name in read and tensor.name not in scope.maps[0]:
                try:
                    data = array(tensor, self.file.folder)
                except TensorError as error:
                    self.writer.report(f"initializer '{tensor.name}'", str(error))
                    scope[tensor.name] = Value(tensor.name)
                else:
                    scope[tensor.name] = self.writer.constant(tensor.name, data)
        for node in chosen:
            origin = Origin(self.file.name, node.name or next(iter(node.output), ""), node.op_type)
            try:
                made = self.node(node, origin, scope, read)
            except RefusedError as refusal:
                self.writer.report(origin, refusal.what, refusal.remedy)
                made = []
            except TensorError as error:
                self.writer.report(origin, str(error))
                made = []
            except HOSTILE as error:
                self.writer.report(origin, f"its attributes or inputs make no sense: {error!r}")
                made = []
            for i, name in enumerate(node.output):
                if name:
                    scope[name] = made[i] if i < len(made) else Value(name)

    # ------------------------------------------------------------------------------------------ nodes
    def node(self, node: NodeProto, origin: Origin, scope: Scope, read: set[str]) -> Sequence[Value]:
        """The outputs of one node of the file.  Raises RefusedError and TensorError."""
        if (node.domain, node.op_type) in self.functions:
            raise RefusedError("functions defined in the model are not supported", "inline them with onnx.inliner")
        if node.domain not in _STANDARD:
            raise RefusedError(f"operators of the domain '{node.domain}' are not supported")
        undefined = [name for name in node.input if name and name not in scope]
        if undefined:
            raise RefusedError(f"reads {', '.join(map(repr, undefined))}, which no node before it makes")
        inputs = [scope[name] if name else None for name in node.input]
        if node.op_type == "If":
            return self.branch(node, origin, inputs, scope)
        attributes = self.attributes(node)
        last = max((i for i, name in enumerate(node.output) if name in read), default=0)
        names = [name or f"{origin.layer}_{i}" for i, name in enumerate(node.output)][: last + 1]
        layer = Layer(origin, node.op_type, self.opset, inputs, names, len(node.output), attributes, self)
        if node.op_type == "Constant":
            return [self.writer.constant(names[0], _constant(attributes))]
        upgrade(layer)
        while layer.inputs and layer.inputs[-1] is None:
            layer.inputs.pop()
        if layer.type == "ConstantOfShape" and layer.input(0).data is not None:
            return [self.writer.constant(names[0], _filled(layer))]
        return self.writer.add(operator(layer.type, layer.attributes), layer.inputs, layer.outputs, origin)

    def branch(self, node: NodeProto, origin: Origin, inputs: Sequence[Value | None], scope: Scope) -> list[Value]:
        """The outputs of an If whose condition is known: those of the branch it takes."""
        condition = inputs[0] if inputs else None
        if condition is None or condition.data is None or condition.data.size != 1:
            raise RefusedError(
                "its condition is computed at run time",
                "bind the shapes it depends on with --shape, or cut the model with --input and --output",
            )
        wanted = "then_branch" if condition.data.item() else "else_branch"
        found = [a.g for a in node.attribute if a.name == wanted and a.HasField("g")]
        if not found:
            raise RefusedError(f"it has no {wanted}")
        inner, names = scope.new_child(), [v.name for v in found[0].output]
        self.walk(found[0], range(len(found[0].node)), names, inner)
        missing = [name for name in names if name not in inner]
        if missing or len(names) < len(node.output):
            raise RefusedError(f"its {wanted} does not make {', '.join(map(repr, missing)) or 'all outputs'}")
        return [inner[name] for name in names]

    def attributes(self, node: NodeProto) -> dict[str, Any]:
        """The node's attributes, checked against its schema, with the defaults of the model's opset."""
        schema = _schema(node.op_type, self.opset)
        values: dict[str, Any] = {}
        for attribute in node.attribute:
            known = schema.attributes.get(attribute.name) if schema else None
            if known is not None and attribute.type not in (0, known.type.value):  # type: ignore[attr-defined]
                raise RefusedError(f"attribute '{attribute.name}' is of the wrong kind; the file is damaged")
            values[attribute.name] = self.attribute(attribute)
        return {**_defaults(schema), **values}

    def attribute(self, attribute: AttributeProto) -> Any:
        if attribute.ref_attr_name:
            raise RefusedError(f"attribute '{attribute.name}' refers to a function's attribute")
        kind = _kind(attribute)
        if kind == "t":
            return array(attribute.t, self.file.folder)
        if kind in ("f", "i"):
            return getattr(attribute, kind)
        if kind == "s":
            return attribute.s.decode()
        if kind in ("floats", "ints"):
            return list(getattr(attribute, kind))
        if kind == "strings":
            return [s.decode() for s in attribute.strings]
        raise RefusedError(f"attribute '{attribute.name}' is of a kind that Tenon does not read")

    # ---------------------------------------------------------------------------- what upgrades make
    def emit(self, layer: Layer, type: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        name = f"{layer.outputs[0]}_{type.lower()}"
        return self.writer.add(operator(type, attributes), inputs, [name], layer.origin)[0]

    def constant(self, layer: Layer, stem: str, data: Array) -> Value:
        return self.writer.constant(f"{layer.outputs[0]}_{stem}", data)


_KINDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}


def _kind(attribute: AttributeProto) -> str:
    """Which field holds the value; files before 2017 do not say, so the first that is there."""
    if attribute.type:
        return _KINDS.get(attribute.type, "")
    for kind in _KINDS.values():
        if kind.endswith("s") and len(kind) > 1:
            if len(getattr(attribute, kind)):
                return kind
        elif attribute.HasField(kind):
            return kind
    return ""


@lru_cache(maxsize=1024)
def _schema(type: str, opset: int) -> OpSchema | None:
    from onnx.defs import SchemaError, get_schema

    try:
        return get_schema(type, opset, "")
    except SchemaError:
        return None


def _defaults(schema: OpSchema | None) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    found: dict[str, Any] = {}
    for name, attribute in schema.attributes.items() if schema else ():
        if attribute.default_value.type:
            value = get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def operator(type: str, attributes: Mapping[str, Any]) -> Operator:
    """The operator of that name with these attributes.  Raises RefusedError."""
    found = ops.lookup(type)
    if found is None:
        near = difflib.get_close_matches(type, ops.registry(), 1, 0.75)
        nearest = f"the nearest supported operator is {near[0]}" if near else ""
        raise RefusedError("this operator is not supported", REMEDIES.get(type, nearest))
    known = {f.name: f for f in fields(found)}
    newest = _defaults(_schema(type, 1 << 30))
    foreign = [k for k, v in attributes.items() if k not in known and newest.get(k) != v]
    if foreign:
        shown = ", ".join(f"{k}={attributes[k]!r}" for k in foreign)
        raise RefusedError(f"{type} with {shown[:200]} is not supported")
    absent = [k for k, f in known.items() if f.default is f.default_factory is MISSING and k not in attributes]
    if absent:
        raise RefusedError(f"the attribute {', '.join(absent)} is missing")
    return found(**{k: _frozen(v, str(known[k].type)) for k, v in attributes.items() if k in known})


def _frozen(value: Any, annotation: str) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return float(value) if annotation == "float" else value


def _constant(attributes: Mapping[str, Any]) -> Array:
    """The data of a Constant node, whichever of its attributes holds it.  Raises RefusedError."""
    for name, value in attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
    raise RefusedError("its value is not a tensor of numbers", "strings and sparse tensors are not supported")


def _filled(layer: Layer) -> Array:
    """What ConstantOfShape gives, without spending memory on it.  Raises RefusedError."""
    shape = layer.input(0).data
    value = layer.attributes.get("value")
    value = np.zeros(1, np.float32) if value is None else np.asarray(value)
    if shape is None or shape.ndim != 1 or shape.dtype.kind != "i" or value.size != 1:
        raise RefusedError("its shape or its value is malformed")
    dims = tuple(int(d) for d in shape)
    count = 1
    for d in dims:
        count *= d
    if any(d < 0 for d in dims) or count > LARGEST_TENSOR:
        raise RefusedError(f"a tensor of shape {list(dims)} is too large or impossible")
    return np.broadcast_to(value.reshape(()), dims)
