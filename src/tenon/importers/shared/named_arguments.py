"""Operators whose options are a list of named arguments, as Caffe2 has them, and MACE after it."""

from __future__ import annotations

from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import NodeContext
from tenon.ir.graph import Value
from tenon.wire.protobuf import Message


class NamedArgumentNode(NodeContext):
    """The operator about to be made: ``op``, its arguments by name, its inputs."""

    op: Message
    arguments: dict[str, Message]
    inputs: list[Value]

    def read(self, op: Message) -> None:
        """Begin an operator.  Raises RefusedError if an input is not there."""
        self.op, self.arguments = op, {a.name: a for a in op.arg}
        self.inputs = [self.builder[name] for name in op.input]

    @property
    def x(self) -> Value:
        return self.input(0)

    def input(self, i: int) -> Value:
        if i >= len(self.inputs):
            raise RefusedError(f"it has {len(self.inputs)} inputs, too few")
        return self.inputs[i]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.builder.dims(self.x)

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.arguments[name].i) if name in self.arguments else default

    def number(self, name: str, default: float = 0.0) -> float:
        """A float, or an integer where the file holds one."""
        if name not in self.arguments:
            return default
        argument = self.arguments[name]
        return float(argument.i if argument.has("i") and not argument.has("f") else argument.f)

    def text(self, name: str, default: str = "") -> str:
        return bytes(self.arguments[name].s).decode("latin-1") if name in self.arguments else default

    def integers(self, name: str) -> list[int]:
        return [int(n) for n in self.arguments[name].ints] if name in self.arguments else []

    def numbers(self, name: str) -> list[float]:
        return [float(n) for n in self.arguments[name].floats] if name in self.arguments else []
