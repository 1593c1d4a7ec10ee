"""Tensors and nodes as a tmfile of version 2: the other direction of ``importers.tengine.file``.

Format: source/serializer/tmfile/tm2_format.h of OAID/Tengine.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.formats.importers.tengine.file import DTYPES
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

Word = int | float | Sequence[int]
"""A parameter of a node: an integer, a float, or a list that is written elsewhere and pointed at."""

COMPUTED, CONSTANT, INPUT = 1, 2, 3
"""Kinds of tensors."""

CONST_NODE, INPUT_NODE = 4, 12
"""Types of nodes that compute nothing."""

_ONNX = 2
"""The format that a file says it was converted from."""

_TYPES = {DType.of(np.dtype(text)): code for code, text in DTYPES.items()}


@dataclass
class TmfileTensor:
    """A tensor to write; ``scales`` and ``zeros`` have one entry, or one for each element of the first axis."""

    name: str
    dims: tuple[int, ...]
    dtype: DType
    kind: int = COMPUTED
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    data: Array | None = None


@dataclass(frozen=True)
class TmfileNode:
    """A node to write; operands are numbers of tensors."""

    name: str
    type: int
    parameters: Sequence[Word]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class TmfileNetwork:
    """The content of a file; ``inputs`` and ``outputs`` are nodes by number."""

    tensors: list[TmfileTensor] = field(default_factory=list)
    nodes: list[TmfileNode] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def serialised(self, name: str) -> bytes:
        """The file."""
        w = _TableWriter()
        buffers: list[int] = []
        tensors = [_tensor(w, i, each, buffers) for i, each in enumerate(self.tensors)]
        nodes = [_node(w, i, each) for i, each in enumerate(self.nodes)]
        graph = w.words(
            0,
            0,
            0,
            w.vector(self.inputs),
            w.vector(self.outputs),
            w.vector(nodes),
            w.vector(tensors),
            w.vector(buffers),
            w.text(name),
        )
        root = w.words(_ONNX, 0, w.vector([graph]), w.text(name))
        struct.pack_into("<I", w.data, 8, root)
        return bytes(w.data)


class _TableWriter:
    """Tables appended to a file; each returns its offset."""

    def __init__(self) -> None:
        self.data = bytearray(struct.pack("<4HI", 2, 0, 0, 0, 0))

    def put(self, data: bytes) -> int:
        at = len(self.data)
        self.data += data + bytes(-len(data) % 4)
        return at

    def words(self, *values: int | float) -> int:
        return self.put(b"".join(struct.pack("<f" if isinstance(v, float) else "<i", v) for v in values))

    def vector(self, values: Sequence[int]) -> int:
        return self.words(len(values), *map(int, values))

    def text(self, text: str) -> int:
        encoded = text.encode() + b"\0"
        return self.words(len(encoded), self.put(encoded))


def _tensor(w: _TableWriter, number: int, tensor: TmfileTensor, buffers: list[int]) -> int:
    quant, buffer = 0, 0
    if tensor.scales:
        width = 8 * tensor.dtype.bytes
        rows = [w.words(zero, float(scale), width) for scale, zero in zip(tensor.scales, tensor.zeros, strict=True)]
        quant = w.vector(rows)
    if tensor.data is not None:
        content = np.ascontiguousarray(tensor.data, tensor.dtype.numpy.newbyteorder("<")).tobytes()
        buffer = len(buffers)
        buffers.append(w.words(len(content), w.put(content)))
    dims, name = w.vector(tensor.dims), w.text(tensor.name)
    return w.words(number, buffer, dims, name, quant, 0, tensor.kind, _TYPES[tensor.dtype])


def _node(w: _TableWriter, number: int, node: TmfileNode) -> int:
    words = [p if isinstance(p, int | float) else w.vector(p) for p in node.parameters]
    operator = w.words(1, node.type, w.words(*words) if words else 0)
    inputs, outputs = w.vector(node.inputs) if node.inputs else 0, w.vector(node.outputs)
    return w.words(number, inputs, outputs, operator, w.text(node.name), 0, 0)
