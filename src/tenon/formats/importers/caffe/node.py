"""A layer of a Caffe net while it is imported: its bottoms, its parameters and its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Array, Value

Tops = Value | Sequence[Value]


class CaffeLayer(NodeContext):
    """A layer being imported.  ``blobs`` are the weights by layer, None when there is no weights file.

    ``p`` are its parameters, the message in the field that its row of the table names.
    """

    p: Message
    builder: GraphBuilder
    inputs: list[Value]

    def __init__(
        self, builder: GraphBuilder, message: Message, blobs: Mapping[str, list[Array]] | None, shared: dict[str, Array]
    ) -> None:
        super().__init__(builder)
        self.message = message
        self.blobs = blobs
        self.shared = shared
        self.type: str = message.type

    def along(self, axis: int) -> int:
        """An axis of the first bottom counted from the front."""
        return self.axis(axis, len(self.dims))

    # ---------------------------------------------------------------------------------------- weights
    @property
    def count(self) -> int | None:
        """How many blobs the weights file has for this layer; None when there is no weights file."""
        return None if self.blobs is None else len(self.blobs.get(self.message.name, ()))

    def array(self, i: int, shape: Sequence[int], filler: Message | None = None) -> Array | None:
        """Blob ``i`` in the shape that it must have; None without a weights file.  Raises RefusedError."""
        shape = tuple(shape)
        if math.prod(shape) >= 2**31:
            raise RefusedError(f"has impossible weights: {list(shape)}")
        if self.blobs is None:
            return None
        name = self.message.param[i].name if i < len(self.message.param) else ""
        blobs = self.blobs.get(self.message.name, [])
        if i < len(blobs):
            if blobs[i].size != math.prod(shape):
                raise RefusedError(
                    f"its weights {i} have the shape {list(blobs[i].shape)}, expected {list(shape)}",
                    "the weights belong to another version of the net",
                )
            return self.shared.setdefault(name, blobs[i].reshape(shape)) if name else blobs[i].reshape(shape)
        if name in self.shared and self.shared[name].size == math.prod(shape):
            return self.shared[name].reshape(shape)
        if filler is not None and filler.has("type") and filler.type == "constant":
            return np.full(shape, filler.value, np.float32)
        if filler is not None and filler.type == "bilinear" and len(shape) == 4:
            return bilinear(shape)
        raise RefusedError("has no weights in the file", "give the weights of this net with --weights")

    def weights(self, i: int, shape: Sequence[int], filler: Message | None = None) -> Value:
        """Blob ``i`` as a constant; a placeholder when there is no weights file."""
        array = self.array(i, shape, filler)
        return self.builder.placeholder(shape) if array is None else self.builder.constant(array, f"blob{i}")

    def bias(self, size: int) -> Value | None:
        """The second blob, unless the parameters do without."""
        return self.weights(1, (size,), self.p.bias_filler) if self.p.bias_term else None


Table = dict[str, tuple[str, Callable[[CaffeLayer], Tops]]]
"""Layer types: the field of their parameters (empty where there are none), and what they mean."""


def simple(type: str) -> tuple[str, Callable[[CaffeLayer], Tops]]:
    """The row of a layer that is one operator without attributes."""
    return "", lambda layer: layer.add(type, layer.x)


def bilinear(shape: Sequence[int]) -> Array:
    """Caffe's filler for interpolating deconvolutions."""
    kernel = shape[3]
    factor = (kernel + 1) // 2
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    ramp = 1 - np.abs(np.arange(kernel) / factor - centre)
    return np.broadcast_to(np.outer(ramp, ramp)[: shape[2]], tuple(shape)).astype(np.float32)


def filler(p: Message, value: float) -> Message:
    """The filler that parameters name, else one of a constant."""
    return p.filler if p.has("filler") else p.schema.new("FillerParameter", type="constant", value=value)
