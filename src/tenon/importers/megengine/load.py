"""MegEngine dumps (.mge): of the first format weights, then a graph as a FlatBuffer; of the second one FlatBuffer.

Operators are known by the hash of their class's name.  Formats: src/serialization/impl/schema.fbs,
schema_v2.fbs and serializer_oss*.cpp of MegEngine/MegEngine.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenon.decompositions.layers import adaptive_pool
from tenon.errors import FormatError
from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError, unknown
from tenon.graph_builder.node_context import Emitter, port, same
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType
from tenon.ir.writer import is_known
from tenon.model_files.model_file import ModelFile
from tenon.wire.flatbuffer import Buffer, Table

_MAGIC, _IDENTIFIER, _NEWER = b"MGBS", b"mgb1", b"mge2"
_HEADER = 16
_DTYPES = {0: "<f4", 1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 7: "<f2"}
_SEED = 20160701


@dataclass(frozen=True)
class _Slots:
    """Where the tables of a format have what is read here."""

    operators: int
    type: int
    name: int
    parameters: int
    inputs: int
    dtype: int
    tensors: int


_FIRST = _Slots(operators=3, type=0, name=12, parameters=2, inputs=3, dtype=6, tensors=7)
_SECOND = _Slots(operators=2, type=1, name=2, parameters=4, inputs=7, dtype=10, tensors=11)
_OUTPUTS, _DATA = 8, 6
"""Of an operator and of a tensor, in the second format."""


def recognise(file: ModelFile) -> bool:
    return file.data[:4] in (_MAGIC, b"mgb0") or file.data[4:8] in (_NEWER, _IDENTIFIER) or file.data[8:12] == _NEWER


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors."""
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs)
    try:
        if _NEWER in (file.data[4:8], file.data[8:12]):
            return _Dump(builder, Buffer(file.data[0 if file.data[4:8] == _NEWER else 4 :]).root(), b"", _SECOND).load()
        if file.data[:4] != _MAGIC or len(file.data) < _HEADER + 16:
            raise FormatError("not a dump of MegEngine that is known; dump it with dump_format='FBS' or 'FBS_V2'")
        (offset,) = struct.unpack_from("<Q", file.data, 8)
        begin = _HEADER + offset + 4  # past the size of the FlatBuffer
        if begin + 8 > len(file.data) or file.data[begin + 4 : begin + 8] != _IDENTIFIER:
            raise FormatError("its graph is not where its header says; the file is truncated or damaged")
        return _Dump(builder, Buffer(file.data[begin:]).root(), file.data[: begin - 4], _FIRST).load()
    except FormatError as error:
        raise FormatError(str(error) if file.name in str(error) else f"{file.name}: {error}") from error


