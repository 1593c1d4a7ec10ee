"""An operation of a OneFlow job as the functions that import it see it."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import NodeContext
from tenon.importers.oneflow.text import OneflowOperation
from tenon.ir.graph import Value


class OneflowNode(NodeContext):
    """The operation about to be made."""

    def __init__(self, builder: GraphBuilder, operation: OneflowOperation, inputs: Sequence[Value]) -> None:
        super().__init__(builder)
        self.operation, self.inputs, self.attributes = operation, inputs, operation.attributes

    @property
    def x(self) -> Value:
        if not self.inputs:
            raise RefusedError("it has no operands")
        return self.inputs[0]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.builder.dims(self.x)

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def numbers(self, name: str) -> list[int]:
        value = self.attributes.get(name, [])
        return [int(v) for v in value] if isinstance(value, list) else [int(value)]

    def flag(self, name: str) -> bool:
        return bool(self.attributes.get(name, False))
