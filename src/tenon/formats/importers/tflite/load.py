"""TFLite models: float, half, dynamic-range and integer, as graphs.

A quantised tensor keeps its integers and its scale in the graph.  An operator on quantised tensors reads them through
DequantizeLinear, computes in f32 and writes through QuantizeLinear; operators that only move elements work on the
integers.  Constants are dequantised here; their type keeps the quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite import schema
from tenon.formats.importers.tflite.content import TfliteGraph, TfliteOperation, TfliteTensor
from tenon.formats.importers.tflite.importer import TfliteImporter
from tenon.formats.importers.tflite.labels import stated_labels
from tenon.formats.importers.tflite.sparsity import sparse_positions
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.flatbuffer import FlatBuffer, FlatTable, options
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType, Quant
from tenon.network.graph.writer import LARGEST_TENSOR

IDENTIFIER = b"TFL3"
MAX_OPERATORS = 1 << 17
LARGEST_SPARSITY = 1 << 10
"""Elements of a constant for each byte of its sparse form."""


def recognise(file: ModelFile) -> bool:
    """Marked as TFL3, or named .tflite."""
    return file.data[4:8] == IDENTIFIER or file.suffix == ".tflite"


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a TFLite model.  See ``importers.load`` for errors."""
    from tenon.formats.importers.tflite.ops import MOVERS, OPERATORS

    try:
        graphs = parse(file)
        name = graphs[0].name if graphs[0].name != "main" else ""
        graph = TfliteImporter(ChannelsLast(file, name, shapes, inputs, outputs), graphs, OPERATORS, MOVERS).run()
        graph.labels = stated_labels(file.data)
        return graph
    except RefusedError as error:
        raise FormatError(f"{file.name}: {error.what}") from error


# ---------------------------------------------------------------------------------------------- parsing
def parse(file: ModelFile) -> list[TfliteGraph]:
    """The sub-graphs of the file, the main one first.  Raises FormatError."""
    try:
        return _parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: not a readable TFLite model: {error}") from error


def _parse(data: bytes) -> list[TfliteGraph]:
    if data[4:8] != IDENTIFIER:
        raise FormatError("its identifier is not TFL3")
    model = FlatBuffer(data).root()
    version = model.get(schema.MODEL["version"], "u32")
    if version != 3:
        raise FormatError(f"it is of schema version {version}; Tenon reads version 3")
    graphs = model.tables(schema.MODEL["subgraphs"])
    if not graphs:
        raise FormatError("it has no sub-graph")
    codes = [_operator_code(code) for code in model.tables(schema.MODEL["operator_codes"])]
    buffers = model.tables(schema.MODEL["buffers"])
    return [_graph(graph, codes, buffers, data) for graph in graphs]


def _graph(
    table: FlatTable, codes: Sequence[tuple[str, int]], buffers: Sequence[FlatTable], data: bytes
) -> TfliteGraph:
    slots = schema.SUBGRAPH
    tensors = [_tensor(t, buffers, data, i) for i, t in enumerate(table.tables(slots["tensors"]))]
    operators = table.tables(slots["operators"])
    if len(operators) > MAX_OPERATORS:
        raise FormatError(f"it has {len(operators)} operators; at most {MAX_OPERATORS} are possible")
    operations = [_operation(o, codes, len(tensors)) for o in operators]
    ends = [table.ints(slots["inputs"]), table.ints(slots["outputs"])]
    if not all(0 <= i < len(tensors) for end in ends for i in end):
        raise FormatError("an input or output refers to a tensor that does not exist")
    return TfliteGraph(table.text(slots["name"]), tensors, operations, *ends)


def _operator_code(code: FlatTable) -> tuple[str, int]:
    """The name of an operator and its version."""
    slots = schema.OPERATOR_CODE
    number = max(code.get(slots["old_code"], "i8"), code.get(slots["code"], "i32"))
    name = schema.BUILTIN.get(number, f"operator {number}")
    return code.text(slots["custom"]) if name == "CUSTOM" else name, code.get(slots["version"], "i32", 1)