class _Dump:
    """The walk over the operators; their outputs are numbered one after the other."""

    def __init__(self, builder: GraphBuilder, graph: Table, weights: bytes, slots: _Slots) -> None:
        self.builder, self.graph, self.weights, self.at, self.slots = builder, graph, weights, _HEADER, slots
        self.names: list[str] = []

    def load(self) -> Graph:
        operators, wanted = self.graph.tables(self.slots.operators), self.outputs()
        counts = self.counts(operators, wanted)
        for i, (operator, count) in enumerate(zip(operators, counts, strict=True)):
            name = operator.text(self.slots.name) or f"var_{len(self.names)}"
            if name in self.names:
                name = f"{name}_{i}"
            names = [name, *(f"{name}_{k}" for k in range(1, count))]
            self.names += names
            self.operator(operator, names)
        return self.builder.finish([self.named(i) for i in wanted])

    def outputs(self) -> list[int]:
        if self.slots is _SECOND:
            return [int(pair.get(0, "u32")) for pair in self.graph.tables(4)]
        return [int(pair) & 0xFFFFFFFF for pair in self.graph.vector(4, "u64")]

    def counts(self, operators: Sequence[Table], wanted: Sequence[int]) -> list[int]:
        """How many variables each operator makes.

        The first format does not say it.  Normalisation there makes five or, of late, six: as many as make the last
        result the last variable.
        """
        if self.slots is _SECOND:
            return [max(1, len(operator.ints(_OUTPUTS, "u32"))) for operator in operators]
        found = [self.count(operator) for operator in operators]
        if sum(n or 5 for n in found) == max(wanted, default=0) + 1:
            return [n or 5 for n in found]
        return [n or 6 for n in found]

    def count(self, operator: Table) -> int:
        """0 for one that normalises."""
        kind, inputs = self.kind(operator), len(operator.ints(self.slots.inputs, "u32"))
        if kind in _HOLDERS:
            return max(1, len(operator.tables(self.slots.tensors)))
        return max(1, inputs - 1) if kind == "Split" else _RESULTS.get(kind, 1)

    def kind(self, operator: Table) -> str:
        return _TYPES.get(operator.get(self.slots.type, "u64"), "")

    def named(self, i: int) -> str:
        if not 0 <= i < len(self.names):
            raise FormatError(f"variable {i} of {len(self.names)}; the file is damaged")
        return self.names[i]

    def operator(self, operator: Table, names: Sequence[str]) -> None:
        name, kind = names[0], self.kind(operator)
        tensors, sources = operator.tables(self.slots.tensors), operator.ints(self.slots.inputs, "u32")
        if kind == "Host2DeviceCopy" and tensors:
            self.names[-1] = tensors[0].text(0) or name
            port(self.builder, self.names[-1], self.type(tensors[0]))
            return
        with self.builder.layer(name, kind or f"{operator.get(self.slots.type, 'u64'):#x}", *names):
            if tensors and not sources:
                for top, tensor in zip(names, tensors, strict=False):
                    self.builder[top] = self.builder.constant(self.stored(tensor), "data")
                return
            inputs = [self.builder[self.named(i)] for i in sources]
            if kind not in OPERATORS:
                raise unknown(kind, OPERATORS)
            if all(is_known(v) for v in inputs):
                parameters = operator.table(self.slots.parameters)
                made = OPERATORS[kind](
                    Context(self.builder, parameters, inputs, _wanted(operator.table(self.slots.dtype)))
                )
                values = [made] if isinstance(made, Value) else made
                for top, value in zip(names[-len(values) :], values, strict=False):
                    self.builder[top] = value

    def type(self, tensor: Table) -> TensorType:
        dims, code = tuple(tensor.ints(1, "u32")), _dtype(tensor)
        return TensorType(DType.of(np.dtype(_DTYPES[code])), dims)

    def stored(self, tensor: Table) -> Array:
        """A tensor of its own data, or the next of those that lie before the graph.  Raises FormatError."""
        dims, dtype = tuple(tensor.ints(1, "u32")), np.dtype(_DTYPES[_dtype(tensor)])
        count = math.prod(dims)
        if self.slots is _SECOND:
            raw = tensor.vector(_DATA, "u8").tobytes()
        else:
            begin = self.at + tensor.get(5, "u32")
            self.at = begin + tensor.get(4, "u32")
            raw = self.weights[begin : self.at]
        if len(raw) != count * dtype.itemsize:
            raise FormatError(f"a tensor of shape {list(dims)} in {len(raw)} bytes; the file is truncated or damaged")
        data = np.frombuffer(raw, dtype, count).reshape(dims)
        return data.astype(np.float32) if dtype.kind == "f" else data


_RESULTS = {"BatchNorm": 0, "TopK": 2, "Argsort": 2, "LayerNorm": 3, "GroupNorm": 3, "InstanceNorm": 3}


def _wanted(found: Table | None) -> DType | None:
    """The type of the result, where the operator says one that is not of integers with a scale."""
    code = int(found.get(0, "u8")) if found is not None else -1
    return DType.of(np.dtype(_DTYPES[code])) if code in _DTYPES else None


def _dtype(tensor: Table) -> int:
    found = tensor.table(3)
    code = int(found.get(0, "u8")) if found is not None else 0
    if code not in _DTYPES:
        raise FormatError(f"elements of type {code} are not supported")
    return code


