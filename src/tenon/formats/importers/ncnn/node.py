"""A layer of an ncnn network as the functions that import it see it.

A blob of ncnn has no batch: w, h x w, c x h x w or c x d x h x w.  Here it is a tensor with a leading 1, so that an
axis of ncnn is the next axis here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import AttributeName, NodeContext
from tenon.formats.importers.ncnn.file import LayerRecord, NcnnWeights
from tenon.network.graph.graph import Array, Value

AXES = {1: "w", 2: "hw", 3: "chw", 4: "cdhw"}
"""The axes of a blob, by how many they are."""


class NcnnLayer(NodeContext):
    """The layer being imported: ``x`` is its first input."""

    builder: GraphBuilder
    inputs: list[Value]

    def __init__(self, builder: GraphBuilder, record: LayerRecord, weights: NcnnWeights) -> None:
        super().__init__(builder, [builder[name] for name in record.bottoms], record.options)
        self.record, self.weights = record, weights

    def integer(self, name: AttributeName, default: int = 0) -> int:
        return self.record.integer(int(name), default)

    def number(self, name: AttributeName, default: float = 0.0) -> float:
        return self.record.number(int(name), default)

    def integers(self, name: AttributeName, default: Sequence[int] = ()) -> list[int]:
        return self.record.integers(int(name)) or list(default)

    def numbers(self, name: AttributeName, default: Sequence[float] = ()) -> list[float]:
        return self.record.numbers(int(name)) or list(default)

    def inner(self, axis: int, rank: int) -> int:
        """An axis of a blob counted with the batch in front."""
        return axis + rank if axis < 0 else axis + 1

    def along(self, id: int, default: int = 0) -> int:
        """An axis counted with the batch in front."""
        rank = len(self.dims)
        axis = self.inner(self.integer(id, default), rank)
        if not 1 <= axis < rank:
            raise RefusedError(f"axis {self.integer(id, default)} of {rank - 1} is impossible")
        return axis

    def by_axis(self, w: int, h: int, d: int, c: int) -> list[int]:
        """Option ids for the axes that the first blob has, the outermost first, from the ids for w, h, d and c."""
        ids = {"w": w, "h": h, "d": d, "c": c}
        return [ids[name] for name in AXES.get(len(self.dims) - 1, "")]

    def without(self, x: Value, axes: Sequence[int]) -> Value:
        """Fewer axes of one element; a blob keeps at least one."""
        left = [d for i, d in enumerate(self.builder.dims(x)) if i not in axes]
        return self.reshape(x, *(left if len(left) > 1 else [1, 1]))

    def per_channel(self, values: Array, x: Value | None = None) -> Array:
        """One number per outermost element of a blob, shaped to broadcast against it."""
        return values.reshape(1, -1, *(1,) * (len(self.dims if x is None else self.builder.dims(x)) - 2))

    def inner_axes(self, size: int) -> tuple[range, tuple[int, ...]]:
        """The last axes that have ``size`` elements together, and their lengths."""
        dims = self.dims
        first, taken = len(dims), 1
        while first > 1 and taken < size:
            first -= 1
            taken *= dims[first]
        if taken != size:
            raise RefusedError(f"{size} does not fit the inner axes of {list(dims)}")
        return range(first, len(dims)), dims[first:]

    def scaled(self, stored: Array, scales: Array) -> Array:
        """Weights in int8 as real numbers, by one scale for every outermost element or one in all."""
        if stored.dtype != np.int8:
            return stored
        if stored.size % scales.size:
            raise RefusedError(f"{stored.size} weights cannot have {scales.size} scales")
        divided = stored.reshape(scales.size, -1) / np.where(scales == 0, 1, scales)[:, None]
        return np.asarray(divided, np.float32).reshape(stored.shape)
