"""Graphs as ONNX files: the other direction of ``importers.onnx``.

Operators are ONNX's already; Tenon's own are decomposed into ONNX operators, fused ones as the
sequence that they came from.  The file is written for the oldest opset, from 20 on, that has every operator in it for
its element types: readers support older ones better (``_MOVED_PAST``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.formats.exporters import onnx_trees
from tenon.formats.exporters.onnx_bodies import port, write_bodies
from tenon.formats.wire.onnx_tensors import DTYPES
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Operator
from tenon.network.ops.conv import Conv
from tenon.network.ops.fused import Fused
from tenon.network.ops.pool import Pooling
from tenon.network.ops.quantised_pairs import read_through_integers
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto
    from onnx.defs import OpSchema

OPSET = 20
IR_VERSION = 10
MAX_FILE_BYTES = 2**31 - 2**20
"""Bytes of one protobuf."""

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def to_onnx(graph: Graph) -> ModelProto:
    """The model of a bound graph.  Raises UnsupportedError listing every operator that ONNX cannot express."""
    writer = _Writer(graph)
    model = writer.model()
    if writer.opset < _OUTPUT_TYPES or not any(_moves_dequantised(graph, node) for node in graph):
        return model
    paired = graph.copy()
    for node in list(paired):
        if (pair := _moves_dequantised(paired, node)) is not None:
            scale, zero = pair.input(1), pair.input(2)
            read_through_integers(paired, node.output, scale, zero)
    return _Writer(paired).model()


_OUTPUT_TYPES = 21
"""The opset that gives QuantizeLinear the type of its results as an attribute."""
_MOVED_PAST = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that onnxruntime (1.32 as well) moves DequantizeLinear past where no QuantizeLinear follows: it adds a pair
with that attribute, and then makes u8 of the pair's i8, which contradicts it and is reported as a type error."""


def _moves_dequantised(graph: Graph, node: Node) -> Node | None:
    """The DequantizeLinear whose results a node moves to an output or to anything but QuantizeLinear."""
    before = node.inputs[0].producer if node.op.name in _MOVED_PAST and node.inputs[0] is not None else None
    if (
        before is None
        or not isinstance(before.op, DequantizeLinear)
        or before.input(0).constant
        or len(before.inputs) < 3
    ):
        return None
    if before.input(1).type.rank:
        return None
    inside = not graph.is_output(node.output)
    return None if inside and all(isinstance(reader.op, QuantizeLinear) for reader in node.output.uses) else before


_SMALL = 16
"""Elements of a constant that is part of the structure rather than learned: an epsilon, a shape, a scale."""