def hashed(name: str) -> int:
    """XXH64 (Y. Collet) of a class's name, as MegEngine's registry of operators computes it."""
    data, mask = name.encode(), (1 << 64) - 1
    p1, p2, p3, p4, p5 = _PRIMES

    def rotated(value: int, bits: int) -> int:
        value &= mask
        return (value << bits | value >> (64 - bits)) & mask

    def mixed(lane: int) -> int:
        return rotated(lane * p2, 31) * p1 & mask

    if len(data) >= 32:
        raise ValueError(f"{name} is too long a name")
    h = (_SEED + p5 + len(data)) & mask
    while len(data) >= 8:
        h = (rotated(h ^ mixed(int.from_bytes(data[:8], "little")), 27) * p1 + p4) & mask
        data = data[8:]
    if len(data) >= 4:
        h = (rotated(h ^ (int.from_bytes(data[:4], "little") * p1 & mask), 23) * p2 + p3) & mask
        data = data[4:]
    for byte in data:
        h = rotated(h ^ (byte * p5 & mask), 11) * p1 & mask
    for shift, prime in ((33, p2), (29, p3)):
        h = (h ^ h >> shift) * prime & mask
    return h ^ h >> 32


_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


# -------------------------------------------------------------------------------------------- operators
class Context(Emitter):
    """The operator about to be made and the slots of its parameters."""

    def __init__(
        self, builder: GraphBuilder, parameters: Table | None, inputs: Sequence[Value], wanted: DType | None = None
    ) -> None:
        super().__init__(builder)
        self.parameters, self.inputs, self.wanted = parameters, inputs, wanted

    def get(self, slot: int, kind: str, default: int = 0) -> int:
        return default if self.parameters is None else int(self.parameters.get(slot, kind, default))

    def number(self, slot: int, default: float = 0.0, kind: str = "f32") -> float:
        return default if self.parameters is None else float(self.parameters.get(slot, kind, default))

    def known(self, i: int) -> Array:
        """What an input holds that must not depend on others.  Raises RefusedError."""
        data = self.inputs[i].data if i < len(self.inputs) else None
        if data is None:
            raise RefusedError(f"input {i} is computed at run time, and says a shape or a place")
        return data

    def rows(self, slot: int, size: int) -> list[bytes]:
        """Structs of so many bytes."""
        data = b"" if self.parameters is None else self.parameters.structs(slot, size)
        return [data[i : i + size] for i in range(0, len(data), size)]

    def numbers(self, slot: int) -> list[int]:
        return [] if self.parameters is None else self.parameters.ints(slot)

    @property
    def x(self) -> Value:
        return self.inputs[0]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.builder.dims(self.x)


_SINGLES = {0: "Relu", 1: "Abs", 2: "Acos", 3: "Asin", 4: "Ceil", 5: "Cos", 6: "Exp", 8: "Floor", 9: "Log", 11: "Neg",
            12: "Sigmoid", 13: "Sin", 14: "Tanh", 40: "Tanh", 42: "Round", 45: "Erf", 49: "HardSwish", 52: "Not",
            56: "Swish", 58: "Gelu"}  # fmt: skip
_PAIRS = {16: "Add", 18: "Max", 19: "Min", 21: "Mul", 22: "Pow", 24: "Sub", 27: "Div", 53: "And", 54: "Or", 55: "Xor"}
_COMPARED = {29: "Less", 30: "LessOrEqual", 31: "Equal"}
_FUSED = {37: "Relu", 38: "Sigmoid", 39: "Tanh", 51: "HardSwish"}


def elemwise(c: Context) -> Value:
    """By mode; some fuse an addition or a product with what follows it."""
    mode, given = c.get(0, "u32"), list(c.inputs)
    if mode in _SINGLES:
        return c.add(_SINGLES[mode], c.x)
    if mode in _PAIRS and len(given) == 2:
        return c.add(_PAIRS[mode], *given)
    if mode in _COMPARED and len(given) == 2:
        return c.add("Cast", c.add(_COMPARED[mode], *given), to="f32")
    if mode in _FUSED and len(given) == 2:
        return c.add(_FUSED[mode], c.add("Add", *given))
    if mode == 17 and len(given) == 2:
        return c.chain(c.add("Div", *given), "Floor")
    if mode == 20 and len(given) == 2:
        return c.add("Mod", *given, fmod=1)
    if mode == 25 and len(given) == 2:
        return c.add("Mul", c.add("Cast", c.add("Greater", c.x, 0.0), to="f32"), given[1])
    if mode == 28 and len(given) == 2:
        high = c.add("Max", *given)
        return c.add("Add", high, c.add("Log", c.fold("Add", [c.add("Exp", c.add("Sub", v, high)) for v in given])))
    if mode == 34 and len(given) == 3:
        return c.add("Mul", c.add("Cast", c.add("LessOrEqual", *given[:2]), to="f32"), given[2])
    if mode == 47:
        return c.add("Sub", c.builder.scalar(1.0), c.add("Erf", c.x))
    if mode == 35 and len(given) == 3:
        return c.add("Add", c.add("Mul", *given[:2]), given[2])
    if mode == 36 and len(given) == 4:
        return c.add("Add", c.add("Mul", *given[:2]), c.add("Mul", *given[2:]))
    if mode in (7, 10):
        return c.add("Sub", c.add("Exp", c.x), 1.0) if mode == 7 else c.add("Log", c.add("Add", c.x, 1.0))
    raise RefusedError(f"mode {mode} with {len(given)} inputs is not supported")


