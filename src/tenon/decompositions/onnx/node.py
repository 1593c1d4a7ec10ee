"""A node of ONNX on its way to becoming operators, as upgrades and decompositions read and change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenon.errors import UnknownError
from tenon.graph_builder.errors import RefusedError, UntypedError
from tenon.ir.graph import Array, Origin, Value
from tenon.ir.types import DType
from tenon.ir.writer import is_known
from tenon.wire.onnx_tensors import element_type


@dataclass(frozen=True)
class TensorSequence:
    """A sequence."""

    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class StringTensor:
    """A tensor of strings, as its bytes along one more axis (see ``decompositions.strings``)."""

    bytes: Value


Entry = Value | TensorSequence | StringTensor | None
"""What a name in a model can stand for; None is an optional without a value."""

Results = Sequence[Entry]


class NodeMaker(Protocol):
    """How an upgrade makes the nodes and constants that come before the layer."""

    def emit(self, node: OnnxNode, type: str, inputs: Sequence[Value | None], **attributes: Any) -> Value: ...

    def constant(self, node: OnnxNode, stem: str, data: Array) -> Value: ...

    def emit_all(
        self, node: OnnxNode, type: str, inputs: Sequence[Value | None], count: int, **attributes: Any
    ) -> list[Value]: ...

    def declared(self, node: OnnxNode) -> tuple[int, ...] | None: ...

    def found(self, node: OnnxNode, axes: Sequence[int | None]) -> list[Value]: ...

    def count(self, value: Value, axis: int, count: Value) -> None: ...


@dataclass
class OnnxNode:
    """A node of the file on its way to becoming an operator.  ``results`` counts the outputs it has in the file,
    ``outputs`` names those up to the last one that is read."""

    origin: Origin
    type: str
    opset: int
    inputs: list[Value | None]
    outputs: list[str]
    results: int
    attributes: dict[str, Any]
    maker: NodeMaker

    def input(self, i: int) -> Value:
        """Raises RefusedError if the input is absent."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise RefusedError(f"input {i} is missing")
        return value

    def has(self, i: int) -> bool:
        return i < len(self.inputs) and self.inputs[i] is not None

    def dims(self, i: int) -> tuple[int, ...]:
        """The shape of an input.  Raises RefusedError while it is not known."""
        self.known_rank(i)
        return self.input(i).type.dims

    def known(self, i: int, what: str) -> Array:
        """The data of an input that must be known when compiling."""
        value = self.input(i)
        if value.data is None:
            raise UnknownError(
                f"{what} ('{value.name}') is computed at run time; it must be known when compiling", value
            )
        return value.data

    @staticmethod
    def element(number: int) -> DType:
        return element_type(number)

    def constant(self, stem: str, data: Array) -> Value:
        return self.maker.constant(self, stem, data)

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input; None while its type is not known."""
        value = self.input(i)
        return value.type.rank if is_known(value) else None

    def known_rank(self, i: int) -> int:
        rank = self.rank(i)
        if rank is None:
            raise UntypedError
        return rank

    def emit(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """The output of a new node before this one."""
        return self.maker.emit(self, type, inputs, **attributes)

    def ints(self, stem: str, values: Sequence[int]) -> Value:
        return self.maker.constant(self, stem, np.array(values, np.int64))

    def scalar(self, stem: str, value: float) -> Value:
        """A constant of the first input's element type."""
        first = self.input(0)
        dtype = first.type.dtype.numpy if first.typed else np.dtype(np.float32)
        return self.maker.constant(self, stem, np.array(value, dtype))

    def set_input(self, i: int, value: Value | None) -> None:
        self.inputs += [None] * (i + 1 - len(self.inputs))
        self.inputs[i] = value

    def become(self, type: str, *inputs: Value | None, **attributes: Any) -> None:
        self.type, self.inputs, self.attributes = type, list(inputs), attributes