def strip(model: ModelProto) -> None:
    """Leave the shapes of the weights and drop their numbers: enough to time a network, and not a secret."""
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims) > _SMALL and DTYPES[tensor.data_type].is_float:
            tensor.ClearField("raw_data")


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.opset = OPSET
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.problems: list[Problem] = []
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.layer, self.layers = "", set[str]()
        self.domains: dict[str, int] = {}
        for value in (*graph.inputs, *graph.outputs):
            self.name(value)

    # ------------------------------------------------------------------------------------------- names
    def fresh(self, stem: str) -> str:
        name, n = stem, 0
        while name in self.taken:
            n += 1
            name = f"{stem}_{n}"
        self.taken.add(name)
        return name

    def name(self, value: Value | None) -> str:
        """The name of a value in the file; an absent input has none."""
        if value is None:
            return ""
        if value not in self.names:
            self.names[value] = self.fresh(value.name or "value")
            if value.data is not None:
                self.constants[self.names[value]] = value.data
        return self.names[value]

    def constant(self, stem: str, data: Array) -> str:
        name = self.fresh(stem)
        self.constants[name] = data
        return name

    # ------------------------------------------------------------------------------------------- model
    def model(self) -> ModelProto:
        from onnx import helper

        outputs = self.results()
        if self.problems:
            raise UnsupportedError(self.graph.source or self.graph.name, self.problems)
        pairs = zip(outputs, self.graph.outputs, strict=True)
        graph = self.proto([(self.names[v], v.type) for v in self.graph.inputs], [(name, v.type) for name, v in pairs])
        opsets = [helper.make_opsetid(*each) for each in (("", self.opset), *self.domains.items())]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tenon")

    def proto(self, inputs: Sequence[tuple[str, TensorType]], outputs: Sequence[tuple[str, TensorType]]) -> GraphProto:
        """The graph with these inputs and outputs."""
        from onnx import helper, numpy_helper

        constants = [numpy_helper.from_array(np.asarray(a, order="C"), name) for name, a in self.constants.items()]
        given, made = ([port(name, type) for name, type in each] for each in (inputs, outputs))
        return helper.make_graph(self.nodes, self.graph.name or "graph", given, made, constants)

    def results(self) -> list[str]:
        """Write all nodes; returns the names of the outputs: one that is an input, a constant or given twice gets a
        node of its own."""
        for node in self.graph:
            self.write(node)
        names = list[str]()
        for value in self.graph.outputs:
            name = self.name(value)
            if value.producer is None or name in names:
                name = self.emit("Identity", [name], value.name)
            names.append(name)
        return names

    def within(self, body: Graph, names: Mapping[Value, str]) -> _Writer:
        """The writer of a body; ``names`` are what its values are called that are not its own."""
        return _WriterOfBody(self, body, names)

    # ------------------------------------------------------------------------------------------- nodes
    def write(self, node: Node) -> None:
        """The node, or the nodes that it is decomposed into."""
        inputs, outputs = [self.name(v) for v in node.inputs], [self.name(v) for v in node.outputs]
        self.layer = str(node.origin.layer)
        if node.bodies:
            write_bodies(self, node, inputs, outputs)
        elif isinstance(node.op, Fused):
            self.write_fused(node, inputs, outputs[0])
        else:
            assert isinstance(node.op, Operator)
            self.operator(node, node.op, inputs, outputs)

    def write_fused(self, node: Node, inputs: list[str], output: str) -> None:
        fused = node.op
        assert isinstance(fused, Fused)
        names = [self.fresh(f"{output}_{fused.base.name.lower()}"), *inputs[fused.count :]]
        self.operator(node, fused.base, inputs[: fused.count], names[:1])
        for i, step in enumerate(fused.steps):
            last = i == len(fused.steps) - 1
            names.append(output if last else self.fresh(f"{output}_{step.op.name.lower()}"))
            self.operator(node, step.op, ["" if a is None else names[a] for a in step.args], names[-1:])

    def operator(self, node: Node, op: Operator, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        decomposed = DECOMPOSED.get(op.name)
        if decomposed is not None:
            decomposed(self, node, op, list(inputs), outputs[0])
        else:
            self.plain(node, op, inputs, outputs)

    def plain(self, node: Node, op: Operator, inputs: Sequence[str], outputs: Sequence[str], **more: int) -> None:
        """An operator of ONNX, with ``more`` attributes than Tenon's has."""
        op = _without_gaps(node, op)
        type = op.name.removeprefix("Direct")
        schema = self.schema(type, node, op, inputs)
        if schema is None:
            remedy = "end the model before it with --to (in Python: outputs), or write a Caffe net as Caffe"
            self.problems.append(Problem(str(node.origin), f"ONNX has no operator {op.name}", remedy))
            return
        self.opset = max(self.opset, schema.since_version)
        attributes = {f.name: value for f in fields(op) if not _absent(value := getattr(op, f.name))}
        known = {k: _attribute(v) for k, v in attributes.items() if k in schema.attributes}
        self.emit(type, inputs, outputs, **known, **more)

    def schema(self, type: str, node: Node, op: Operator, inputs: Sequence[str]) -> OpSchema | None:
        """The operator as the oldest opset has it that knows its attributes and takes its element types."""
        from onnx.defs import onnx_opset_version

        newest = _schema(type, onnx_opset_version())
        if newest is None:
            return None
        attributes_given = {f.name for f in fields(op) if getattr(op, f.name) != f.default} & set(newest.attributes)
        types = {self.names[v]: _type_name(v.type.dtype) for v in node.inputs if v is not None}
        for opset in range(self.opset, newest.since_version):
            definition = _schema(type, opset)
            if definition is None or attributes_given - set(definition.attributes):
                continue
            ports = [definition.inputs[min(i, len(definition.inputs) - 1)].types for i in range(len(inputs))]
            if all(types.get(name) in port for name, port in zip(inputs, ports, strict=True) if name in types):
                return definition
        return newest

    def emit(self, type: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> str:
        """Append a node; a stem in place of outputs names a fresh one."""
        from onnx import helper

        names = [self.fresh(outputs)] if isinstance(outputs, str) else list(outputs)
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(type, given, names, name=self.layer_name(), **attributes))
        return names[0]

    def layer_name(self) -> str:
        """The name for a node: the first node of a layer gets the name that the layer has in the source, the others
        none."""
        name = "" if self.layer in self.layers else self.layer
        self.layers.add(name)
        return name


class _WriterOfBody(_Writer):
    """Writes a body, whose names differ from those of the graphs around it, into a model of one opset."""

    def __init__(self, around: _Writer, body: Graph, names: Mapping[Value, str]) -> None:
        super().__init__(Graph(body.name, body.source))
        self.graph, self.around = body, around
        self.names, self.taken = dict(names), around.taken
        self.problems, self.layers, self.domains = around.problems, around.layers, around.domains
        self.opset = around.opset

    def results(self) -> list[str]:
        names = super().results()
        self.around.opset = max(self.around.opset, self.opset)
        return names


def _without_gaps(node: Node, op: Operator) -> Operator:
    """The operator with explicit padding where onnxruntime takes SAME for negative padding: strides past the kernel."""
    if not isinstance(op, Conv | Pooling) or not op.auto_pad.startswith("SAME"):
        return op
    dims = [v.type.dims for v in node.inputs[:2] if v is not None]
    axes = op.axes(*dims) if isinstance(op, Conv) else op.axes(dims[0])
    if all(a.stride <= a.span for a in axes):
        return op
    return replace(op, auto_pad="NOTSET", pads=(*(a.before for a in axes), *(a.after for a in axes)))


def _type_name(dtype: DType) -> str:
    from onnx import TensorProto

    return f"tensor({TensorProto.DataType.Name(_NUMBERS[dtype]).lower()})"


def _schema(type: str, opset: int) -> OpSchema | None:
    from onnx.defs import SchemaError, get_schema

    try:
        return get_schema(type, opset, "")
    except SchemaError:
        return None


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, tuple) and not value)


