"""TFLite models: float, half, dynamic-range and integer, as graphs.

A quantised tensor keeps its integers and its scale in the graph.  An operator on quantised tensors reads them through
DequantizeLinear, computes in f32 and writes through QuantizeLinear; operators that only move elements work on the
integers.  Constants are dequantised here; their type keeps the quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.frontends.channels_last import ChannelsLast
from tenon.frontends.refused import RefusedError
from tenon.frontends.source import ModelFile
from tenon.frontends.tensorflow_family import Operands
from tenon.frontends.tflite import schema
from tenon.frontends.wire.flatbuffer import Buffer, Table, options
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import WHOLE, DType, Quant, TensorType
from tenon.ir.writer import LARGEST_TENSOR

IDENTIFIER = b"TFL3"
MOST_OPERATORS = 1 << 17


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file; ``data`` is set for constants.  ``broken`` says why it cannot be used."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    quant: Quant | None
    data: Array | None
    broken: str = ""

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape, quant=self.quant)


@dataclass(frozen=True)
class Operation:
    """An operator of the file; operands are numbers of tensors, -1 is absent."""

    type: str
    options: Mapping[str, Any]
    custom: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Content:
    """The main sub-graph of a file."""

    name: str
    tensors: list[Tensor]
    operations: list[Operation]
    inputs: list[int]
    outputs: list[int]


def recognise(file: ModelFile) -> bool:
    """Marked as TFL3, or named .tflite."""
    return file.data[4:8] == IDENTIFIER or file.suffix == ".tflite"


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a TFLite model.  See ``frontends.load`` for errors."""
    try:
        content = parse(file)
        name = content.name if content.name != "main" else ""
        return Importer(ChannelsLast(file, name, shapes, inputs, outputs), content).run()
    except RefusedError as error:
        raise FormatError(f"{file.name}: {error.what}") from error


# ---------------------------------------------------------------------------------------------- parsing
def parse(file: ModelFile) -> Content:
    """What the file says.  Raises FormatError."""
    try:
        return _parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: not a readable TFLite model: {error}") from error


def _parse(data: bytes) -> Content:
    if data[4:8] != IDENTIFIER:
        raise FormatError("its identifier is not TFL3")
    model = Buffer(data).root()
    version = model.get(schema.MODEL["version"], "u32")
    if version != 3:
        raise FormatError(f"it is of schema version {version}; Tenon reads version 3")
    graphs = model.tables(schema.MODEL["subgraphs"])
    if not graphs:
        raise FormatError("it has no sub-graph")
    codes = [_operator_type(code) for code in model.tables(schema.MODEL["operator_codes"])]
    buffers = model.tables(schema.MODEL["buffers"])
    main, slots = graphs[0], schema.SUBGRAPH
    tensors = [_tensor(t, buffers, data, i) for i, t in enumerate(main.tables(slots["tensors"]))]
    operators = main.tables(slots["operators"])
    if len(operators) > MOST_OPERATORS:
        raise FormatError(f"it has {len(operators)} operators; at most {MOST_OPERATORS} are possible")
    operations = [_operation(o, codes, len(tensors)) for o in operators]
    ends = [main.ints(slots["inputs"]), main.ints(slots["outputs"])]
    if not all(0 <= i < len(tensors) for end in ends for i in end):
        raise FormatError("an input or output is a tensor that is not there")
    return Content(main.text(slots["name"]), tensors, operations, *ends)


def _operator_type(code: Table) -> str:
    slots = schema.OPERATOR_CODE
    number = max(code.get(slots["old_code"], "i8"), code.get(slots["code"], "i32"))
    name = schema.BUILTIN.get(number, f"operator {number}")
    return code.text(slots["custom"]) if name == "CUSTOM" else name


def _operation(table: Table, codes: Sequence[str], tensors: int) -> Operation:
    slots = schema.OPERATOR
    opcode = table.get(slots["opcode"], "u32")
    ends = [tuple(table.ints(slots[k])) for k in ("inputs", "outputs")]
    if opcode >= len(codes) or not all(-1 <= i < tensors for end in ends for i in end):
        raise FormatError("an operator refers to what is not there")
    found = options(table.table(slots["options"]), schema.OPTIONS.get(codes[opcode], ""))
    return Operation(codes[opcode], found, table.vector(slots["custom_options"], "u8").tobytes(), *ends)


