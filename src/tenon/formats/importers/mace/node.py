"""An operator of a MACE model as the functions that import it see it."""

from __future__ import annotations

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.shared.named_arguments import NamedArgumentNode
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value

_FIRST, _LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_FILTERS = {100: (3, 2, 0, 1), 101: (0, 1, 2, 3), 102: (2, 3, 0, 1), 103: (0, 3, 1, 2)}
"""HWIO, OIHW, HWOI and OHWI, and the order that makes OIHW of them."""


class MaceNode(NamedArgumentNode):
    """The operator being imported."""

    def __init__(self, builder: GraphBuilder, op: Message, defaults: dict[str, Message]) -> None:
        super().__init__(builder)
        self.read(op)
        self.defaults = defaults

    def channels_first(self) -> Value:
        if len(self.dims) != 4:
            raise RefusedError(f"it needs an image, not {list(self.dims)}")
        return self.add("Transpose", self.x, perm=_FIRST)

    def channels_last(self, x: Value) -> Value:
        return self.add("Transpose", x, perm=_LAST)

    def filters(self) -> Value:
        """Input 1 as OIHW."""
        kind = self.arguments.get("filter_format", self.defaults.get("filter_format"))
        order = _FILTERS.get(int(kind.i) if kind is not None else 101)
        if order is None or len(self.builder.dims(self.input(1))) != 4:
            raise RefusedError("its filters are of an unknown format")
        return self.add("Transpose", self.input(1), perm=order)

    def bias(self) -> list[Value]:
        return [self.reshape(value, -1) for value in self.inputs[2:3]]
