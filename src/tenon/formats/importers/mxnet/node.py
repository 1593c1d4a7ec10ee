"""An operator of an MXNet symbol as the functions that import it see it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import AttributeName, NodeContext
from tenon.network.graph.graph import Value

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
    """The operator being imported.  Without stored parameters their shapes follow from the operator."""

    builder: GraphBuilder
    inputs: list[Value | None]
    attributes: dict[str, str]

    def __init__(
        self, builder: GraphBuilder, kind: str, names: Sequence[str], attributes: dict[str, str], bare: bool
    ) -> None:
        super().__init__(builder)
        self.kind = kind
        self.names = list(names)
        self.attributes = attributes
        self.bare = bare
        self.inputs = [None if bare and name not in builder else builder[name] for name in names]

    def input(self, i: int = 0) -> Value:
        return self.parameter(i)

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

    def attribute(self, name: AttributeName) -> str | None:
        text = self.attributes.get(str(name), "None")
        return None if text == "None" else text

    def text(self, name: AttributeName, default: str = "") -> str:
        return self.attributes.get(str(name), default)

    def flag(self, name: AttributeName, default: bool = False) -> bool:
        return self.text(name, str(default)).lower() in ("true", "1")

    def integer(self, name: AttributeName, default: int = 0) -> int:
        return int(self.number(name, default))

    def integers(self, name: AttributeName, default: Sequence[int] = ()) -> list[int]:
        """``(1, 2)``, ``[1, 2]`` or ``1``; Nones are left out."""
        text = self.attributes.get(str(name), "")
        return [int(n) for n in re.findall(r"-?\d+", text)] if re.search(r"\d", text) else list(default)

    def bounds(self, name: str, nothing: int) -> list[int]:
        """As ``integers``, with ``nothing`` for None."""
        parts = re.findall(r"None|-?\d+", self.attributes.get(str(name), ""))
        return [nothing if part == "None" else int(part) for part in parts]
