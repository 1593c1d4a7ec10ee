"""Operators of ONNX that Tenon spells out in others (GridSample, LSTM, MaxUnpool, ...), for the other formats too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenon.decompositions.onnx.node import OnnxNode
from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value

_NEWEST = 22
"""The operator set whose spelling of these operators is meant."""


def spelled(
    builder: GraphBuilder, type: str, inputs: Sequence[Value | None], results: int = 1, /, **attributes: Any
) -> list[Value]:
    """What ONNX's operator of these inputs makes.  Absent attributes have ONNX's defaults.  Raises RefusedError."""
    from tenon.decompositions.onnx.compose import COMPOSED

    layer = OnnxNode(
        builder.origin, type, _NEWEST, list(inputs), [builder.origin.layer], results, attributes, _Maker(builder)
    )
    made = COMPOSED[type](layer)
    if made is None:
        return list(builder.adds(type, results, *inputs, **attributes))
    return [value for value in made if isinstance(value, Value)]


@dataclass(frozen=True)
class _Maker:
    """How ONNX's spellings add their nodes to a net."""

    builder: GraphBuilder

    def emit(self, node: OnnxNode, type: str, inputs: Sequence[Value | None], **attributes: Any) -> Value:
        return self.builder.add(type, *inputs, **attributes)

    def emit_all(
        self, node: OnnxNode, type: str, inputs: Sequence[Value | None], count: int, **attributes: Any
    ) -> list[Value]:
        return list(self.builder.adds(type, count, *inputs, **attributes))

    def constant(self, node: OnnxNode, stem: str, data: Array) -> Value:
        return self.builder.constant(data, stem)

    def declared(self, node: OnnxNode) -> tuple[int, ...] | None:
        return None

    def found(self, node: OnnxNode, axes: Sequence[int | None]) -> list[Value]:
        raise RefusedError("its result has no fixed shape")

    def count(self, value: Value, axis: int, count: Value) -> None:
        raise RefusedError("its result has no fixed shape")
