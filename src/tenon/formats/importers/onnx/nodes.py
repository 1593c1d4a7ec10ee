"""From ONNX nodes to operators: the part of the importer that visits the nodes of a graph."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import FormatError, InputError, ShapeError, UnknownError
from tenon.formats.decompositions.onnx.compose import COMPOSED, SIZED
from tenon.formats.decompositions.onnx.contrib import DOMAINS, SAME
from tenon.formats.decompositions.onnx.contrib import SIZED as CONTRIB_SIZED
from tenon.formats.decompositions.onnx.node import Entry, OnnxNode, StringTensor, TensorSequence
from tenon.formats.decompositions.onnx.same_padding import crop_between_windows
from tenon.formats.decompositions.strings.strings import MAKES_STRINGS, STRINGS
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, check_outputs
from tenon.formats.graph_builder.errors import RefusedError, UntypedError, unknown
from tenon.formats.importers.onnx import functions
from tenon.formats.importers.onnx.attributes import constant_data, defaults, filled, kind_of
from tenon.formats.importers.onnx.control import CONTROL
from tenon.formats.importers.onnx.functions import schema as _schema
from tenon.formats.importers.onnx.gradient import gradient
from tenon.formats.importers.onnx.node_context import ImportMark, Scope, SubgraphNode, in_order, reads
from tenon.formats.importers.onnx.plane_norms import without_reshapes
from tenon.formats.importers.onnx.sized_recurrent import RECURRENT, sized_recurrent
from tenon.formats.importers.onnx.upgrade import upgrade
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.onnx_tensors import STRING, TensorError, array, is_missing, missing
from tenon.network import ops
from tenon.network.graph.bind import remedy
from tenon.network.graph.fixed import data_for
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.sized_node import FIX
from tenon.network.graph.strings import encoded
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import HOSTILE, Writer, is_known, reason

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

    from tenon.network.ops.base import Operator


REMEDIES = {
    "ZipMap": "its maps are made of the scores and the classes: cut the model before it with --to",
}
Results = Sequence[Value | None] | None
"""The outputs of a decomposed operator; None if it needs no decomposition."""
_STANDARD = ("", "ai.onnx")
_CONTROL = {**CONTROL, "Gradient": gradient}
_BY_EXTENTS = ("Gradient", "SplitToSequence")
"""Operators that make nodes for each place along an axis."""


class OnnxImporter:
    """Imports nodes of one model into one graph.  ``types`` are those of the graph's inputs."""

    def __init__(self, model: ModelProto, file: ModelFile, opset: int, types: Mapping[str, TensorType]) -> None:
        self.proto = model.graph
        self.file = file
        self.opset = opset
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.bindings: Mapping[str, AttributeProto] = {}
        self.empty: set[Value] = set()  # results of operators that find nothing, whatever the data is
        self.asked = False  # whether an operator that needs shapes was reported
        self.failed: set[Value] = set()  # values that are missing because of a problem that is reported already
        self.graph = Graph(self.proto.name or file.stem, file.name)
        self.graph.limits = dict(file.limits)
        self.writer = Writer(self.graph, len(file.data))
        self.writer.sizes.counting = True
        self.writer.sizes.use(operator("Identity", {}))
        self.scope: Scope = ChainMap({})
        declared = {v.name: v.type.WhichOneof("value") for v in self.proto.input}
        infos = (*self.proto.value_info, *self.proto.output, *self.proto.input)
        texts = {v.name for v in infos if v.type.tensor_type.elem_type == STRING}
        for name, type in types.items():
            value = self.port(name, type, name in texts)
            whole = name.rpartition("[")[0]
            if name not in declared and whole in declared:  # an element of a sequence
                before = self.scope.get(whole)
                self.scope[whole] = TensorSequence(
                    (*(before.values if isinstance(before, TensorSequence) else ()), value)
                )
            else:
                self.scope[name] = StringTensor(value) if name in texts else value
                self.graph.strings |= {value.name} & texts
        for v in self.proto.input:
            if v.name not in self.scope and v.type.WhichOneof("value") not in ("tensor_type", None):
                self.scope[v.name] = TensorSequence() if v.type.WhichOneof("value") == "sequence_type" else None

    def port(self, name: str, type: TensorType, text: bool) -> Value:
        """A graph input, or the constant that the user fixed it to.  Raises InputError and ShapeError."""
        given = self.file.values.get(name)
        if given is None:
            return self.writer.sizes.open(self.graph.add_input(self.writer.names.fresh(name), type))
        if text:
            raise InputError(f"--value {name}: it holds strings; only numbers can be fixed")
        self.graph.fixed.add(name)
        return self.writer.constant(name, data_for(name, given, type))

    # ----------------------------------------------------------------------------------------- graphs
    def run(self, nodes: Sequence[int], outputs: Sequence[str]) -> Graph:
        """The graph of some of the model's nodes.  Raises ModelError listing every problem."""
        self.walk(self.proto, nodes, outputs, self.scope)
        missing = [name for name in outputs if name not in self.scope]
        if missing and not self.writer.problems:
            raise FormatError(f"{self.file.name}: no node computes the output(s) {', '.join(map(repr, missing))}")
        if self.writer.problems:  # all problems are reported together
            self.ask_for_shapes()
        self.writer.finish()
        for name in outputs:
            entry = self.scope[name]
            parts = (
                {f"{name}[{i}]": v for i, v in enumerate(entry.values)}
                if isinstance(entry, TensorSequence)
                else {name: entry}
            )
            for part, value in parts.items():
                if isinstance(value, StringTensor):
                    self.graph.strings.add(part)
                    value = value.bytes
                if value is not None:
                    self.check_extents(part, value)
                    self.graph.outputs.append(self.returned(part, value))
        self.refuse_untyped_readers()
        self.graph.sizes |= self.writer.sizes.ranges
        self.writer.sizes.deliver(Origin(self.file.name))
        self.graph.prune()
        self.writer.finish()
        dims = [d for v in self.proto.output for d in v.type.tensor_type.shape.dim]
        stated = any(d.HasField("dim_value") and d.dim_value == 0 for d in dims)  # which the file says are empty
        if not stated and not self.empty.intersection(self.graph.outputs):
            check_outputs(self.graph)
        return self.graph

    def ask_for_shapes(self) -> None:
        """Report inputs without a shape, unless an operator was refused because of it, which says so."""
        if self.asked:
            return
        for v in self.graph.inputs:
            if not v.type.bound:
                hint = remedy(v.name, v.type, v.name in self.graph.strings)
                self.writer.report(f"input '{v.name}'", "compiling needs its shape", hint, shape=True, inputs=[v])

    def refuse_untyped_readers(self) -> None:
        """Report the operators that read a tensor whose extent a run decides and whose type is not known."""
        for value in self.writer.sizes.extents:
            for reader in () if value.typed else value.uses:
                unbound = "; ".join(remedy(v.name, v.type) for v in self.graph.inputs if not v.type.bound)
                what = f"reads '{value.name}', whose extent depends on data, and needs its shape"
                self.writer.report(reader.origin, what, unbound, shape=True)

    def mark(self) -> ImportMark:
        """The present state, for ``restore``."""
        return ImportMark(self.writer.mark(), self.asked)

    def restore(self, mark: ImportMark) -> None:
        """Take back everything that was imported since then."""
        self.writer.restore(mark.writer)
        self.asked = mark.asked

    def failed_since(self, mark: ImportMark) -> bool:
        """Whether a problem was reported since then."""
        return len(self.writer.problems) > mark.writer.problems

    def state_extent(self, value: Value, axis: int, extent: Value) -> None:
        """Let ``extent``, an i64, say how many entries of a tensor along an axis are valid."""
        self.writer.sizes.count(value, axis, extent)

    def check_extents(self, name: str, value: Value) -> None:
        """Report an output that has no elements although the file says that it has."""
        stated = [d.dim_value for v in self.proto.output if v.name == name for d in v.type.tensor_type.shape.dim]
        if not stated or min(stated) < 1 or not is_known(value) or value.type.size:
            return
        if all(v.type.size for v in self.graph.inputs if v.type.bound):
            self.writer.report(
                f"output '{name}'",
                f"it is empty, {value.type}; the file says {stated}",
                "bind the shapes that the model is meant for with --shape",
                shape=True,
            )

    def returned(self, name: str, value: Value) -> Value:
        """``value`` as the output ``name``: a branch that was inlined, or a clash, may have named it otherwise."""
        if value.name == name:
            return value
        if value in self.graph.inputs or self.graph.is_output(value):
            (value,) = self.writer.add(operator("Identity", {}), [value], [name], Origin(self.file.name, name))
        value.name = name
        return value

    def type_of(self, nodes: Sequence[int], name: str) -> TensorType | None:
        """The type of a tensor, if it follows from the nodes before it."""
        self.walk(self.proto, nodes, [name], self.scope)
        value = self.scope.get(name)
        if isinstance(value, StringTensor):
            raise InputError(
                f"{self.file.name}: cannot be cut at '{name}': it holds strings, which the file does not say"
            )
        return value.type if isinstance(value, Value) and is_known(value) else None

    def overridden(self, graph: GraphProto, name: str, data: Array) -> Array:
        """The data of an initializer, or what the user fixed the input to of which it is the default."""
        given = self.file.values.get(name)
        if given is None or graph is not self.proto or all(v.name != name for v in graph.input):
            return data
        self.graph.fixed.add(name)
        return data_for(name, given, TensorType(DType.of(data.dtype), data.shape))

    def tensor(self, name: str, data: Array) -> Entry:
        """A constant of numbers or of strings."""
        if data.dtype == object:
            return StringTensor(self.writer.constant(name, encoded(data)))
        return self.writer.constant(name, data)

    def walk(self, graph: GraphProto, nodes: Sequence[int], outputs: Sequence[str], scope: Scope) -> None:
        """Import initializers and nodes into ``scope``."""
        chosen = [graph.node[i] for i in nodes]
        read = {*outputs, *(name for node in chosen for name in reads(node))}
        for sparse in graph.sparse_initializer:
            self.writer.report(f"initializer '{sparse.values.name}'", "sparse tensors are not supported")
        for tensor in graph.initializer:
            if tensor.name in read and tensor.name not in scope.maps[0]:
                try:
                    if absent := is_missing(tensor):
                        self.graph.incomplete = MISSING_WEIGHTS
                    data = missing(tensor) if absent else array(tensor, self.file.folder)
                except TensorError as error:
                    self.writer.report(f"initializer '{tensor.name}'", str(error))
                    scope[tensor.name] = Value(tensor.name)
                else:
                    scope[tensor.name] = self.tensor(tensor.name, self.overridden(graph, tensor.name, data))
        if self.writer.sizes.ranges:
            chosen = without_reshapes(chosen, {*outputs}, self.opset, scope)
        self.nodes(chosen, read, scope)

    def nodes(self, chosen: Sequence[NodeProto], read: set[str], scope: Scope) -> None:
        """Import nodes in an order in which they can run; ``read`` are the names that something needs."""
        ordered, circular = in_order(chosen)
        if circular:
            names = ", ".join(f"{node.name or next(iter(node.output), '')} ({node.op_type})" for node in circular[:8])
            raise FormatError(f"{self.file.name}: nodes in a cycle: {names}")
        for node in ordered:
            origin = Origin(self.file.name, node.name or next(iter(node.output), ""), node.op_type)
            before = len(self.writer.problems)
            inputs = [tensor for name in node.input for tensor in _tensors(scope.get(name))]
            outputs: Sequence[Entry] = []
            try:
                outputs = self.node(node, origin, scope, read)
            except UntypedError as error:
                self.untyped(origin, inputs, error)
            except RefusedError as refusal:
                self.writer.report(origin, refusal.what, refusal.remedy, inputs=inputs)
            except ShapeError as error:
                if all(v is None or v.typed for v in inputs):
                    self.writer.report(origin, str(error), shape=True, inputs=inputs)
                else:
                    self.untyped(origin, inputs, UntypedError())
            except TensorError as error:
                self.writer.report(origin, str(error))
            except HOSTILE as error:
                self.writer.report(origin, f"its attributes or inputs are invalid: {reason(error)}", inputs=inputs)
            failed = len(self.writer.problems) > before or not self.failed.isdisjoint(inputs)
            for i, name in enumerate(node.output):
                if name in read and i >= len(outputs) and not failed:
                    self.writer.report(origin, f"has no output {i}, which the file calls '{name}'", inputs=inputs)
                if name:
                    scope[name] = outputs[i] if i < len(outputs) else Value(name)
                    self.failed.update(v for v in _tensors(scope[name]) if v is not None and not v.typed and failed)

    def untyped(self, origin: Origin, inputs: Sequence[Value | None], error: UntypedError) -> None:
        """Report that a node needs shapes, unless it lacks them because of a problem that is reported already."""
        if self.failed.isdisjoint(inputs):
            unbound = [v for v in self.graph.inputs if not v.type.bound]
            self.asked = True
            what = "; ".join(remedy(v.name, v.type, v.name in self.graph.strings) for v in unbound)
            self.writer.report(origin, error.what, what, shape=True, inputs=inputs)

    # ------------------------------------------------------------------------------------------ nodes
    def node(self, node: NodeProto, origin: Origin, scope: Scope, read: set[str]) -> Sequence[Entry]:
        """The outputs of one node of the file.  Raises RefusedError and TensorError."""
        _check_names(node, scope)
        entries = [scope[name] if name else None for name in node.input]
        own = self.functions.get((node.domain, node.op_type))
        if own is not None:
            return self.expand(own, node, origin, entries)
        if node.op_type in _CONTROL:
            if node.op_type in _BY_EXTENTS:
                self.refuse_extents(node.op_type, entries)
            return _CONTROL[node.op_type](SubgraphNode(self, node, origin, entries, scope))
        if node.op_type == "Identity" and not isinstance(entries[0], Value | StringTensor):
            return entries
        if any(isinstance(entry, StringTensor) for entry in entries) or self.makes_strings(node):
            return self.strings(node, origin, entries, read)
        inputs = [entry for entry in entries if not isinstance(entry, TensorSequence | StringTensor)]
        if len(inputs) < len(entries):
            function = functions.body(self.resolved(node), self.opset, entries)
            if function is None:
                raise RefusedError("a sequence where a tensor is needed")
            return self.expand(function, node, origin, entries)
        import_node = self.foreign(node)
        if import_node is not None:
            return self.composed(import_node, self.layer(node, origin, inputs, read)) or ()
        if node.domain not in _STANDARD and node.op_type not in COMPOSED and ops.lookup(node.op_type) is None:
            return self.function(node, origin, inputs)
        layer = self.layer(node, origin, inputs, read)
        if node.op_type == "Constant":
            return [self.tensor(layer.outputs[0], constant_data(layer.attributes))]
        upgrade(layer)
        crop_between_windows(layer)
        while layer.inputs and layer.inputs[-1] is None:
            layer.inputs.pop()
        if layer.type == "ConstantOfShape" and layer.input(0).data is not None:
            return [self.writer.constant(layer.outputs[0], filled(layer))]
        if layer.type in COMPOSED:
            result = self.composed(COMPOSED[layer.type], layer)
            if result is not None:
                return result
        if ops.lookup(layer.type) is None or (layer.type == "SpaceToDepth" and layer.attributes.get("mode") == "CRD"):
            return self.function(node, origin, inputs)
        return self.writer.add(operator(layer.type, layer.attributes), layer.inputs, layer.outputs, origin)

    def foreign(self, node: NodeProto) -> Callable[[OnnxNode], Results] | None:
        """How an operator that ONNX does not define is decomposed; None for those of the standard and for functions.

        Raises RefusedError for an operator of a known domain that is not supported.
        """
        known = DOMAINS.get(node.domain)
        if known is None or (node.op_type not in known and (node.domain in _STANDARD or node.op_type in SAME)):
            return None
        if node.op_type not in known:
            what = f"the operator {node.op_type} of the domain '{node.domain}' is not supported"
            raise RefusedError(what, unknown(node.op_type, [*known, *SAME]).remedy)
        return known[node.op_type]

    def composed(self, import_node: Callable[[OnnxNode], Results], node: OnnxNode) -> Results:
        """The outputs of a decomposed operator.  Raises RefusedError."""
        if node.type in RECURRENT and self.writer.sizes.concern(node.inputs):
            return sized_recurrent(node, import_node)
        if node.type not in SIZED and node.type not in CONTRIB_SIZED:
            self.refuse_extents(node.type, node.inputs)
        try:
            return import_node(node)
        except UnknownError as error:
            raise RefusedError(str(error), self.writer.fixing(error.value)) from None

    def refuse_extents(self, type: str, entries: Sequence[Entry]) -> None:
        """Raises RefusedError for an operand whose extents only a run knows."""
        values = [v for entry in entries for v in _tensors(entry)]
        if any(v in self.writer.sizes.extents for v in values if v is not None):
            raise RefusedError(f"{type} cannot take a tensor whose extents are known only at run time", FIX)

    def layer(self, node: NodeProto, origin: Origin, inputs: list[Value | None], read: set[str]) -> OnnxNode:
        """The node with its inputs, its attributes and names for its outputs up to the last that is read."""
        last = max((i for i, name in enumerate(node.output) if name in read), default=0)
        names = [name or f"{origin.layer}_{i}" for i, name in enumerate(node.output)][: last + 1]
        builder = _NodeBuilder(self, origin, names)
        return OnnxNode(builder, node.op_type, self.opset, inputs, names, len(node.output), self.attributes(node))

    def makes_strings(self, node: NodeProto) -> bool:
        """Whether an operator on numbers may give strings."""
        if node.op_type != "Cast":
            return node.op_type in MAKES_STRINGS
        given = [self.bound(a) for a in node.attribute if a.name == "to"]
        return any(a is not None and a.i == STRING for a in given)

    def strings(self, node: NodeProto, origin: Origin, entries: Sequence[Entry], read: set[str]) -> Sequence[Entry]:
        """The outputs of an operator that reads or makes strings.  Raises RefusedError."""
        if node.op_type not in STRINGS:
            able = ", ".join(STRINGS)
            raise RefusedError(f"it reads strings, and Tenon has no {node.op_type} of strings", f"there are {able}")
        self.refuse_extents(node.op_type, entries)
        inputs = [entry.bytes if isinstance(entry, StringTensor) else entry for entry in entries]
        known = [entry for entry in inputs if not isinstance(entry, TensorSequence)]
        if len(known) < len(inputs) or not all(v is None or is_known(v) for v in known):
            raise UntypedError
        texts = {i for i, entry in enumerate(entries) if isinstance(entry, StringTensor)}
        layer = self.layer(node, origin, known, read)
        try:
            return STRINGS[node.op_type](layer, texts)
        except UnknownError as error:
            raise RefusedError(str(error), self.writer.fixing(error.value)) from None

    def function(self, node: NodeProto, origin: Origin, inputs: Sequence[Value | None]) -> Sequence[Entry]:
        """The outputs of a standard operator that is defined by others.  Raises RefusedError if it is none."""
        function = functions.body(self.resolved(node), self.opset, inputs)
        if function is None:
            if node.domain not in _STANDARD:
                what = f"the operator {node.op_type} of the domain '{node.domain}' is not supported"
                raise RefusedError(what, REMEDIES.get(node.op_type, ""))
            operator(node.op_type, {})
            raise RefusedError("this operator is not supported")
        return self.expand(function, node, origin, inputs)

    def expand(
        self, function: FunctionProto, node: NodeProto, origin: Origin, inputs: Sequence[Entry]
    ) -> Sequence[Entry]:
        """The outputs of a function's body on these inputs, with the attributes of ``node``."""
        self.writer.charge(origin)
        outside = self.opset, self.bindings
        given = {a.name: self.bound(a) for a in node.attribute}
        schema = _schema(node.domain, node.op_type, self.opset)
        usual = {} if schema is None else {k: a.default_value for k, a in schema.attributes.items()}
        self.opset = functions.opset_of(function, self.opset)
        self.bindings = {
            **{k: a for k, a in usual.items() if a.type},
            **{a.name: a for a in function.attribute_proto},
            **{k: a for k, a in given.items() if a is not None},
        }
        scope: Scope = ChainMap(dict.fromkeys(function.input))
        scope.update(zip(function.input, inputs, strict=False))
        before = len(self.writer.problems)
        try:
            names = [name for inner in function.node for name in reads(inner)]
            self.nodes(function.node, {*names, *function.output}, scope)
        finally:
            self.opset, self.bindings = outside
        for i, problem in enumerate(self.writer.problems[before:], before):
            self.writer.problems[i] = problem._replace(where=f"{origin} / {problem.where}")
        return [scope.get(name) for name in function.output]

    def resolved(self, node: NodeProto) -> NodeProto:
        """The node with its own attributes in place of references to those of the function it stands in."""
        from onnx import NodeProto

        copy = NodeProto()
        copy.CopyFrom(node)
        del copy.attribute[:]
        for given in node.attribute:
            attribute = self.bound(given)
            if attribute is not None:
                copy.attribute.add().CopyFrom(attribute)
                copy.attribute[-1].name = given.name
        return copy

    def bound(self, attribute: AttributeProto) -> AttributeProto | None:
        """The attribute, or what it refers to in the function that is being expanded."""
        return self.bindings.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute

    def attributes(self, node: NodeProto) -> dict[str, Any]:
        """The node's attributes, checked against its schema, with the defaults of the model's opset."""
        schema = _schema("" if node.op_type in SAME else node.domain, node.op_type, self.opset)
        values: dict[str, Any] = {}
        for given in node.attribute:
            attribute = self.bound(given)
            if attribute is None or attribute.type in (5, 10):  # graphs: the node's importer reads them itself
                continue
            known = schema.attributes.get(given.name) if schema else None
            if known is not None and attribute.type not in (0, known.type.value):  # type: ignore[attr-defined]
                raise RefusedError(f"attribute '{given.name}' is of the wrong kind; the file is damaged")
            values[given.name] = self.attribute(attribute)
        return {**defaults(schema), **values}

    def attribute(self, attribute: AttributeProto) -> Any:
        kind = kind_of(attribute)
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

    def emit_node(
        self, type: str, inputs: Sequence[Value | None], name: str, origin: Origin, **attributes: Any
    ) -> Value:
        """The first output of a new node."""
        return self.writer.add(operator(type, attributes), inputs, [name], origin)[0]


