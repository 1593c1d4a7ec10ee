"""Nodes with bodies as ONNX's If, Scan and Loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tenon.errors import InternalError
from tenon.formats.wire.onnx_tensors import DTYPES
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.branch import If
from tenon.network.ops.scan import Scan

if TYPE_CHECKING:
    from onnx import GraphProto

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class GraphWriter(Protocol):
    """Writes a graph as ONNX's nodes."""

    def fresh(self, stem: str) -> str: ...

    def constant(self, stem: str, data: Array) -> str: ...

    def emit(self, type: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> str: ...

    def within(self, body: Graph, names: Mapping[Value, str]) -> BodyWriter:
        """A writer of a graph of which these values have names."""
        ...


class BodyWriter(GraphWriter, Protocol):
    """Writes the body of a node; its names differ from those of the graphs around it, which it can read."""

    def results(self) -> list[str]:
        """The names of the outputs, after all nodes are written."""
        ...

    def proto(self, inputs: Sequence[tuple[str, TensorType]], outputs: Sequence[tuple[str, TensorType]]) -> GraphProto:
        """The graph with these inputs and outputs."""
        ...


def write_bodies(w: GraphWriter, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Write an If, or a Scan as ONNX's Scan or Loop."""
    match node.op:
        case If():
            _if(w, node, inputs, outputs)
        case Scan() as op if op.counted:
            _loop(w, node, op, inputs, outputs)
        case Scan() as op:
            _scan(w, node, op, inputs, outputs)
        case _:
            raise InternalError(f"{node} has bodies, and it is not known what they do")


def port(name: str, type: TensorType) -> Any:
    """An input or output of an ONNX graph."""
    from onnx import helper

    return helper.make_tensor_value_info(name, _NUMBERS[type.dtype], type.dims)


def _if(w: GraphWriter, node: Node, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    branches = []
    for body in node.bodies:
        inside = w.within(body, dict(zip(body.inputs, inputs[1:], strict=True)))
        branches.append(inside.proto([], _typed(inside.results(), body.outputs)))
    w.emit("If", inputs[:1], outputs, then_branch=branches[0], else_branch=branches[1])


def _typed(names: Sequence[str], values: Sequence[Value]) -> list[tuple[str, TensorType]]:
    return [(name, value.type) for name, value in zip(names, values, strict=True)]


def _scan(w: GraphWriter, node: Node, op: Scan, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """ONNX's Scan, which needs something to scan."""
    (body,) = node.bodies
    own = [w.fresh(v.name) for v in body.inputs[: op.shared]]
    inside = w.within(body, dict(zip(body.inputs, [*own, *inputs[op.shared :]], strict=True)))
    ports, scanned = _typed(own, body.inputs[: op.shared]), list(inputs[: op.shared])
    if not op.slices:
        ports.append((w.fresh("number"), TensorType(DType.I64, ())))
        scanned.append(w.constant("numbers", np.arange(op.count)))
    graph = inside.proto(ports, _typed(inside.results(), body.outputs))
    slices, stacked = len(scanned) - op.states, len(outputs) - op.states
    back = {"scan_input_directions": [1] * slices, "scan_output_directions": [1] * stacked} if op.reverse else {}
    known = {name: numbers for name, numbers in back.items() if numbers}
    w.emit("Scan", scanned, outputs, body=graph, num_scan_inputs=slices, **known)


def _loop(w: GraphWriter, node: Node, op: Scan, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """ONNX's Loop, whose condition compares the number of the iteration with the first state."""
    (body,) = node.bodies
    first, last = node.input(0).type, body.outputs[0].type
    number, holds = w.fresh("iteration"), w.fresh("condition")
    states = [w.fresh(v.name) for v in body.inputs[: op.states]]
    slices = [w.fresh(v.name) for v in body.inputs[op.states : op.shared]]
    inside = w.within(body, dict(zip(body.inputs, [*states, *slices, *inputs[op.shared :]], strict=True)))
    for whole, name in zip(inputs[op.states : op.shared], slices, strict=True):
        inside.emit("Gather", [whole, number], [name], axis=0)
    results = inside.results()
    following = inside.emit("Add", [number, inside.constant("one", np.array(1))], "following")
    goes_on = inside.emit("Less", [following, _scalar(inside, results[0], last)], "goes_on")
    ports = [(number, TensorType(DType.I64, ())), (holds, TensorType(DType.BOOL, ()))]
    ports += _typed(states, body.inputs[: op.states])
    graph = inside.proto(ports, [(goes_on, TensorType(DType.BOOL, ())), *_typed(results, body.outputs)])
    stacked = outputs[op.states :]
    rows = [w.fresh(f"{name}_rows") for name in stacked]
    trips = w.constant("trips", np.array(op.count)) if stacked else ""
    start = w.emit("Greater", [_scalar(w, inputs[0], first), w.constant("zero", np.array(0))], "starts")
    w.emit("Loop", [trips, start, *inputs[: op.states]], [*outputs[: op.states], *rows], body=graph)
    for made, whole, value in zip(rows, stacked, node.outputs[op.states :], strict=True):
        _filled(w, made, whole, value)


def _scalar(w: GraphWriter, name: str, type: TensorType) -> str:
    shape = w.constant("scalar", np.zeros(0, np.int64))
    return w.emit("Reshape", [name, shape], f"{name}_scalar") if type.rank else name


def _filled(w: GraphWriter, rows: str, whole: str, value: Value) -> None:
    """The slices that a loop stacked, with zeros for those of iterations that did not run."""
    type = value.type
    most, first, one = (w.constant("number", np.array([n])) for n in (type.dims[0], 0, 1))
    count = w.emit("Slice", [w.emit("Shape", [rows], f"{rows}_shape"), first, one, first], f"{rows}_count")
    missing = w.emit("Sub", [most, count], f"{rows}_missing")
    zeros = w.constant("zeros", np.zeros(type.dims, type.dtype.numpy))
    w.emit("Concat", [rows, w.emit("Slice", [zeros, first, missing, first], f"{rows}_rest")], [whole], axis=0)