def matrix_mul(c: Context) -> Value:
    sides = (c.swapped(value, bool(c.get(i, "bool"))) for i, value in enumerate(c.inputs[:2]))
    return c.add("MatMul", *sides)


_REDUCTIONS = ("ReduceSum", "ReduceSumSquare", "ReduceProd", "ReduceMin", "ReduceMax", "ReduceMean")


def reduce(c: Context) -> Value:
    mode, axis = c.get(0, "u32"), c.get(1, "i32", 2**31 - 1)
    if mode >= len(_REDUCTIONS) or len(c.inputs) != 1:
        raise RefusedError(f"mode {mode} with {len(c.inputs)} inputs is not supported")
    return c.add(_REDUCTIONS[mode], c.x, c.ints(c.axis(axis, len(c.dims))), keepdims=1)


def _pair(c: Context, slot: int, default: int) -> tuple[int, int]:
    return c.get(slot, "u32", default), c.get(slot + 1, "u32", default)


def convolution(c: Context) -> Value:
    """Weights of five axes are those of groups."""
    weights, group = _grouped(c, c.get(0, "u32"))
    bias = [c.reshape(value, -1) for value in c.inputs[2:3]]
    return c.add(
        "Conv",
        c.x,
        weights,
        *bias,
        group=group,
        pads=_pair(c, 1, 0) * 2,
        strides=_pair(c, 3, 1),
        dilations=_pair(c, 5, 1),
    )


def pooling(c: Context) -> Value:
    mode = c.get(0, "u32")
    if mode > 2:
        raise RefusedError(f"mode {mode} is not supported")
    window = {"pads": _pair(c, 1, 0) * 2, "strides": _pair(c, 3, 2), "kernel_shape": _pair(c, 5, 2)}
    if mode == 0:
        return c.add("MaxPool", c.x, **window)
    return c.add("AveragePool", c.x, count_include_pad=int(mode == 1), **window)


def dimshuffle(c: Context) -> Value:
    """A permutation in which -1 stands for a new axis; an axis left out must be of one element."""
    pattern = c.numbers(0)
    kept = [p for p in pattern if p >= 0]
    gone = [a for a in range(len(c.dims)) if a not in kept]
    x = c.add("Squeeze", c.x, c.ints(*gone)) if gone else c.x
    left = sorted(kept)
    x = c.add("Transpose", x, perm=[left.index(p) for p in kept])
    new = [i for i, p in enumerate(pattern) if p < 0]
    return c.add("Unsqueeze", x, c.ints(*new)) if new else x


def reshape(c: Context) -> Value:
    """To a shape, of which one axis may be what is left."""
    if len(c.inputs) != 2:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 2")
    free = c.get(0, "i32", 7)
    shape = [int(n) for n in c.known(1).ravel()]
    return c.reshape(c.x, *(-1 if i == free else n for i, n in enumerate(shape)))


