"""An operator of an MXNet symbol as the functions that spell it see it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tenon.graph_builder.builder import GraphBuilder
from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import NodeContext
from tenon.ir.graph import Value
from tenon.ir.writer import is_known

LABELLED = frozenset(
    {
        "SoftmaxOutput",
        "Softmax",
        "LinearRegressionOutput",
        "LogisticRegressionOutput",
        "MAERegressionOutput",
        "SVMOutput",
        "softmax_cross_entropy",
    }
)
"""Losses, whose second input is the label and which pass on their first when the network runs."""


class MxnetNode(NodeContext):
    """The operator about to be made.  Without stored parameters their shapes follow from the operator."""

    def __init__(
        self, builder: GraphBuilder, kind: str, names: Sequence[str], attributes: dict[str, str], bare: bool
    ) -> None:
        super().__init__(builder)
        self.kind, self.names, self.attributes, self.bare = kind, list(names), attributes, bare
        self.inputs = [None if bare and name not in builder else builder[name] for name in names]
        self.known = all(value is None or is_known(value) for value in self.inputs)

    @property
    def x(self) -> Value:
        return self.parameter(0)

    @property
    def dims(self) -> tuple[int, ...]:
        return self.builder.dims(self.x)

    @property
    def values(self) -> list[Value]:
        return [self.parameter(i) for i in range(len(self.names))]

    def parameter(self, i: int, *shape: int) -> Value:
        """Input ``i``; a parameter of this shape where none is stored."""
        if i >= len(self.inputs):
            raise RefusedError(f"input {i} is missing")
        value = self.inputs[i]
        if value is None:
            if not shape or min(shape) < 1 or max(shape) >= 2**31:
                raise RefusedError(f"'{self.names[i]}' is not stored", "name the parameters with --weights")
            if self.names[i] not in self.builder:
                self.builder[self.names[i]] = self.builder.placeholder(shape)
            value = self.inputs[i] = self.builder[self.names[i]]
        return value

    def text(self, name: str, default: str = "") -> str:
        return self.attributes.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        return self.attributes.get(name, str(default)).lower() in ("true", "1")

    def number(self, name: str, default: float = 0.0) -> float:
        text = self.attributes.get(name, "None")
        return default if text == "None" else float(text)

    def integer(self, name: str, default: int = 0) -> int:
        return int(self.number(name, default))

    def numbers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """``(1, 2)``, ``[1, 2]`` or ``1``; Nones are left out."""
        text = self.attributes.get(name, "")
        return [int(n) for n in re.findall(r"-?\d+", text)] if re.search(r"\d", text) else list(default)

    def bounds(self, name: str, nothing: int) -> list[int]:
        """As ``numbers``, with ``nothing`` for None."""
        parts = re.findall(r"None|-?\d+", self.attributes.get(name, ""))
        return [nothing if part == "None" else int(part) for part in parts]
