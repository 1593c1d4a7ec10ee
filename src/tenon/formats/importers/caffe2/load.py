"""Caffe2 networks: a predict net and, beside it, the init net that fills its weights.

Inputs have no shapes in these files.  What no init net fills is an input and must be bound; where the init net fills
everything (exports of torch do), the first external input is the network's, of the shape it is filled with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder, required_input
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.caffe2.node import Caffe2Node
from tenon.formats.importers.caffe2.ops import OPERATORS, looks_like_name
from tenon.formats.model_files.model_file import Fits, ModelFile
from tenon.formats.wire.protobuf import DamagedError, Message, Schema, raw_fields
from tenon.network.graph.bind import ANY_RANK, Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, DType, TensorType

SCHEMA = Schema(
    {
        "Argument": {
            "name": (1, "string"),
            "f": (2, "float"),
            "i": (3, "int64"),
            "s": (4, "bytes"),
            "floats": (5, "*float"),
            "ints": (6, "*int64"),
            "strings": (7, "*bytes"),
        },
        "Operator": {
            "input": (1, "*string"),
            "output": (2, "*string"),
            "name": (3, "string"),
            "type": (4, "string"),
            "arg": (5, "*Argument"),
        },
        "Net": {
            "name": (1, "string"),
            "op": (2, "*Operator"),
            "external_input": (7, "*string"),
            "external_output": (8, "*string"),
        },
    }
)
"""The part of caffe2/proto/caffe2.proto that networks use."""

_FILLS = {
    "GivenTensorFill": "f4",
    "GivenTensorDoubleFill": "f4",
    "ConstantFill": "f4",
    "XavierFill": "f4",
    "MSRAFill": "f4",
    "GivenTensorIntFill": "i4",
    "GivenTensorInt64Fill": "i8",
    "GivenTensorBoolFill": "?",
    "Int8GivenTensorFill": "u1",
    "Int8GivenIntTensorFill": "i4",
}
_CONSTANT_TYPES = {1: "f4", 2: "i4", 5: "?", 10: "i8"}


def recognise(file: ModelFile) -> bool:
    return is_net(file.data)


def is_net(data: bytes) -> bool:
    """Only fields of a NetDef, the first operator's fourth one the name of its type."""
    operators: list[memoryview] = []
    try:
        for number, wire, content in raw_fields(memoryview(data)):
            if number > 8 or wire != (0 if number == 4 else 2) or isinstance(content, int):
                return False
            if number == 2 and not operators:
                operators.append(content)
        return bool(operators) and _is_operator(operators[0])
    except DamagedError:  # no message
        return False


