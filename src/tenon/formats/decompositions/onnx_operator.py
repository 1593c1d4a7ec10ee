"""ONNX operators that are decomposed into others (GridSample, LSTM, MaxUnpool, ...), for the other formats too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeBuilder
from tenon.network.graph.graph import Array, Origin, Value
from tenon.network.graph.writer import Writer

_NEWEST = 22
"""The opset whose definition of these operators is used."""


def decomposed(
    builder: NodeBuilder, type: str, inputs: Sequence[Value | None], results: int = 1, /, **attributes: Any
) -> list[Value]:
    """The results of ONNX's operator of these inputs.  Absent attributes have ONNX's defaults.  Raises RefusedError."""
    from tenon.formats.decompositions.onnx.compose import COMPOSED

    node = OnnxNode(_Builder(builder), type, _NEWEST, inputs, [builder.origin.layer], results, attributes)
    outputs = COMPOSED[type](node)
    if outputs is None:
        return list(builder.adds(type, results, *inputs, **attributes))
    return [value for value in outputs if isinstance(value, Value)]


@dataclass(frozen=True)
class _Builder:
    """The builder of another format's graph, in which no extent may depend on data."""

    builder: NodeBuilder

    @property
    def origin(self) -> Origin:
        return self.builder.origin

    @property
    def writer(self) -> Writer:
        return self.builder.writer

    def add(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        return self.builder.add(type, *inputs, **attributes)

    def adds(self, type: str, count: int, *inputs: Value | None, **attributes: Any) -> Sequence[Value]:
        return self.builder.adds(type, count, *inputs, **attributes)

    def constant(self, data: Array, stem: str = "constant") -> Value:
        return self.builder.constant(data, stem)

    def rank(self, value: Value) -> int:
        return self.builder.rank(value)

    def dims(self, value: Value) -> tuple[int, ...]:
        return self.builder.dims(value)

    def declared_shape(self) -> tuple[int, ...] | None:
        return None

    def data_dependent(self, node: OnnxNode, axes: Sequence[int | None]) -> list[Value]:
        raise RefusedError("its result has no fixed shape")

    def changes(self, value: Value) -> bool:
        return False

    def sized_like(self, value: Value, like: Value) -> Value:
        return value

    def set_extent(self, value: Value, axis: int, extent: Value) -> None:
        raise RefusedError("its result has no fixed shape")