def conv_bias(c: Context) -> Value:
    """With an activation, and perhaps what is added before it."""
    kinds = {0: "", 1: "Relu", 2: "Sigmoid", 3: "HardSwish"}
    kind = c.get(0, "u32")
    if kind not in kinds or c.get(3, "u32"):
        raise RefusedError(f"activation {kind} in format {c.get(3, 'u32')} is not supported")
    weights, group = _grouped(c, c.get(1, "u32"))
    bias = c.inputs[2] if len(c.inputs) > 2 else None
    flat = bias is not None and math.prod(c.builder.dims(bias)) == c.builder.dims(weights)[0]
    x = c.add(
        "Conv",
        c.x,
        weights,
        c.reshape(bias, -1) if bias is not None and flat else None,
        group=group,
        pads=_pair(c, 4, 0) * 2,
        strides=_pair(c, 6, 1),
        dilations=_pair(c, 8, 1),
    )
    for more in [*([] if flat or bias is None else [bias]), *c.inputs[3:]]:
        x = c.add("Add", x, more)
    return c.add(kinds[kind], x) if kinds[kind] else x


def _grouped(c: Context, mode: int, at: int = 1) -> tuple[Value, int]:
    """Weights of four axes and how many groups they are of; those of five axes are of groups."""
    weights = c.inputs[at]
    dims = c.builder.dims(weights)
    if mode != 0 or len(dims) not in (4, 5):
        raise RefusedError("only cross-correlation of images is supported")
    if len(dims) == 4:
        return weights, 1
    return c.reshape(weights, dims[0] * dims[1], *dims[2:]), dims[0]


def deconvolution(c: Context) -> Value:
    """Inputs: weights, then what is convolved; a third one says the size of the result."""
    weights, group = _grouped(c, c.get(0, "u32"), 0)
    pads, strides, dilations = _pair(c, 1, 0), _pair(c, 3, 1), _pair(c, 5, 1)
    more = (0, 0)
    if len(c.inputs) > 2:
        size, kernel, given = (
            c.builder.dims(c.inputs[2])[2:],
            c.builder.dims(weights)[2:],
            c.builder.dims(c.inputs[1])[2:],
        )
        spans = zip(size, given, kernel, pads, strides, dilations, strict=True)
        rest = [n - ((m - 1) * s + (k - 1) * d + 1 - 2 * p) for n, m, k, p, s, d in spans]
        more = (rest[0], rest[1])
    return c.add(
        "ConvTranspose",
        c.inputs[1],
        weights,
        group=group,
        pads=pads * 2,
        strides=strides,
        dilations=dilations,
        output_padding=more,
    )


def adaptive(c: Context) -> Value:
    if c.get(0, "u32") > 2:
        raise RefusedError(f"mode {c.get(0, 'u32')} is not supported")
    sizes = [int(n) for n in c.known(1).ravel()]
    return adaptive_pool(c, c.x, sizes * (2 if len(sizes) == 1 else 1), average=c.get(0, "u32") > 0)


def batch_norm(c: Context) -> Value:
    """x, scale, bias, mean, variance: with the statistics given."""
    if len(c.inputs) != 5 or c.get(1, "u32") != 1 or c.get(0, "u32") != 2:
        raise RefusedError("only inference with statistics of channels is supported")
    flat = [c.reshape(v, -1) for v in c.inputs[1:]]
    return c.add("BatchNormalization", c.x, *flat, epsilon=c.number(2, 1e-4, "f64"))


def layer_norm(c: Context) -> Sequence[Value]:
    count = c.get(2, "u64", 1)
    axis = len(c.dims) - count
    if not 0 <= axis < len(c.dims):
        raise RefusedError(f"{count} axes of {len(c.dims)} are not supported")
    scale = c.inputs[1] if len(c.inputs) > 1 else np.ones(c.dims[axis:], np.float32)
    y = c.add("LayerNormalization", c.x, scale, *c.inputs[2:3], axis=axis, epsilon=c.number(1, 1e-5))
    return [y, *[c.builder.constant(np.zeros(0, np.float32))] * 2]


def _axes_of_structs(c: Context) -> Value:
    """AxisAddRemove: axes of one element that come and go, one after the other."""
    x = c.x
    for row in c.rows(0, 8):
        method, axis = row[0], int.from_bytes(row[4:], "little", signed=True)
        if method > 1:
            raise RefusedError(f"method {method} is not supported")
        x = c.add("Squeeze" if method else "Unsqueeze", x, c.ints(axis))
    return x


