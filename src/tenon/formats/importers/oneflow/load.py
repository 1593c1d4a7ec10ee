"""OneFlow's saved graphs: a job as the text of MLIR, and one folder per variable (``model.a/out`` and ``meta``).

The job stands in a file ``model.mlir`` as operations ``%x = "oneflow.name"(%a, %b) {attributes} : types``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder
from tenon.formats.graph_builder.errors import unknown
from tenon.formats.importers.oneflow.node import OneflowNode
from tenon.formats.importers.oneflow.ops import OPERATORS
from tenon.formats.importers.oneflow.text import OneflowOperation, parse
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.stored_files import read_stored
from tenon.input_file import is_own, is_regular
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import TensorType
from tenon.network.graph.writer import is_known

_STORED = {
    "kFloat": "<f4",
    "kDouble": "<f8",
    "kInt8": "<i1",
    "kInt32": "<i4",
    "kInt64": "<i8",
    "kUInt8": "<u1",
    "kFloat16": "<f2",
    "kBool": "?",
}


def recognise(file: ModelFile) -> bool:
    return b"oneflow.job" in file.data[:65536]


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors.  Inputs and outputs bear the names of their operations."""
    try:
        operations, returned = parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: {error}") from error
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs, 1 << 24)
    folder = file.weights.folder if file.weights is not None and file.weights.is_folder else file.folder
    return _OneflowJob(builder, folder).load(operations, returned)


class _OneflowJob:
    """The loop over the operations."""

    def __init__(self, builder: GraphBuilder, folder: Path | None) -> None:
        self.builder, self.folder = builder, folder
        self.names: dict[str, str] = {}

    def load(self, operations: Sequence[OneflowOperation], returned: Sequence[str]) -> Graph:
        for operation in operations:
            self.names |= {
                r: operation.name if i == 0 else f"{operation.name}_{i}" for i, r in enumerate(operation.results)
            }
            if operation.type == "input" and operation.types:
                self.builder.input(operation.name, operation.types[0])
                continue
            with self.builder.layer(operation.name, operation.type, *(self.names[r] for r in operation.results)):
                self.operation(operation)
        return self.builder.finish([self.names.get(name, name) for name in returned])

    def operation(self, operation: OneflowOperation) -> None:
        if operation.type == "variable" and operation.types and operation.results:
            self.builder[operation.name] = self.variable(operation)
            return
        inputs = [self.builder[self.names.get(name, name)] for name in operation.operands]
        if operation.type not in OPERATORS:
            raise unknown(operation.type, OPERATORS, "operation")
        if all(is_known(v) for v in inputs):
            outputs = OPERATORS[operation.type](OneflowNode(self.builder, operation, inputs))
            for result, value in zip(
                operation.results, [outputs] if isinstance(outputs, Value) else outputs, strict=False
            ):
                self.builder[self.names[result]] = value

    def variable(self, operation: OneflowOperation) -> Value:
        """The variable's folder beside the job, or zeros."""
        type = operation.types[0]
        path = self.folder / operation.name / "out" if self.folder is not None and _plain(operation.name) else None
        if path is None or not is_own(path):
            self.builder.graph.incomplete = MISSING_WEIGHTS
            return self.builder.placeholder(type.dims, type.dtype)
        return self.builder.constant(_stored(path, type), "data")


def _plain(name: str) -> bool:
    """Whether a variable's name is that of a folder right here."""
    return bool(name) and not set(name) & set("/\\\0") and name not in (".", "..")


def _stored(path: Path, type: TensorType) -> Array:
    """The numbers of a variable, checked against what its ``meta`` says.  Raises FormatError."""
    meta = path.with_name("meta")
    text = read_stored(meta).decode("utf-8", "replace") if is_regular(meta) else ""
    kind = re.search(r"data_type:\s*(\w+)", text)
    dims = tuple(int(d) for d in re.findall(r"dim:\s*(\d{1,10})\b", text))
    dtype = np.dtype(_STORED.get(kind[1], "V1") if kind else type.dtype.numpy)
    data = read_stored(path)
    if (text and dims != type.dims) or dtype.kind == "V" or len(data) != math.prod(type.dims) * dtype.itemsize:
        raise FormatError(f"'{path.parent.name}/out' does not hold a tensor of shape {list(type.dims)}")
    return np.frombuffer(data, dtype).reshape(type.dims).astype(type.dtype.numpy)
