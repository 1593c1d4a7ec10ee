"""Tengine's tmfile, version 2: tables of 32-bit words that point at each other by their offset in the file.

Format: source/serializer/tmfile/tm2_format.h of OAID/Tengine.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array, Stored
from tenon.network.graph.types import DType, Quant

MAX_ELEMENTS = 1 << 20
"""Elements of a vector of tables; real files have a few hundred."""

DTYPES = {0: "<f4", 1: "<f2", 2: "<i1", 3: "<u1", 4: "<i4", 5: "<i2"}


@dataclass(frozen=True)
class TengineTensor:
    """``data`` is None for what is computed, and for weights that the file does not hold (``constant`` is set).

    Of integers with scales, ``data`` are the floats that they stand for and ``stored`` the integers; ``quant`` is the
    scale and zero point of a tensor of 8 bits that is computed.
    """

    name: str
    dims: tuple[int, ...]
    data_type: int
    constant: bool
    data: Array | None
    stored: Stored | None = None
    quant: Quant | None = None

    @property
    def dtype(self) -> DType:
        """The type of its elements.  Raises KeyError for an unknown one."""
        return DType.of(np.dtype(DTYPES[self.data_type]))


@dataclass(frozen=True)
class NodeRecord:
    """An operator's number and parameters, and its tensors by number; ``at`` is where its parameters begin, ``end``
    where something else does: files of old versions have fewer."""

    name: str
    type: int
    at: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class TengineReader:
    """Reads 32-bit words of a file.  Every read is checked; raises FormatError."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def words(self, at: int, count: int, kind: str = "i") -> tuple[int | float, ...]:
        if not 0 < at <= len(self.data) - 4 * count:
            raise FormatError("a table points outside the file; it is truncated or damaged")
        return struct.unpack_from(f"<{count}{kind}", self.data, at)

    def integers(self, at: int, count: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.words(at, count))

    def vector(self, at: int, kind: str = "i", width: int = 1) -> list[int | float]:
        """A count and as many elements of ``width`` words; an offset of 0 means none."""
        if at == 0:
            return []
        (count,) = self.integers(at, 1)
        if not 0 <= count <= min(MAX_ELEMENTS, len(self.data) // 4):
            raise FormatError(f"a list of {count} elements; the file is truncated or damaged")
        return list(self.words(at + 4, count * width, kind))

    def numbers(self, at: int) -> list[int]:
        return [int(n) for n in self.vector(at)]

    def text(self, at: int) -> str:
        if at == 0:
            return ""
        size, begin = self.integers(at, 2)
        if not 0 <= size <= 4096 or not 0 <= begin <= len(self.data) - size:
            raise FormatError("a name lies outside the file; it is truncated or damaged")
        return self.data[begin : begin + size].split(b"\0")[0].decode("utf-8", "replace")


@dataclass(frozen=True)
class TengineNetwork:
    """The one sub-graph of a file; ``inputs`` and ``outputs`` are nodes by number, ``layout`` 0 is NCHW, 1 NHWC."""

    reader: TengineReader
    layout: int
    nodes: tuple[NodeRecord, ...]
    tensors: tuple[TengineTensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def is_tmfile(data: bytes) -> bool:
    """Version 2.0 and a root table within the file whose one sub-graph is there."""
    if len(data) < 64 or data[:6] != b"\2\0\0\0\0\0":
        return False
    root = int.from_bytes(data[8:12], "little")
    return 12 <= root <= len(data) - 16


def read(data: bytes) -> TengineNetwork:
    """Raises FormatError."""
    reader = TengineReader(data)
    (root,) = reader.integers(8, 1)
    _, _, graphs, _ = reader.integers(root, 4)
    graph_offsets = reader.numbers(graphs)
    if len(graph_offsets) != 1:
        raise FormatError(f"it holds {len(graph_offsets)} graphs; only files of one can be read")
    _, layout, _, ins, outs, nodes, tensors, buffers, _ = reader.integers(graph_offsets[0], 9)
    stores = [reader.integers(at, 2) for at in reader.numbers(buffers)]
    return TengineNetwork(
        reader,
        layout,
        tuple(_node(reader, at) for at in reader.numbers(nodes)),
        tuple(_tensor(reader, at, stores) for at in reader.numbers(tensors)),
        tuple(reader.numbers(ins)),
        tuple(reader.numbers(outs)),
    )


def _node(reader: TengineReader, at: int) -> NodeRecord:
    _, ins, outs, operator, name, _ = reader.integers(at, 6)
    _, type, parameters = reader.integers(operator, 3)
    end = operator if operator > parameters else len(reader.data)
    return NodeRecord(reader.text(name), type, parameters, end, tuple(reader.numbers(ins)), tuple(reader.numbers(outs)))


def _tensor(reader: TengineReader, at: int, stores: list[tuple[int, ...]]) -> TengineTensor:
    _, buffer, dims_at, name, quant, _, kind, data_type = reader.integers(at, 8)
    dims = tuple(reader.numbers(dims_at))
    data, stored, grid = None, None, None
    if kind == 2 and 0 <= buffer < len(stores) and stores[buffer][1]:
        data = _stored(reader, dims, data_type, stores[buffer])
        if data.dtype.itemsize == 1 or (data.dtype == np.int32 and quant):
            stored = _quantised(reader, data, quant)
            data = data if stored is None else _dequantized(stored)
    elif kind != 2 and data_type in _BYTES:
        grid = _grid(reader, quant)
    return TengineTensor(reader.text(name) or f"tensor_{at}", dims, data_type, kind == 2, data, stored, grid)


_BYTES = (2, 3)


def _rows(reader: TengineReader, quant: int) -> list[tuple[int, float]]:
    """Zero points and scales."""
    return [(reader.integers(at, 3)[0], float(reader.words(at, 3, "f")[1])) for at in reader.numbers(quant)]


def _grid(reader: TengineReader, quant: int) -> Quant | None:
    """The quantisation of a tensor that is computed; None if the file states none that can be used."""
    rows = _rows(reader, quant)
    if len(rows) != 1 or not (math.isfinite(rows[0][1]) and rows[0][1] > 0) or not -128 <= rows[0][0] <= 255:
        return None
    return Quant((rows[0][1],), (rows[0][0],))


def _stored(reader: TengineReader, dims: tuple[int, ...], data_type: int, store: tuple[int, ...]) -> Array:
    if data_type not in DTYPES or any(d < 0 for d in dims) or math.prod(d or 1 for d in dims) >= 2**31:
        raise FormatError(f"a tensor of shape {list(dims)} and type {data_type}; the file is damaged")
    dtype, (size, begin) = np.dtype(DTYPES[data_type]), store
    count = math.prod(dims)
    if count * dtype.itemsize > size or not 0 <= begin <= len(reader.data) - count * dtype.itemsize:
        raise FormatError(f"a tensor of shape {list(dims)} in {size} bytes; the file is truncated or damaged")
    data = np.frombuffer(reader.data, dtype, count, begin).reshape(dims)
    return data.astype(np.float32) if dtype.kind == "f" else data


def _quantised(reader: TengineReader, data: Array, quant: int) -> Stored | None:
    """Integers and their scale: one for all, or one per element of the first axis; None if there is none."""
    rows = _rows(reader, quant)
    if not rows:
        return None
    if len(rows) not in (1, data.shape[0] if data.ndim else 1):
        raise FormatError(f"{len(rows)} scales for a tensor of shape {list(data.shape)}; the file is damaged")
    shape = (len(rows), *(1,) * max(0, data.ndim - 1)) if len(rows) > 1 else ()
    zero, scale = (np.array(v).reshape(shape) for v in zip(*rows, strict=True))
    return Stored(data, scale.astype(np.float32), zero.astype(np.int64))


def _dequantized(stored: Stored) -> Array:
    steps = stored.data.astype(np.float32) - stored.zero.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(steps * stored.scale, np.float32)