def subtensor(c: Context) -> Value:
    """Begins, ends, steps and places, which of them for each axis is marked, stand in the inputs."""
    at, x, gone = 1, c.x, []
    for axis, *marks in (struct.unpack("b4?", row) for row in c.rows(0, 5)):
        given: list[int | None] = []
        for mark in marks:
            given.append(int(c.known(at).item()) if mark else None)
            at += mark
        begin, end, step, place = given
        axis = c.axis(axis, len(c.dims))
        if place is not None:
            x = c.slice(x, [place], [place + 1 or 1 << 31], [axis])
            gone.append(axis)
            continue
        step = 1 if step is None else step
        begin = (0 if step > 0 else -1) if begin is None else begin
        end = (1 << 31 if step > 0 else -(1 << 31)) if end is None else end
        x = c.slice(x, [begin], [end], [axis], [step])
    return c.add("Squeeze", x, c.ints(*gone)) if gone else x


def picked(c: Context) -> Value:
    """IndexingMultiAxisVec along one axis by numbers."""
    rows = [struct.unpack("b4?", row) for row in c.rows(0, 5)]
    if len(rows) != 1 or rows[0][1:] != (False, False, False, True):
        raise RefusedError("numbers along one axis are supported, not ranges or several")
    return c.add("Gather", c.x, c.add("Cast", c.inputs[1], to="i64"), axis=c.axis(rows[0][0], len(c.dims)))


def one_hot_picked(c: Context) -> Value:
    """One element of an axis for every place of the others."""
    axis = c.axis(c.get(0, "i32"), len(c.dims))
    at = c.add("Unsqueeze", c.add("Cast", c.inputs[1], to="i64"), c.ints(axis))
    return c.add("GatherElements", c.x, at, axis=axis)


def split(c: Context) -> Sequence[Value]:
    sizes = [int(c.known(i).item()) for i in range(1, len(c.inputs))]
    return c.split(c.x, c.axis(c.get(0, "i32"), len(c.dims)), sizes)


def shape_of(c: Context) -> Value:
    axis = c.get(0, "i32", 7)
    return c.builder.constant(np.array(c.dims if axis == 7 else [c.dims[axis]], np.int32), "shape")


def top(c: Context) -> Sequence[Value]:
    """Of the last axis; a negative number wants the greatest first."""
    count = int(c.known(1).item())
    if c.get(0, "u32") == 0 or not count:
        raise RefusedError("the values and numbers of the greatest or least are supported")
    values, numbers = c.builder.adds("TopK", 2, c.x, c.ints(abs(count)), axis=len(c.dims) - 1, largest=int(count < 0))
    return [values, c.add("Cast", numbers, to="i32")]


def sorted_(c: Context) -> Sequence[Value]:
    size, axis = c.dims[-1], len(c.dims) - 1
    values, numbers = c.builder.adds("TopK", 2, c.x, c.ints(size), axis=axis, largest=c.get(0, "u32"))
    return [values, c.add("Cast", numbers, to="i32")]


