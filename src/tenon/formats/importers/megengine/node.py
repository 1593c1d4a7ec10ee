"""An operator of a MegEngine dump as the functions that import it see it."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.formats.wire.flatbuffer import FlatTable
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType


class MegengineNode(NodeContext):
    """The operator being imported and the slots of its parameters."""

    builder: GraphBuilder
    inputs: list[Value]

    def __init__(
        self, builder: GraphBuilder, parameters: FlatTable | None, inputs: Sequence[Value], wanted: DType | None = None
    ) -> None:
        super().__init__(builder, list(inputs))
        self.parameters, self.wanted = parameters, wanted

    def field(self, slot: int, kind: str, default: int = 0) -> int:
        return default if self.parameters is None else int(self.parameters.get(slot, kind, default))

    def float_field(self, slot: int, default: float = 0.0, kind: str = "f32") -> float:
        return default if self.parameters is None else float(self.parameters.get(slot, kind, default))

    def struct_fields(self, slot: int, size: int) -> list[bytes]:
        """Structs of so many bytes."""
        data = b"" if self.parameters is None else self.parameters.structs(slot, size)
        return [data[i : i + size] for i in range(0, len(data), size)]

    def int_fields(self, slot: int) -> list[int]:
        return [] if self.parameters is None else self.parameters.ints(slot)
