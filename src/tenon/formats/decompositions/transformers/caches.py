"""Caches of decoders that attend to an encoded sound: their names, types and sizes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.graph import Value
from tenon.network.graph.size_range import Size
from tenon.network.graph.types import F32, I64, TensorType

PARTS = ("key", "value")
CROSS = "cross.*"
TOKENS, LENGTH, PAST = "tokens", "length", "past"


def past(layer: int, part: str) -> str:
    """The input with the keys or values of the tokens of earlier runs."""
    return f"past_key_values.{layer}.decoder.{part}"


def present(layer: int, part: str) -> str:
    """The output with those of this run as well."""
    return f"present.{layer}.decoder.{part}"


def cross(layer: int, part: str) -> str:
    """The keys or values of the encoded sound: outputs of the encoder, inputs of the decoder."""
    return f"cross.{layer}.{part}"


@dataclass(frozen=True)
class CacheSizes:
    """``layers`` caches of ``heads`` heads of ``size`` values for ``context`` tokens, ``chunk`` in one run."""

    layers: int
    heads: int
    size: int
    context: int
    chunk: int = 16

    def add_inputs(self, builder: GraphBuilder) -> Value:
        """Add ``tokens`` i64 [1, length] and the caches f32 [1, heads, past, size] as inputs; returns the tokens."""
        if not builder.shapes.keys() & {TOKENS, past(0, "key")}:
            length = builder.shapes.setdefault(LENGTH, Size(LENGTH, 1, self.chunk))
            most = length if isinstance(length, int) else getattr(length, "most", self.chunk)
            builder.shapes.setdefault(PAST, Size(PAST, 0, max(0, self.context - most)))
        cache = TensorType(F32, (1, self.heads, PAST, self.size))
        types = {TOKENS: TensorType(I64, (1, LENGTH))}
        types |= {past(i, part): cache for i in range(self.layers) for part in PARTS}
        builder.inputs(types)
        return builder[TOKENS]

    def expand_cuts(self, builder: GraphBuilder) -> None:
        """Replace ``cross.*`` among the names at which the network is cut by the names that it stands for."""
        builder.cut_inputs = set(self._expanded(builder.cut_inputs))
        builder.cut_outputs = self._expanded(builder.cut_outputs)

    def _expanded(self, names: Iterable[str]) -> list[str]:
        return [each for name in names for each in (self.cross_names if name == CROSS else [name])]

    @property
    def cross_names(self) -> list[str]:
        return [cross(i, part) for i in range(self.layers) for part in PARTS]

    @property
    def present_names(self) -> list[str]:
        return [present(i, part) for i in range(self.layers) for part in PARTS]