def arg(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add("Cast", c.add(type, c.x, axis=c.get(0, "i32"), keepdims=1), to="i32")


def cumsum(c: Context) -> Value:
    return c.add(
        "CumSum",
        c.x,
        c.ints(c.axis(c.get(0, "i32", 2**31 - 1), len(c.dims))),
        exclusive=c.get(1, "bool", 1),
        reverse=c.get(2, "bool"),
    )


_FORMATS = {0: True, 1: False}
"""Whether the channels come first."""


def resize(c: Context) -> Value:
    """To a size that the second input says; channels lie last unless a format says so."""
    imode, format = c.get(0, "u32", 1), c.get(1, "u32", 1)
    if imode not in (0, 1, 3) or format not in _FORMATS:
        raise RefusedError(f"mode {imode} in format {format} is not supported")
    x = c.x if _FORMATS[format] else c.add("Transpose", c.x, perm=(0, 3, 1, 2))
    high, wide = (int(n) for n in c.known(1).ravel())
    centre = "asymmetric" if imode == 0 else "half_pixel"
    x = c.resized(x, high, wide, {0: "nearest", 1: "linear", 3: "cubic"}[imode], centre)
    return x if _FORMATS[format] else c.add("Transpose", x, perm=(0, 2, 3, 1))


def pad(c: Context) -> Value:
    rank, mode = len(c.dims), c.get(15, "u32", 2)
    if mode > 2 or rank > 7:
        raise RefusedError(f"mode {mode} of {rank} axes is not supported")
    pads = c.ints(*(c.get(first + i, "u32") for first in (0, 7) for i in range(rank)))
    return c.add("Pad", c.x, pads, c.number(14) if mode == 2 else None, mode=("edge", "reflect", "constant")[mode])


def roi_align(c: Context) -> Value:
    """Regions [R, 5], the number of their picture first; so many samples in every bin."""
    if c.get(0, "u32") != 1 or c.get(1, "u32") or c.get(6, "u32", 2) != c.get(7, "u32", 2):
        raise RefusedError("averages of as many samples down as across, channels first, are supported")
    picture, regions = c.split(c.inputs[1], 1, [1, 4])
    offset = c.number(3)
    if offset not in (0.0, 0.5):
        raise RefusedError(f"an offset of {offset:g} is not supported")
    return c.add(
        "RoiAlign",
        c.x,
        regions,
        c.reshape(c.add("Cast", picture, to="i64"), -1),
        spatial_scale=c.number(2, 1.0),
        output_height=c.get(4, "u32", 1),
        output_width=c.get(5, "u32", 1),
        sampling_ratio=c.get(6, "u32", 2),
        coordinate_transformation_mode="half_pixel" if offset else "output_half_pixel",
    )


def lrn(c: Context) -> Value:
    """The sum is not divided by how many there are."""
    n = c.get(0, "u32", 5)
    return c.add("LRN", c.x, size=n, alpha=c.number(2, 1e-4) * n, beta=c.number(3, 0.75), bias=c.number(1, 2.0))


def converted(c: Context) -> Value:
    if c.wanted is None:
        raise RefusedError("integers with a scale are not supported")
    return c.add("Cast", c.x, to=str(c.wanted))


OPERATORS: dict[str, Callable[[Context], Value | Sequence[Value]]] = {
    "Elemwise": elemwise,
    "MatrixMul": matrix_mul,
    "BatchedMatrixMul": matrix_mul,
    "Reduce": reduce,
    "Convolution": convolution,
    "Pooling": pooling,
    "Dimshuffle": dimshuffle,
    "Reshape": reshape,
    "Concat": lambda c: c.add("Concat", *c.inputs, axis=c.get(0, "i32")),
    "PowC": lambda c: c.add("Pow", c.x, c.number(0)),
    "Softmax": lambda c: c.add("Softmax", c.x, axis=c.get(0, "i32", -1)),
    "ConvBiasForward": conv_bias,
    "ConvolutionBackwardData": deconvolution,
    "AdaptivePooling": adaptive,
    "BatchNorm": batch_norm,
    "LayerNorm": layer_norm,
    "AxisAddRemove": _axes_of_structs,
    "Subtensor": subtensor,
    "IndexingMultiAxisVec": picked,
    "IndexingOneHot": one_hot_picked,
    "Split": split,
    "GetVarShape": shape_of,
    "Broadcast": lambda c: c.add("Expand", c.x, c.ints(*(int(n) for n in c.known(1).ravel()))),
    "TopK": top,
    "Argsort": sorted_,
    "Argmax": arg("ArgMax"),
    "Argmin": arg("ArgMin"),
    "Cumsum": cumsum,
    "Resize": resize,
    "Padding": pad,
    "ROIAlign": roi_align,
    "LRN": lrn,
    "TypeCvt": converted,
    "Where": lambda c: c.add("Where", c.add("Cast", c.x, to="bool"), *c.inputs[1:]),
    **dict.fromkeys(("Copy", "Identity", "Dropout", "MarkNoBroadcastElemwise"), same),
}

_HOLDERS = ("ImmutableTensor", "SharedDeviceTensor", "MultipleDeviceTensorHolder")
_TYPES = {
    hashed(name + end): name
    for name in ("Host2DeviceCopy", "GroupNorm", "InstanceNorm", *_HOLDERS, *OPERATORS)
    for end in ("", "\0")
}
"""Versions of operators are not in the names; what only newer versions know is hashed with the end of its name."""