@dataclass(frozen=True)
class _NodeBuilder:
    """Adds what a node of the file becomes to the importer's graph; names begin with that of its first output."""

    importer: OnnxImporter
    origin: Origin
    outputs: Sequence[str]

    @property
    def writer(self) -> Writer:
        return self.importer.writer

    def add(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        name = f"{self.outputs[0]}_{type.lower()}"
        return self.importer.emit_node(type, inputs, name, self.origin, **attributes)

    def adds(self, type: str, count: int, *inputs: Value | None, **attributes: Any) -> Sequence[Value]:
        names = [f"{self.outputs[0]}_{type.lower()}_{i}" for i in range(count)]
        return list(self.importer.writer.add(operator(type, attributes), inputs, names, self.origin))

    def constant(self, data: Array, stem: str = "constant") -> Value:
        return self.importer.writer.constant(f"{self.outputs[0]}_{stem}", data)

    def rank(self, value: Value) -> int:
        return len(self.dims(value))

    def dims(self, value: Value) -> tuple[int, ...]:
        if not is_known(value):
            raise UntypedError
        return value.type.dims

    def declared_shape(self) -> tuple[int, ...] | None:
        proto = self.importer.proto
        infos = (v for v in (*proto.output, *proto.value_info) if v.name == self.outputs[0])
        info = next((v.type.tensor_type for v in infos if v.type.tensor_type.HasField("shape")), None)
        if info is None or not all(d.HasField("dim_value") for d in info.shape.dim):
            return None
        return tuple(d.dim_value for d in info.shape.dim)

    def data_dependent(self, node: OnnxNode, axes: Sequence[int | None]) -> list[Value]:
        names = [f"{self.outputs[0]}_{i}" for i in range(len(axes) + 1)]
        result = self.importer.writer.add(operator(node.type, node.attributes), node.inputs, names, self.origin)
        *values, extent = result
        if extent.data is not None:  # of constants: the results are known, and so is their extent
            return [self.cropped(v, axis, int(extent.data)) for v, axis in zip(values, axes, strict=True)]
        if all(is_known(v) and not v.type.size for v in values):  # whatever the data is, nothing can be there
            nothing = [self.constant(np.zeros(v.type.dims, v.type.dtype.numpy), "nothing") for v in values]
            self.importer.empty.update(nothing)
            return nothing
        for value, axis in zip(values, axes, strict=True):
            if axis is not None and not value.typed:
                self.set_extent(value, axis, extent)
        return values

    def cropped(self, value: Value, axis: int | None, extent: int) -> Value:
        """The first ``extent`` elements of a constant along an axis."""
        if axis is None or value.type.dims[axis] == extent:
            return value
        data = np.ascontiguousarray(value.array[(slice(None),) * axis + (slice(0, extent),)])
        return self.constant(data, "cropped")

    def changes(self, value: Value) -> bool:
        return value in self.importer.writer.sizes.extents

    def sized_like(self, value: Value, like: Value) -> Value:
        sizes = self.importer.writer.sizes
        return sizes.state(value, sizes.of(like)[like.type.rank - value.type.rank :])

    def set_extent(self, value: Value, axis: int, extent: Value) -> None:
        self.importer.state_extent(value, axis, extent)


def _check_names(node: NodeProto, scope: Scope) -> None:
    """Raises RefusedError for outputs of one name and for undefined inputs."""
    named = [name for name in node.output if name]
    if len(set(named)) < len(named):
        raise RefusedError(f"gives two outputs one name: {', '.join(named)}")
    undefined = [name for name in node.input if name and name not in scope]
    if undefined:
        raise RefusedError(f"reads {', '.join(map(repr, undefined))}, which no node computes")


def _tensors(entry: Entry) -> Sequence[Value | None]:
    """The tensors that a name stands for."""
    if isinstance(entry, TensorSequence):
        return entry.values
    return [entry.bytes if isinstance(entry, StringTensor) else entry]


def operator(type: str, attributes: Mapping[str, Any]) -> Operator:
    """The operator of that name with these attributes.  Raises RefusedError."""
    operator_class = ops.lookup(type)
    if operator_class is None:
        raise unknown(type, ops.registry(), "operator", REMEDIES.get(type, ""))
    known = {f.name: f for f in fields(operator_class)}
    newest = defaults(_schema("", type, 1 << 30))
    foreign = [k for k, v in attributes.items() if k not in known and newest.get(k) != v]
    if foreign:
        shown = ", ".join(f"{k}={attributes[k]!r}" for k in foreign)
        raise RefusedError(f"{type} with {shown[:200]} is not supported")
    absent = [k for k, f in known.items() if f.default is f.default_factory is MISSING and k not in attributes]
    if absent:
        raise RefusedError(f"the attribute {', '.join(absent)} is missing")
    return operator_class(**{k: _frozen(v, str(known[k].type)) for k, v in attributes.items() if k in known})


def _frozen(value: Any, annotation: str) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return float(value) if annotation == "float" else value
