"""A node of a tmfile while it is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.node_context import NodeContext, Outputs
from tenon.formats.importers.tengine.file import NodeRecord, TengineReader
from tenon.network.graph.graph import Value


class TengineNode(NodeContext):
    """A node being imported: its inputs, and its parameters by name."""

    builder: GraphBuilder
    inputs: list[Value]

    def __init__(
        self, builder: GraphBuilder, reader: TengineReader, record: NodeRecord, inputs: list[Value], fields: str
    ) -> None:
        super().__init__(builder, inputs, _parameters(reader, record, fields.split()))
        self.reader, self.record = reader, record

    def along(self, name: str = "axis") -> int:
        """The axis that a parameter names."""
        return self.axis(self.attributes[name], len(self.dims))

    def spread(self, i: int, axis: int) -> Value:
        """A vector or a block of the axes from ``axis`` on, shaped to broadcast against the input."""
        rank, own = len(self.dims), [d for d in self.dims_of(i) if d != 1] or [1]
        return self.reshape(self.inputs[i], *own, *(1,) * max(0, rank - axis % rank - len(own)))

    def matched(self) -> tuple[Value, Value]:
        """Both inputs; a vector of as many elements as the other has channels lies along the channels."""
        a, b = self.dims, self.dims_of(1)
        if len(a) == 4 and len(b) == 1 and b[0] not in (1, a[3]):
            return self.x, self.spread(1, 1)
        return self.inputs[0], self.inputs[1]


LayerRow = tuple[str, str, Callable[[TengineNode], Outputs]]
"""The name of an operator, its parameters in the file's order, and what it becomes."""


def _parameters(reader: TengineReader, node: NodeRecord, fields: Sequence[str]) -> dict[str, Any]:
    """Parameters by name: ``name`` an integer, ``name:f`` a float, ``name:I`` and ``name:F`` lists of either,
    ``name:A`` a list of four floats each.

    Parameters that a file of an old version lacks read as 0.
    """
    values: dict[str, Any] = {}
    at = node.at
    for i, field in enumerate(fields):
        name, _, kind = field.partition(":")
        inside = at and at + 4 * i + 4 <= node.end
        if kind in ("I", "F", "A"):
            offset = reader.integers(at + 4 * i, 1)[0] if inside else 0
            values[name] = reader.vector(offset, "i" if kind == "I" else "f", 4 if kind == "A" else 1)
        else:
            value = reader.words(at + 4 * i, 1, kind or "i")[0] if inside else 0
            values[name] = value if kind != "f" or math.isfinite(value) else 0.0
    return values
