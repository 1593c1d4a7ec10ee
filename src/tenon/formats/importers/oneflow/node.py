"""An operation of a OneFlow job as the functions that import it see it."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.formats.importers.oneflow.text import OneflowOperation
from tenon.network.graph.graph import Value


class OneflowNode(NodeContext):
    """The operation being imported."""

    builder: GraphBuilder
    inputs: list[Value]

    def __init__(self, builder: GraphBuilder, operation: OneflowOperation, inputs: Sequence[Value]) -> None:
        super().__init__(builder, list(inputs), operation.attributes)
        self.operation = operation
