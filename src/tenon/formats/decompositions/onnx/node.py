"""A node of an ONNX model while it is imported, as upgrades and decompositions read and change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tenon.errors import UnknownError
from tenon.formats.graph_builder.errors import UntypedError
from tenon.formats.graph_builder.node_context import NodeBuilder, NodeContext
from tenon.formats.wire.onnx_tensors import element_type
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType
from tenon.network.graph.writer import is_known


@dataclass(frozen=True)
class TensorSequence:
    """A sequence.  One that is ``growing``, in the body of a loop that appends to it, has only what was appended."""

    values: tuple[Value, ...] = ()
    growing: bool = False


@dataclass(frozen=True)
class StringTensor:
    """A tensor of strings, as its bytes along one more axis (see ``decompositions.strings``)."""

    bytes: Value


Entry = Value | TensorSequence | StringTensor | None
"""A value that a name in a model can stand for; None is an optional without a value."""

Results = Sequence[Entry]


class OnnxBuilder(NodeBuilder, Protocol):
    """The interface of the builder that nodes of ONNX need beside that of all nodes."""

    def declared_shape(self) -> tuple[int, ...] | None:
        """The shape that the file states for the first output, if it states all of it."""

    def data_dependent(self, node: OnnxNode, axes: Sequence[int | None]) -> list[Value]:
        """The outputs of an operator whose last output is the extent of the others along these axes."""

    def changes(self, value: Value) -> bool:
        """Whether extents of a tensor are known only at run time."""

    def sized_like(self, value: Value, like: Value) -> Value:
        """A new constant whose last axes have the extents, at run time, of those of another tensor."""

    def set_extent(self, value: Value, axis: int, extent: Value) -> None:
        """Note that only ``extent`` elements along an axis of a value are there; the rest is zeros."""


class OnnxNode(NodeContext):
    """A node of the file while it is imported.  ``results`` counts the outputs it has in the file,
    ``outputs`` names those up to the last one that is read."""

    builder: OnnxBuilder
    inputs: list[Value | None]
    attributes: dict[str, Any]

    def __init__(
        self,
        builder: OnnxBuilder,
        type: str,
        opset: int,
        inputs: Sequence[Value | None],
        outputs: list[str],
        results: int,
        attributes: dict[str, Any],
    ) -> None:
        super().__init__(builder, list(inputs), attributes)
        self.type = type
        self.opset = opset
        self.outputs = outputs
        self.results = results

    def dims_of(self, i: int) -> tuple[int, ...]:
        """The shape of an input.  Raises UntypedError while it is not known."""
        self.known_rank(i)
        return self.input(i).type.dims

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input; None while its type is not known."""
        value = self.input(i)
        return value.type.rank if is_known(value) else None

    def known_rank(self, i: int) -> int:
        rank = self.rank(i)
        if rank is None:
            raise UntypedError
        return rank

    def constant_input(self, i: int, what: str = "") -> Array:
        """The data of an input that must be known when compiling.  Raises UnknownError."""
        value = self.input(i)
        if value.data is None:
            name = f"{what or f'input {i}'} ('{value.name}')"
            raise UnknownError(f"{name} is computed at run time; it must be known when compiling", value)
        return value.data

    @staticmethod
    def element_type(number: int) -> DType:
        """The element type of a TensorProto.DataType.  Raises TensorError."""
        return element_type(number)

    def int_constant(self, stem: str, values: Sequence[int]) -> Value:
        """A constant of rank 1, i64."""
        return self.constant(np.array(values, np.int64), stem)

    def typed_scalar(self, stem: str, value: float) -> Value:
        """A constant of rank 0 of the first input's element type."""
        first = self.input(0)
        dtype = first.type.dtype.numpy if first.typed else np.dtype(np.float32)
        return self.constant(np.array(value, dtype), stem)

    def set_input(self, i: int, value: Value | None) -> None:
        self.inputs += [None] * (i + 1 - len(self.inputs))
        self.inputs[i] = value

    def variant(self, type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> OnnxNode:
        """Another operator in this one's place."""
        return OnnxNode(self.builder, type, self.opset, inputs, self.outputs, self.results, dict(attributes))

    def become(self, type: str, *inputs: Value | None, **attributes: Any) -> None:
        """Turn into another operator."""
        self.type = type
        self.inputs = list(inputs)
        self.attributes = attributes