def _is_operator(data: memoryview) -> bool:
    fields = {number: (wire, content) for number, wire, content in raw_fields(data)}
    wire, content = fields.get(4, (0, 0))
    strings = all(w == 2 for n, (w, _) in fields.items() if n < 8)
    return strings and wire == 2 and not isinstance(content, int) and looks_like_name(bytes(content))


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a network given by either of its nets.  See ``importers.load`` for errors."""
    given = SCHEMA.parse("Net", file.data, file.name)
    predict_file, predict, init = file, given, None
    if _only_fills(given):
        init = given
        predict_file = file.partner("the predict net", *_names(file, "init", "predict"), fits=_fits_init(given))
        predict = SCHEMA.parse("Net", predict_file.data, predict_file.name)
    else:
        init_file = file.find_partner("the init net", *_names(file, "predict", "init"), fits=_fits_predict(given))
        init = SCHEMA.parse("Net", init_file.data, init_file.name) if init_file and not init_file.is_folder else None
    builder = GraphBuilder(predict_file, predict.name or predict_file.stem, shapes, inputs, outputs, 1 << 24)
    return _build(builder, predict, init)


def _names(file: ModelFile, old: str, new: str) -> tuple[str, ...]:
    return (file.name.replace(old, new), f"{new}_net.pb", f"*{new}*.pb")


def _only_fills(net: Message) -> bool:
    return bool(net.op) and all(op.type in _FILLS and not op.input for op in net.op)


def _fits_init(init: Message) -> Fits:
    def fits(file: ModelFile) -> bool:
        predict = SCHEMA.parse("Net", file.data, file.name) if is_net(file.data) else None
        return predict is not None and not _only_fills(predict) and _belong_together(predict, init)

    return fits


def _fits_predict(predict: Message) -> Fits:
    def fits(file: ModelFile) -> bool:
        init = SCHEMA.parse("Net", file.data, file.name) if is_net(file.data) else None
        return init is not None and _only_fills(init) and _belong_together(predict, init)

    return fits


def _belong_together(predict: Message, init: Message) -> bool:
    """Whether an init net fills what a predict net reads, but for a few inputs."""
    wanted, result = set(predict.external_input), {name for op in init.op for name in op.output}
    return bool(wanted & result) and len(wanted - result) <= max(3, len(wanted) // 4)


def _build(builder: GraphBuilder, predict: Message, init: Message | None) -> Graph:
    filled: dict[str, Message] = {name: op for op in (init.op if init else ()) for name in op.output}
    outputs = {name for op in predict.op for name in op.output}
    external = list(dict.fromkeys([*predict.external_input, *(n for op in predict.op for n in op.input)]))
    open_names = [n for n in external if n not in filled and n not in outputs]
    ports = [n for n in external if n in builder.shapes and n in filled] + open_names
    if not ports and init is not None and predict.external_input:
        ports = [predict.external_input[0]]
    blind = init is None and len(open_names) > 1
    builder.graph.incomplete = MISSING_WEIGHTS if blind else ""
    for name in ports:
        _input(builder, name, filled.get(name), blind)
    for name in external:
        if name in filled and name not in builder:
            with builder.layer(name, filled[name].type, name):
                builder[name] = builder.constant(fill(filled[name]), "weights")
    context = Caffe2Node(builder, blind)
    for i, op in enumerate(predict.op):
        _operator(builder, context, op, op.name or f"{op.type}_{i}")
    firsts = {op.output[0] for op in predict.op if op.output}
    wanted = [name for name in predict.external_output if name in firsts]
    return builder.finish(wanted or (list(predict.op[-1].output[:1]) if predict.op else []))


def _operator(builder: GraphBuilder, context: Caffe2Node, op: Message, name: str) -> None:
    with builder.layer(name, op.type, *op.output):
        if op.type in _FILLS and not op.input and op.output:
            builder[op.output[0]] = builder.constant(fill(op), "filled")
            return
        known = context.begin(op)
        if op.type not in OPERATORS:
            raise unknown(op.type, OPERATORS)
        if known:
            outputs = OPERATORS[op.type](context)
            for top, value in zip(op.output, [outputs] if isinstance(outputs, Value) else outputs, strict=False):
                builder[top] = value


def _input(builder: GraphBuilder, name: str, fill_op: Message | None, blind: bool) -> None:
    """Raises ShapeError for an input whose shape is neither given nor filled.

    Exporters fill inputs with one number as a placeholder: such a shape is not used.
    """
    type = TensorType(F32, (ANY_RANK,))
    if fill_op is not None:
        data = fill(fill_op)
        given = not isinstance(builder.shapes.get(name, 1), int) or name in builder.file.values
        type = TensorType(DType.of(data.dtype), (ANY_RANK,) if given or data.shape in ((), (1,)) else data.shape)
    if blind:
        builder.input(name, type)
    else:
        required_input(builder, name, type)


def fill(op: Message) -> Array:
    """The constant of a fill operator.  Raises FormatError."""
    arguments = {a.name: a for a in op.arg}
    shape = tuple(int(d) for d in arguments["shape"].ints) if "shape" in arguments else ()
    if any(d < 0 for d in shape) or math.prod(d or 1 for d in shape) >= 2**31:
        raise FormatError(f"a tensor of shape {list(shape)} is impossible")
    dtype, values = _FILLS[op.type], arguments.get("values")
    if op.type in ("XavierFill", "MSRAFill"):
        raise FormatError(f"{op.type} draws random numbers; give the net that was trained")
    if op.type == "ConstantFill":
        value = arguments.get("value")
        kind = _CONSTANT_TYPES.get(arguments["dtype"].i if "dtype" in arguments else 1, "f4")
        number = 0.0 if value is None else value.f if value.has("f") else value.i
        return np.broadcast_to(np.array(number, kind), shape)
    if dtype == "u1":
        numbers: Sequence[float] = list(bytes(values.s)) if values is not None else []
    else:
        numbers = [] if values is None else values.floats if dtype == "f4" else values.ints
    if len(numbers) != math.prod(shape):
        raise FormatError(f"{len(numbers)} values for a tensor of shape {list(shape)}; the file is damaged")
    data = np.asarray(numbers, dtype).reshape(shape)
    if not op.type.startswith("Int8"):
        return data
    scale, zero = arguments.get("Y_scale"), arguments.get("Y_zero_point")
    return (data - np.float32(zero.i if zero else 0)) * np.float32(scale.f if scale else 1)
