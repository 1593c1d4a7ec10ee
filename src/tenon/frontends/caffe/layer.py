"""A layer of a Caffe net on its way to operators: its bottoms, its parameters and its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.frontends.net import Net
from tenon.frontends.refused import RefusedError
from tenon.frontends.wire.protobuf import Message
from tenon.ir.graph import Array, Value

Tops = Value | Sequence[Value]


@dataclass
class Layer:
    """A layer about to be imported.  ``blobs`` are the weights by layer, None when there is no weights file."""

    net: Net
    message: Message
    blobs: Mapping[str, list[Array]] | None
    shared: dict[str, Array]
    bottoms: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.type: str = self.message.type

    @property
    def x(self) -> Value:
        """The first bottom."""
        return self.bottom(0)

    def bottom(self, i: int) -> Value:
        if i >= len(self.bottoms):
            raise RefusedError(f"needs {i + 1} bottoms, but has {len(self.bottoms)}")
        return self.bottoms[i]

    def dims(self, i: int = 0) -> tuple[int, ...]:
        return self.net.dims(self.bottom(i))

    def axis(self, axis: int, i: int = 0, *, end: int = 0) -> int:
        """A possibly negative axis of bottom ``i`` as a positive one; ``end`` allows one past the last."""
        rank = len(self.dims(i))
        if not -rank <= axis < rank + end:
            raise RefusedError(f"has the axis {axis}, but its bottom has {rank} axes")
        return axis + rank if axis < 0 else axis

    def add(self, type: str, *inputs: Value | None, **attributes: object) -> Value:
        return self.net.add(type, *inputs, **attributes)

    def reshape(self, x: Value, dims: Sequence[int]) -> Value:
        return self.net.add("Reshape", x, self.net.ints(*dims))

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
        name = self.message.param[i].name if i < len(self.message.param) else ""
        if self.blobs is None:
            return None
        found = self.blobs.get(self.message.name, [])
        if i < len(found):
            if found[i].size != math.prod(shape):
                raise RefusedError(
                    f"its weights {i} have the shape {list(found[i].shape)}, expected {list(shape)}",
                    "the weights belong to another version of the net",
                )
            return self.shared.setdefault(name, found[i].reshape(shape)) if name else found[i].reshape(shape)
        if name in self.shared and name and self.shared[name].size == math.prod(shape):
            return self.shared[name].reshape(shape)
        if filler is not None and filler.has("type") and filler.type == "constant":
            return np.full(shape, filler.value, np.float32)
        if filler is not None and filler.type == "bilinear" and len(shape) == 4:
            return bilinear(shape)
        raise RefusedError("has no weights in the file", "give the weights of this net with --weights")

    def weights(self, i: int, shape: Sequence[int], filler: Message | None = None) -> Value:
        """Blob ``i`` as a constant; a placeholder when there is no weights file."""
        found = self.array(i, shape, filler)
        return self.net.placeholder(shape) if found is None else self.net.constant(found, f"blob{i}")


def bilinear(shape: Sequence[int]) -> Array:
    """Caffe's filler for interpolating deconvolutions."""
    kernel = shape[3]
    factor = (kernel + 1) // 2
    centre = (2 * factor - 1 - factor % 2) / (2.0 * factor)
    ramp = 1 - np.abs(np.arange(kernel) / factor - centre)
    return np.broadcast_to(np.outer(ramp, ramp)[: shape[2]], tuple(shape)).astype(np.float32)


def constant_filler(filler: Message, value: float) -> Message:
    return filler.schema.new("FillerParameter", type="constant", value=value)
