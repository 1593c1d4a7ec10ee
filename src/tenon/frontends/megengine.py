"""MegEngine dumps (.mge) of its first serialised format: weights, then a graph as a FlatBuffer.

Operators are known by the hash of their class's name.  Format: src/serialization/impl/schema.fbs and
serializer_oss.cpp of MegEngine/MegEngine.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.frontends.emit import Emitter, port
from tenon.frontends.net import Net
from tenon.frontends.refused import RefusedError, unknown
from tenon.frontends.source import ModelFile
from tenon.frontends.wire.flatbuffer import Buffer, Table
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType
from tenon.ir.writer import is_known

_MAGIC, _IDENTIFIER = b"MGBS", b"mgb1"
_HEADER = 16
_DTYPES = {0: "<f4", 1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 7: "<f2"}
_SEED = 20160701


def recognise(file: ModelFile) -> bool:
    return file.data[:4] in (_MAGIC, b"mgb0") or file.data[4:8] in (b"mge2", _IDENTIFIER)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``frontends.load`` for errors."""
    if file.data[:4] != _MAGIC or len(file.data) < _HEADER + 16:
        raise FormatError(f"{file.name}: not a dump of MegEngine's first format; dump it with dump_format='FBS'")
    (offset,) = struct.unpack_from("<Q", file.data, 8)
    begin = _HEADER + offset + 4  # past the size of the FlatBuffer
    if begin + 8 > len(file.data) or file.data[begin + 4 : begin + 8] != _IDENTIFIER:
        raise FormatError(f"{file.name}: its graph is not where its header says; the file is truncated or damaged")
    try:
        graph = Buffer(file.data[begin:]).root()
        return _Dump(Net(file, file.stem, shapes, inputs, outputs), graph, file.data[: begin - 4]).load()
    except FormatError as error:
        raise FormatError(str(error) if file.name in str(error) else f"{file.name}: {error}") from error


class _Dump:
    """The walk over the operators; their outputs are numbered one after the other."""

    def __init__(self, net: Net, graph: Table, weights: bytes) -> None:
        self.net, self.graph, self.weights, self.at = net, graph, weights, _HEADER
        self.names: list[str] = []

    def load(self) -> Graph:
        for i, operator in enumerate(self.graph.tables(3)):
            name = operator.text(11) or f"var_{len(self.names)}"
            if name in self.names:
                name = f"{name}_{i}"
            self.names.append(name)
            self.operator(operator, name)
        return self.net.finish([self.named(i) for i in self.outputs()])

    def outputs(self) -> list[int]:
        pairs = self.graph.vector(4, "u64")
        return [int(pair) & 0xFFFFFFFF for pair in pairs]

    def named(self, i: int) -> str:
        if not 0 <= i < len(self.names):
            raise FormatError(f"variable {i} of {len(self.names)}; the file is damaged")
        return self.names[i]

    def operator(self, operator: Table, name: str) -> None:
        kind = _TYPES.get(operator.get(0, "u64"), "")
        tensors, sources = operator.tables(7), operator.ints(3, "u32")
        if kind == "Host2DeviceCopy" and tensors:
            self.names[-1] = tensors[0].text(0) or name
            port(self.net, self.names[-1], self.type(tensors[0]))
            return
        with self.net.layer(name, kind or f"{operator.get(0, 'u64'):#x}", name):
            if tensors and not sources:
                self.net[name] = self.net.constant(self.stored(tensors[0]), "data")
                return
            inputs = [self.net[self.named(i)] for i in sources]
            if kind not in OPERATORS:
                raise unknown(kind, OPERATORS)
            if all(is_known(v) for v in inputs):
                self.net[name] = OPERATORS[kind](Context(self.net, operator.table(2), inputs))

    def type(self, tensor: Table) -> TensorType:
        dims, code = tuple(tensor.ints(1, "u32")), _dtype(tensor)
        return TensorType(DType.of(np.dtype(_DTYPES[code])), dims)

    def stored(self, tensor: Table) -> Array:
        """The next tensor of those that lie before the graph.  Raises FormatError."""
        dims, dtype = tuple(tensor.ints(1, "u32")), np.dtype(_DTYPES[_dtype(tensor)])
        size, skipped, count = tensor.get(4, "u32"), tensor.get(5, "u32"), math.prod(dims)
        begin = self.at + skipped
        self.at = begin + size
        if size != count * dtype.itemsize or self.at > len(self.weights):
            raise FormatError(f"a tensor of shape {list(dims)} in {size} bytes; the file is truncated or damaged")
        data = np.frombuffer(self.weights, dtype, count, begin).reshape(dims)
        return data.astype(np.float32) if dtype.kind == "f" else data


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

    def __init__(self, net: Net, parameters: Table | None, inputs: Sequence[Value]) -> None:
        super().__init__(net)
        self.parameters, self.inputs = parameters, inputs

    def get(self, slot: int, kind: str, default: int = 0) -> int:
        return default if self.parameters is None else int(self.parameters.get(slot, kind, default))

    def number(self, slot: int) -> float:
        return 0.0 if self.parameters is None else float(self.parameters.get(slot, "f32", 0.0))

    def numbers(self, slot: int) -> list[int]:
        return [] if self.parameters is None else self.parameters.ints(slot)

    @property
    def x(self) -> Value:
        return self.inputs[0]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.net.dims(self.x)


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
    weights, group = c.inputs[1], 1
    dims = c.net.dims(weights)
    if c.get(0, "u32") != 0 or len(dims) not in (4, 5):
        raise RefusedError("only cross-correlation of images is supported")
    if len(dims) == 5:
        group, weights = dims[0], c.reshape(weights, dims[0] * dims[1], *dims[2:])
    bias = [c.reshape(value, -1) for value in c.inputs[2:3]]
    return c.add("Conv", c.x, weights, *bias, group=group, pads=_pair(c, 1, 0) * 2, strides=_pair(c, 3, 1),
                 dilations=_pair(c, 5, 1))  # fmt: skip


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
    if len(c.inputs) != 2:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 2")
    return c.add("Reshape", c.x, c.add("Cast", c.inputs[1], to="i64"))


OPERATORS: dict[str, Callable[[Context], Value]] = {
    "Elemwise": elemwise, "MatrixMul": matrix_mul, "BatchedMatrixMul": matrix_mul, "Reduce": reduce,
    "Convolution": convolution, "Pooling": pooling, "Dimshuffle": dimshuffle, "Reshape": reshape,
    "Concat": lambda c: c.add("Concat", *c.inputs, axis=c.get(0, "i32")),
    "PowC": lambda c: c.add("Pow", c.x, c.number(0)),
    "Softmax": lambda c: c.add("Softmax", c.x, axis=c.get(0, "i32", -1)),
}  # fmt: skip

_TYPES = {hashed(name + version): name for name in ("Host2DeviceCopy", *OPERATORS) for version in ("", "V1", "V2")}
