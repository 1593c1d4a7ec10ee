"""PaddlePaddle inference programs, 1.x to 3.x: a program and its parameters, all in one file or each in its own.

The program is ``__model__``, ``*.pdmodel`` or, of 3.x, ``*.json``; the parameters ``*.pdiparams``, ``__params__``, or
files named like the variables.  An unknown batch is 1 unless it is bound.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder, required_input
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.paddle import pir
from tenon.formats.importers.paddle.node import PaddleNode, Result, looks_like_type
from tenon.formats.importers.paddle.program import DTYPES, PaddleOperation, PaddleProgram, PaddleVariable
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import DamagedError, Message, Schema, raw_fields
from tenon.formats.wire.stored_files import read_stored
from tenon.input_file import is_own
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, TensorType

SCHEMA = Schema(
    {
        "Attr": {
            "name": (1, "string"),
            "type": (2, "int32"),
            "i": (3, "int32"),
            "f": (4, "float"),
            "s": (5, "string"),
            "ints": (6, "*int32"),
            "floats": (7, "*float"),
            "strings": (8, "*string"),
            "b": (10, "bool"),
            "block": (12, "int32"),
            "bools": (11, "*bool"),
            "l": (13, "int64"),
            "longs": (15, "*int64"),
            "float64s": (16, "*double"),
            "float64": (19, "double"),
            "scalar": (20, "Scalar"),
            "scalars": (21, "*Scalar"),
        },
        "Scalar": {"type": (1, "int32"), "b": (2, "bool"), "i": (3, "int64"), "r": (4, "double")},
        "Slot": {"parameter": (1, "string"), "arguments": (2, "*string")},
        "Op": {"inputs": (1, "*Slot"), "outputs": (2, "*Slot"), "type": (3, "string"), "attrs": (4, "*Attr")},
        "TensorDesc": {"data_type": (1, "int32"), "dims": (2, "*int64")},
        "LoDTensor": {"tensor": (1, "TensorDesc")},
        "VarType": {"type": (1, "int32"), "lod_tensor": (3, "LoDTensor")},
        "Var": {"name": (1, "string"), "type": (2, "VarType"), "persistable": (3, "bool")},
        "Block": {"vars": (3, "*Var"), "ops": (4, "*Op")},
        "Program": {"blocks": (1, "*Block")},
    }
)
"""The part of paddle/fluid/framework/framework.proto that inference programs use."""

_FIELDS = {
    0: "i",
    1: "f",
    2: "s",
    3: "ints",
    4: "floats",
    5: "strings",
    6: "b",
    7: "bools",
    8: "block",
    9: "l",
    11: "longs",
    12: "float64s",
    15: "float64",
    16: "scalar",
    17: "scalars",
}
"""Attribute types, and the fields that hold their values."""

_SCALARS = {1: "b", 2: "i", 3: "r"}

_LOD_TENSOR = 7
_PATTERNS = ("{stem}.pdiparams", "__params__", "params", "*.pdiparams")


def recognise(file: ModelFile) -> bool:
    """A program; of parameters, a combined file beside one."""
    return is_program(file.data) or (_is_tensor(file.data) and _program_of(file) is not None)


def is_program(data: bytes) -> bool:
    """PIR as JSON, or a block of numbers, variables and operators whose third field is the name of their type."""
    if pir.is_program(data):
        return True
    try:
        for number, wire, content in raw_fields(memoryview(data)):
            if number != 1 or wire != 2 or isinstance(content, int):
                return False
            return _is_block(content)
    except DamagedError:  # no message
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
    return file.find_partner(
        "the program",
        "{stem}.pdmodel",
        "{stem}.json",
        "__model__",
        "*.pdmodel",
        "*.json",
        fits=lambda other: is_program(other.data),
    )


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a program, given by it or by its combined parameters.  See ``importers.load`` for errors."""
    program_file = file if is_program(file.data) else _program_of(file) or file
    program = _read(program_file)
    parameters: ModelFile | None = None
    if program_file is not file:
        parameters = file
    elif program.parameters and (file.weights is None or not file.weights.is_folder):
        parameters = file.find_partner("the parameters", *_PATTERNS, fits=lambda other: _is_tensor(other.data))
    builder = GraphBuilder(
        program_file,
        program_file.stem.strip("_"),
        shapes,
        inputs,
        outputs,
        len(parameters.data) if parameters else 1 << 22,
    )
    return _ProgramImporter(builder, program).load(_stored(program_file, program, parameters))