def _operation(table: FlatTable, codes: Sequence[tuple[str, int]], tensors: int) -> TfliteOperation:
    slots = schema.OPERATOR
    opcode = table.get(slots["opcode"], "u32")
    inputs, outputs, within = ends = [tuple(table.ints(slots[k])) for k in ("inputs", "outputs", "intermediates")]
    if opcode >= len(codes) or not all(-1 <= i < tensors for end in ends for i in end):
        raise FormatError("an operator refers to a tensor or code that does not exist")
    name, version = codes[opcode]
    fields = options(table.table(slots["options"]), schema.OPTIONS.get(name, ""))
    custom = table.vector(slots["custom_options"], "u8").tobytes()
    return TfliteOperation(name, fields, custom, inputs, outputs, within, version)


def _tensor(table: FlatTable, buffers: Sequence[FlatTable], data: bytes, number: int) -> TfliteTensor:
    slots = schema.TENSOR
    name = table.text(slots["name"]) or f"tensor_{number}"
    shape, code = tuple(table.ints(slots["shape"])), table.get(slots["type"], "i8")
    buffer = table.get(slots["buffer"], "u32")
    if buffer >= len(buffers) and buffers:
        raise FormatError(f"tensor '{name}' refers to a buffer that does not exist")
    dtype = schema.DTYPES.get(code, DType.F32)
    quant, broken = _quant(table.table(slots["quantization"]), shape)
    content = _content(buffers[buffer], data) if buffers else np.empty(0, np.uint8)
    if code not in schema.DTYPES:
        broken = f"element type {schema.OTHER_TYPES.get(code, code)} is not supported"
    elif any(d < 0 for d in shape) or math.prod(shape) > LARGEST_TENSOR:
        broken = f"the shape {list(shape)} is impossible"
    array = None
    sparsity = table.table(slots["sparsity"])
    if (content.size or sparsity is not None) and not broken:
        array, broken = _data(content, shape, dtype, sparsity)
    return TfliteTensor(name, shape, dtype, quant, array, broken)


def _data(content: Array, shape: tuple[int, ...], dtype: DType, sparsity: FlatTable | None) -> tuple[Array | None, str]:
    """A constant's elements, those of a sparse one between zeros; if they are invalid, why."""
    positions: Array | None = None
    if sparsity is not None:
        if math.prod(shape) > LARGEST_SPARSITY * (content.size + 1024):
            return None, f"its sparse form of {content.size} bytes is too small for {list(shape)}"
        entries = sparse_positions(sparsity, shape)
        if isinstance(entries, str):
            return None, f"its sparse form is invalid: {entries}"
        positions = entries
    count = math.prod(shape) if positions is None else len(positions)
    if dtype is DType.I4:  # two to a byte, the first one lowest
        halves = np.stack([content & 15, content >> 4], -1).reshape(-1)[:count]
        content = ((halves ^ 8).astype(np.int8) - 8).astype(dtype.numpy).view(np.uint8)
    if content.size != count * dtype.bytes:
        needed = f"{list(shape)} needs" if positions is None else f"its {count} elements need"
        return None, f"holds {content.size} bytes where {needed} {count * dtype.bytes}"
    little = dtype.numpy if dtype.bytes == 1 else dtype.numpy.newbyteorder("<")
    stored = content.view(little).astype(dtype.numpy, copy=False)
    if positions is None:
        return stored.reshape(shape), ""
    dense = np.zeros(math.prod(shape), stored.dtype)
    dense[positions] = stored
    return dense.reshape(shape), ""


def _content(buffer: FlatTable, data: bytes) -> Array:
    """A buffer's bytes; those of files above 2 GB lie behind the tables."""
    slots = schema.BUFFER
    offset, size = buffer.get(slots["offset"], "u64"), buffer.get(slots["size"], "u64")
    if offset > 1:
        if offset + size > len(data):
            raise FormatError("a buffer lies outside the file")
        return np.frombuffer(data, np.uint8, size, offset)
    return buffer.vector(slots["data"], "u8")


def _quant(table: FlatTable | None, shape: tuple[int, ...]) -> tuple[Quant | None, str]:
    """The quantisation and, if it is invalid, why."""
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
