"""PaddlePaddle inference programs, 1.x and 2.x: a program and its parameters, all in one file or each in its own.

The program is ``__model__``, ``*.pdmodel``; the parameters ``*.pdiparams``, ``__params__``, or files named like the
variables.  An unknown batch is 1 unless it is bound.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.errors import FormatError
from tenon.frontends.emit import port
from tenon.frontends.net import MISSING_WEIGHTS, Net
from tenon.frontends.paddle.context import Context, Result, looks_like_type
from tenon.frontends.refused import RefusedError, unknown
from tenon.frontends.source import ModelFile
from tenon.frontends.wire.protobuf import Message, Schema, raw_fields
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType

SCHEMA = Schema(
    {
        "Attr": {"name": (1, "string"), "type": (2, "int32"), "i": (3, "int32"), "f": (4, "float"), "s": (5, "string"),
                 "ints": (6, "*int32"), "floats": (7, "*float"), "strings": (8, "*string"), "b": (10, "bool"),
                 "bools": (11, "*bool"), "l": (13, "int64"), "longs": (15, "*int64"), "float64s": (16, "*double"),
                 "float64": (19, "double")},
        "Slot": {"parameter": (1, "string"), "arguments": (2, "*string")},
        "Op": {"inputs": (1, "*Slot"), "outputs": (2, "*Slot"), "type": (3, "string"), "attrs": (4, "*Attr")},
        "TensorDesc": {"data_type": (1, "int32"), "dims": (2, "*int64")},
        "LoDTensor": {"tensor": (1, "TensorDesc")},
        "VarType": {"type": (1, "int32"), "lod_tensor": (3, "LoDTensor")},
        "Var": {"name": (1, "string"), "type": (2, "VarType"), "persistable": (3, "bool")},
        "Block": {"vars": (3, "*Var"), "ops": (4, "*Op")},
        "Program": {"blocks": (1, "*Block")},
    }
)  # fmt: skip
"""The part of paddle/fluid/framework/framework.proto that inference programs use."""

DTYPES = {0: "?", 1: "<i2", 2: "<i4", 3: "<i8", 4: "<f2", 5: "<f4", 6: "<f8", 20: "<u1", 21: "<i1"}
_LOD_TENSOR = 7
_PATTERNS = ("{stem}.pdiparams", "__params__", "params", "*.pdiparams")


def recognise(file: ModelFile) -> bool:
    """A program; of parameters, a combined file beside one."""
    return is_program(file.data) or (_is_tensor(file.data) and _program_of(file) is not None)


def is_program(data: bytes) -> bool:
    """A block of numbers, variables and operators whose third field is the name of their type."""
    try:
        for number, wire, content in raw_fields(memoryview(data)):
            if number != 1 or wire != 2 or isinstance(content, int):
                return False
            return _is_block(content)
    except Exception:  # what is no message at all
        return False
    return False


def _is_block(data: memoryview) -> bool:
    wires = {1: 0, 2: 0, 3: 2, 4: 2, 5: 0}
    for number, wire, content in raw_fields(data):
        if wires.get(number) != wire:
            return False
        if number == 4 and not isinstance(content, int):
            types = [bytes(c) for n, w, c in raw_fields(content) if n == 3 and w == 2 and not isinstance(c, int)]
            return len(types) == 1 and looks_like_type(types[0])
    return False


def _is_tensor(data: bytes) -> bool:
    """Version 0, at most a few levels, then a tensor of version 0."""
    return len(data) >= 20 and data[:16] == bytes(16)


def _program_of(file: ModelFile) -> ModelFile | None:
    return file.find_partner("the program", "{stem}.pdmodel", "__model__", "*.pdmodel",
                             fits=lambda other: is_program(other.data))  # fmt: skip


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a program, given by it or by its combined parameters.  See ``frontends.load`` for errors."""
    program_file, parameters = file, None
    if is_program(file.data):
        if file.weights is None or not file.weights.is_folder:
            parameters = file.find_partner("the parameters", *_PATTERNS, fits=lambda other: _is_tensor(other.data))
    else:
        program_file, parameters = _program_of(file) or file, file
    program = SCHEMA.parse("Program", program_file.data, program_file.name)
    if len(program.blocks) != 1:
        raise FormatError(f"{program_file.name}: it has {len(program.blocks)} blocks; control flow is not supported")
    net = Net(program_file, program_file.stem.strip("_"), shapes, inputs, outputs,
              len(parameters.data) if parameters else 1 << 22)  # fmt: skip
    return _Program(net, program.blocks[0]).load(_stored(program_file, program.blocks[0], parameters))


# ----------------------------------------------------------------------------------------- parameters
def _stored(file: ModelFile, block: Message, combined: ModelFile | None) -> dict[str, Array]:
    """Parameters by name.  Raises FormatError."""
    names = [v.name for v in block.vars if v.persistable and v.type.type == _LOD_TENSOR]
    if combined is not None:
        return _combined(combined, {v.name: v for v in block.vars}, sorted(names))
    folder = file.weights.folder if file.weights is not None and file.weights.is_folder else file.folder
    found = {}
    for name in names:
        path = _inside(folder, name)
        if path is not None:
            found[name], _ = tensor(path.read_bytes(), 0, name)
    return found


def _inside(folder: Path | None, name: str) -> Path | None:
    """The file of a parameter, which must lie in the folder itself."""
    if folder is None or not name or "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        return None
    path = folder / name
    return path if path.is_file() and not path.is_symlink() else None


