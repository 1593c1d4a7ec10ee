"""Operators whose options are a list of named arguments, as in Caffe2 and MACE."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.node_context import AttributeName, NodeContext
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value


class NamedArgumentNode(NodeContext):
    """The operator being imported: ``op``, its arguments by name, its inputs."""

    builder: GraphBuilder
    op: Message
    arguments: dict[str, Message]
    inputs: list[Value]

    def read(self, op: Message) -> None:
        """Begin an operator.  Raises RefusedError if an input does not exist."""
        self.op, self.arguments = op, {a.name: a for a in op.arg}
        self.inputs = [self.builder[name] for name in op.input]

    def integer(self, name: AttributeName, default: int = 0) -> int:
        return int(self.arguments[str(name)].i) if name in self.arguments else default

    def number(self, name: AttributeName, default: float = 0.0) -> float:
        """A float, or an integer where the file holds one."""
        if name not in self.arguments:
            return default
        argument = self.arguments[str(name)]
        return float(argument.i if argument.has("i") and not argument.has("f") else argument.f)

    def text(self, name: AttributeName, default: str = "") -> str:
        return bytes(self.arguments[str(name)].s).decode("latin-1") if name in self.arguments else default

    def integers(self, name: AttributeName, default: Sequence[int] = ()) -> list[int]:
        return [int(n) for n in self.arguments[str(name)].ints] if name in self.arguments else list(default)

    def numbers(self, name: AttributeName, default: Sequence[float] = ()) -> list[float]:
        return [float(n) for n in self.arguments[str(name)].floats] if name in self.arguments else list(default)
