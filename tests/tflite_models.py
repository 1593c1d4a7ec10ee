"""A small FlatBuffers writer, and TFLite models that converters do not produce."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.formats.importers.tflite import schema
from tenon.formats.wire.flatbuffer import KINDS
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

Fields = Mapping[int, Any]
"""Values by slot: (kind, number), text, arrays, other tables, or lists of tables."""

TYPES = {
    "f32": 0,
    "f16": 1,
    "i32": 2,
    "u8": 3,
    "i64": 4,
    "string": 5,
    "bool": 6,
    "i16": 7,
    "complex64": 8,
    "i8": 9,
    "u64": 12,
    "resource": 13,
    "u32": 15,
    "i4": 17,
}
CODES = {name: code for code, name in schema.BUILTIN.items()}
OPTION_TYPES = {
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 2,
    "AVERAGE_POOL_2D": 5,
    "MAX_POOL_2D": 5,
    "SVDF": 6,
    "FULLY_CONNECTED": 8,
    "SOFTMAX": 9,
    "CONCATENATION": 10,
    "ADD": 11,
    "RESIZE_BILINEAR": 15,
    "RESHAPE": 17,
    "SPACE_TO_DEPTH": 19,
    "MUL": 21,
    "PAD": 22,
    "GATHER": 23,
    "TRANSPOSE": 26,
    "MEAN": 27,
    "SUB": 28,
    "STRIDED_SLICE": 32,
    "MAXIMUM": 39,
    "MINIMUM": 39,
    "TRANSPOSE_CONV": 49,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": 71,
    "RESIZE_NEAREST_NEIGHBOR": 74,
    "LEAKY_RELU": 75,
    "QUANTIZE": 89,
    "HARD_SWISH": 91,
    "IF": 92,
    "WHILE": 93,
    "DENSIFY": 99,
    "BATCH_MATMUL": 101,
    "CALL_ONCE": 103,
    "RFFT2D": 104,
    "VAR_HANDLE": 111,
    "READ_VARIABLE": 112,
    "ASSIGN_VARIABLE": 113,
    "LESS": 56,
    "SLICE": 33,
}
"""Members of the union BuiltinOptions, as other readers than ours need them."""


def _place(out: bytearray, value: Any) -> int:
    """Append a table, a vector or a string; returns its position."""
    while len(out) % 8:
        out.append(0)
    if isinstance(value, Mapping):
        return _table(out, value)
    at = len(out)
    if isinstance(value, str):
        out += struct.pack("<I", len(value)) + value.encode() + b"\0"
    elif isinstance(value, np.ndarray):
        out += struct.pack("<I", value.size) + value.tobytes()
    else:
        out += struct.pack("<I", len(value)) + bytes(4 * len(value))
        for i, item in enumerate(value):
            spot = at + 4 + 4 * i
            struct.pack_into("<I", out, spot, _place(out, item) - spot)
    return at


def _table(out: bytearray, fields: Fields) -> int:
    slots = max(fields, default=-1) + 1
    offsets, body, late = [0] * slots, bytearray(4), []
    for slot, value in fields.items():
        kind = value[0] if isinstance(value, tuple) else "u32"
        data = struct.pack(KINDS[kind], value[1]) if isinstance(value, tuple) else bytes(4)
        body += bytes(-len(body) % len(data))
        offsets[slot] = len(body)
        if not isinstance(value, tuple):
            late.append((len(body), value))
        body += data
    vtable = len(out)
    out += struct.pack(f"<HH{slots}H", 4 + 2 * slots, len(body), *offsets)
    out += bytes(-len(out) % 8)
    at = len(out)
    struct.pack_into("<i", body, 0, at - vtable)
    out += body
    for spot, value in late:
        struct.pack_into("<I", out, at + spot, _place(out, value) - at - spot)
    return at


def flexbuffer(options: Mapping[str, int | float | str | Sequence[int]]) -> bytes:
    """A FlexBuffer map of 32-bit integers and floats, strings and vectors of integers."""
    out, places = bytearray(), []
    numbers: dict[str, Any] = {}
    kinds: dict[str, int] = {}
    for name, value in options.items():  # what does not fit into 4 bytes is referred to by its distance
        kinds[name], numbers[name] = 1 << 2 | 2, value
        if isinstance(value, float):
            kinds[name], numbers[name] = 3 << 2 | 2, struct.unpack("<i", struct.pack("<f", value))[0]
        elif isinstance(value, str):
            kinds[name] = 5 << 2 | 2
            out += bytes(-len(out) % 4) + struct.pack("<I", len(value))
            numbers[name] = -len(out)
            out += value.encode() + b"\0"
        elif not isinstance(value, int):
            kinds[name] = 11 << 2 | 2
            out += bytes(-len(out) % 4) + struct.pack("<I", len(value))
            numbers[name] = -len(out)
            out += struct.pack(f"<{len(value)}i", *value)
    for name in sorted(numbers):
        places.append(len(out))
        out += name.encode() + b"\0"
    out += bytes(-len(out) % 4) + struct.pack("<I", len(places))
    keys = len(out)
    for place in places:
        out += struct.pack("<I", len(out) - place)
    out += struct.pack("<III", len(out) - keys, 4, len(places))
    values = len(out)
    for name in sorted(numbers):
        apart = kinds[name] >> 2 in (5, 11)
        out += struct.pack("<I", len(out) + numbers[name]) if apart else struct.pack("<i", numbers[name])
    out += bytes(kinds[name] for name in sorted(numbers))
    out += bytes(-len(out) % 4)
    return bytes(out + struct.pack("<I", len(out) - values) + bytes([9 << 2 | 2, 4]))


def flatbuffer(root: Fields, identifier: bytes = b"TFL3") -> bytes:
    """A file whose root is this table."""
    out = bytearray(4) + identifier
    struct.pack_into("<I", out, 0, _place(out, root))
    return bytes(out)


@dataclass
class Model:
    """A TFLite model under construction; tensors and operators are numbered in the order in which they are added."""

    tensors: list[Fields] = field(default_factory=list)
    buffers: list[Fields] = field(default_factory=lambda: [{}])
    operators: list[Fields] = field(default_factory=list)
    codes: list[Fields] = field(default_factory=list)
    others: list[tuple[Model, Sequence[int], Sequence[int]]] = field(default_factory=list)

    def subgraph(self) -> Model:
        """Another sub-graph of the same file, to be added by ``define``."""
        return Model(buffers=self.buffers, codes=self.codes)

    def define(self, graph: Model, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """The number of a sub-graph."""
        self.others.append((graph, inputs, outputs))
        return len(self.others)

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "f32",
        data: Array | None = None,
        scale: Sequence[float] = (),
        zero: Sequence[int] = (),
        axis: int = 0,
        sparsity: Fields | None = None,
    ) -> int:
        slots, buffer = schema.TENSOR, 0
        if data is not None:
            buffer = len(self.buffers)
            content = np.frombuffer(data.tobytes(), np.uint8)
            if dtype == "i4":  # two to a byte, the first one lowest
                halves = np.pad(content & 15, (0, content.size % 2)).reshape(-1, 2)
                content = halves[:, 0] | halves[:, 1] << 4
            self.buffers.append({0: content})
        fields = {
            slots["shape"]: np.array(shape, np.int32),
            slots["type"]: ("i8", TYPES[dtype]),
            slots["buffer"]: ("u32", buffer),
            slots["name"]: name,
        }
        if scale:
            fields[slots["quantization"]] = {
                2: np.array(scale, np.float32),
                3: np.array(zero or [0] * len(scale), np.int64),
                6: ("i32", axis),
            }
        if sparsity is not None:
            fields[slots["sparsity"]] = sparsity
        self.tensors.append(fields)
        return len(self.tensors) - 1

    def constant(self, name: str, data: Array, **quantization: Any) -> int:
        return self.tensor(name, data.shape, DType.of(data.dtype).value, data, **quantization)

    def add(self, type: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """An operator of the ``version`` (1) with builtin options named as in the schema's table; an unknown type is a
        custom one, whose options are a FlexBuffer of ``options``, or ``custom_bytes``."""
        version, custom_bytes = options.pop("version", 1), options.pop("custom_bytes", b"")
        code = CODES.get(type, 32)
        custom = {} if type in CODES else {1: type}
        self.codes.append({0: ("i8", min(code, 127)), 2: ("i32", version), 3: ("i32", code), **custom})
        spec = [entry.partition(":") for entry in schema.OPTIONS.get(type, "").split()]
        table = {}
        for slot, (name, _, kind) in enumerate(spec):
            if name in options:
                kind = kind.partition("=")[0]
                vector = np.float32 if kind == "[f32]" else np.int32
                table[slot] = np.array(options[name], vector) if kind[0] == "[" else (kind, options[name])
                if kind == "text":
                    table[slot] = options[name]
        packed = custom_bytes or (flexbuffer(options) if custom and options else b"")
        custom_options = {5: np.frombuffer(packed, np.uint8)} if packed else {}
        self.operators.append(
            {
                0: ("u32", len(self.codes) - 1),
                1: np.array(inputs, np.int32),
                2: np.array(outputs, np.int32),
                3: ("u8", OPTION_TYPES.get(type, 1)),
                4: table,
                **custom_options,
            }
        )

    def bytes(self, inputs: Sequence[int], outputs: Sequence[int], version: int = 3) -> bytes:
        graphs = [(self, inputs, outputs), *self.others]
        tables = [
            {
                0: graph.tensors,
                1: np.array(start, np.int32),
                2: np.array(end, np.int32),
                3: graph.operators,
                4: f"branch_{number}" if number else "main",
            }
            for number, (graph, start, end) in enumerate(graphs)
        ]
        return flatbuffer({0: ("u32", version), 1: self.codes, 2: tables, 3: "by hand", 4: self.buffers})


def convolution(dtype: str = "f32", **options: Any) -> bytes:
    """A 3x3 convolution of [1, 5, 6, 2] to 3 channels: its weights in f32, f16 (through DEQUANTIZE) or i8."""
    rng = np.random.default_rng(3)
    model = Model()
    x = model.tensor("x", (1, 5, 6, 2))
    weights = rng.uniform(-1, 1, (3, 3, 3, 2)).astype(np.float32)
    if dtype == "f16":
        half = model.constant("w16", weights.astype(np.float16))
        w = model.tensor("w", weights.shape)
        model.add("DEQUANTIZE", [half], [w])
    elif dtype == "i8":
        stored = np.round(weights * 100).astype(np.int8)
        w = model.constant("w", stored, scale=[0.01, 0.02, 0.03], axis=0)
    else:
        w = model.constant("w", weights)
    b = model.constant("b", rng.uniform(-1, 1, 3).astype(np.float32))
    given = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 0, "dilation_w": 1, "dilation_h": 1, **options}
    y = model.tensor("y", (1, 5, 6, 3))
    model.add("CONV_2D", [x, w, b], [y], **given)
    return model.bytes([x], [y])


def quantised_convolution() -> bytes:
    """A 1x1 convolution of i8 by i8, of 16 channels to 8."""
    model = Model()
    weights = np.random.default_rng(7).integers(-127, 128, (8, 1, 1, 16)).astype(np.int8)
    x = model.tensor("x", (1, 3, 3, 16), "i8", scale=[0.5], zero=[3])
    w = model.constant("w", weights, scale=[0.25] * 8, axis=0)
    b = model.constant("b", np.arange(8, dtype=np.int32), scale=[0.125] * 8, axis=0)
    y = model.tensor("y", (1, 3, 3, 8), "i8", scale=[64.0], zero=[-1])
    model.add("CONV_2D", [x, w, b], [y], padding=1, stride_w=1, stride_h=1, activation=0, dilation_w=1, dilation_h=1)
    return model.bytes([x], [y])