def _combined(file: ModelFile, known: dict[str, Message], names: Sequence[str]) -> dict[str, Array]:
    """Tensors one after the other, in the order of their names."""
    found, at = {}, 0
    for name in names:
        found[name], at = tensor(file.data, at, file.name)
        dims = tuple(known[name].type.lod_tensor.tensor.dims)
        if found[name].shape != dims and -1 not in dims:
            raise FormatError(f"{file.name}: '{name}' is {list(found[name].shape)} there and {list(dims)} in the "
                              "program; the two files do not belong together")  # fmt: skip
    if at != len(file.data):
        raise FormatError(f"{file.name}: {len(file.data) - at} bytes belong to no parameter of the program")
    return found


def tensor(data: bytes, at: int, where: str) -> tuple[Array, int]:
    """A serialised LoDTensor and the offset after it.  Raises FormatError."""
    try:
        version, levels = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(min(levels, 16)):
            (size,) = struct.unpack_from("<Q", data, at)
            at += 8 + min(size, len(data))
        inner, length = struct.unpack_from("<Ii", data, at)
    except struct.error:
        raise FormatError(f"{where}: the parameters end too early; the file is truncated or damaged") from None
    at += 8
    if version or inner or levels > 16 or not 0 <= length <= len(data) - at:
        raise FormatError(f"{where}: not a parameter of Paddle; the file is damaged")
    desc = SCHEMA.parse("TensorDesc", data[at : at + length], where)
    at += length
    dims = tuple(desc.dims)
    if desc.data_type not in DTYPES or any(d < 0 for d in dims) or math.prod(d or 1 for d in dims) >= 2**31:
        raise FormatError(f"{where}: a parameter of type {desc.data_type} and shape {list(dims)}; the file is damaged")
    dtype, count = np.dtype(DTYPES[desc.data_type]), math.prod(dims)
    end = at + count * dtype.itemsize
    if end > len(data):
        raise FormatError(f"{where}: the parameters end too early; the file is truncated or damaged")
    array = np.frombuffer(data, dtype, count, at).reshape(dims)
    return array.astype(np.float32) if dtype.kind == "f" else array.astype(dtype.newbyteorder("=")), end


# ---------------------------------------------------------------------------------------------- program
def _named(slots: dict[str, Sequence[str]], made: Result) -> list[tuple[str, Value]]:
    """What an operator gives, by the names that its outputs have."""
    if isinstance(made, dict):
        return [(slots[slot][0], value) for slot, value in made.items() if slots.get(slot)]
    every = [name for names in slots.values() for name in names]
    names = next((slots[slot] for slot in ("Out", "Output", "Y") if slots.get(slot)), every)
    return list(zip(names, [made] if isinstance(made, Value) else made, strict=False))


class _Program:
    """The walk over the operators of a block."""

    def __init__(self, net: Net, block: Message) -> None:
        self.net, self.block = net, block
        self.variables = {v.name: v for v in block.vars}
        self.types = frozenset(op.type for op in block.ops)
        self.results: list[str] = []

    def load(self, stored: dict[str, Array]) -> Graph:
        read = {name for op in self.block.ops for slot in op.inputs for name in slot.arguments}
        for v in self.block.vars:
            if v.persistable and v.type.type == _LOD_TENSOR and v.name in read:
                with self.net.layer(v.name, "parameter", v.name):
                    self.net[v.name] = self.parameter(v, stored.get(v.name))
        for i, op in enumerate(self.block.ops):
            self.operator(op, i)
        graph = self.net.finish(self.results)
        if graph.heads is not None:  # by the name that the program returns it under
            graph.heads = graph.heads._replace(outputs=tuple(self.net.scope[n].name for n in graph.heads.outputs))
        return graph

    def parameter(self, variable: Message, data: Array | None) -> Value:
        if data is not None:
            return self.net.constant(data, "data")
        tensor_type = variable.type.lod_tensor.tensor
        dims = tuple(tensor_type.dims)
        if any(d < 0 for d in dims) or tensor_type.data_type not in DTYPES:
            raise RefusedError(f"a parameter of shape {list(dims)} is impossible")
        self.net.graph.incomplete = MISSING_WEIGHTS
        return self.net.placeholder(dims)

    def operator(self, op: Message, index: int) -> None:
        slots = {slot.parameter: slot.arguments for slot in op.outputs}
        tops = [name for names in slots.values() for name in names]
        if op.type == "feed":
            for name in tops:
                self.feed(name)
            return
        if op.type == "fetch":
            self.results += [name for slot in op.inputs for name in slot.arguments]
            return
        with self.net.layer(tops[0] if tops else f"{op.type}_{index}", op.type, *tops):
            from tenon.frontends.paddle.ops import OPERATORS

            context = Context(self.net, op, self.types)
            if op.type not in OPERATORS:
                raise unknown(op.type, OPERATORS)
            if context.begin():
                made = OPERATORS[op.type](context)
                for name, value in _named(slots, made):
                    self.net[name] = value

    def feed(self, name: str) -> None:
        variable = self.variables.get(name)
        kind = variable.type.lod_tensor.tensor if variable is not None else None
        if kind is None or kind.data_type not in DTYPES:
            raise FormatError(f"{self.net.file.name}: the input '{name}' has no type; the file is damaged")
        dims = tuple(d if d > 0 else 1 if axis == 0 else f"{name}_{axis}" for axis, d in enumerate(kind.dims))
        port(self.net, name, TensorType(DType.of(np.dtype(DTYPES[kind.data_type])), dims))