def _tensor(table: Table, buffers: Sequence[Table], data: bytes, number: int) -> Tensor:
    slots = schema.TENSOR
    name = table.text(slots["name"]) or f"tensor_{number}"
    shape, code = tuple(table.ints(slots["shape"])), table.get(slots["type"], "i8")
    buffer = table.get(slots["buffer"], "u32")
    if buffer >= len(buffers) and buffers:
        raise FormatError(f"tensor '{name}' refers to a buffer that is not there")
    dtype = schema.DTYPES.get(code, DType.F32)
    quant, broken = _quant(table.table(slots["quantization"]), shape)
    content = _content(buffers[buffer], data) if buffers else np.empty(0, np.uint8)
    if code not in schema.DTYPES:
        broken = f"element type {schema.OTHER_TYPES.get(code, code)} is not supported"
    elif any(d < 0 for d in shape) or math.prod(shape) > LARGEST_TENSOR:
        broken = f"the shape {list(shape)} is impossible"
    elif table.table(slots["sparsity"]) is not None:
        broken = "sparse tensors are not supported"
    array = None
    if content.size and not broken:
        if content.size != math.prod(shape) * dtype.bytes:
            broken = f"holds {content.size} bytes where {list(shape)} needs {math.prod(shape) * dtype.bytes}"
        else:
            array = content.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False).reshape(shape)
    return Tensor(name, shape, dtype, quant, array, broken)


def _content(buffer: Table, data: bytes) -> Array:
    """A buffer's bytes; those of files above 2 GB lie behind the tables."""
    slots = schema.BUFFER
    offset, size = buffer.get(slots["offset"], "u64"), buffer.get(slots["size"], "u64")
    if offset > 1:
        if offset + size > len(data):
            raise FormatError("a buffer lies outside the file")
        return np.frombuffer(data, np.uint8, size, offset)
    return buffer.vector(slots["data"], "u8")


def _quant(table: Table | None, shape: tuple[int, ...]) -> tuple[Quant | None, str]:
    """The quantisation and, if it makes no sense, why."""
    if table is None:
        return None, ""
    slots = schema.QUANTIZATION
    scale = table.vector(slots["scale"], "f32")
    zero = table.ints(slots["zero_point"], "i64")
    if not scale.size:
        return None, ""
    if not (np.isfinite(scale).all() and (scale >= 0).all()):
        return None, "its quantisation has a scale that is not a positive number"
    zero = zero or [0]
    if any(abs(z) > 65535 for z in zero) or len(zero) not in (1, len(scale)):
        return None, "its quantisation has impossible zero points"
    scales = tuple(float(s) for s in scale)
    if len(scales) == 1:
        return Quant(scales, (zero[0],)), ""
    axis, zeros = table.get(slots["axis"], "i32"), tuple(zero * len(scales) if len(zero) == 1 else zero)
    if not 0 <= axis < len(shape) or shape[axis] != len(scales):
        fitting = [i for i, n in enumerate(shape) if n == len(scales)]
        if len(fitting) == 1 and not 0 <= axis < len(shape):
            return Quant(scales, zeros, fitting[0]), ""
        return None, (
            f"its quantisation has {len(scales)} scales along axis {axis} (quantized_dimension), "
            f"which does not fit its shape {list(shape)}"
        )
    return Quant(scales, zeros, axis), ""