def _read(file: ModelFile) -> PaddleProgram:
    """The program in a file of either format.  Raises FormatError."""
    if pir.is_program(file.data):
        return pir.read(file.data, file.name)
    program = SCHEMA.parse("Program", file.data, file.name)
    if not program.blocks:
        raise FormatError(f"{file.name}: it has no blocks; the file is damaged")
    block = program.blocks[0]
    variables = {v.name: _variable(v) for v in block.vars if v.type.type == _LOD_TENSOR}
    result = PaddleProgram([variables[v.name] for v in block.vars if v.persistable and v.name in variables])
    for op in block.ops:
        one = _operation(op)
        if op.type == "feed":
            for name in one.made:
                if name not in variables or variables[name].dtype not in DTYPES:
                    raise FormatError(f"{file.name}: the input '{name}' has no type; the file is damaged")
                result.inputs.append(variables[name])
        elif op.type == "fetch":
            result.results += [name for names in one.inputs.values() for name in names]
        else:
            result.operations.append(one)
    result.blocks = [result.operations, *([_operation(op) for op in other.ops] for other in program.blocks[1:])]
    return result


def _variable(v: Message) -> PaddleVariable:
    kind = v.type.lod_tensor.tensor if v.type.lod_tensor is not None else None
    return PaddleVariable(v.name, -1, ()) if kind is None else PaddleVariable(v.name, kind.data_type, tuple(kind.dims))


def _operation(op: Message) -> PaddleOperation:
    slots = [{slot.parameter: slot.arguments for slot in side} for side in (op.inputs, op.outputs)]
    attributes = {a.name: getattr(a, _FIELDS[a.type]) for a in op.attrs if a.type in _FIELDS}
    return PaddleOperation(op.type, slots[0], slots[1], {name: _number(value) for name, value in attributes.items()})


def _number(value: Any) -> Any:
    """The number of a Scalar, which carries its own type."""
    if isinstance(value, list) and value and isinstance(value[0], Message):
        return [_number(one) for one in value]
    return getattr(value, _SCALARS.get(value.type, "r")) if isinstance(value, Message) else value


# ----------------------------------------------------------------------------------------- parameters
def _stored(file: ModelFile, program: PaddleProgram, combined: ModelFile | None) -> dict[str, Array]:
    """Parameters by name.  Raises FormatError."""
    if combined is not None:
        return _combined(combined, {v.name: v for v in program.parameters})
    folder = file.weights.folder if file.weights is not None and file.weights.is_folder else file.folder
    parameters_by_name = {}
    for name in (v.name for v in program.parameters):
        path = _inside(folder, name)
        if path is not None:
            parameters_by_name[name], _ = tensor(read_stored(path), 0, name)
    return parameters_by_name


def _inside(folder: Path | None, name: str) -> Path | None:
    """The file of a parameter, which must lie in the folder itself."""
    if folder is None or not name or "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        return None
    path = folder / name
    return path if is_own(path) else None


def _combined(file: ModelFile, known: dict[str, PaddleVariable]) -> dict[str, Array]:
    """Tensors one after the other, in the order of their names."""
    arrays, at = {}, 0
    for name in sorted(known):
        arrays[name], at = tensor(file.data, at, file.name)
        dims = known[name].dims
        if arrays[name].shape != dims and -1 not in dims:
            raise FormatError(
                f"{file.name}: '{name}' is {list(arrays[name].shape)} there and {list(dims)} in the "
                "program; the two files do not belong together"
            )
    if at != len(file.data):
        raise FormatError(f"{file.name}: {len(file.data) - at} bytes belong to no parameter of the program")
    return arrays


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
def _named(slots: dict[str, Sequence[str]], outputs: Result) -> list[tuple[str, Value]]:
    """The results of an operator, by the names that its outputs have."""
    if isinstance(outputs, dict):
        return [(slots[slot][0], value) for slot, value in outputs.items() if slots.get(slot)]
    every = [name for names in slots.values() for name in names]
    names = next((slots[slot] for slot in ("Out", "Output", "Y") if slots.get(slot)), every)
    return list(zip(names, [outputs] if isinstance(outputs, Value) else outputs, strict=False))


