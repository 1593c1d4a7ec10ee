"""MegEngine dumps (.mge): of the first format weights, then a graph as a FlatBuffer; of the second one FlatBuffer.

Operators are known by the hash of their class's name.  Formats: src/serialization/impl/schema.fbs,
schema_v2.fbs and serializer_oss*.cpp of MegEngine/MegEngine.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import GraphBuilder, required_input
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.megengine.node import MegengineNode
from tenon.formats.importers.megengine.ops import OPERATORS
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.flatbuffer import FlatBuffer, FlatTable
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import is_known

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
"""Field numbers of an operator's outputs and a tensor's data, in the second format."""


def recognise(file: ModelFile) -> bool:
    return file.data[:4] in (_MAGIC, b"mgb0") or file.data[4:8] in (_NEWER, _IDENTIFIER) or file.data[8:12] == _NEWER


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors."""
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs)
    try:
        if _NEWER in (file.data[4:8], file.data[8:12]):
            return _Dump(
                builder, FlatBuffer(file.data[0 if file.data[4:8] == _NEWER else 4 :]).root(), b"", _SECOND
            ).load()
        if file.data[:4] != _MAGIC or len(file.data) < _HEADER + 16:
            raise FormatError("not a dump of MegEngine that is known; dump it with dump_format='FBS' or 'FBS_V2'")
        (offset,) = struct.unpack_from("<Q", file.data, 8)
        begin = _HEADER + offset + 4  # past the size of the FlatBuffer
        if begin + 8 > len(file.data) or file.data[begin + 4 : begin + 8] != _IDENTIFIER:
            raise FormatError("its graph is not where its header says; the file is truncated or damaged")
        return _Dump(builder, FlatBuffer(file.data[begin:]).root(), file.data[: begin - 4], _FIRST).load()
    except FormatError as error:
        raise FormatError(str(error) if file.name in str(error) else f"{file.name}: {error}") from error


class _Dump:
    """The loop over the operators; their outputs are numbered one after the other."""

    def __init__(self, builder: GraphBuilder, graph: FlatTable, weights: bytes, slots: _Slots) -> None:
        self.builder = builder
        self.graph = graph
        self.weights = weights
        self.at = _HEADER
        self.slots = slots
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

    def counts(self, operators: Sequence[FlatTable], wanted: Sequence[int]) -> list[int]:
        """How many variables each operator makes.

        The first format does not say it.  Normalisation there makes five or, of late, six: as many as make the last
        result the last variable.
        """
        if self.slots is _SECOND:
            return [max(1, len(operator.ints(_OUTPUTS, "u32"))) for operator in operators]
        counts_known = [self.count(operator) for operator in operators]
        if sum(n or 5 for n in counts_known) == max(wanted, default=0) + 1:
            return [n or 5 for n in counts_known]
        return [n or 6 for n in counts_known]

    def count(self, operator: FlatTable) -> int:
        """0 for one that normalises."""
        kind, inputs = self.kind(operator), len(operator.ints(self.slots.inputs, "u32"))
        if kind in _HOLDERS:
            return max(1, len(operator.tables(self.slots.tensors)))
        return max(1, inputs - 1) if kind == "Split" else _RESULTS.get(kind, 1)

    def kind(self, operator: FlatTable) -> str:
        return _TYPES.get(operator.get(self.slots.type, "u64"), "")

    def named(self, i: int) -> str:
        if not 0 <= i < len(self.names):
            raise FormatError(f"variable {i} of {len(self.names)}; the file is damaged")
        return self.names[i]

    def operator(self, operator: FlatTable, names: Sequence[str]) -> None:
        name, kind = names[0], self.kind(operator)
        tensors, sources = operator.tables(self.slots.tensors), operator.ints(self.slots.inputs, "u32")
        if kind == "Host2DeviceCopy" and tensors:
            self.names[-1] = tensors[0].text(0) or name
            required_input(self.builder, self.names[-1], self.type(tensors[0]))
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
                result = OPERATORS[kind](
                    MegengineNode(self.builder, parameters, inputs, _wanted(operator.table(self.slots.dtype)))
                )
                values = [result] if isinstance(result, Value) else result
                for top, value in zip(names[-len(values) :], values, strict=False):
                    self.builder[top] = value

    def type(self, tensor: FlatTable) -> TensorType:
        dims, code = tuple(tensor.ints(1, "u32")), _dtype(tensor)
        return TensorType(DType.of(np.dtype(_DTYPES[code])), dims)

    def stored(self, tensor: FlatTable) -> Array:
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


def _wanted(dtype: FlatTable | None) -> DType | None:
    """The type of the result if the operator states one, other than quantised integers."""
    code = int(dtype.get(0, "u8")) if dtype is not None else -1
    return DType.of(np.dtype(_DTYPES[code])) if code in _DTYPES else None


def _dtype(tensor: FlatTable) -> int:
    dtype = tensor.table(3)
    code = int(dtype.get(0, "u8")) if dtype is not None else 0
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

_HOLDERS = ("ImmutableTensor", "SharedDeviceTensor", "MultipleDeviceTensorHolder")
_TYPES = {
    hashed(name + end): name
    for name in ("Host2DeviceCopy", "GroupNorm", "InstanceNorm", *_HOLDERS, *OPERATORS)
    for end in ("", "\0")
}
"""Versions of operators are not in the names; what only newer versions know is hashed with the end of its name."""