# --------------------------------------------------------------------------------------------- importing
class Importer:
    """One file on its way to a graph."""

    def __init__(self, net: ChannelsLast, content: Content) -> None:
        self.net, self.content = net, content
        self.net.remember()
        self.names = _unique([t.name for t in content.tensors])
        self.reals: dict[Value, Value] = {}
        self.counts: dict[Value, Value] = {}
        self.stepped: set[Value] = set()
        """Values that count steps of the tensor that they are about to become."""
        self.kept: list[str] = []
        """Outputs that are the next run's states."""

    def run(self) -> Graph:
        """Raises ModelError listing every problem."""
        net, content = self.net, self.content
        net.inputs({self.names[i]: content.tensors[i].type for i in dict.fromkeys(content.inputs)})
        for operation in content.operations:
            tops = [self.names[i] for i in operation.outputs if i >= 0]
            with net.layer(tops[0] if tops else operation.type, operation.type, *tops):
                self.operation(operation)
        for i in content.outputs:
            if self.names[i] not in net and content.tensors[i].data is not None:
                with net.layer(self.names[i], "constant", self.names[i]):
                    net[self.names[i]] = self.raw(i)
        return net.finish([*(self.names[i] for i in content.outputs), *self.kept])

    def operation(self, operation: Operation) -> None:
        from tenon.frontends.tflite.ops import MOVERS, OPERATORS

        spell = OPERATORS.get(operation.type)
        for name in (self.names[i] for i in operation.inputs if i >= 0):
            if name in self.net:
                self.net[name]  # the net shall know that it is read, even if the operator is refused
        try:
            if spell is None:
                raise RefusedError("this operator is not supported")
            layer = Layer(self, operation, operation.type in MOVERS and self.alike(operation))
            found = spell(layer)
            made = [found] if isinstance(found, Value) else list(found)
            if len(made) < len(operation.outputs):
                raise RefusedError(f"it has {len(made)} outputs, and the file asks for {len(operation.outputs)}")
        except RefusedError:
            for i in operation.outputs:
                if i >= 0:  # what follows can still be looked at
                    self.net[self.names[i]] = Value(self.names[i], self.content.tensors[i].type)
            raise
        for i, value in zip(operation.outputs, made, strict=False):
            if i >= 0:
                self.store(i, value)

    def alike(self, operation: Operation) -> bool:
        """Whether all quantised operands share one quantisation, so that integers may be moved as they are."""
        tensors = [self.content.tensors[i] for i in (*operation.inputs, *operation.outputs) if i >= 0]
        quants = {(t.dtype, t.quant) for t in tensors if t.quant is not None and t.dtype is not DType.I32}
        return len(quants) <= 1

    def store(self, i: int, value: Value) -> None:
        """Make ``value`` tensor ``i``, quantised if that is what the tensor is."""
        tensor, net = self.content.tensors[i], self.net
        dtype = net.type(value).dtype
        if tensor.broken:
            raise RefusedError(f"its output: {tensor.broken}")
        if tensor.quant is not None and dtype.is_float and not tensor.dtype.is_float:
            scale, zero = self.grid(tensor)
            scale = net.scalar(1.0) if value in self.stepped else scale
            value = net.add("QuantizeLinear", value, scale, zero, to=tensor.dtype.value)
        elif dtype is not tensor.dtype:
            value = net.add("Cast", value, to=tensor.dtype.value)
        net[self.names[i]] = value

    def grid(self, tensor: Tensor) -> tuple[Value, Value]:
        """A tensor's scale and zero point, as operands."""
        quant = tensor.quant
        assert quant is not None
        if len(quant.scale) > 1:
            raise RefusedError("quantisation per channel of a tensor computed at run time is not supported")
        info = np.iinfo(tensor.dtype.numpy.name)
        if not info.min <= quant.zero_point[0] <= info.max or quant.scale[0] <= 0:
            raise RefusedError(f"the quantisation of '{tensor.name}' is impossible")
        zero = np.array(quant.zero_point[0], tensor.dtype.numpy)
        return self.net.scalar(quant.scale[0]), self.net.constant(zero, "zero_point")

    def raw(self, i: int) -> Value:
        """Tensor ``i`` as it is stored."""
        tensor, name = self.content.tensors[i], self.names[i]
        if tensor.broken:
            raise RefusedError(f"tensor '{tensor.name}': {tensor.broken}")
        if name not in self.net and tensor.data is not None:
            return self.net.quantized(tensor.data, name, tensor.quant)
        return self.net[name]

    def real(self, i: int) -> Value:
        """Tensor ``i`` as the numbers that it stands for."""
        tensor = self.content.tensors[i]
        if tensor.quant is None or tensor.dtype.is_float:
            return self.raw(i)
        if self.names[i] not in self.net and tensor.data is not None and not tensor.broken:
            return self.net.quantized(dequantized(tensor.data, tensor.quant), f"{self.names[i]}_real", tensor.quant)
        value = self.raw(i)
        if value not in self.reals:
            scale, zero = self.grid(tensor)
            counted = self.counts.get(value)
            self.reals[value] = (
                self.net.add("DequantizeLinear", value, scale, zero)
                if counted is None
                else self.net.add("Mul", counted, scale)
            )
        return self.reals[value]

    def counted(self, i: int) -> Value:
        """Tensor ``i``, which is quantised, as f32 numbers of steps from its zero point."""
        tensor = self.content.tensors[i]
        assert tensor.quant is not None
        if tensor.data is not None:
            quant = Quant((1.0,) * len(tensor.quant.scale), tensor.quant.zero_point, tensor.quant.axis)
            return self.net.quantized(dequantized(tensor.data, quant), f"{self.names[i]}_steps", WHOLE)
        value = self.raw(i)
        if value not in self.counts:
            _, zero = self.grid(tensor)
            self.counts[value] = self.net.add("DequantizeLinear", value, self.net.scalar(1.0), zero)
        return self.counts[value]


