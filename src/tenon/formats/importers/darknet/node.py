"""A section of a .cfg while it is imported: the layers before it, its weights, its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import escape
from pathlib import PurePosixPath

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import AttributeName, NodeContext
from tenon.formats.importers.darknet.cfg import CfgSection, DarknetWeights
from tenon.network.graph.graph import Value
from tenon.network.graph.types import F32, tensor


@dataclass
class DarknetNetwork:
    """Data that the layers of a network share: their sections, their weights, the height and width of images."""

    builder: GraphBuilder
    sections: Sequence[CfgSection]
    parameters: DarknetWeights
    image_size: tuple[int, int]
    states: list[str] = field(default_factory=list)
    """Outputs that are the states of the next step."""

    @cached_property
    def names(self) -> list[str]:
        return [f"{section.type}_{i}" for i, section in enumerate(self.sections)]


class DarknetLayer(NodeContext):
    """A layer being imported: ``x`` is the result of the one before it."""

    builder: GraphBuilder

    def __init__(self, network: DarknetNetwork, index: int) -> None:
        previous = network.names[index - 1] if index else "data"
        super().__init__(network.builder, [network.builder[previous]])
        self.network = network
        self.index = index
        self.names = network.names
        self.section, self.parameters = network.sections[index], network.parameters

    def attribute(self, name: AttributeName) -> str | None:
        return self.section.options.get(str(name))

    def integer(self, name: AttributeName, default: int = 0) -> int:
        return self.section.integer(str(name), default)

    def number(self, name: AttributeName, default: float = 0.0) -> float:
        return self.section.number(str(name), default)

    def numbers(self, name: AttributeName, default: Sequence[float] = ()) -> list[float]:
        return self.section.numbers(str(name)) or list(default)

    def planes(self, value: Value | None = None) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, *planes = self.image(self.x if value is None else value)
        return planes[0], planes[1], planes[2]

    def flat(self, value: Value | None = None) -> Value:
        return self.as_matrix(self.x if value is None else value)

    def earlier(self, index: float) -> Value:
        """The result of another layer, counted from 0, or back from this one when negative."""
        at = int(index) + (self.index if index < 0 else 0)
        if not 0 <= at < self.index:
            raise RefusedError(f"it reads layer {at}, which does not come before it")
        value = self.builder[self.names[at]]
        self.builder.type(value)
        return value

    def sibling_file(self, path: str) -> bytes | None:
        """A file that the .cfg names, looked for beside it whatever its folder was; None if it does not exist."""
        name = PurePosixPath(path).name
        files = self.builder.file.matching(escape(name)) if name else []
        return files[0].data if files else None

    def state(self, name: str, *dims: int) -> Value:
        """A new input of the graph: the state of the layer."""
        return self.builder.input(f"{self.names[self.index]}_{name}", tensor(F32, *dims))

    def next_state(self, name: str, value: Value) -> None:
        """Make ``value`` the state of the next step: a new output of the graph."""
        full = f"{self.names[self.index]}_{name}_out"
        self.builder[full] = value
        self.network.states.append(full)
        self.builder.states[full.removesuffix("_out")] = full