class _ProgramImporter:
    """The loop over the operators of a program."""

    def __init__(self, builder: GraphBuilder, program: PaddleProgram) -> None:
        self.builder, self.program = builder, program
        every = [op for block in program.blocks or [program.operations] for op in block]
        self.types = frozenset(op.type for op in every)
        self.running: list[int] = []
        read = (name for op in every for names in op.inputs.values() for name in names)
        self.read = frozenset({*read, *program.results})
        self.needed = set(builder.cut_outputs or program.results)
        for op in reversed(program.operations):
            if not self.needed.isdisjoint(op.made):
                self.needed.update(name for names in op.inputs.values() for name in names)

    def load(self, stored: dict[str, Array]) -> Graph:
        for variable in self.program.inputs:
            self.feed(variable)
        for v in self.program.parameters:
            if v.name in self.read:
                with self.builder.layer(v.name, "parameter", v.name):
                    self.builder[v.name] = self.parameter(v, stored.get(v.name))
        for i, op in enumerate(self.program.operations):
            self.operator(op, i)
        graph = self.builder.finish(self.program.results)
        if graph.heads is not None:  # by the name that the program returns it under
            graph.heads = graph.heads._replace(outputs=tuple(self.builder.scope[n].name for n in graph.heads.outputs))
        return graph

    def parameter(self, variable: PaddleVariable, data: Array | None) -> Value:
        if data is not None:
            return self.builder.constant(data, "data")
        if any(d < 0 for d in variable.dims) or variable.dtype not in DTYPES:
            raise RefusedError(f"a parameter of shape {list(variable.dims)} is impossible")
        self.builder.graph.incomplete = MISSING_WEIGHTS
        return self.builder.placeholder(variable.dims)

    def operator(self, op: PaddleOperation, index: int) -> None:
        tops = op.made
        with self.builder.layer(tops[0] if tops else f"{op.type}_{index}", op.type, *tops):
            from tenon.formats.importers.paddle.control_flow import CONTROL
            from tenon.formats.importers.paddle.ops import OPERATORS

            if op.type in CONTROL:
                CONTROL[op.type](self, op)
                return
            if op.type not in OPERATORS:
                raise unknown(op.type, OPERATORS)
            context = PaddleNode(self.builder, op, self.types, self.read)
            if context.inputs_known:
                result = OPERATORS[op.type](context)
                for name, value in _named(dict(op.outputs), result):
                    self.builder[name] = value
                self.check_results(op)

    def block(self, number: int) -> Sequence[PaddleOperation]:
        """The operators of a block.  Raises RefusedError if there is no such block."""
        if not 0 < number < len(self.program.blocks):
            raise RefusedError(f"it runs block {number}, which does not exist")
        return self.program.blocks[number]

    def import_block(self, number: int) -> None:
        """Import the operators of a block, which read and assign variables by their names.  Raises RefusedError."""
        operations = self.block(number)
        if number in self.running:
            raise RefusedError(f"block {number} runs itself")
        self.running.append(number)
        try:
            for i, op in enumerate(operations):
                self.operator(op, i)
        finally:
            self.running.pop()

    def check_results(self, op: PaddleOperation) -> None:
        """Raises RefusedError for an output that the program's results need and that was not made."""
        for slot, names in op.outputs.items():
            if any(name in self.needed and name not in self.builder for name in names):
                raise RefusedError(f"its output {slot} is not supported")

    def feed(self, variable: PaddleVariable) -> None:
        if variable.dtype not in DTYPES:
            raise FormatError(f"{self.builder.file.name}: the input '{variable.name}' has no type that is supported")
        name = variable.name
        dims = tuple(d if d > 0 else 1 if axis == 0 else f"{name}_{axis}" for axis, d in enumerate(variable.dims))
        required_input(self.builder, name, TensorType(DType.of(np.dtype(DTYPES[variable.dtype])), dims))