class Layer(Operands):
    """An operator of the file as the functions of ``tflite.ops`` see it.

    ``raw`` says that integers are moved as they are: then ``x`` gives what is stored, not what it stands for.
    """

    def __init__(self, importer: Importer, operation: Operation, raw: bool) -> None:
        self.importer, self.operation, self.raw = importer, operation, raw
        self.net = importer.net

    def __getattr__(self, name: str) -> Any:
        """A field of the operator's options."""
        try:
            return self.operation.options[name]
        except KeyError:
            raise AttributeError(name) from None

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.operation.options.get(name, default))

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self.operation.options.get(name, default))

    def flag(self, name: str) -> bool:
        return bool(self.operation.options.get(name))

    def ints(self, name: str) -> list[int]:
        return list(self.operation.options.get(name, ()))

    @property
    def count(self) -> int:
        return len(self.operation.inputs)

    def has(self, k: int) -> bool:
        return k < self.count and self.operation.inputs[k] >= 0

    def index(self, k: int) -> int:
        if not self.has(k):
            raise RefusedError(f"input {k} is missing")
        return self.operation.inputs[k]

    def x(self, k: int = 0) -> Value:
        """Operand ``k``.  Raises RefusedError if it is absent or its type is not known."""
        found = self.importer.raw(self.index(k)) if self.raw else self.importer.real(self.index(k))
        self.net.type(found)
        return found

    def optional(self, k: int) -> Value | None:
        return self.x(k) if self.has(k) else None

    def factors(self, x: int, w: int, bias: int, axis: int) -> tuple[Value, Value, Value | None, Array | None]:
        """Operands of a product, and what one step of the result stands for.

        Of 8-bit numbers these are the integers themselves, whose sums are exact in f32 (below 2**24) in any order, as
        LiteRT has them; of others they are the real numbers, and the step is None.  ``axis`` is that of the weights
        which tells the channels of the result apart.
        """
        tensors = self.importer.content.tensors
        left, right = (tensors[self.index(k)] for k in (x, w))
        added = tensors[self.index(bias)] if self.has(bias) else None
        small = all(t.dtype in (DType.I8, DType.U8) and not t.broken for t in (left, right))
        plain = added is None or (added.data is not None and added.dtype is DType.I32 and not added.broken)
        if (
            not small or not plain or left.quant is None or right.quant is None or left.data is not None
            or right.data is None or len(left.quant.scale) > 1 or right.quant.axis not in (None, axis)
        ):  # fmt: skip
            return self.x(x), self.x(w), self.optional(bias), None
        unit = np.float32(left.quant.scale[0]) * np.array(right.quant.scale, np.float32)
        steps = added.data.astype(np.float32) if added is not None and added.data is not None else None
        whole = None if steps is None else self.net.constant(steps, "bias")
        unit = unit if len(unit) > 1 else unit.reshape(())
        return self.importer.counted(self.index(x)), self.importer.counted(self.index(w)), whole, unit

    def stored(self, k: int) -> Value:
        return self.importer.raw(self.index(k))

    def state(self, k: int) -> Value:
        """A variable that is kept between runs, as an input of the graph in f32."""
        i = self.index(k)
        name, tensor = self.importer.names[i], self.importer.content.tensors[i]
        if tensor.broken:
            raise RefusedError(f"tensor '{tensor.name}': {tensor.broken}")
        return self.net[name] if name in self.net else self.net.input(name, TensorType(DType.F32, tensor.shape))

    def keep(self, k: int, value: Value) -> None:
        """The variable's content after this run, as an output of the graph."""
        name = f"{self.importer.names[self.index(k)]}_out"
        self.net[name] = value
        self.importer.kept.append(name)

    def output(self, k: int = 0) -> Tensor:
        outputs = self.operation.outputs
        if k >= len(outputs) or outputs[k] < 0:
            raise RefusedError(f"output {k} is missing")
        return self.importer.content.tensors[outputs[k]]

    def zero(self, like: Value) -> Value | None:
        """The stored number that stands for 0, where integers are padded."""
        quant = self.output().quant
        return self.net.number(quant.zero_point[0], like) if self.raw and quant is not None else None


Spell = Callable[[Layer], Value | Sequence[Value]]


def dequantized(data: Array, quant: Quant) -> Array:
    """What the integers stand for, in f32."""
    scale, zero = np.array(quant.scale, np.float32), np.array(quant.zero_point, np.int64)
    if quant.axis is not None:
        shape = [-1 if i == quant.axis else 1 for i in range(data.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    with np.errstate(over="ignore"):
        result: Array = ((data.astype(np.int64) - zero).astype(np.float32) * scale).astype(np.float32)
    return result.reshape(data.shape)


def _unique(names: Sequence[str]) -> list[str]:
    """Names that are told apart by a number where the file repeats one."""
    seen: dict[str, int] = {}
    found = []
    taken = set(names)
    for name in names:
        n = seen.get(name, 0)
        seen[name] = n + 1
        fresh = name
        while n and fresh in taken:
            fresh, n = f"{name}_{n}", n + 1
        taken.add(fresh)
        found.append(fresh)
    return found