def _attribute(value: Any) -> Any:
    if isinstance(value, DType):
        return _NUMBERS[value]
    if isinstance(value, np.ndarray):
        from onnx import numpy_helper

        return numpy_helper.from_array(value)
    return DTYPE_NUMBERS.get(value, value) if isinstance(value, str) else value


DTYPE_NUMBERS: dict[str, int] = {dtype.value: number for dtype, number in _NUMBERS.items()}
"""Element types as operators name them in attributes, and the numbers of ONNX."""


# ----------------------------------------------------------------------------- operators of Tenon's own
def _channel_shuffle(w: _Writer, node: Node, op: Operator, inputs: list[str], output: str) -> None:
    channels = sum(v.type.dims[1] for v in node.outputs)
    dims = (node.output.type.dims[0], channels, *node.output.type.dims[2:])
    groups, parts = int(op.groups), list(op.parts)  # type: ignore[attr-defined]
    whole = w.emit("Concat", inputs, f"{output}_whole", axis=1) if len(inputs) > 1 else inputs[0]
    split = w.constant(f"{output}_split", np.array([dims[0], groups, dims[1] // groups, *dims[2:]], np.int64))
    apart = w.emit("Reshape", [whole, split], f"{output}_apart")
    mixed = w.emit("Transpose", [apart], f"{output}_mixed", perm=[0, 2, 1, *range(3, len(dims) + 1)])
    shape = w.constant(f"{output}_shape", np.array(dims, np.int64))
    if not parts:
        w.emit("Reshape", [mixed, shape], [output])
        return
    sizes = w.constant(f"{output}_sizes", np.array(parts, np.int64))
    w.emit(
        "Split", [w.emit("Reshape", [mixed, shape], f"{output}_mix"), sizes], [w.name(v) for v in node.outputs], axis=1
    )


def _swish(w: _Writer, node: Node, op: Operator, inputs: list[str], output: str) -> None:
    """x * sigmoid(alpha x): ONNX has it from opset 24 on only."""
    scaled, alpha = inputs[0], float(op.alpha)  # type: ignore[attr-defined]
    if alpha != 1:
        numbers = w.constant(f"{output}_alpha", np.array(alpha, node.output.type.dtype.numpy))
        scaled = w.emit("Mul", [scaled, numbers], f"{output}_scaled")
    w.emit("Mul", [inputs[0], w.emit("Sigmoid", [scaled], f"{output}_gate")], [output])


def _quantisation(w: _Writer, node: Node, op: Operator, inputs: list[str], output: str) -> None:
    """Parameters per channel broadcast in Tenon; ONNX has them as vectors along an axis."""
    data, *parameters = (v for v in node.inputs if v is not None)
    rank = data.type.rank
    axes = {i - v.type.rank + rank for v in parameters for i, extent in enumerate(v.type.dims) if extent > 1}
    if len(axes) > 1:
        w.problems.append(Problem(str(node.origin), f"ONNX has no {op.name} along several axes"))
        return
    if not axes:
        scalars = [
            _as_vector(w, v, name, ()) if v.type.rank else name for v, name in zip(parameters, inputs[1:], strict=True)
        ]
        w.plain(node, op, [inputs[0], *scalars], [output])
        return
    (axis,) = axes
    extent = (data.type.dims[axis],)
    vectors = [_as_vector(w, v, name, extent) for v, name in zip(parameters, inputs[1:], strict=True)]
    w.plain(node, op, [inputs[0], *vectors], [output], axis=axis)


def _as_vector(w: _Writer, value: Value, name: str, dims: tuple[int, ...]) -> str:
    """A parameter of a quantisation with other dimensions, repeated if it is one number."""
    if value.type.dims == dims:
        return name
    if value.data is not None:
        return w.constant(
            name, np.ascontiguousarray(np.broadcast_to(value.data.reshape(-1), dims or (1,)).reshape(dims))
        )
    shape = w.constant(f"{name}_shape", np.array(dims, np.int64))
    return w.emit("Reshape" if value.type.size > 1 or not dims else "Expand", [name, shape], f"{name}_vector")


def _decision_trees(w: _Writer, node: Node, op: Operator, inputs: list[str], output: str) -> None:
    if why := onnx_trees.inexpressible(node):
        w.problems.append(Problem(str(node.origin), why))
        return
    w.domains[onnx_trees.DOMAIN] = onnx_trees.VERSION
    known = {name: _attribute(value) for name, value in onnx_trees.regressor(node).items()}
    wide = node.output.type.dtype is DType.F64
    result = [w.fresh(f"{output}_single")] if wide else [output]
    w.emit("TreeEnsembleRegressor", inputs[:1], result, domain=onnx_trees.DOMAIN, **known)
    for name in inputs[1:]:
        w.constants.pop(name, None)
    if wide:
        w.emit("Cast", result, [output], to=_NUMBERS[DType.F64])


DECOMPOSED: dict[str, Callable[[_Writer, Node, Operator, list[str], str], None]] = {
    "ChannelShuffle": _channel_shuffle,
    "DecisionTrees": _decision_trees,
    "DequantizeLinear": _quantisation,
    "QuantizeLinear": _quantisation,
    "Swish": _swish,
}
